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
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grpokit import registry
from grpokit.registry.specs import RewardSpec
from grpokit.testing.check import NotChecked, expect, in_new_python

_FAILED = re.compile(r"\b(ImportError|ModuleNotFoundError|Exception|BaseException)\b")
_NAME = re.compile(r"([\w.-]+)\s*(?:\[([^\]]*)\])?")  # of a line such as "grpokit[ocr]>=0.1; python_version > '3'"
_EXTRA = re.compile(r""";.*\bextra\s*==\s*['"]([\w.-]+)""")

_CODE = """
import json, sys
blocked, name, params = json.loads({arguments!r})
class Refuses:
    def find_spec(self, module, path=None, target=None):
        if module.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {{module!r}}", name=module)
sys.meta_path.insert(0, Refuses())
from grpokit import registry
from grpokit.errors import GrpokitError
try:
    registry.create("reward", name, params)
except GrpokitError as error:
    print("refused", error)
except Exception as error:
    print("raised", repr(error))
else:
    print("built")
"""


def check_missing(spec: RewardSpec, params: Mapping[str, Any]) -> None:
    """Without its third-party packages, building the reward gives an error with the spec's `install`."""
    plugin = announcing_plugin(spec)
    if plugin is None:
        raise NotChecked(f"no installed plugin announces the reward '{spec.name}'")
    blocked = third_party(plugin.package)
    if not blocked:
        raise NotChecked(f"{plugin.package} declares no package beyond those of grpokit")
    arguments = json.dumps([blocked, f"{plugin.name}:{spec.name}", dict(params)], default=str)
    result = in_new_python(_CODE.format(arguments=arguments))
    reply = result.stdout.strip() or result.stderr.strip()[-400:]
    expect(
        reply.startswith("refused") and spec.install in reply,
        f"an error with {spec.install!r} when the reward is built without {', '.join(blocked)}",
        {"built": "a reward that was built and would fail later"}.get(reply, reply.removeprefix("refused ")),
        "an import inside a function, or a try around it; import at the top of the factory's module",
    )


def announcing_plugin(spec: RewardSpec) -> registry.Plugin | None:
    """The installed plugin that announces a reward, or None."""
    plugins = (p for p, s in registry.installed("reward") if (s.name, s.factory) == (spec.name, spec.factory))
    return next(plugins, None)


def check_declared(spec: RewardSpec) -> None:
    """Each package that the reward's own modules import is declared, as a dependency or in an extra."""
    plugin = announcing_plugin(spec)
    if plugin is None:
        raise NotChecked(f"no installed plugin announces the reward '{spec.name}'")
    for module, package, place in undeclared(plugin.package, spec.factory.partition(":")[0]):
        name = f"'{module}'" + (f" of {package}" if package != module else "")
        expect(False, f"that {plugin.package} declares each package that '{spec.name}' imports",
               f"{name} in {place}, which it does not declare",
               f"a package that another one installed; add {package!r} to dependencies in pyproject.toml and install "
               "the plugin again")  # fmt: skip


def undeclared(package: str, module: str) -> list[tuple[str, str, str]]:
    """The imports of a module that its distribution does not declare, with those of the modules that it imports.

    Only modules of the same distribution are followed. Imports for type checkers are left out, as are those after
    `find_spec` or in a `try` or a `suppress` that catches their failure. `cv2` of opencv-python-headless is fine where
    opencv-python is declared and not installed.

    Args:
        package: the distribution.
        module: the dotted name of the first module; nothing is imported.

    Returns:
        For each distribution that is not declared: the imported module, the distribution, and the file with the line.
        The dependencies of grpokit count as declared, and so do extras.
    """
    homes = importlib.metadata.packages_distributions()
    declared = _required(package, extras=True) | _required("grpokit") | {"grpokit", _canonical(package)}
    absent = {name.partition("-")[0] for name in declared if not _installed(name)}
    own = {top for top, names in homes.items() if _canonical(package) in map(_canonical, names)}
    missing: dict[str, tuple[str, str, str]] = {}
    top = module.partition(".")[0]
    others = own and top not in own and homes.get(top)  # that distribution declares its own imports
    for name, place in [(top, "its spec's factory")] if others else _imported(module, own | {top}):
        names = homes.get(name, [])
        providers = {_canonical(n) for n in names}
        variant = absent & {n.partition("-")[0] for n in providers}
        if names and name not in sys.stdlib_module_names and not declared & providers and not variant:
            missing.setdefault(names[0], (name, names[0], place))
    return list(missing.values())


