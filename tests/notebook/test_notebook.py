"""What `watch` shows: one block in a saved notebook, plain lines elsewhere, and no markup from data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from grpokit import Trainer, notebook
from grpokit.notebook import watch
from grpokit.types import Prompt, Sample
from small_runs import train, write_prompts
from tiny_policies import TinyTokens

IMPORTS = """
import sys
sys.path[:0] = {path!r}
from tiny_policies import TinyTokens
from grpokit import Prompt, Trainer
from grpokit.notebook import watch
"""
RUN = """
prompts = [Prompt(text="1", target="x"), "2"]
trainer = Trainer(TinyTokens(), {"<b>": lambda s: [float(x.group) for x in s]}, prompts, steps=3, prompts_per_step=2,
                  group_size=4, device="cpu")
for report in watch(trainer):
    pass
"""


class Display:
    """What a notebook would show."""

    def __init__(self) -> None:
        self.states: list[dict[str, str]] = []

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.states.append(data)


def small(**changes: Any) -> Trainer:
    settings = {"steps": 3, "prompts_per_step": 2, "group_size": 4, "device": "cpu"}
    return Trainer(
        TinyTokens(), {"<b>half": lambda s: [i / 8 for i in range(len(s))]}, ["1", "2"], **settings | changes
    )


@pytest.mark.slow
def test_a_saved_notebook_keeps_one_block_and_no_stderr() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    helpers = str(Path(__file__).parents[1] / "helpers")
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(IMPORTS.format(path=[helpers])), nbformat.v4.new_code_cell(RUN)]
    )
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()
    assert [output.output_type for output in book.cells[1].outputs] == ["display_data"], book.cells[1].outputs
    (output,) = book.cells[1].outputs
    assert output.data["text/plain"].startswith("step 3 of 3  done")
    assert 'value="3" max="3"' in output.data["text/html"]


def test_without_a_notebook_it_prints_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert [report.step for report in watch(small())] == [1, 2, 3]
    out, err = capsys.readouterr()
    assert re.search(r"^step 3/3  reward 0\.438 ", out, re.MULTILINE)
    assert err == ""


def test_the_block_escapes_all_data(monkeypatch: pytest.MonkeyPatch) -> None:
    display = Display()
    monkeypatch.setattr(notebook, "_display", lambda: display)

    class Hostile(TinyTokens):
        def rollout(self, *arguments: Any, **keywords: Any) -> Any:
            rollout = super().rollout(*arguments, **keywords)
            for sample in rollout.samples:
                object.__setattr__(sample, "output", "<script>alert(2)</script>")
            return rollout

    trainer = Trainer(
        Hostile(),
        {"<b>half": lambda s: [i / 8 for i in range(len(s))]},
        ["1", "2"],
        steps=2,
        prompts_per_step=2,
        group_size=4,
        device="cpu",
    )
    list(watch(trainer, samples=1))
    page = display.states[-1]["text/html"]
    assert "<script" not in page
    assert "<b>" not in page
    assert "&lt;b&gt;half" in page
    assert page.count("<figure") == 1
    assert "training samples of step 2" in page
    assert display.states[-1]["text/plain"].startswith("step 2 of 2  done")
    block = notebook._Block(1)
    picture = Image.new("RGB", (4, 4))
    block.display = display
    block.draw("<i>", [Sample(prompt=Prompt(text='"><script>'), output=picture, group=0)], [0.5])
    assert 'alt="&quot;&gt;&lt;script&gt;" src="data:image/png;base64,' in block.pictures
    assert "<script" not in block.pictures


def test_as_a_watcher_it_shows_the_newest_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_prompts(["1", "2"])
    display = Display()
    monkeypatch.setattr(notebook, "_display", lambda: display)
    train("out", watcher=watch())
    page = display.states[-1]["text/html"]
    last = json.loads(Path("out/eval.jsonl").read_text().splitlines()[-1])
    assert f"held-out prompts after step 6: digits {last['means']['digits']:.3f}  reward" in page
    assert page.count("<figure") == 2
