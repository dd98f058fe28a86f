"""Lists tasks with the parameters that a config can give them: `python -m grpokit_reasoning_gym [TASK ...]`."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

from reasoning_gym.factory import DATASETS

from grpokit_reasoning_gym.tasks import TASKS


def is_plain(value: Any) -> bool:
    """Whether a config can hold a value; objects of reasoning-gym's own classes it cannot."""
    if isinstance(value, list | tuple):
        return all(is_plain(part) for part in value)
    return type(value) in (bool, int, float, str, type(None))


def listed(task: str) -> str:
    """A task as a line of YAML, of which JSON is a part."""
    _, settings = DATASETS[task]
    defaults = settings()
    parameters = {}
    for field in dataclasses.fields(defaults):
        value = getattr(defaults, field.name)
        if field.name not in ("seed", "size") and is_plain(value):
            parameters[field.name] = value
    return f"{task}: {json.dumps(parameters, ensure_ascii=False)}"


for name in sys.argv[1:] or TASKS:
    if name not in TASKS:
        sys.exit(f"There is no task {name!r}; without a name all are listed.")
    print(listed(name))
