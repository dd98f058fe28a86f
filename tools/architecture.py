"""Prints how grpokit is built: its folders, the learning path, and who imports whom.

`MAY_IMPORT` below is the architecture: a row may name rows above it only, so imports point one way and cannot form a
circle. `python tools/architecture.py` prints the tree, the number of root modules, the lines of the learning path and
the table, and exits with 1 on an import that the table does not allow. The tests walk the same functions.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGE = Path(__file__).parent.parent / "grpokit"
LEARNING_PATH = ("types", "policy", "sampling", "advantages", "objectives", "trainer")
MOST_ROOT_MODULES = 17

# Each module at the root and each folder, with the rows that it may import. A new one goes as far up as it can.
MAY_IMPORT = {
    "errors": "",
    "_lazy": "",
    "files": "errors",
    "knobs": "errors",
    "images": "errors",
    "types": "errors images",  # which turns the pictures of a prompt upright
    "sampling": "types",
    "policy": "types",
    "reference": "errors",
    "group_statistics": "errors",
    "reward_totals": "errors group_statistics",
    "advantages": "errors group_statistics reward_totals",
    "objectives": "errors knobs types",
    "flow": "errors types",
    "data": "errors files types images sampling policy",
    "processes": "errors types policy",
    "registry": "errors processes",
    "config": "errors files knobs registry",
    "plan": "errors knobs registry config",
    "scaffold": "errors registry",
    "rewards": "errors knobs types reward_totals registry",
    "builtin": "errors knobs types images objectives registry rewards",  # what a third party may import, and no more
    "remote": "errors types images rewards",
    "training": "errors files knobs types sampling policy processes advantages objectives data rewards",
    "trainer": "errors knobs types sampling policy processes advantages objectives data rewards training",
    "phases": "errors files policy processes training trainer",
    "evaluation": "errors types images sampling policy processes reward_totals data registry rewards training",
    "report": "errors files images config remote evaluation",
    "runs": "errors files knobs types images sampling policy processes advantages objectives data registry config "
    "rewards remote training trainer phases evaluation report",
    "notebook": "errors types images trainer training phases evaluation runs",
    "testing": "errors _lazy types flow sampling policy objectives registry config rewards training evaluation runs",
    "doctor": "errors types sampling policy reference registry trainer",
    "cli": "errors files knobs types images processes data registry config scaffold rewards remote training trainer "
    "evaluation report runs plan testing doctor",
    "__init__": "_lazy",  # its other names are imported on first use
    "__main__": "cli",
}


@dataclass(frozen=True)
class Import:
    """One name that a file imports."""

    file: Path
    line: int
    module: str  # dotted
    inside: bool  # in a function's body, so not run on import

    @property
    def row(self) -> str:
        """The row of the table that it names; empty for what is not grpokit's."""
        top, _, rest = self.module.partition(".")
        return rest.partition(".")[0] if top == "grpokit" else ""

    def __str__(self) -> str:
        return f"{self.file.relative_to(PACKAGE.parent)}:{self.line} imports {self.module}"


def row_of(file: Path) -> str:
    """The row of the table that a file belongs to."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def files() -> list[Path]:
    """The package's own modules."""
    return sorted(file for file in PACKAGE.rglob("*.py") if "templates" not in file.parts)


def imports(file: Path) -> list[Import]:
    """All imports of a file except those for type checkers."""
    return list(_walk(file, ast.parse(file.read_text(encoding="utf-8")), False))


def _walk(file: Path, node: ast.AST, inside: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(file, child.lineno, alias.name, inside)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{file}:{child.lineno} is a relative import"
            for alias in child.names:
                yield Import(file, child.lineno, _home(child.module or "", alias.name), inside)
        else:
            function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _walk(file, child, inside or function)


def _home(module: str, name: str) -> str:
    """`from grpokit import Prompt` is an import of grpokit.types, `from grpokit import data` one of grpokit.data."""
    return f"grpokit.{public_names().get(name, name)}" if module == "grpokit" else module


def public_names() -> dict[str, str]:
    """Public name -> its module inside the package, as the package's own table says."""
    for node in ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOME":
            return {name: module for module, names in ast.literal_eval(node.value).items() for name in names}
    raise AssertionError("grpokit/__init__.py has no table _HOME")


def upward(file: Path) -> list[Import]:
    """The imports of a file that the table does not allow."""
    row = row_of(file)
    allowed = {"", row, *MAY_IMPORT[row].split()}
    return [found for found in imports(file) if found.row not in allowed]


def undeclared(file: Path, project: Path, *, never: frozenset[str] = frozenset()) -> list[str]:
    """What a file imports anywhere, also in functions and for type checkers, and its distribution does not declare.

    Args:
        file: to be read.
        project: the folder of its pyproject.toml, whose extras count as well.
        never: distributions that it must not import, declared or not.
    """
    declared, homes, own = _declared(project) - never, _homes(), project.name.replace("-", "_")
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for top in sorted({name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"grpokit", own}):
            if not declared & {canonicalize_name(name) for name in homes.get(top, [top])}:
                found.append(f"line {node.lineno} imports {top}")
    return found


@cache
def _declared(project: Path) -> frozenset[str]:
    """The distributions that a pyproject.toml names, extras included."""
    stated = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for extra in stated.get("optional-dependencies", {}).values() for line in extra]
    return frozenset(canonicalize_name(Requirement(line).name) for line in [*stated["dependencies"], *extras])


@cache
def _homes() -> Mapping[str, list[str]]:
    """What is imported -> the distributions that bring it."""
    return packages_distributions()


def lines(file: Path) -> int:
    """How many lines a file has."""
    return len(file.read_text(encoding="utf-8").splitlines())


def code_lines(file: Path) -> int:
    """How many of them hold code: neither blank, nor a comment, nor part of a docstring."""
    text = file.read_text(encoding="utf-8")
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type not in blank]
    code = {line for t in tokens for line in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            code -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(code)


def main() -> int:
    """Print everything; returns the exit code."""
    folders: dict[str, list[str]] = defaultdict(list)
    for file in files():
        place = file.relative_to(PACKAGE).parent.as_posix()
        if file.stem != "__init__" or place == ".":
            folders[place].append(f"{file.stem} {lines(file)}")
    print("the tree (modules with their lines)")
    for place, modules in sorted(folders.items()):
        print(f"  {'grpokit' if place == '.' else place}/  {'  '.join(modules)}")
    count = len(folders["."])
    print(f"\nroot modules: {count} (at most {MOST_ROOT_MODULES})")
    path = {name: PACKAGE / f"{name}.py" for name in LEARNING_PATH}
    shown = ", ".join(f"{name} {lines(file)} ({code_lines(file)})" for name, file in path.items())
    total, code = (sum(count(file) for file in path.values()) for count in (lines, code_lines))
    print(f"learning path, lines (of code): {shown}; {total} ({code}) in all")
    print("\nwho imports whom")
    used: dict[str, set[str]] = defaultdict(set)
    for file in files():
        used[row_of(file)] |= {found.row for found in imports(file)} - {"", row_of(file)}
    for row in MAY_IMPORT:
        print(f"  {row:<11} {' '.join(other for other in MAY_IMPORT if other in used[row])}")
    wrong = [found for file in files() for found in upward(file)]
    for found in wrong:
        print(f"not allowed: {found}")
    print(f"\n{len(wrong)} imports that the table does not allow, which has no circle")
    return 1 if wrong or count > MOST_ROOT_MODULES else 0


if __name__ == "__main__":
    sys.exit(main())
