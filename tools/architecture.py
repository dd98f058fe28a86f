"""Prints how grpokit is built and how long it is: its folders, the learning path, the engine, and who imports whom.

`MAY_IMPORT` below is the architecture: a row may name rows above it only, so folders import one way and form no circle.
Files form none either, and `LIMITS` holds what must stay short. `python tools/architecture.py` prints all of it, and
exits with 1 on an import that the table does not allow, on a circle, or beyond a limit. The tests walk the same
functions.
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

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
PACKAGE = Path(__file__).parent.parent / "grpokit"
LEARNING_PATH = ("types", "policy", "sampling", "advantages", "divergence", "objectives", "trainer")
ENGINE = ("trainer", "training", "guards", "processes", "phases")  # what a step runs through
# What must stay readable in one sitting. All other sizes are printed, and have no limit: a limit makes lines dense.
LIMITS = {
    "root modules": 18,
    "learning path": 1000,  # lines of code
    "Trainer._step": 40,  # lines, as the next
    "longest function": 60,  # one of more lines holds two ideas
}

# Each module at the root and each folder, with the rows that it may import. A new one goes as far up as it can.
MAY_IMPORT = {
    "errors": "",
    "_lazy": "",
    "files": "errors",
    "settings": "errors",
    "images": "errors",
    "types": "errors images",  # which turns the pictures of a prompt upright
    "sampling": "types",
    "policy": "types",
    "processes": "errors types policy",
    "tracking": "errors types processes",
    "reference": "errors",
    "group_statistics": "errors",
    "reward_totals": "errors group_statistics",
    "advantages": "errors group_statistics reward_totals",
    "divergence": "errors settings types",
    "objectives": "errors settings types divergence",
    "flow": "errors settings types sampling",
    "data": "errors files types images sampling policy processes",
    "registry": "errors processes",
    "config": "errors files settings registry",
    "plan": "errors settings registry config",
    "scaffold": "errors files registry",
    "rewards": "errors settings types reward_totals processes registry",
    "training": "errors files settings types sampling policy processes advantages divergence objectives data rewards "
    "tracking group_statistics",
    # What a third party may import.
    "builtin": "errors settings types images processes divergence objectives group_statistics registry rewards "
    "training",
    "guards": "errors files settings types group_statistics data processes rewards training",
    "trainer": "errors settings types sampling policy processes advantages objectives data rewards tracking training "
    "guards",
    "phases": "errors files sampling policy processes tracking training trainer",
    "evaluation": "errors types images sampling policy processes reward_totals data registry rewards training",
    "run_folder": "errors files types images processes registry config data tracking training evaluation",
    "report": "errors files images config run_folder evaluation",
    "runs": "errors files settings types images sampling policy processes advantages objectives data registry config "
    "rewards tracking training guards trainer phases evaluation run_folder report",
    "notebook": "types trainer tracking phases evaluation runs",
    "testing": "errors types flow sampling policy group_statistics advantages objectives data registry config rewards "
    "tracking training runs",
    "doctor": "errors registry config scaffold runs",
    "cli": "errors files settings types images policy processes data registry config scaffold rewards tracking "
    "training trainer phases evaluation run_folder report runs plan testing doctor",
    "__init__": "errors _lazy settings types policy processes reference objectives registry rewards tracking training "
    "guards trainer phases evaluation runs",  # for type checkers: its names are imported on first use
    "__main__": "cli",
}


@dataclass(frozen=True)
class Import:
    """One name that a file imports."""

    file: Path
    line: int
    module: str  # dotted
    inside: bool  # in a function's body or for type checkers, so not run on import

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


@cache
def imports(file: Path) -> list[Import]:
    """All imports of a file, also in functions and for type checkers."""
    return list(_walk(file, ast.parse(file.read_text(encoding="utf-8")), False))


def _walk(file: Path, node: ast.AST, inside: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(file, child.lineno, alias.name, inside)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{file}:{child.lineno} is a relative import"
            for alias in child.names:
                yield Import(file, child.lineno, _home(child.module or "", alias.name), inside)
        else:
            typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield from _walk(file, child, inside or typing or isinstance(child, FUNCTION))


def _home(module: str, name: str) -> str:
    """`from grpokit import Prompt` imports grpokit.types, and `from grpokit.cli import app` imports grpokit.cli.app."""
    if module == "grpokit":
        return f"grpokit.{public_names().get(name, name)}"
    inner = f"{module}.{name}"
    return inner if (PACKAGE.parent / inner.replace(".", "/")).with_suffix(".py").is_file() else module


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


def circles() -> list[tuple[str, ...]]:
    """The modules that import each other, be it through others, in functions or for type checkers."""
    modules = {".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts): file for file in files()}
    reach = {name.removesuffix(".__init__"): {each.module for each in imports(modules[name])} for name in modules}
    for via in reach:  # Warshall: at last, all that a module leads to
        for found in reach.values():
            found |= reach[via] if via in found else set()
    return sorted({tuple(sorted(b for b in reach if b in reach[a] and a in reach[b])) for a in reach if a in reach[a]})


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


def learning_path() -> list[Path]:
    """Its files, in the order in which they are read."""
    return [file for name in LEARNING_PATH if (file := PACKAGE / f"{name}.py").is_file()]


def longest() -> list[tuple[int, str]]:
    """The lines and the names of all functions, as in (48, "trainer.py Trainer._step"), the longest first."""
    found = []
    for file in files():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            name = f"{file.relative_to(PACKAGE)} {f'{node.name}.' if isinstance(node, ast.ClassDef) else ''}"
            inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, FUNCTION)]
            found += [((each.end_lineno or 0) - each.lineno + 1, name + each.name) for each in inner]
    return sorted(found, reverse=True)


@cache
def sizes() -> dict[str, int]:
    """How much there is of what `LIMITS` holds."""
    found = longest()  # not by name: a file may have two functions of one
    return {
        "root modules": sum(file.parent == PACKAGE for file in files()),
        "learning path": sum(map(code_lines, learning_path())),
        "Trainer._step": next(size for size, name in found if name == "trainer.py Trainer._step"),
        "longest function": found[0][0],
    }


def main() -> int:
    """Print everything; returns the exit code."""
    folders, rows = defaultdict[str, list[str]](list), defaultdict[str, int](int)
    used = defaultdict[str, set[str]](set)
    for file in files():
        place, row = file.relative_to(PACKAGE).parent.as_posix(), row_of(file)
        if file.stem != "__init__" or place == ".":
            folders[place].append(f"{file.stem} {lines(file)}")
        rows[row] += lines(file)
        used[row] |= {found.row for found in imports(file)} - {"", row}
    print("the tree (modules with their lines)")
    for place, modules in sorted(folders.items()):
        print(f"  {'grpokit' if place == '.' else place}/  {'  '.join(modules)}")
    shown = ", ".join(f"{file.stem} {lines(file)} ({code_lines(file)})" for file in learning_path())
    total, code = (sum(map(count, learning_path())) for count in (lines, code_lines))
    print(f"\nlearning path, lines (of code): {shown}; {total} ({code}) in all")
    print("\nthe longest functions")
    for size, name in longest()[:5]:
        print(f"  {size:>5}  {name}")
    print("\nsizes, and their limits")
    grown = {what for what, size in sizes().items() if size > LIMITS[what]}
    for what, size in sizes().items():
        print(f"  {what:<16} {size:>5} {LIMITS[what]:>5}{'  has grown beyond it' if what in grown else ''}")
    stepped = sum(rows[row] for row in ENGINE)
    print(f"\nlines ({sum(rows.values())} in all, {stepped} of them in the engine), and who imports whom")
    for row in MAY_IMPORT:
        print(f"  {row:<16} {rows[row]:>5}  {' '.join(other for other in MAY_IMPORT if other in used[row])}".rstrip())
    wrong, closed = [found for file in files() for found in upward(file)], circles()
    print("", *(f"not allowed: {each}" for each in wrong), *(f"circle: {' '.join(each)}" for each in closed), sep="\n")
    print(f"{len(wrong)} imports that the table does not allow; {len(closed)} circles of files")
    return 1 if wrong or closed or grown else 0


if __name__ == "__main__":
    sys.exit(main())
