"""The command line. Thin: it reads arguments, calls the library and prints.

Nothing heavy is imported before a command needs it. Bad input prints one message and exits with 2, a failed run with
1, Ctrl-C or SIGTERM with 130 after a checkpoint was saved.
"""

from __future__ import annotations

<<<<<<< HEAD
from grpokit.cli import attribute_command, authoring, components, doctor_command, plan_command, runs, score_command
=======
from grpokit.cli import (
    attribute_command,
    authoring,
    components,
    plan_command,
    presets_command,
    runs,
    score_command,
    sweep_command,
)
>>>>>>> 08f9aeac4884c5f83692fcdba0de98d089d0c84f
from grpokit.cli.app import app, main

__all__ = [
    "app",
    "attribute_command",
    "authoring",
    "components",
<<<<<<< HEAD
    "doctor_command",
    "main",
    "plan_command",
    "runs",
    "score_command",
=======
    "main",
    "plan_command",
    "presets_command",
    "runs",
    "score_command",
    "sweep_command",
>>>>>>> 08f9aeac4884c5f83692fcdba0de98d089d0c84f
]
