"""Errors name pages of the documentation, each of which exists, and the line that they come from."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify
from torch import nn, zeros

from command_line import Call
from grpokit.errors import ConfigError, address, raised_at, reword

ROOT = Path(__file__).parent.parent


def anchors(page: Path) -> set[str]:
    """What mkdocs makes of a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {slugify(heading, "-") for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def pages_in(file: Path) -> Iterator[str]:
    """Every `page="..."` of a source file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "page" and isinstance(node.value, ast.Constant):
            yield node.value.value


@pytest.mark.parametrize("source", ["grpokit", "plugins"])
def test_the_pages_exist(source: str) -> None:
    files = [file for file in (ROOT / source).rglob("*.py") if "tests" not in file.parts]
    pages = {page for file in files for page in pages_in(file) if page}
    assert pages
    for page in pages:
        name, _, anchor = page.partition("#")
        file = ROOT / "docs" / f"{name}.md"
        assert file.is_file(), page
        assert not anchor or anchor in anchors(file), page


def test_the_command_line_shows_the_address(call: Call, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("[1, 2]\n")
    done = call("train", "wrong.yaml")
    assert done.code == 2
    assert done.err.splitlines()[-1] == f"see {address('configs')}"
    assert "see " not in call("train", "no-such-file.yaml").err.splitlines()[-1]


def test_in_a_clone_the_address_is_the_file() -> None:
    assert address("guards#checkpoints") == f"{ROOT / 'docs/guards.md'} (#checkpoints)"


def test_elsewhere_the_address_comes_from_the_metadata(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("grpokit.errors.__file__", str(tmp_path / "grpokit/errors.py"))
    links = {"Project-URL": ["Source, https://code", "Documentation, https://docs.example/en/"]}
    metadata = type("Metadata", (), {"get_all": staticmethod(links.get)})
    monkeypatch.setattr("importlib.metadata.metadata", lambda name: metadata)
    assert address("guards#checkpoints") == "https://docs.example/en/guards/#checkpoints"


def test_another_wording_keeps_the_page() -> None:
    assert reword(ConfigError("a", page="configs#run"), "b").page == "configs#run"


def test_an_error_inside_of_torch_is_told_at_the_line_that_called_it() -> None:
    with pytest.raises(RuntimeError) as caught:
        nn.Linear(4, 3)(zeros(2))
    assert raised_at(caught.value).startswith("(test_errors.py, line ")


def test_a_folder_called_torch_is_no_library(tmp_path: Path) -> None:
    file = tmp_path / "torch" / "my_reward.py"
    file.parent.mkdir()
    file.write_text("def score():\n    raise ValueError('no')\n")
    spec = importlib.util.spec_from_file_location("my_reward", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(ValueError, match="no") as caught:
        module.score()
    assert raised_at(caught.value) == "(my_reward.py, line 2, in score)"
