"""Dependencies of a reward: its distribution declares them, and the error for a missing one names the install command.

For the second, the reward is built in another Python process, in which the third-party packages that the plugin's
distribution declares cannot be imported. The packages that grpokit itself needs stay available: nobody has grpokit
without them. For the first, imports are read from the source files of the distribution, so that those inside functions
count and nothing is imported.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from grpokit import registry
from grpokit.registry.specs import RewardSpec
from grpokit_check.check import Check, NotChecked, check_of, expect, in_new_python

_OPTIONAL = re.compile(
    r"\b(ImportError|ModuleNotFoundError|Exception|BaseException|TYPE_CHECKING|find_spec|suppress)\b"
)
"""What stands at the head of a block without which a module does."""

_CODE = """
import json, sys
blocked, name, params = json.loads({arguments!r})
sys.modules.update(dict.fromkeys(blocked))  # whose import then fails
from grpokit import registry
try:
    registry.create("reward", name, params)
except Exception as error:
    print(error)
else:
    print("a reward that was built and would fail later")
"""


def dependency_checks(spec: RewardSpec, params: Mapping[str, Any]) -> Iterator[Check]:
    """Yield the checks of a reward's dependencies.

    Those of grpokit's own distribution are not looked at, nor those of a reward that runs elsewhere by itself.
    """
    if spec.placement:
        return
    for plugin, other in registry.installed("reward"):
        if (other.name, other.factory) == (spec.name, spec.factory) and plugin.package != "grpokit":
            if spec.install:
                yield check_of(missing_dependency, plugin, spec, params)
            yield check_of(declared_dependencies, plugin.package, spec)


def missing_dependency(plugin: registry.Plugin, spec: RewardSpec, params: Mapping[str, Any]) -> None:
    """Without its packages it says how to install them."""
    blocked = third_party(plugin.package)
    if not blocked:
        raise NotChecked(f"{plugin.package} declares no package beyond those of grpokit")
    arguments = json.dumps([blocked, f"{plugin.package}:{spec.name}", dict(params)], default=str)
    result = in_new_python(_CODE.format(arguments=arguments))
    reply = result.stdout.strip() or result.stderr.strip()[-400:]
    expect(spec.install in reply, f"an error with {spec.install!r} when the reward is built without "
           f"{', '.join(blocked)}", reply, "an import inside a function, or a try around it; import at the top of the "
           "factory's module")  # fmt: skip


def declared_dependencies(package: str, spec: RewardSpec) -> None:
    """Its distribution declares what it imports, as a dependency or in an extra.

    Imports for type checkers are left out, as are those after `find_spec` or in a `try` or a `suppress` that catches
    their failure. The dependencies of grpokit count as declared.
    """
    top = spec.factory.partition(":")[0].partition(".")[0]
    homes = importlib.metadata.packages_distributions()
    extras = importlib.metadata.metadata(package).get_all("Provides-Extra") or []
    declared = _required(package, ["", *extras]) | _required("grpokit") | {"grpokit", canonicalize_name(package)}
    for file in _sources(top):
        for name, line in _imports(ast.parse(file.read_bytes())):
            names = homes.get(name, [])  # none: Python's own, or not installed
            title = f"'{name}'" if name in names else f"'{name}' of {', '.join(names)}"
            expect(name == top or not names or declared & set(map(canonicalize_name, names)),
                   f"that {package} declares each package that '{spec.name}' imports",
                   f"{title} in {file.name}, line {line}, which it does not declare",
                   f"a package that another one installed; add {''.join(names[:1])!r} to dependencies in "
                   "pyproject.toml and install the plugin again")  # fmt: skip


def _sources(top: str) -> list[Path]:
    """The source files of a top-level module, found without importing it."""
    spec = importlib.util.find_spec(top)
    if spec is None or spec.submodule_search_locations is None:
        return [Path(spec.origin)] if spec and spec.origin else []
    return sorted(file for folder in spec.submodule_search_locations for file in Path(folder).rglob("*.py"))


def _imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The top-level modules that a tree must import, each with its line; relative imports are left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module and not node.level:
                yield node.module.partition(".")[0], node.lineno
        else:
            if isinstance(node, (ast.Try, ast.With, ast.If)) and _may_fail(node):
                node.body = []
            yield from _imports(node)


def _may_fail(node: ast.Try | ast.With | ast.If) -> bool:
    """Whether the module does without what a block's body imports."""
    if isinstance(node, ast.Try):
        return any(x.type is None or _OPTIONAL.search(ast.unparse(x.type)) for x in node.handlers)
    return _OPTIONAL.search(ast.unparse(node).partition("\n")[0]) is not None


def third_party(package: str) -> list[str]:
    """The top-level modules of the packages that a distribution declares and grpokit does not, without extras."""
    required = {x for x in _required(package) - _required("grpokit") if x.partition("-")[0] != "grpokit"}
    homes = importlib.metadata.packages_distributions()
    return sorted(module for module, names in homes.items() if required & set(map(canonicalize_name, names)))


def _required(package: str, extras: Collection[str] = ("",)) -> set[str]:
    """The distributions that one depends on under some extras, of which "" is none, with the extras it asks for."""
    try:
        requirements = map(Requirement, importlib.metadata.requires(package) or [])
    except importlib.metadata.PackageNotFoundError:
        return set()
    names: set[str] = set()
    for x in requirements:
        if any(x.marker.evaluate({"extra": extra}) for extra in extras) if x.marker else "" in extras:
            names |= {canonicalize_name(x.name)} | (_required(x.name, x.extras) if x.extras else set())
    return names
