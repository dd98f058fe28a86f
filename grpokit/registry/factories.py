"""Builds the component that a spec names from flat parameters, or says in one message why it cannot.

The factory stays a string until it is needed. Wrong parameters are refused before the factory is called, in a message
that lists the right ones. An error in the factory or in its imports becomes one `PluginError`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, get_type_hints

from grpokit.errors import PluginError, nearest, reword
from grpokit.registry.compatibility import mismatch
from grpokit.registry.entry_points import explained
from grpokit.registry.foreign_rewards import refuse_columns
from grpokit.registry.importing import missing_package, resolve
from grpokit.registry.name_lookup import find, is_path
from grpokit.registry.synonyms import hint
from grpokit.settings import in_words, problem

_DATA = {"reward": 1, "advantage": 3, "placement": 3}
"""How many arguments of a plain function later calls fill in, by position."""

_BY_NAME = "decision_rewards"
"""What they fill in by name, if an advantage function has such a parameter."""


def create(kind: str, name: str, params: Mapping[str, Any] | None = None, *, keys: Collection[str] = ()) -> Any:
    """Build the component `name` of a kind with its parameters.

    Args:
        kind: "reward", "policy", "advantage", "objective", "modifier", "placement", "world" or "dataset".
        name: a plugin's name for it, or "package.module:function" for one that no plugin brings.
        params: keyword parameters. A class or a policy's or objective's factory is called with them; a plain
            reward, advantage or placement function gets them as keywords in every later call.
        keys: other keys that a config may set for the component, as hints for an unknown parameter.

    Raises:
        PluginError: unknown or ambiguous name, missing dependency, wrong parameters.
    """
    target, what, install = _factory(kind, name)
    later = _later(kind, target)
    built = target if later else _call(target, what, params or {}, install, keys=keys)
    if kind == "reward":
        refuse_columns(built, what)
    if not later:
        return built
    _check_params(target, what, params or {}, data=later, keys=keys)
    return functools.partial(target, **params) if params else target


def parameters(kind: str, name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """All named parameters of a component's factory, with these values or their defaults; nothing is built.

    Args:
        kind: as of `create`.
        name: as of `create`.
        params: those that are set.

    Raises:
        PluginError: as `create`.
    """
    target, what, _ = _factory(kind, name)
    later = _later(kind, target)
    _check_params(target, what, params, data=later)
    takes, _ = _declared(target, data=later)
    defaults = {name: p.default for name, p in takes.items() if p.default is not p.empty}
    return defaults | dict(params)


def declared_parameters(kind: str, name: str) -> tuple[dict[str, inspect.Parameter], bool]:
    """The parameters that a config may give to a component, with their annotations resolved, and whether it takes more.

    Args:
        kind: as of `create`.
        name: as of `create`.

    Raises:
        PluginError: unknown or ambiguous name, missing dependency.
    """
    target, _, _ = _factory(kind, name)
    return _declared(target, data=_later(kind, target))


def _later(kind: str, target: Callable[..., Any]) -> int:
    """How many arguments of a factory later calls fill in."""
    return 0 if inspect.isclass(target) else _DATA.get(kind, 0)


def _declared(target: Callable[..., Any], *, data: int) -> tuple[dict[str, inspect.Parameter], bool]:
    """A factory's parameters without the first `data`, which are not for the config; whether it takes others too."""
    try:
        signature = inspect.signature(target).parameters.values()
    except ValueError:  # compiled code may have none
        return {}, True
    hints = _hints(target)
    by_place = [p.name for p in signature if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    others = (*by_place[:data], _BY_NAME)
    takes = {}
    for p in signature:
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in others:
            takes[p.name] = p.replace(annotation=hints.get(p.name, Any))
    return takes, any(p.kind is p.VAR_KEYWORD for p in signature)


def _factory(kind: str, name: str) -> tuple[Callable[..., Any], str, str]:
    """A component's factory, what messages call it, and the command that brings what it needs."""
    if is_path(name):
        what = f"{kind} '{name}'"
        return resolve(name, what), what, ""
    plugin, spec = find(kind, name)
    what = f"{kind} '{spec.name}'"
    try:
        return resolve(spec.factory, f"{what} of plugin '{plugin.name}'", spec.install), what, spec.install
    except PluginError as error:
        raise reword(error, f"{error} {mismatch(plugin.package)}".rstrip()) from error


def call(path: str, params: Mapping[str, Any], *, what: str) -> Any:
    """Import "package.module:function" and call it with `params`; `what` names it in errors.

    Raises:
        PluginError: it cannot be imported, or does not take these parameters.
    """
    if ":" not in path:
        raise PluginError(f"The {what} '{path}' must be of the form package.module:function.")
    return _call(resolve(path, f"{what} '{path}'"), f"{what} '{path}'", params, "")


def _call(
    target: Callable[..., Any], what: str, params: Mapping[str, Any], install: str, *, keys: Collection[str] = ()
) -> Any:
    _check_params(target, what, params, data=0, keys=keys)
    values = ", ".join(f"{name}={value!r}" for name, value in params.items()) or "its defaults"
    with explained(f"The {what} fails with {values:.200}"):
        from grpokit.processes.own_gpu import take_own_gpu

        take_own_gpu()  # before anything is loaded there
        try:
            return target(**params)
        except ModuleNotFoundError as error:
            raise missing_package(error, what, install) from error


def _check_params(
    target: Callable[..., Any], what: str, params: Mapping[str, Any], *, data: int, keys: Collection[str] = ()
) -> None:
    """Refuse parameters that the factory does not take, before calling it; the first `data` are not for the config."""
    parameters, open_ended = _declared(target, data=data)
    words = [name if p.default is p.empty else f"{name}={p.default!r}" for name, p in parameters.items()]
    choices = ", ".join(words) or "none"
    unknown = [name for name in params if name not in parameters]
    if unknown and not open_ended:
        more = f" Keys of every {what.split()[0]}: {', '.join(keys)}{nearest(unknown[0], keys)}." if keys else ""
        raise PluginError(
            f"The {what} has no parameter '{unknown[0]}'{hint(unknown[0], parameters)}. It accepts: {choices}.{more}"
        )
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in params:
            raise PluginError(f"The {what} needs the parameter '{name}'. It accepts: {choices}.")
        value = params.get(name)
        if name not in params or (isinstance(value, float) and math.isinf(value)):  # some may be infinite
            continue
        mistake = problem(value, parameter.annotation)
        if mistake:
            raise PluginError(f"The {what}: {name} {mistake}.{in_words(target, name)}")


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a factory's parameters; none where they cannot be resolved here."""
    try:
        if dataclasses.is_dataclass(target):  # whose fields may be declared in several modules
            return get_type_hints(target)
        return get_type_hints(target.__init__ if inspect.isclass(target) else target, include_extras=True)
    except (NameError, TypeError, AttributeError):  # of names that are imported for type checkers only
        return {}
