"""Which denoising steps are decisions: all, or a window of a few that wanders.

Inside the window a stochastic sampler draws, and these steps are scored and trained. Everywhere else the policy follows
the ODE. A step of training then costs the window's width, and not the schedule's length. From Flow-GRPO-Fast (windows
at random places) and MixGRPO (Li et al., 2025, arXiv:2507.21802: a window that slides from noise to data).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from grpokit.errors import UsageError
from grpokit.sampling import mix
from grpokit.settings import Settings

_STREAM = 0x57494E44  # sets a window's draw apart from a group's other draws


@dataclass(frozen=True, kw_only=True)
class Window(Settings):
    """The keys of `window`.

    Attributes:
        width: how many steps are decisions.
        start: "random": each group's window begins at a random step; "sliding": all windows begin at the first step,
            and move on by one step of the schedule every `every` training steps, and begin again at the end.
        share: "random": the part of the schedule, counted from the noise, in which windows lie.
        every: "sliding": training steps from one move to the next.
    """

    width: Annotated[int, Ge(1), Le(1000)]
    start: Literal["random", "sliding"] = "random"
    share: Annotated[float, Gt(0), Le(1)] = 0.5
    every: Annotated[int, Ge(1)] = 25

    def check_together(self) -> None:
        """Refuse what the other kind of start has.

        Raises:
            UsageError: with its name.
        """
        idle = "every" if self.start == "random" else "share"
        if getattr(self, idle) != getattr(Window, idle):
            raise UsageError(f"window: {idle} has no effect with start '{self.start}'. Leave it out, or change start.")

    def check(self, decisions: int) -> None:
        """Check the window against the number of steps that can be decisions.

        Raises:
            UsageError: it is wider than these.
        """
        if self.width > decisions:
            raise UsageError(
                f"window: width is {self.width}, and only {decisions} steps of the schedule can be decisions. Use a "
                f"window of at most {decisions}, or more steps."
            )

    def first(self, group_seed: int, *, step: int, decisions: int) -> int:
        """The index of the window's first step.

        Args:
            group_seed: of the group.
            step: how many training steps came before.
            decisions: how many steps of the schedule can be decisions.
        """
        if self.start == "sliding":
            return step // self.every % (decisions - self.width + 1)
        last = max(0, int(self.share * decisions) - self.width)
        return mix(group_seed, _STREAM) % (last + 1)
