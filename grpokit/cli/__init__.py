"""The command line. Thin: it reads arguments, calls the library and prints.

Nothing heavy is imported before a command needs it. Bad input prints one message and exits with 2, a failed run with
1, Ctrl-C, SIGTERM or SIGHUP with 130 after a checkpoint was saved.
"""

from __future__ import annotations

from grpokit.cli import evaluate, runs, sample  # their commands stand first in the help

# isort: split
from grpokit.cli import components
from grpokit.cli.app import app, main

__all__ = ["app", "components", "evaluate", "main", "runs", "sample"]
