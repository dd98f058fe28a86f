"""Files of a run that someone changed or cut: the report and a resume name the file and the line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpokit import UsageError
from grpokit.report.pictures import Inlined
from grpokit.report.view import view
from grpokit.run_folder import reader
from grpokit.run_folder.journal import Journal
from grpokit.run_folder.reader import read_object
from small_runs import train, write_prompts
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


def look(folder: Path, name: str) -> None:
    """Everything that a page takes from a run."""
    json.dumps(view([reader.read_run(folder)], [Inlined()]), allow_nan=False)


def resume(folder: Path, name: str) -> None:
    if name.endswith(".json"):
        read_object(folder / name)
        return
    journal = Journal(folder, 2)
    if journal.last_evaluation >= 0:
        journal.is_best("digits")


GROWING = ("eval.jsonl", "metrics.jsonl", "warnings.jsonl")
SHOWN = ("samples/step_000000/scores.json", "samples/step_000002/samples.jsonl", "groups/step_000001/samples.jsonl")


@pytest.mark.parametrize(
    ("use", "name"),
    [
        *((resume, name) for name in (*GROWING, "versions.json", "data.json")),
        *((look, name) for name in (*GROWING, *SHOWN, "versions.json", "machine.json", "end.json", "config.yaml")),
    ],
)
def test_no_change_of_a_file_is_a_traceback(
    whole: Path, tmp_path: Path, name: str, use: Callable[[Path, str], None]
) -> None:
    texts = list(changed(whole / name)) if name != "config.yaml" else ["", "a: [", "rewards: [{weight: x}]", "- 1"]
    shutil.copytree(whole, tmp_path / "out")
    messages = []
    for text in texts:
        (tmp_path / "out" / name).write_text(text, errors="surrogateescape")
        try:
            use(tmp_path / "out", name)
        except UsageError as error:
            messages.append(str(error))
    assert all(name in message for message in messages)
    assert messages or (use is look and name in ("versions.json", "machine.json"))  # which are only shown
