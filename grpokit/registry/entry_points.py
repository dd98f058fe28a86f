"""Finds plugins through the entry-point group `grpokit`, and collects the components that they bring.

A broken plugin never stops the others. Its error is recorded, `grpokit plugins` shows it, and so does the message about
an unknown name. `GRPOKIT_STRICT=1` turns it into an error at once. Every plugin has its own pluggy manager, so a hook
that raises concerns one plugin.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import pluggy

from grpokit.errors import GrpokitError, PluginError, brief, error_line, nearest, raised_at
from grpokit.processes.forks import forks_ended
from grpokit.registry import hookspecs
from grpokit.registry.compatibility import mismatch, readable, refusal
from grpokit.registry.specs import KINDS, Spec

Answer = TypeVar("Answer")

_HOOKS = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("grpokit_")}
_RETURNS = {name: get_type_hints(hook)["return"] for name, hook in _HOOKS.items()}
_SPEC_HOOKS = {name: get_args(kind)[0] for name, kind in _RETURNS.items() if get_origin(kind) is Iterable}
COMPONENT_KINDS = tuple(spec.kind for spec in _SPEC_HOOKS.values())
"""The kinds of components that plugins bring."""


@dataclass(kw_only=True)
class Plugin:
    """One entry point of the group: what it brought, or why it could not.

    Attributes:
        name: the entry point's name.
        module: what the entry point names.
        package: the distribution that brings it, in the spelling of package indexes; `package:name` names a component.
        version: of the distribution.
        specs: what its hooks yielded.
        refused: its specs for a plugin API that this grpokit does not read.
        error: one line, empty if it loaded.
        seconds: how long it took to load.
    """

    name: str
    module: str = ""
    package: str = ""
    version: str = ""
    specs: list[Spec] = field(default_factory=list)
    refused: list[Spec] = field(default_factory=list)
    error: str = ""
    seconds: float = 0.0
    manager: pluggy.PluginManager | None = None

    @property
    def problems(self) -> list[str]:
        """Why parts of it cannot be used, one line for each."""
        refusals = [refusal(spec, self.package) for spec in self.refused]
        return [self.error, *refusals] if self.error else refusals


@functools.cache
def plugins() -> tuple[Plugin, ...]:
    """All plugins of this environment, loaded once. `plugins.cache_clear()` looks again."""
    entries = importlib.metadata.entry_points(group="grpokit")
    entries_in_order = sorted(entries, key=lambda entry: (entry.name, entry.value))
    every = tuple(load_plugin(entry) for entry in entries_in_order)
    broken = [f"{p.name}: {problem}" for p in every for problem in p.problems]
    if broken and os.environ.get("GRPOKIT_STRICT", "") not in ("", "0"):
        raise PluginError("GRPOKIT_STRICT is set and plugins are broken:\n  " + "\n  ".join(broken))
    return every


def load_plugin(entry: importlib.metadata.EntryPoint) -> Plugin:
    """Import a plugin's module and collect its specs; whatever fails becomes the plugin's `error`."""
    plugin = Plugin(name=entry.name, module=entry.value.partition(":")[0])
    if entry.dist is not None:
        plugin.package = normal(entry.dist.name)
        plugin.version = entry.dist.version
    begin = time.perf_counter()
    try:
        with forks_ended():
            if not all(part.isidentifier() for part in plugin.module.split(".")):
                raise PluginError(f"its entry point '{entry.name} = {entry.value}' names no module")
            module = entry.load()
            _check_hook_names(module)
            manager = pluggy.PluginManager(hookspecs.PROJECT)
            manager.add_hookspecs(hookspecs)
            manager.register(module, entry.name)
            manager.check_pending()
            specs: list[Spec] = []
            for hook, kind in _SPEC_HOOKS.items():
                specs += _collect(manager, hook, kind)
            plugin.specs = [spec for spec in specs if readable(spec)]
            plugin.refused = [spec for spec in specs if not readable(spec)]
            plugin.manager = manager
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the one place that isolates: what a plugin does wrong stays its own
        what = str(error) if isinstance(error, GrpokitError) else describe(error)
        advice = mismatch(plugin.package)
        if not advice and "Spec.__init__() got an unexpected keyword argument" in what:
            advice = "The plugin may be written for a newer grpokit."
        plugin.error = f"{what.rstrip('.')}. {advice}" if advice else what
    plugin.seconds = time.perf_counter() - begin
    return plugin


def normal(distribution: str) -> str:
    """A distribution's name as indexes spell it, in small letters with hyphens."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _check_hook_names(module: object) -> None:
    for name, value in vars(module).items():
        if not name.startswith("grpokit_") or not inspect.isfunction(value):
            continue
        if name not in _HOOKS:
            raise PluginError(f"unknown hook '{name}'{nearest(name, _HOOKS)}")
        if not hasattr(value, f"{hookspecs.PROJECT}_impl"):
            raise PluginError(f"'{name}' lacks the decorator @hookimpl (from grpokit import hookimpl)")


