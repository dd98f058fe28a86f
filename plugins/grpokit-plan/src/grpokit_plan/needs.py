"""What a policy's plan says: memory in parts and work in phases, for one step of training.

A policy joins `grpokit plan` with `PolicySpec(plan="package.module:function")`. The function gets `parameters`, all
parameters of the policy with the config's values or their defaults, and `job`, a `Job`. It loads no weights and returns
`Needs`. It plans for a GPU, whatever this machine has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from grpokit.errors import PluginError
from grpokit.settings import Optimizer, Precision, TrainerSettings

Moment: TypeAlias = Literal["rollout", "decode", "score", "train"]
"""The stretches of a step that hold different things in memory."""
MOMENTS: tuple[Moment, ...] = ("rollout", "decode", "score", "train")
"""All of them, in the order of a step."""

MFU = 0.45  # share of the card's FLOP/s that large products reach
BANDWIDTH = 0.70  # share of the memory's speed that decoding reaches
LAUNCH = 5e-6  # seconds of a kernel that is started on its own, however small
REPLAY = 2.5e-6
"""Seconds of a kernel in a captured graph, however small."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A step of training, as far as the needs of a policy depend on it.

    Attributes:
        prompts: P, groups per step.
        group_size: G.
        micro_batch_size: the most rows in one pass.
        micro_batch_tokens: the most decisions in one pass; None sets no bound.
        rollout_rows: the most rows drawn at a time: those of whole groups, or of a part of one.
        passes: passes over a rollout with gradient.
        updates: optimizer steps per rollout.
        reference: whether the objective needs the reference's log-probs.
        entropy: whether a pass without gradient is made for entropies.
        whole_groups: whether a pass without gradient goes before each one with it.
        mixed_precision: "no", "bf16" or "fp16".
        optimizer: "adamw", "adamw_8bit" or "paged_adamw_8bit".
        prompt_tokens: the tokens of a prompt, if the user said so.
        pictures: whether prompts may bring pictures.
        policy: the name of the policy that learns, if a factory gives several; empty for a single one.
    """

    prompts: int
    group_size: int
    micro_batch_size: int
    micro_batch_tokens: int | None = None
    rollout_rows: int
    passes: int = 1
    updates: int = 1
    reference: bool = False
    entropy: bool = False
    whole_groups: bool = False
    mixed_precision: Precision = "no"
    optimizer: Optimizer = "adamw"
    prompt_tokens: int | None = None
    pictures: bool = True
    policy: str = ""

    @classmethod
    def of(
        cls,
        settings: TrainerSettings,
        *,
        reference: bool,
        entropy: bool = False,
        whole_groups: bool = False,
        prompt_tokens: int | None,
        pictures: bool = True,
        policy: str = "",
    ) -> Job:
        """The job that the settings of a trainer describe."""
        rows, group = settings.prompts_per_step * settings.group_size, settings.group_size
        drawn = min(rows, settings.rollout_batch_size or rows)
        return cls(
            prompts=settings.prompts_per_step,
            group_size=settings.group_size,
            micro_batch_size=settings.micro_batch_size,
            micro_batch_tokens=settings.micro_batch_tokens,
            rollout_rows=drawn if drawn < group else drawn - drawn % group,
            passes=settings.updates_per_rollout,
            updates=settings.updates_per_step,
            reference=reference,
            entropy=entropy,
            whole_groups=whole_groups,
            mixed_precision=settings.mixed_precision,
            optimizer=settings.optimizer,
            prompt_tokens=prompt_tokens,
            pictures=pictures,
            policy=policy,
        )

    @property
    def rows(self) -> int:
        """B, samples per step."""
        return self.prompts * self.group_size

    @property
    def averages(self) -> float:
        """Bytes that the optimizer keeps of a trained weight: two averages, in 8 bits with scales for 256 weights."""
        return 8.0 if self.optimizer == "adamw" else 2 * (1 + 4 / 256)

    @property
    def rollout_calls(self) -> int:
        """How often the policy draws in a step."""
        if self.rollout_rows < self.group_size:
            return self.prompts * math.ceil(self.group_size / self.rollout_rows)
        return math.ceil(self.prompts / self.rollout_prompts)

    @property
    def rollout_prompts(self) -> int:
        """The most prompts that are drawn for at a time."""
        return max(1, self.rollout_rows // self.group_size)

    def micro_batch(self, decisions: int) -> tuple[int, int]:
        """Rows and prompts of the largest pass, where groups stay together and all rows have this many decisions."""
        most = min(self.micro_batch_size, self.rows)
        if self.micro_batch_tokens is not None:
            most = min(most, max(1, self.micro_batch_tokens // decisions))
        groups = most // self.group_size
        return (groups * self.group_size, groups) if groups else (most, 1)

    def micro_batches(self, decisions: int) -> int:
        """How many passes all rows of a step take, where all have this many decisions."""
        return math.ceil(self.rows / self.micro_batch(decisions)[0])

    def old_pass(self, *, exact: bool) -> bool:
        """Whether the old log-probs take a pass of their own.

        Args:
            exact: whether the policy samples and scores in fp32, so that the rollout's log-probs will do.
        """
        return not exact and self.updates > 1


@dataclass(frozen=True, kw_only=True)
class Part:
    """Something that takes memory on the GPU.

    Attributes:
        name: such as "weights"; two parts of one name are shown as one.
        bytes: how much.
        moments: when it is there.

    Raises:
        PluginError: these are not moments of a step; its bytes would be missing from the sums.
    """

    name: str
    bytes: float
    moments: Iterable[Moment] = MOMENTS

    def __post_init__(self) -> None:
        moments = tuple(self.moments)
        if not moments or isinstance(self.moments, str) or not {*moments} <= {*MOMENTS}:
            raise PluginError(
                f"The plan's part '{self.name}' is there in {self.moments!r}. Expected some of {', '.join(MOMENTS)}, "
                'such as ("train",).',
                page="plan#a-plan-for-your-own-policy",
            )
        object.__setattr__(self, "moments", moments)


@dataclass(frozen=True, kw_only=True)
class Work:
    """Something that takes time on the GPU: as long as its products, its memory traffic or its kernels' starts.

    The kernels of a captured graph, which are small, come on top of that.

    Attributes:
        phase: "rollout", "decode", "old", "reference", "train" or "optimizer"; works of one phase follow each other.
        flop: of one repetition; a multiplication and an addition are two.
        bytes: read and written in one repetition.
        kernels: how many run in a repetition.
        captured: whether they are started as a graph.
        times: repetitions, which follow each other.
        dtype: "bf16", also for fp16, or "fp32": what products are computed in.
        mfu: share of the card's FLOP/s that the products reach.
    """

    phase: str
    flop: float = 0.0
    bytes: float = 0.0
    kernels: int = 0
    captured: bool = False
    times: float = 1
    dtype: Literal["bf16", "fp32"] = "bf16"
    mfu: float = MFU


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """Changes to a config that need less memory.

    Attributes:
        words: such as "policy.gradient_checkpointing=true".
        price: what they cost, such as "training takes about a third longer".
    """

    words: tuple[str, ...]
    price: str


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a step of a policy needs.

    Attributes:
        parts: its memory.
        works: its time.
        remedies: what would need less memory, the cheapest first. Sizes of batches need not be named.
        assumptions: what the numbers rest on, a sentence each.
    """

    parts: tuple[Part, ...]
    works: tuple[Work, ...]
    remedies: tuple[Remedy, ...] = ()
    assumptions: tuple[str, ...] = ()
