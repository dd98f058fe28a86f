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
    """An error that names the missing module, the place of its import, and whether its package is installed.

    Args:
        error: what the import raised.
        what: how the message calls the component.
        install: the command that brings missing dependencies, where the plugin says one.
        factory: the module of the component; empty if its import succeeded and the error came later.
    """
    remedy = f"Run: {install}" if install else "Check the spelling, or install the package that has it."
    module = error.name
    if module is None:  # raised by hand
        return PluginError(f"The {what} needs a Python module: {one_line(error)}. {remedy}")
    itself = f"{factory}.".startswith(f"{module}.")
    parent, _, last = module.rpartition(".")
    if sys.modules.get(parent) is not None:  # which its import left there
        inside = [m.name for m in pkgutil.iter_modules(getattr(sys.modules[parent], "__path__", []))]
        subject = "cannot be found" if itself else f"needs the Python module '{module}'{_importer(error)}"
        return PluginError(
            f"The {what} {subject}: the package '{parent}' is installed, but has no module '{last}'"
            f"{nearest(last, inside)}. Check the spelling{'' if itself else ', or install another version of it'}."
        )
    modules = {m.name for m in pkgutil.iter_modules([os.getcwd(), *sys.path])}
    guess = nearest(module, modules)
    if guess and install:
        remedy = f"Check the spelling, or run: {install}"
    if itself and not install:
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
