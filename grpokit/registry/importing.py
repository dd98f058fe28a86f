"""Imports "package.module:Name", or says in one message which part of it is missing."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from grpokit.errors import PluginError, a_type, nearest, one_line, raised_at
from grpokit.registry.entry_points import explained
from grpokit.registry.name_lookup import spelling


def resolve(path: str, what: str = "", install: str = "") -> Callable[..., Any]:
    """What `path` names, of any kind.

    Args:
        path: "package.module:Name".
        what: how messages call it, such as "reward 'ssim' of plugin 'ssim'"; by default a component.
        install: the command that brings missing dependencies, where the plugin says one.

    Raises:
        PluginError: there is no such module or name, or it cannot be imported or called.
    """
    module_name, _, attribute = path.partition(":")
    what = what or f"component '{path}'"
    with explained(f"The {what} cannot be imported from '{module_name}'"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise missing_package(error, f"{what}{spelling(path)}", install, factory=module_name) from error
    target = getattr(module, attribute, None)
    if not callable(target):
        actual = "has no such function or class" if target is None else f"is {a_type(target)}, not a function or class"
        guess = nearest(attribute, [name for name, value in vars(module).items() if callable(value)])
        guess = spelling(path) or guess
        raise PluginError(f"The {what} should be '{attribute}' in '{module_name}', which {actual}{guess}.")
    return target  # type: ignore[no-any-return]


def missing_package(error: ModuleNotFoundError, what: str, install: str, *, factory: str = "") -> PluginError:
    """An error that names the missing module and the place of its import.

    Args:
        error: what the import raised.
        what: how the message calls the component.
        install: the command that brings missing dependencies, where the plugin says one.
        factory: the module of the component; empty if its import succeeded and the error came later.
    """
    module = error.name or one_line(error)  # which has no name where it is raised by hand
    remedy = f"Run: {install}" if install else "Check the spelling, or install the package that has it."
    if f"{factory}.".startswith(f"{module}."):
        return PluginError(f"The {what} cannot be found: there is no module '{module}'. {remedy}")
    own_environment = what.startswith("reward ") and not install
    return PluginError(
        f"The {what} needs the Python module '{module}' {raised_at(error)}, which is not installed. {remedy}",
        page="capsules" if own_environment else "",
    )
