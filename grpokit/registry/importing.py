"""Imports "package.module:Name", or says in one message which part of it is missing."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpokit.errors import PluginError, a_type, nearest, one_line
from grpokit.registry.entry_points import described


def import_name(path: str, what: str, install: str = "") -> Callable[..., Any]:
    """What `path` names.

    Args:
        path: "package.module:Name".
        what: how messages call it, such as "reward 'ssim' of plugin 'ssim'".
        install: the command that brings missing dependencies, where the plugin says one.

    Raises:
        PluginError: there is no such module or name, or it cannot be imported or called.
    """
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise missing(error, what, install, factory=module_name) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PluginError(f"The {what} cannot be imported from '{module_name}': {described(error)}.") from error
    target = getattr(module, attribute, None)
    if target is not None and not callable(target):
        raise PluginError(f"The {what}: '{attribute}' in '{module_name}' is {a_type(target)}, not a function or class.")
    if target is None:
        raise PluginError(
            f"The {what} should be '{attribute}' in '{module_name}', which has no such function or class"
            f"{nearest(attribute, vars(module))}."
        )
    return target  # type: ignore[no-any-return]


def missing(error: ModuleNotFoundError, what: str, install: str, *, factory: str = "") -> PluginError:
    """An error that names the missing module, the nearest one, and the place of its import.

    Args:
        error: what the import raised.
        what: how the message calls the component.
        install: the command that brings missing dependencies, where the plugin says one.
        factory: the module of the component; empty if its import succeeded and the error came later.
    """
    module = error.name or one_line(error)  # which has no name where it is raised by hand
    itself = f"{factory}.".startswith(f"{module}.")
    parent, _, last = module.rpartition(".")
    inside = getattr(sys.modules.get(parent), "__path__", None)  # of the package that lacks the module
    guess = nearest(last, {m.name for m in pkgutil.iter_modules(inside or [os.getcwd(), *sys.path])})
    remedy = f"Run: {install}" if install else "Check the spelling, or install the package that has it."
    if install and (guess or inside):
        remedy = f"Check the spelling, or run: {install}"
    if itself and (inside or not install):
        return PluginError(f"The {what} cannot be found: there is no module '{module}'{guess}. {remedy}")
    importer = "" if itself else _importer(error)
    return PluginError(
        f"The {what} needs the Python module '{module}'{importer}, which is not installed{guess}. {remedy}"
    )


def _importer(error: ModuleNotFoundError) -> str:
    """The place of the import that failed, where it is in a file."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    if not frames or frames[-1].filename == __file__:
        return ""
    file = Path(frames[-1].filename)
    return f" (imported in {file.parent.name}/{file.name}, line {frames[-1].lineno})"
