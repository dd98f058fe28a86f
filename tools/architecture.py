"""Prints how grpokit and its plugins are built and how dense their code is, and fails where imports go astray.

`MAY_IMPORT` below is the architecture: a row may name rows above it only, so folders import one way and form no circle.
Files form none either, no function is longer than `FUNCTION`, and the learning path no longer than `LEARNING_PATH`.
`python tools/architecture.py` prints all of it, and exits with 1 where one of these does not hold. The tests walk the
same functions. Other sizes are printed, and have no limit: a limit makes lines dense.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "grpokit"
PLUGINS = sorted(file.parent for file in ROOT.glob("plugins/*/src/*/__init__.py"))
STORY = ("types", "policy", "sampling", "advantages", "divergence", "objectives", "trainer")  # the learning path
LEARNING_PATH = 1000  # lines of code, which one sitting has time for
FUNCTION = 60  # lines; a longer one holds two ideas
DENSE = 25  # tokens on one line, which then holds three ideas

# Each module at the root and each folder, with the rows that it may import. A new one goes as far up as it can.
MAY_IMPORT = {
    "errors": "",
    "__init__": "",  # its names are imported on first use
    "files": "errors",
    "settings": "errors",
    "images": "errors",
    "types": "errors images",  # which turns the pictures of a prompt upright
    "sampling": "types",
    "policy": "types",
    "processes": "errors types policy",
    "tracking": "errors types processes",
    "reference": "errors settings types policy",
    "group_statistics": "errors",
    "reward_totals": "errors group_statistics",
    "advantages": "errors group_statistics reward_totals",
    "divergence": "errors settings types",
    "objectives": "errors settings types divergence",
    "flow": "errors settings types sampling",
    "data": "errors files types images sampling policy processes",
    "registry": "errors settings processes",
    "config": "errors files settings registry",
    "rewards": "errors settings types reward_totals processes registry",
    "training": "errors files settings types sampling policy processes advantages divergence objectives data rewards "
    "tracking group_statistics",
    # What a third party may import.
    "builtin": "errors settings types images processes divergence objectives group_statistics registry rewards "
    "training",
    "guards": "errors files settings types group_statistics data processes rewards training",
    "trainer": "errors settings types sampling policy processes advantages group_statistics objectives data rewards "
    "tracking training guards",
    "phases": "errors files sampling policy processes tracking training trainer",
    "evaluation": "errors types images sampling policy processes reward_totals data registry rewards training",
    "run_folder": "errors files settings types images processes registry config data tracking training evaluation",
    "report": "errors files images registry config run_folder evaluation",
    "runs": "errors files settings types images sampling policy processes advantages objectives data registry config "
    "rewards tracking training guards trainer phases evaluation run_folder report",
    "notebook": "types trainer tracking phases evaluation runs",
    "doctor": "errors types sampling policy reference registry config runs",
    "cli": "errors files settings types images policy processes data registry config rewards tracking "
    "training trainer phases evaluation run_folder report runs doctor",
    "__main__": "cli",
}
# Each plugin, with the plugins that it may import. All of them may import the core, which imports none.
PLUGIN_MAY_IMPORT = {
    "grpokit_check": "",
    "grpokit_http": "",
    "grpokit_plan": "",
    "grpokit_clip": "",
    "grpokit_lpips": "",
    "grpokit_diagnosis": "",
    "grpokit_hf": "grpokit_plan",
    "grpokit_judge": "grpokit_http",
    "grpokit_likeness": "grpokit_clip grpokit_lpips",
    "grpokit_vote": "grpokit_likeness",
    "grpokit_preference": "grpokit_hf",
    "grpokit_lm": "grpokit_hf grpokit_http grpokit_plan",
    "grpokit_diffusers": "grpokit_hf grpokit_plan",
    "grpokit_glm_image": "grpokit_hf grpokit_plan",
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
        """The row of a table that it names: a part of the core, or a plugin; empty for what is not grpokit's."""
        top, _, rest = self.module.partition(".")
        if top == "grpokit":
            return rest.partition(".")[0]
        return top if top.startswith("grpokit_") else ""

    def __str__(self) -> str:
        return f"{_place(self.file)}:{self.line} imports {self.module}"


@cache
def _source(file: Path) -> Path:
    """The folder that a file's package lies in."""
    return next(folder for folder in file.parents if not (folder / "__init__.py").is_file())


def _place(file: Path) -> Path:
    """Where a file lies, from its package on."""
    return file.relative_to(_source(file))


def row_of(file: Path) -> str:
    """The row of a table that a file belongs to: a part of the core, or a plugin."""
    package, part = _place(file).parts[:2]
    return part.removesuffix(".py") if package == "grpokit" else package


def files(package: Path = PACKAGE) -> list[Path]:
    """A package's own modules."""
    return sorted(file for file in package.rglob("*.py") if "templates" not in file.parts)


def every_file() -> list[Path]:
    """The modules of all packages."""
    return [file for package in (PACKAGE, *PLUGINS) for file in files(package)]


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def imports(file: Path) -> list[Import]:
    """All imports of a file, also in functions and for type checkers."""
    return list(_walk(file, _tree(file), False))


