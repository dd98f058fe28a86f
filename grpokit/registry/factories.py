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

from grpokit.errors import PluginError, UsageError, brief, nearest, reword
from grpokit.registry.columns import COMPUTED, makes_reward, of_samples, takes_columns
from grpokit.registry.compatibility import mismatch
from grpokit.registry.entry_points import explained
from grpokit.registry.importing import missing_package, resolve
from grpokit.registry.name_lookup import find, is_path, named, spec_of
from grpokit.registry.synonyms import hint
from grpokit.settings import in_words, problem

_DATA = {"reward": 1, "advantage": 3, "placement": 3}
"""How many arguments of a plain function later calls fill in, by position."""

TIMEOUT = 600.0
"""Seconds that a call at another place may take where nothing else is said."""

_BY_NAME = "decision_rewards"
"""What they fill in by name, if an advantage function has such a parameter."""


def create(kind: str, name: str, params: Mapping[str, Any] | None = None, *, keys: Collection[str] = ()) -> Any:
    """Build the component `name` of a kind with its parameters.

    Args:
        kind: "reward", "policy", "advantage", "objective", "modifier", "placement", "world" or "dataset".
        name: a plugin's name for it, or "package.module:function" for one that no plugin brings.
        params: keyword parameters. A class or a policy's or objective's factory is called with them, and so is a
            function that needs nothing else to make a reward; a plain reward, advantage or placement function gets
            them as keywords in every later call. A reward that takes columns is called with samples all the same
            (`grpokit.registry.columns`).
        keys: other keys that a config may set for the component, as hints for an unknown parameter.

    Raises:
        PluginError: unknown or ambiguous name, missing dependency, wrong parameters.
    """
    params = params or {}
    if kind == "reward" and _usual_placement(name):
        return place(name, params, {})
    target, what, install = _factory(kind, name)
    later = _later(kind, target, params)
    if later:
        _check_params(target, what, params, data=later, keys=keys)
        built = functools.partial(target, **params) if params else target
    else:
        built = _call(target, what, params, install, keys=keys)
    return of_samples(built, error=PluginError) if kind == "reward" else built


def place(name: str, params: Mapping[str, Any], placement: Mapping[str, Any], timeout: float = TIMEOUT) -> Any:
    """Have a reward scored at another place.

    Args:
        name: the reward's, as of `create`.
        params: its parameters.
        placement: the kind of place with its options, as a config has it; empty: the one that its plugin declares.
        timeout: seconds that a call there may take.

    Returns:
        What the placement gives: a `grpokit.Submits`.

    Raises:
        PluginError: there is no such kind of place, or an option is wrong.
        UsageError: samples cannot be scored there.
    """
    kind, options = placement_of(name, placement)
    there = create("placement", kind, options)
    with explained(f"The placement '{kind}' of reward '{name}' fails"):
        return there(name, params, timeout)


def placement_of(name: str, placement: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The kind of place where a reward runs, and its options; an empty kind stands for the run's own process.

    Args:
        name: the reward's, as of `create`.
        placement: what a config says; empty where it says nothing.

    Raises:
        UsageError: the options are neither names with values nor what the kind has a shorthand for.
    """
    usual = _usual_placement(name)
    for kind, options in (placement or usual).items():
        return kind, {**_options(kind, usual.get(kind, {})), **_options(kind, options)}
    return "", {}


def _options(kind: str, options: Any) -> Mapping[str, Any]:
    """The options of a place by their names, also where its shorthand is used."""
    if isinstance(options, Mapping):
        return options
    shorthand = getattr(spec_of("placement", kind), "shorthand", "")
    if not shorthand:
        raise UsageError(f"'{kind}' is {brief(options)}; expected its options, as in {{name: value}}.")
    return {shorthand: options}


def _usual_placement(name: str) -> Mapping[str, Any]:
    """Where a reward's plugin says that it runs; empty for the run's own process."""
    owners = [] if is_path(name) else named("reward", name)
    return getattr(owners[0][1], "placement", {}) if len(owners) == 1 else {}


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
    later = _later(kind, target, params)
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
    return _declared(target, data=_later(kind, target, {}))


def _later(kind: str, target: Callable[..., Any], params: Mapping[str, Any]) -> int:
    """How many arguments of a factory later calls fill in."""
    if inspect.isclass(target) or (kind == "reward" and makes_reward(target, params)):
        return 0
    return _DATA.get(kind, 0)


def _declared(target: Callable[..., Any], *, data: int) -> tuple[dict[str, inspect.Parameter], bool]:
    """A factory's parameters without the first `data`, which are not for the config; whether it takes others too."""
    try:
        signature = inspect.signature(target).parameters.values()
    except ValueError:  # compiled code may have none
        return {}, True
    hints = _hints(target)
    by_place = [p.name for p in signature if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_call = COMPUTED if data and takes_columns(target) else by_place[:data]
    others = (*by_call, _BY_NAME)
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
    of_data = bool(data) and takes_columns(target)
    words = [name if p.default is p.empty else f"{name}={p.default!r}" for name, p in parameters.items()]
    choices = ", ".join(words) or "none"
    unknown = [name for name in params if name not in parameters]
    if unknown and not open_ended:
        more = f" Keys of every {what.split()[0]}: {', '.join(keys)}{nearest(unknown[0], keys)}." if keys else ""
        raise PluginError(
            f"The {what} has no parameter '{unknown[0]}'{hint(unknown[0], parameters)}. It accepts: {choices}.{more}"
        )
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in params and not of_data:
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
