"""The errors grpokit raises on purpose.

Each carries one message for a person: what was expected, what came, what to do. The command line prints the
message and exits with the error's code; only a bug shows a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GrpokitError(Exception):
    """Base of all errors raised on purpose. `exit_code` is what the command line returns for it."""

    exit_code = 1


class UsageError(GrpokitError):
    """The user's input is wrong: a config, an option, a data file, an argument. Exit code 2."""

    exit_code = 2


class ConfigError(UsageError):
    """A config file or override cannot be used as it stands."""


class DataError(UsageError):
    """A prompts file, a target image or a dataset cannot be used as it stands."""


class PluginError(UsageError):
    """A plugin is unknown, ambiguous, broken, misses a dependency or got wrong parameters."""


class RewardError(GrpokitError):
    """A reward raised, or returned something that is not one finite number (or NaN) per sample."""


class RunError(GrpokitError):
    """A run cannot go on: what happened, at which step, and what to do."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `" (did you mean 'x'?)"` for the known name nearest to `name`, or an empty string.

    >>> nearest("stepz", ["steps", "seed"])
    " (did you mean 'steps'?)"
    >>> nearest("qqq", ["steps"])
    ''
    """
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{found[0]}'?)" if found else ""
