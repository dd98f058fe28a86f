"""grpokit-plan: the memory and time of a step on a GPU, before anything is loaded.

`plugin` announces the command `grpokit plan`, `command` is it. The names here are what a policy's plan is written with;
`estimate` asks for one and adds up, on the `cards` that are known.
"""

from __future__ import annotations

from grpokit_plan.needs import MOMENTS as MOMENTS
from grpokit_plan.needs import REPLAY as REPLAY
from grpokit_plan.needs import Job as Job
from grpokit_plan.needs import Moment as Moment
from grpokit_plan.needs import Needs as Needs
from grpokit_plan.needs import Part as Part
from grpokit_plan.needs import Remedy as Remedy
from grpokit_plan.needs import Work as Work

__all__ = ["MOMENTS", "REPLAY", "Job", "Moment", "Needs", "Part", "Remedy", "Work"]
