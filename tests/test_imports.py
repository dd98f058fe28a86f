"""Imports point one way, nothing outgrows its limit, and what others import is public.

`tools/architecture.py` holds the table and the limits, `tools/public_names.py` reads what is public.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import architecture
import public_names
import pytest
from architecture import MAY_IMPORT, PACKAGE, PLUGIN_MAY_IMPORT, PLUGINS, imports, row_of

from grpokit import registry

# What may be imported at once, and only imports torch inside functions.
LIGHT = {"errors", "files", "settings", "types", "registry", "config"}
LIGHT_FILES = {"grpokit.processes.forks"}
NO_TORCH = [*sorted(LIGHT), "cli", "__init__", "__main__"]
TORCH = {"torch", "accelerate", "safetensors"}
FILES = architecture.files()
MODELS = frozenset({"transformers", "peft", "huggingface-hub", "diffusers"})  # which plugins know: no extra allows them


def files_of(row: str) -> list[Path]:
    return [file for file in FILES if row_of(file) == row]


@pytest.mark.parametrize("table", [MAY_IMPORT, PLUGIN_MAY_IMPORT])
def test_a_table_itself_points_one_way(table: dict[str, str]) -> None:
    above: set[str] = set()
    for row, allowed in table.items():
        assert set(allowed.split()) <= above, f"{row} names rows below it: {set(allowed.split()) - above}"
        above.add(row)


def test_each_part_has_a_row() -> None:
    assert {row_of(file) for file in FILES} == set(MAY_IMPORT)


def test_nothing_is_wrong_with_the_architecture() -> None:
    """No import upwards, no circle of files, no function of more than 60 lines, in plugins neither."""
    assert architecture.faults() == []


def test_a_circle_of_files_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an import is for type checkers, stands in a function, or leads there through another folder."""
    package = tmp_path / "grpokit"
    for folder in (package, package / "runs"):
        folder.mkdir()
        (folder / "__init__.py").touch()
    (package / "a.py").write_text("def f():\n    from grpokit.runs import b\n")
    (package / "runs/b.py").write_text("if TYPE_CHECKING:\n    from grpokit.runs.c import C\n")
    (package / "runs/c.py").write_text("from grpokit import a\n")
    (package / "d.py").write_text("import grpokit.a\n")  # leads to the circle, and is not in it
    monkeypatch.setattr(architecture, "PACKAGE", package)
    assert architecture.circles(package) == [("grpokit.a", "grpokit.runs.b", "grpokit.runs.c")]


def test_faults_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that imports a plugin, a plugin that imports another, and a function of 61 lines in a plugin's class."""
    sources = {
        "grpokit/data/x.py": "def f():\n    import grpokit_ocr",
        "grpokit_ocr/x.py": "from grpokit import data\nfrom grpokit_clip import tower",
        "grpokit_lm/x.py": "import grpokit_hf.models\nclass A:\n    def f(self):\n" + 60 * "        pass\n",
    }
    for name, source in sources.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text(source)
        for folder in file.relative_to(tmp_path).parents[:-1]:
            (tmp_path / folder / "__init__.py").touch()
    for name in architecture.STORY:
        (tmp_path / f"grpokit/{name}.py").touch()
    monkeypatch.setattr(architecture, "PACKAGE", tmp_path / "grpokit")
    monkeypatch.setattr(architecture, "PLUGINS", [tmp_path / "grpokit_lm", tmp_path / "grpokit_ocr"])
    assert architecture.faults() == [
        "not allowed: grpokit/data/x.py:2 imports grpokit_ocr",
        "not allowed: grpokit_ocr/x.py:2 imports grpokit_clip",
        "too long: grpokit_lm/x.py A.f",
    ]


@pytest.mark.slow
def test_what_the_tool_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert architecture.main() == 0
    printed = capsys.readouterr().out
    assert f"learning path: {architecture.learning_path()} lines of code, of 1000" in printed
    assert "0 faults" in printed


def test_the_walk_sees_what_it_should(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        "from grpokit import Prompt, data\nimport grpokit.cli\nif TYPE_CHECKING:\n    import torch\n"
        "class C:\n    import b\n    def f(self):\n        if 1:\n            from c.d import e\n"
        "try:\n    import g\nexcept ImportError:\n    import h\n"
    )
    assert [(i.row or i.module, i.inside) for i in imports(file)] == [
        ("types", False),
        ("data", False),
        ("cli", False),
        ("torch", True),
        ("b", False),
        ("c.d", True),
        ("g", False),
        ("h", False),
    ]


