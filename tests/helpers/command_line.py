"""Calls the command line in this process, and writes the small config that its tests run."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from grpokit import cli

VARYING = re.compile("time|seconds|memory")


@dataclass
class Done:
    code: int
    out: str
    err: str


Call = Callable[..., Done]


@pytest.fixture
def drawn() -> None:
    """Asks for real reports, which take a second each."""


@pytest.fixture
def default_signals() -> Iterator[None]:
    """Ctrl-C and a closed terminal act as usual, here and in what is started from here.

    `nohup` and a shell's background have the tests ignore them, which children would inherit.
    """
    usual = {signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def complete(part: str) -> str:
    """A config around a part of one: with a policy, prompts, and a reward that is trained on."""
    config = {"policy": {"use": "toy-lm"}, "data": {"prompts": "p.txt"}, "rewards": []} | yaml.safe_load(part)
    return yaml.safe_dump(config | {"rewards": [{"use": "exact-match", "name": "first"}, *config["rewards"]]})


def write_no_report(patch: pytest.MonkeyPatch) -> None:
    """Leave an empty page in place of each report."""

    def write(folder: Path) -> Path:
        page = folder / "report.html"
        page.touch()
        return page

    for writer in ("run", "saved_on_error"):
        patch.setattr(f"grpokit.runs.{writer}.report", SimpleNamespace(write=write))


@pytest.fixture(scope="module")
def without_report() -> Iterator[None]:
    """Runs of the module write no report."""
    with pytest.MonkeyPatch.context() as patch:
        write_no_report(patch)
        yield


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Call:
    """`call("train", "c.yaml")` is what the command does, in an empty folder; a traceback fails the test by itself.

    Where no path in `words` is absolute, what it prints has paths as if they were relative to that folder.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    if "drawn" not in request.fixturenames:
        write_no_report(monkeypatch)

    def run(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["grpokit", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        if not any(str(tmp_path) in str(word) for word in words):
            out, err = (text.replace(f"{tmp_path}/", "") for text in (out, err))
        return Done(int(ended.value.code or 0), out, err)

    return run


def config(folder: Path, **changes: Any) -> Path:
    """Write a config of five short steps and its prompts; `trainer__steps=3` changes one key."""
    for name, numbers in (("prompts", range(1, 5)), ("held", range(5, 9))):
        (folder / f"{name}.jsonl").write_text("".join(f'{{"prompt": "{i}"}}\n' for i in numbers))
    settings: dict[str, Any] = {
        "seed": 7,
        "policy": {"use": "tiny_policies:TinyTokens"},
        "data": {"prompts": "prompts.jsonl"},
        "eval": {"prompts": "held.jsonl", "every": 2, "samples": 3},
        "rewards": [{"use": "tiny_policies:digit_sum", "weight": 0.5}, {"use": "length", "maximum": 3, "scale": 0.1}],
        "trainer": {
            "steps": 5,
            "prompts_per_step": 2,
            "group_size": 4,
            "learning_rate": 0.05,
            "device": "cpu",
            "kl": "k3",
            "kl_coef": 0.01,
        },
        "run": {"dir": "out", "threads": 1},
        "trackers": {},
    }
    for key, value in changes.items():
        *groups, last = key.split("__")
        here = settings
        for part in groups:
            here = here[part]
        here[last] = value
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def steady(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what a clock says."""
    return [{k: v for k, v in row.items() if not VARYING.search(k)} for row in found]


def embedded(page: Path, name: str = "view") -> Any:
    """What a report's page carries as JSON: its "view", or its "pictures"."""
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])
