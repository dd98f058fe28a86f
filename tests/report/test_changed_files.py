"""Files of a run that somebody changed or cut: the report and a resume name the file and the line, and go on."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpokit import report
from grpokit.report.pictures import Inlined
from grpokit.report.view import view
from grpokit.run_folder import reader
from grpokit.run_folder.journal import Journal
from grpokit.runs import train as run
from small_runs import rows, train, write_prompts
from switched import Switch

OTHERS: tuple[Any, ...] = ("x", True, [1], {"a": 1}, -1, 10**400, 1e999, "step_1", None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of two steps with three evaluations and a warning."""
    folder = tmp_path_factory.mktemp("whole")
    Switch.off()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_prompts(["1", "2"])
        changes = {"trainer__steps": 2, "trainer__prompts_per_step": 3, "eval__every": 1, "run__save_every": 1}
        train("out", **changes)
        yield folder / "out"


def changed(path: Path) -> Iterator[str]:
    """A file's text, cut or with a value of another type."""
    text = path.read_text()
    for at in range(0, len(text), max(1, len(text) // 8)):
        yield text[:at]
        yield text[at:]
        yield f"{text[:at]}\0{text[at + 1 :]}"
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    for number, line in enumerate(lines):
        row = json.loads(line)
        for at, (key, value) in enumerate(row.items()):
            for other in OTHERS if key == "step" else OTHERS[(at + number) % 5 :: 5]:
                nested = {**value, next(iter(value), "k"): other} if isinstance(value, dict) and at % 2 else other
                lines[number] = json.dumps({**row, key: nested})
                yield "\n".join(lines)
        lines[number] = line
    for other in OTHERS:
        yield json.dumps(other)


def look(folder: Path) -> None:
    """Everything that a page takes from a run."""
    json.dumps(view([reader.read(folder)], [Inlined()]), allow_nan=False)


def resume(folder: Path) -> None:
    journal = Journal(folder, 2)
    if journal.last_evaluation >= 0:
        journal.is_best("digits")


GROWING = ("eval.jsonl", "metrics.jsonl", "warnings.jsonl")
WHOLE = ("versions.json", "samples/step_000000/scores.json", "samples/step_000002/samples.jsonl")


@pytest.mark.parametrize(
    ("use", "name"),
    [
        *((resume, name) for name in GROWING),
        *((look, name) for name in (*GROWING, *WHOLE, "config.yaml", "groups/step_000001/samples.jsonl")),
    ],
)
def test_no_change_of_a_file_is_a_traceback(
    whole: Path, tmp_path: Path, name: str, use: Callable[[Path], None]
) -> None:
    texts = list(changed(whole / name)) if name != "config.yaml" else ["", "a: [", "rewards: [{weight: x}]", "- 1"]
    shutil.copytree(whole, tmp_path / "out")
    for text in texts:
        (tmp_path / "out" / name).write_text(text, errors="surrogateescape")
        use(tmp_path / "out")


def put_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def put_link(path: Path) -> None:
    """To the same content elsewhere."""
    elsewhere = path.with_name(f"{path.name}.elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


@pytest.mark.parametrize("put", [put_pipe, put_link])
def test_the_page_reads_what_a_run_wrote_there_only(whole: Path, tmp_path: Path, put: Callable[[Path], None]) -> None:
    shutil.copytree(whole, tmp_path / "out")
    names = (*GROWING, *WHOLE, "machine.json", "groups/step_000001/samples.jsonl")
    for name in names if put is put_pipe else (*names, "config.yaml"):
        put(tmp_path / "out" / name)
    found = reader.read(tmp_path / "out")
    look(tmp_path / "out")
    assert bool(found.config) == (put is put_pipe)  # without one it is no run
    assert (found.versions, list(found.metrics), list(found.evaluations)) == ("", [], [])
    assert [step for step, _ in found.sample_folders("samples")] == [0, 1]
    assert found.scored(0) is None


def test_a_config_that_stands_for_a_billion_values(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "out")
    bomb = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in itertools.pairwise("abcdefghij"))
    for text in (f"a: &a [x]\n{bomb}rewards: *j\n", f"seed: 0x{'f' * 10_000}\n", f"seed: {'9' * 10_000}\n"):
        (tmp_path / "out/config.yaml").write_text(text)
        assert reader.read(tmp_path / "out").settings == {}
        look(tmp_path / "out")


def test_the_page_and_a_resume_name_the_file_and_the_line(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole, tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    write_prompts(["1", "2"])
    evaluations = rows("out/eval.jsonl")
    evaluations[1]["digits"] = "high"
    Path("out/eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evaluations))
    content = Path("out/samples/step_000000/scores.json").read_text()
    Path("out/samples/step_000000/scores.json").write_text(content[:-10])
    Path("out/samples/step_000002/scores.json").write_text(content.replace("[0, 1]", '[0, "1"]'))
    damage = report.write(Path("out")).read_text()
    assert "eval.jsonl has damaged lines: 2. The rest is shown." in damage
    assert "samples/step_000000/scores.json is not what the run wrote (Invalid JSON: " in damage
    assert "samples/step_000002/scores.json is not what the run wrote (prompt.1: Input should be a valid int" in damage
    changes = {"trainer__steps": 2, "trainer__prompts_per_step": 3, "eval__every": 1, "run__save_every": 1}
    metrics = Path("out/metrics.jsonl").read_text().splitlines()
    Path("out/metrics.jsonl").write_text(f"{metrics[1]}\n{metrics[1]}\n")
    Path("out/versions.json").write_text("[" * 100_000)
    lines: list[str] = []
    assert train("out", resume=True, watcher=run.Watcher(say=lines.append), **changes).steps == 2
    damage = "eval.jsonl has damaged lines: 2. The rest is kept"
    assert damage in [row["message"] for row in rows("out/warnings.jsonl")]
    assert f"warning: {damage}" in lines
    assert any(line.startswith("warning: out/versions.json cannot be read") for line in lines)
