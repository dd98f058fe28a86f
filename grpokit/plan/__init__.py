"""`grpokit plan`: the memory and time of a step on a GPU, before anything is loaded.

The names here are what a policy's plan is written with.
"""

from __future__ import annotations

from grpokit.plan.needs import MOMENTS as MOMENTS
from grpokit.plan.needs import REPLAY as REPLAY
from grpokit.plan.needs import Job as Job
from grpokit.plan.needs import Moment as Moment
from grpokit.plan.needs import Needs as Needs
from grpokit.plan.needs import Part as Part
from grpokit.plan.needs import Remedy as Remedy
from grpokit.plan.needs import Work as Work

__all__ = ["MOMENTS", "REPLAY", "Job", "Moment", "Needs", "Part", "Remedy", "Work"]