@pytest.mark.parametrize("package", [PACKAGE, *PLUGINS], ids=lambda package: package.name)
def test_a_distribution_declares_what_it_imports(package: Path) -> None:
    if package.name == "grpokit_reasoning_gym":
        pytest.importorskip("reasoning_gym")
    project = next(folder for folder in package.parents if (folder / "pyproject.toml").is_file())
    never = MODELS if package == PACKAGE else frozenset()
    elsewhere = capsuled_modules()
    for file in architecture.files(package):
        if "inside" in file.parts or f"{package.name}.{file.stem}" in elsewhere:
            continue
        undeclared = architecture.undeclared(file, project, never=never)
        # vLLM brings its own torch, so that no extra can name it.
        assert [line for line in undeclared if not line.endswith(" vllm")] == [], f"{file}: declare it, or do without"


def capsuled_modules() -> set[str]:
    """The modules of rewards that an environment of their own has the requirements of."""
    specs = [spec for _, spec in registry.installed("reward") if getattr(spec, "placement", {})]
    return {spec.factory.partition(":")[0] for spec in specs}


def test_an_import_that_is_not_declared_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        "import os, torch, yaml\nfrom PIL import Image\nimport peft.tuners\n"
        "if TYPE_CHECKING:\n    from transformers import PreTrainedModel\n"
        "def f():\n    from huggingface_hub import constants\n    import diffusers, none_of_that_name\n"
    )
    assert sorted(architecture.undeclared(file, PACKAGE.parent, never=MODELS)) == [
        "line 3 imports peft",
        "line 5 imports transformers",
        "line 7 imports huggingface_hub",
        "line 8 imports diffusers",
        "line 8 imports none_of_that_name",
    ]
    assert architecture.undeclared(file, PACKAGE.parent, never=MODELS | {"pyyaml"})[0] == "line 1 imports yaml"


def test_no_heavy_module_before_it_is_needed() -> None:
    """Torch is imported inside the function that needs it, or under TYPE_CHECKING."""
    for module in NO_TORCH:
        early = [i for file in files_of(module) for i in imports(file) if not i.inside and i.module not in LIGHT_FILES]
        assert not [str(i) for i in early if i.module.partition(".")[0] in TORCH]
        if module != "__main__":
            assert {i.row for i in early} <= LIGHT | {"", module}


def test_what_others_use_is_public() -> None:
    """So a third party's plugin, tutorial or script may do all that ours do."""
    assert [str(use) for use in public_names.private_uses()] == [], "give it a page in docs/api, or do without"


def test_names_on_pages_have_docstrings() -> None:
    """A page leaves out a name without one."""
    assert [name for name in sorted(public_names.public()) if not public_names.is_documented(name)] == []


def test_the_names_of_a_stub_are_on_pages() -> None:
    core = architecture.public_names(PACKAGE / "__init__.py")
    assert {f"grpokit.{home}.{name}" for name, home in core.items()} <= public_names.public()
    check = next(package for package in PLUGINS if package.name == "grpokit_check")
    own = {f"grpokit_check.{name}" for name in architecture.public_names(check / "__init__.py")}
    assert own <= public_names.public()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from grpokit import Prompt\nfrom grpokit.types import Seeds", ["grpokit.Prompt", "grpokit.types.Seeds"]),
        ("def f():\n    from grpokit.config import presets as p\n    p.load()", ["grpokit.config.presets.load"]),
        ("import grpokit\ngrpokit.create('reward', 'x').close()", ["grpokit.create"]),
        ("import grpokit.flow\ngrpokit.flow.cps(1, 0)", ["grpokit.flow.cps"]),
        ("spec(unscorable='grpokit.rewards.missing_inputs:source')", ["grpokit.rewards.missing_inputs.source"]),
        ("from grpokit_toy.lm import ToyLM\nfrom grpokit_hf.models import dtypes\nfrom torch import nn", []),
        ("from grpokit_hf.tokens import packing\npacking._hidden", ["grpokit_hf.tokens.packing._hidden"]),
    ],
)
def test_uses_that_are_seen(source: str, names: list[str]) -> None:
    text = public_names.Source(file=public_names.ROOT / "x.py", own=frozenset({"grpokit_toy"}), text=source)
    assert sorted({use.name for use in public_names.uses(text)}) == names


def test_no_folder_is_called_plugins() -> None:
    assert not [p for p in PACKAGE.rglob("plugins") if p.is_dir()]


@pytest.mark.parametrize("command", [["train", "toy-lm"], ["sample", "toy-lm"], ["evaluate", "toy-lm"]])
def test_a_typo_is_told_before_torch_is_imported(command: list[str]) -> None:
    code = (
        "import sys\nfrom grpokit import cli\ntry:\n    cli.main()\nexcept SystemExit as end:\n"
        "    print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command, "sed=1"], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"
    assert done.stderr.startswith("error: override 'sed=1': unknown key 'sed' (did you mean 'seed'?)")