def _collect(manager: pluggy.PluginManager, hook: str, kind: type[Spec]) -> Iterator[Spec]:
    for result in getattr(manager.hook, hook)():
        for spec in result:
            if not isinstance(spec, kind):
                raise PluginError(f"{hook} yielded {spec!r}; expected {kind.__name__} records")
            if readable(spec):  # what another API means by the fields is not known here
                _check_spec(spec)
            yield spec


def _check_spec(spec: Spec) -> None:
    """Refuse a record that could not be named in a config, or would fail only when it is used."""
    what = f"{spec.kind} {spec.name!r}"
    named = isinstance(spec.name, str) and spec.name
    if not named or any(c.isspace() or c in ":/\\" for c in spec.name):
        raise PluginError(
            f"{what}: the name must be a text without spaces, colons and slashes, such as 'my-{spec.kind}'"
        )
    if not isinstance(spec.factory, str) or not all(spec.factory.partition(":")):
        form = "package:path/inside.yaml" if spec.kind in ("preset", "evaluation") else "package.module:Name"
        raise PluginError(f"{what}: the factory must be a text of the form {form}, got {brief(spec.factory)}")
    words = getattr(spec, "statistic", None)
    if words is not None and not (
        isinstance(words, tuple) and len(words) == 2 and all(isinstance(w, str) for w in words)
    ):
        raise PluginError(
            f"{what}: statistic must be the words for a lower and a higher score, such as ('darker', 'brighter'), got "
            f"{brief(words)}"
        )
    outputs = getattr(spec, "accepts", {getattr(spec, "makes", "image")})
    if not isinstance(outputs, (set, frozenset)) or not outputs:
        raise PluginError(f"{what}: accepts must be a set of kinds, such as {{'image'}}, got {brief(outputs)}")
    for output in outputs:  # a misspelt kind would match nothing, silently
        if output not in KINDS and not all(str(output).partition(":")):
            raise PluginError(
                f"{what} names the kind of output {brief(output)}{nearest(str(output), KINDS)}; expected 'image', "
                "'text' or 'episode', or for another kind a name that begins with its plugin, as in 'my-plugin:points'"
            )


def describe(error: BaseException) -> str:
    """An error's type and words on one line, with advice where a library's own words help nobody."""
    line = error_line(error)
    if "torchvision::nms does not exist" in line:
        line += (
            " (this torchvision was built for another torch, usually a CUDA build with a CPU torch: "
            "install the build of torchvision that matches your torch)"
        )
    return line


@contextmanager
def explained(what: str) -> Iterator[None]:
    """An error in the code of a plugin or a user becomes one message: `what`, the error, its place.

    Raises:
        PluginError: in place of any error but grpokit's own and a KeyboardInterrupt.
    """
    try:
        with forks_ended():
            yield
    except (GrpokitError, KeyboardInterrupt):
        raise
    except BaseException as error:  # such as a SystemExit or a cancelled task
        raise PluginError(f"{what}: {describe(error)} {raised_at(error)}.") from error


def observers() -> dict[str, Any]:
    """New observers of all plugins, by the names of distribution and observer.

    Raises:
        PluginError: a plugin cannot make its own.
    """
    instances: dict[str, Any] = {}
    for plugin in plugins():
        if plugin.manager is not None:
            with explained(f"plugin '{plugin.name}' failed in grpokit_observers"):
                for named in plugin.manager.hook.grpokit_observers():
                    instances |= {f"{plugin.package}-{name}": observer for name, observer in named.items()}
    return instances


def notify(hook: str, **arguments: Any) -> list[str]:
    """Call a run event on every plugin; returns one line per plugin that raised (the run continues)."""
    _, failures = answers(hook, lambda result: (), **arguments)
    return failures


def answers(hook: str, read: Callable[[Any], Iterable[Answer]], /, **arguments: Any) -> tuple[list[Answer], list[str]]:
    """Call a hook on every plugin, and go on where one raises.

    Args:
        hook: its name.
        read: what is taken of a result; an error in it counts as the plugin's.
        arguments: the hook's.

    Returns:
        What all plugins answered, and a line for each one that raised.
    """
    collected: list[Answer] = []
    failures = []
    for plugin in plugins():
        if plugin.manager is not None:
            try:
                with forks_ended():
                    own: list[Answer] = []
                    for result in getattr(plugin.manager.hook, hook)(**arguments):
                        own += read(result)
                collected += own
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a watcher's mistake must not end a run
                failures.append(f"plugin '{plugin.name}' failed in {hook}: {describe(error)}")
    return collected, failures
