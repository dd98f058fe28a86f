"""Which names are public, and which of ours others use: plugins, their tests, scaffolds, tutorials, docs, benchmarks.

A name is public if a page of docs/api shows it, or if `grpokit` itself has it. `python tools/public_names.py` prints
each use of another name, and exits with 1 if there is one; a test does the same. So an author may do all that our own
plugins do. With the folder of a built site it also prints the public names that no page of it shows.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import architecture

ROOT = Path(__file__).parent.parent
PLACES = (ROOT, *sorted(ROOT.glob("plugins/*/src")))  # of packages
CODE = ("plugins/*/*/**/*.py", "tutorials/*.py", "benchmarks/**/*.py", "examples/**/*.py")
TEMPLATES = "plugins/grpokit-check/src/grpokit_check/scaffold/templates/**/*.py.jinja"
PAGES = ("*.md", "docs/**/*.md", "plugins/*/*.md", "grpokit/registry/hookspecs.py")
# What measures or tests one more package from inside.
MEASURED = {
    "benchmarks/glm_image_job": "grpokit_glm_image",
    "benchmarks/ocr.py": "grpokit_ocr",
    "benchmarks/sharding.py": "grpokit_toy",
    "plugins/grpokit-lm/tests": "grpokit_hf",
    "plugins/grpokit-methods/tests": "grpokit_toy",
}
_DIRECTIVE = re.compile(r"^::: (\S+)\n((?: +.*\n)*)", re.MULTILINE)  # of mkdocstrings, with its options
_BLOCK = re.compile(r"^ *```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_FACTORY = re.compile(r"(grpokit[\w.]*):(\w+)")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Python that lies outside of a package.

    Attributes:
        file: where it stands.
        own: the packages all of whose names it may use, such as the one that it belongs to.
        text: the source.
    """

    file: Path
    own: frozenset[str]
    text: str


@dataclass(frozen=True, kw_only=True)
class Use:
    """A name of one of our packages where another one uses it.

    Attributes:
        file: where.
        name: dotted, with the module that it is imported from.
    """

    file: Path
    name: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)} uses {self.name}"


@cache
def module_file(name: str) -> Path | None:
    """The file of one of our modules; None where no module has this dotted name."""
    for place in PLACES:
        path = place / name.replace(".", "/")
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    return None


@cache
def public() -> frozenset[str]:
    """The names that pages of docs/api show, dotted."""
    names = set()
    for page in sorted(ROOT.glob("docs/api/*.md")):
        for name, options in _DIRECTIVE.findall(page.read_text(encoding="utf-8")):
            file = module_file(name)
            members = re.search(r"members: \[(.*?)\]", options)
            if file is None:
                names.add(name)
            else:
                names |= {f"{name}.{member}" for member in (members[1].split(", ") if members else shown(file))}
    return frozenset(names)


def shown(file: Path) -> list[str]:
    """The names that a page shows of a whole module: its `__all__`, else all that have a docstring."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return [name for name in documented(file) if not name.startswith("_")]


@cache
def documented(file: Path) -> list[str]:
    """The functions, classes and values of a module that have a docstring."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    names = []
    for node, behind in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names += [node.name] if ast.get_docstring(node) else []
        elif isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant):
            names += [ast.unparse(node.targets[0])] if isinstance(node, ast.Assign) else []
            names += [ast.unparse(node.target)] if isinstance(node, ast.AnnAssign) else []
    return names


def is_documented(name: str) -> bool:
    """Whether a name has a docstring where it is defined; names that a module imports from another count as well."""
    module, _, own = name.rpartition(".")
    file = module_file(module)
    if file is None or own in documented(file):
        return file is not None
    if home := architecture.public_names(file).get(own):
        return is_documented(f"{module}.{home}.{own}")
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):  # for type checkers, too
        if isinstance(node, ast.ImportFrom) and own in {alias.asname or alias.name for alias in node.names}:
            return is_documented(f"{node.module}.{own}")
    return False


def sources() -> Iterator[Source]:
    """All that lies outside."""
    for pattern in CODE:
        for file in sorted(ROOT.glob(pattern)):
            yield Source(file=file, own=_own(file), text=file.read_text(encoding="utf-8"))
    for file in sorted(ROOT.glob(TEMPLATES)):
        text = re.sub(r"\[%.*?%\]\n?", "", file.read_text(encoding="utf-8"))
        yield Source(file=file, own=frozenset(), text=re.sub(r"\[\[ (\w+) \]\]", r"\1", text))
    for pattern in PAGES:
        for file in sorted(ROOT.glob(pattern)):
            for block in _BLOCK.findall(file.read_text(encoding="utf-8")):
                yield Source(file=file, own=frozenset(), text=textwrap.dedent(block))


def _own(file: Path) -> frozenset[str]:
    """The packages that a file of code belongs to, or measures."""
    place = file.relative_to(ROOT)
    own = {package for part, package in MEASURED.items() if place.is_relative_to(part)}
    if place.parts[0] == "plugins":
        own.add(place.parts[1].replace("-", "_"))
    return frozenset(own)


def uses(source: Source) -> Iterator[Use]:
    """The names of other packages of ours that a source imports, reads from a module, or has in a string."""
    nodes = list(ast.walk(ast.parse(source.text)))
    modules: dict[str, str] = {}  # what the source calls a module -> its dotted name
    names: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grpokit"):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if module_file(name):
                    modules[alias.asname or alias.name] = name
                else:
                    names.append(name)
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
            if module := modules.get(ast.unparse(node.value)):
                names.append(f"{module}.{node.attr}")
        elif isinstance(node, ast.Constant) and (factory := _FACTORY.fullmatch(str(node.value))):
            names.append(f"{factory[1]}.{factory[2]}")
    for name in names:
        if module_file(name.rpartition(".")[0]) and not module_file(name) and name.partition(".")[0] not in source.own:
            yield Use(file=source.file, name=name)


def private_uses() -> list[Use]:
    """The uses of names that are not public."""
    homes = {f"grpokit.{name}" for name in architecture.public_names(architecture.PACKAGE / "__init__.py")}
    return [use for source in sources() for use in uses(source) if use.name not in public() | homes]


def not_shown(site: Path) -> list[str]:
    """The public names that have no heading on the API pages of a built site."""
    pages = [page.read_text(encoding="utf-8") for page in site.glob("api/*/index.html")]
    headings = {name for page in pages for name in re.findall(r'id="(grpokit[^"]*)"', page)}
    return sorted(public() - headings)


def main(arguments: list[str]) -> int:
    """Print the uses of private names, and what a site does not show; returns the exit code."""
    problems = [str(use) for use in private_uses()]
    for site in arguments:
        problems += [f"{site} does not show {name}" for name in not_shown(Path(site))]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
