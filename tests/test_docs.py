"""README and documentation: every Python snippet runs, every command that they name exists."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from grpokit import build, config

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (f"{page.name}-{i}", body)
        for page in PAGES
        for i, body in enumerate(re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))
    ]


@pytest.mark.parametrize(("name", "body"), blocks("python"), ids=[name for name, _ in blocks("python")])
def test_python_snippets_run(name: str, body: str, tmp_path: Path) -> None:
    body = re.sub(r"steps=\d+", "steps=2", body)  # the same code, a shorter wait
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # tiny nets are fastest so
    done = subprocess.run(
        [sys.executable, "-c", body], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


SHOWN = sorted(f for f in (ROOT / "grpokit").rglob("*.py") if "    >>> " in f.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", SHOWN, ids=lambda f: f.stem)
def test_examples_in_docstrings(file: Path) -> None:
    module = importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
    found = doctest.testmod(module, extraglobs={"torch": torch})
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize(("name", "body"), blocks("yaml"), ids=[name for name, _ in blocks("yaml")])
def test_config_snippets_are_valid(name: str, body: str) -> None:
    checked = config.parse(body, name)
    assert checked.rewards


@pytest.mark.parametrize(
    "command", sorted({c for _, body in blocks("bash") for c in re.findall(r"^grpokit (\S+)", body, re.MULTILINE)})
)
def test_commands_exist(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "grpokit", command, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("preset", ["toy-lm", "toy-glyph", "toy-flow"])
def test_presets_are_valid_and_have_held_out_prompts(preset: str) -> None:
    checked, name = build.read_config(preset)
    train, held_out = build.prompts(checked)
    assert name == preset
    assert not {p.text for p in train} & {p.text for p in held_out}
    assert len(held_out) >= (16 if preset == "toy-flow" else 100)
