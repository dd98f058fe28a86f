"""Lists the tasks with the parameters of their generators: `python -m grpokit_reasoning_gym`."""

import dataclasses

from reasoning_gym.factory import DATASETS

from grpokit_reasoning_gym.tasks import TASKS

for task in TASKS:
    _, settings = DATASETS[task]
    defaults = settings()
    own = [field.name for field in dataclasses.fields(settings) if field.name not in ("seed", "size")]
    print(f"{task}:", ", ".join(f"{name}={getattr(defaults, name)!r}" for name in own))
