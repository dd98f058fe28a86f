"""`grpokit plan`: the memory and time of a step on a GPU, before anything is loaded.

Authors of policies use `Job`, `Part`, `Work`, `Remedy` and `Needs`.
"""

from __future__ import annotations

from grpokit.plan.needs import MOMENTS as MOMENTS
from grpokit.plan.needs import Job as Job
from grpokit.plan.needs import Moment as Moment
from grpokit.plan.needs import Needs as Needs
from grpokit.plan.needs import Part as Part
from grpokit.plan.needs import Remedy as Remedy
from grpokit.plan.needs import Work as Work
