"""`grpokit export`: a folder that is whole or not there, with a card that says what the run's files say."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from command_line import Call
from small_runs import rows, train, write_prompts


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_prompts([str(n) for n in range(20, 26)])
    modifiers = [{"use": "entropy-target", "target": 0.5}]
    train("run", policy__use="switched:Exported", run__save_every=3, trainer__steps=6, trainer__modifiers=modifiers)
    return tmp_path / "run"


def test_an_export_and_its_card(run: Path, call: Call) -> None:
    done = call("export", "run", "--to", "out/mine")
    assert (done.code, done.out) == (0, "exported: out/mine\n")
    folder = run.parent / "out" / "mine"
    weights, own = map(load_file, (folder / "net.safetensors", run / "checkpoints/step_000006/policy.safetensors"))
    assert {name: x.tolist() for name, x in weights.items()} == {name: x.tolist() for name, x in own.items()}
    assert sorted(file.name for file in (run.parent / "out").iterdir()) == ["mine"]
    _, header, text = (folder / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(header) == {
        "base_model": "org/base",
        "library_name": "peft",
        "tags": ["grpo", "grpokit", "reinforcement-learning"],
    }
    assert "# mine\n\n`org/base`, post-trained for 6 steps with GRPO" in text
    assert '```python\nload("org/base", "mine")\n```' in text
    before, after = rows(run / "eval.jsonl")[0], rows(run / "eval.jsonl")[-1]
    assert "| | before (step 0) | after (step 6) | change |" in text
    cells = [f"{row['means']['digits']:.3f} ± {row['ci95']['digits']:.3f}" for row in (before, after)]
    change = f"{after['means']['digits'] - before['means']['digits']:+.3f}"
    assert f"| digits | {cells[0]} | {cells[1]} | {change} ± " in text
    assert "| digits | 1 |" in text
    assert "| data | prompts.jsonl |" in text
    assert "| seed | 42 |" in text
    assert "| modifiers | [{target: 0.5, use: entropy-target}] |" in text
    assert f"grpokit {json.loads((run / 'versions.json').read_text())['grpokit']}" in text
    assert ", peft 9.9." in text
    assert (run / "config.yaml").read_text().rstrip() in text


def test_others_can_read_what_is_written(run: Path, call: Call) -> None:
    assert call("export", "run", "--to", "mine").code == 0
    (run.parent / "plain").touch()
    usual = (run.parent / "plain").stat().st_mode
    written = [file for file in (*run.rglob("*"), *(run.parent / "mine").rglob("*")) if file.is_file()]
    assert sum(file.suffix == ".safetensors" for file in written) > 3
    assert [file for file in written if file.stat().st_mode != usual] == []


def test_an_earlier_checkpoint_says_what_it_does_not_know(run: Path, call: Call) -> None:
    assert call("export", "run/checkpoints/step_000003", "--to", "out").code == 0
    text = Path("out/README.md").read_text()
    assert "post-trained for 3 steps" in text
    assert "The run has no evaluation before and after training." in text
    shutil.copytree("run/checkpoints/step_000003", "copy")
    assert call("export", "copy", "--to", "again").code == 0
    text = Path("again/README.md").read_text()
    assert "| seed | 42 |" in text
    assert "Versions: " in text


def test_an_export_into_the_empty_folder_where_one_stands(
    run: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder itself stays, as a shell in it expects, and a disk that is mounted there."""
    (run.parent / "mine").mkdir()
    inode = (run.parent / "mine").stat().st_ino
    monkeypatch.chdir("mine")
    done = call("export", "../run", "--to", ".")
    assert (done.code, done.out) == (0, "exported: .\n")
    assert sorted(file.name for file in Path().iterdir()) == ["README.md", "net.safetensors"]
    assert Path("net.safetensors").stat().st_size > 0
    assert (run.parent / "mine").stat().st_ino == inode
    assert "# mine\n" in Path("README.md").read_text()


@pytest.mark.parametrize("into", ["new", "empty"])
def test_a_full_disk_leaves_no_export(into: str, run: Path, call: Call) -> None:
    Path("empty").mkdir()
    before = set(run.parent.rglob("*"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
    try:
        done = call("export", "run", "--to", into)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.code == 1
    assert f"{into} cannot be written: the policy's export raised SafetensorError: " in done.err
    assert set(run.parent.rglob("*")) == before


def test_what_an_export_raises_is_one_message(run: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("NaNs detected in the merged weights")

    monkeypatch.setattr("switched.Exported.export", broken)
    done = call("export", "run", "--to", "out", "--merge")
    assert done.code == 1
    assert "out cannot be written: the policy's export raised ValueError: NaNs detected in the merged" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "--to", "out"], "nowhere"),
        (["toy-lm", "--to", "out"], "toy-lm is not a run folder"),
        (["run", "--to", "full"], "full already holds files. Choose another folder with --to."),
        (["run", "--to", "full/file"], "full/file is a file. Choose another folder with --to."),
        (["run", "--to", "out", "--merge"], "There is no adapter to merge."),
        (["run", "--to", "out", "policy.use=switched:Switched"], "'switched:Switched' cannot be exported: it has no"),
    ],
)
def test_what_cannot_be_exported(run: Path, call: Call, words: list[str], message: str) -> None:
    Path("full").mkdir()
    Path("full/file").touch()
    done = call("export", *words)
    assert done.code == 2
    assert message in done.err
    assert not Path("out").exists()
    assert [file.name for file in Path("full").iterdir()] == ["file"]