def _walk(file: Path, node: ast.AST, inside: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(file, child.lineno, alias.name, inside)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{file}:{child.lineno} is a relative import"
            for alias in child.names:
                yield Import(file, child.lineno, _home(file, child.module or "", alias.name), inside)
        else:
            typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from _walk(file, child, inside or typing or function)


def _home(file: Path, module: str, name: str) -> str:
    """`from grpokit import Prompt` imports grpokit.types, and `from grpokit.cli import app` imports grpokit.cli.app."""
    if module == "grpokit":
        home = public_names(PACKAGE / "__init__.py").get(name, name)
        return f"grpokit.{home}"
    inner = f"{module}.{name}"
    return inner if (_source(file) / inner.replace(".", "/")).with_suffix(".py").is_file() else module


def public_names(module: Path) -> dict[str, str]:
    """Public name -> its home inside the package, as the stub beside a module says; none without a stub."""
    stub = module.with_suffix(".pyi")
    body = _tree(stub).body if stub.is_file() else []
    imported = [node for node in body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imported for alias in node.names}


def upward(file: Path) -> list[Import]:
    """The imports of a file that the tables do not allow."""
    row = row_of(file)
    if row in MAY_IMPORT:
        allowed = {"", row, *MAY_IMPORT[row].split()}
    else:
        allowed = {"", row, *MAY_IMPORT, *PLUGIN_MAY_IMPORT.get(row, "").split()}
    return [found for found in imports(file) if found.row not in allowed]


def circles(package: Path) -> list[tuple[str, ...]]:
    """A package's modules that import each other, be it through others, in functions or for type checkers."""
    modules = {".".join(_place(file).with_suffix("").parts): file for file in files(package)}
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
    for node in ast.walk(_tree(file)):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for top in sorted({name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"grpokit", own}):
            if not declared & {canonicalize_name(name) for name in homes.get(top, [top])}:
                found.append(f"line {node.lineno} imports {top}")
    return found


@cache
def _declared(project: Path) -> frozenset[str]:
    """The distributions that a pyproject.toml names, extras included; `grpokit-hf[diffusers]` brings diffusers."""
    stated = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for extra in stated.get("optional-dependencies", {}).values() for line in extra]
    requirements = [Requirement(line) for line in [*stated["dependencies"], *extras]]
    return frozenset(canonicalize_name(name) for each in requirements for name in [each.name, *each.extras])


@cache
def _homes() -> Mapping[str, list[str]]:
    """What is imported -> the distributions that bring it."""
    return packages_distributions()


@cache
def tokens(file: Path) -> Counter[int]:
    """Each line that holds code, neither blank nor a comment nor part of a docstring -> how many tokens begin there."""
    text = file.read_text(encoding="utf-8")
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    count = Counter[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in blank:
            count[token.start[0]] += 1
            for line in range(token.start[0] + 1, token.end[0] + 1):  # a string of several lines
                count[line] += 0
    for node in ast.walk(_tree(file)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1):
                del count[line]
    return count


def learning_path() -> int:
    """How many lines of code it has."""
    return sum(len(tokens(PACKAGE / f"{name}.py")) for name in STORY)


def longest() -> list[tuple[int, str]]:
    """Lines and name of every function, as in (48, "grpokit/trainer.py Trainer._step"), the longest first."""
    found = []
    for file in every_file():
        place = _place(file)
        for node in ast.walk(_tree(file)):
            owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
            for each in ast.iter_child_nodes(node):
                if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    found.append(((each.end_lineno or 0) - each.lineno + 1, f"{place} {owner}{each.name}"))
    return sorted(found, reverse=True)


def faults() -> list[str]:
    """All that should not be."""
    found = [f"not allowed: {each}" for file in every_file() for each in upward(file)]
    found += [f"circle: {' '.join(each)}" for package in (PACKAGE, *PLUGINS) for each in circles(package)]
    found += [f"too long: {name}" for size, name in longest() if size > FUNCTION]
    if learning_path() > LEARNING_PATH:
        found.append("too long: the learning path")
    return found


def density(several: list[Path]) -> str:
    """Lines of code, tokens on one of them, the share of dense ones, and comprehensions on 100, as columns."""
    counts = [count for file in several for count in tokens(file).values()]
    kinds = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    comprehensions = sum(isinstance(node, kinds) for file in several for node in ast.walk(_tree(file)))
    code = len(counts)
    dense = sum(count >= DENSE for count in counts)
    return f"{code:>7} {sum(counts) / code:>7.1f} {dense / code:>7.1%} {100 * comprehensions / code:>7.1f}"


def main() -> int:
    """Print everything; returns the exit code."""
    rows = defaultdict[str, list[Path]](list)
    for file in every_file():
        rows[row_of(file)].append(file)
    order = [*MAY_IMPORT, *(package.name for package in PLUGINS)]
    print(f"{'':<17} {'code':>7} {'tokens':>7} {'dense':>7} {'loops':>7}  imports")
    for row in order:
        used = {found.row for file in rows[row] for found in imports(file)} - {"", row}
        print(f"{row:<17} {density(rows[row])}  {' '.join(other for other in order if other in used)}".rstrip())
    print(f"{'the core':<17} {density(files())}\n{'all':<17} {density(every_file())}")
    print(f"code: lines of it; tokens: on one; dense: lines with {DENSE} or more; loops: comprehensions on 100 lines")
    print(f"\nlearning path: {learning_path()} lines of code, of {LEARNING_PATH}\n\nthe longest functions")
    functions = longest()
    step = next(each for each in functions if each[1] == "grpokit/trainer.py Trainer._step")
    for size, name in [*functions[:5], step]:
        print(f"  {size:>5}  {name}")
    found = faults()
    print("", *found, f"{len(found)} faults", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
