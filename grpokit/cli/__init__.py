"""The command line. Thin: it reads arguments, calls the library and prints.

Nothing heavy is imported before a command needs it. Bad input prints one message and exits with 2, a failed run with
1, Ctrl-C or SIGTERM with 130 after a checkpoint was saved.
"""

from __future__ import annotations

import os
import sys

from grpokit.cli import authoring, components, runs, scoring
from grpokit.cli.app import app
from grpokit.errors import GrpokitError

__all__ = ["app", "authoring", "components", "main", "runs", "scoring"]


def main() -> None:
    """Entry point of the `grpokit` command."""
    sys.path.append(os.getcwd())  # so that a config can name `my_rewards:brightness` in a file beside it
    try:
        app()
    except GrpokitError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