def _imported(module: str, own: Collection[str]) -> Iterator[tuple[str, str]]:
    """The other top-level modules that a module and its own distribution's import, each with its place."""
    waiting, seen = [module], set()
    while waiting:
        name = waiting.pop()
        path = None if name in seen else _file(name)
        seen.add(name)
        if path is None:  # a class or function in a module, or compiled code
            continue
        parent = name.rpartition(".")[0]
        waiting += [parent] if parent else []
        package = name if path.name == "__init__.py" else parent
        for imported, line in _imports(ast.parse(path.read_bytes()), package):
            top = imported.partition(".")[0]
            if top in own:
                waiting.append(imported)
            else:
                yield top, f"{path.name}, line {line}"


def _file(module: str) -> Path | None:
    """The source file of a module, found without importing anything."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    folders = spec.submodule_search_locations
    if folders is None:
        return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") and not rest else None
    paths = [Path(folder, *rest) for folder in folders]
    files = [file for path in paths for file in (path / "__init__.py", path.with_suffix(".py"))]
    return next((file for file in files if file.is_file()), None)


def _imports(node: ast.AST, package: str) -> Iterator[tuple[str, int]]:
    """The dotted names that a tree imports, each with its line; of `from a import b` both a and a.b."""
    inside: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.Import):
        yield from ((alias.name, node.lineno) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = package.rsplit(".", node.level - 1)[0] if node.level else ""
        name = ".".join(filter(None, (base, node.module)))
        yield name, node.lineno
        yield from ((f"{name}.{alias.name}", node.lineno) for alias in node.names)
    elif isinstance(node, ast.Try) and any(map(_catches, node.handlers)):
        inside = [*node.handlers, *node.orelse, *node.finalbody]
    elif isinstance(node, ast.With) and any(map(_suppresses, node.items)):
        inside = []
    elif isinstance(node, ast.If) and re.search(r"\b(TYPE_CHECKING|find_spec)\b", ast.unparse(node.test)):
        inside = node.orelse
    for part in inside:
        yield from _imports(part, package)


def _catches(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches an import that fails."""
    return handler.type is None or _FAILED.search(ast.unparse(handler.type)) is not None


def _suppresses(item: ast.withitem) -> bool:
    """Whether `contextlib.suppress` passes over an import that fails."""
    source = ast.unparse(item.context_expr)
    return "suppress(" in source and _FAILED.search(source) is not None


def third_party(package: str) -> list[str]:
    """The top-level modules of the packages that a distribution declares and grpokit does not, without extras."""
    ours = _required("grpokit") | {"grpokit"}
    required = {name for name in _required(package) - ours if not name.startswith("grpokit-")}
    modules = importlib.metadata.packages_distributions()
    return sorted(m for m, names in modules.items() if {_canonical(n) for n in names} & required)


def _required(package: str, *, extras: bool = False) -> set[str]:
    """The distributions that one depends on, with the extras that it asks for.

    Args:
        package: the distribution.
        extras: also take the dependencies of its own extras.
    """
    lines = importlib.metadata.requires(package) or []
    names: set[str] = set()
    for line in lines:
        name, extra_names = _NAME.match(line).groups("")  # type: ignore[union-attr]
        if extras or not _EXTRA.search(line):
            names.add(_canonical(name))
            names |= _extras(name, {_canonical(extra) for extra in re.findall(r"[\w.-]+", extra_names)})
    return names


def _extras(package: str, extras: Collection[str]) -> set[str]:
    """The dependencies of some extras of a distribution."""
    lines = importlib.metadata.requires(package) or [] if extras and _installed(package) else []
    extra_of = {line: _EXTRA.search(line) for line in lines}
    own_lines = [line for line, extra in extra_of.items() if extra and _canonical(extra[1]) in extras]
    return {_canonical(_NAME.match(line)[1]) for line in own_lines}  # type: ignore[index]


def _installed(package: str) -> bool:
    try:
        return bool(importlib.metadata.distribution(package))
    except importlib.metadata.PackageNotFoundError:
        return False


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
