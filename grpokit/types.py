"""The nouns that pass between policies, rewards and the trainer.

All are frozen dataclasses, keyword-only but for a prompt's text; tensors inside them are never changed in place.
Letters in shapes: B rows (samples), P prompts, G samples per prompt (B = P * G), T decisions per row, R rewards. A
micro-batch or a slice has b <= B rows and t <= T decisions. The module imports torch for type checking only, so a
reward for text or pictures can import `Sample` without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

from grpokit.errors import UsageError

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor


@dataclass(frozen=True)
class Prompt:
    """What conditions the policy.

    Attributes:
        text: the instruction; text that a picture should show is in quotes.
        image: the source picture of an editing task, or what a question is about; the first of `images`.
        target: the perfect sample (a picture or a text), for rewards that compare.
        meta: all other fields of the row of data.
        images: all source pictures. A single one may be given as `image` alone.

    Pictures are turned by their EXIF orientation and brought to sRGB by their ICC profile.
    """

    text: str
    _: KW_ONLY
    image: Image | None = None
    target: Any = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    images: Sequence[Image] = ()

    def __post_init__(self) -> None:
        images = tuple(self.images)
        if self.image is not None:
            images = (self.image, *images[1:])
        object.__setattr__(self, "images", tuple(map(_viewed, images)))
        object.__setattr__(self, "target", _viewed(self.target))
        object.__setattr__(self, "image", self.images[0] if images else None)


def _viewed(value: Any) -> Any:
    """A picture as one sees it; anything else stays as it is."""
    if not hasattr(value, "getexif"):
        return value
    from grpokit.images import as_viewed  # a prompt without pictures does without Pillow

    return as_viewed(value)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What a reward sees: one output and its prompt.

    Attributes:
        prompt: the prompt.
        output: a `str`, a `PIL.Image.Image`, or whatever the policy makes. None where it could make nothing, such as a
            picture of numbers that are not finite: no reward is asked about it, and the row is unscored.
        group: the global id of the group that the sample belongs to.
        info: further facts from the policy. Of a text, "finish" is "stop" if it ended by itself and "length" if it was
            cut, "tokens" is its length, and "token_ids" is an array of its tokens with the end, of several turns also
            what was told between them. A record of a run keeps what JSON has, so no arrays. A reward finds the number
            of a training step in the run, from 1, in "training_step".
    """

    prompt: Prompt
    output: Any
    group: int
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """All randomness of a rollout (see `grpokit.sampling.derive_seeds`).

    Attributes:
        row: [B] int64, one per sample, in the order prompt 0's samples, prompt 1's samples, ...
        group: [P] int64, one per prompt, for draws that a group shares (initial noise, an environment's start).
        group_ids: [P] int64, the global ids for `Rollout.groups` and `Sample.group`.
        step: how many training steps came before this one, for what changes in the course of a run, such as a window of
            decisions; 0 in an evaluation.
    """

    row: Tensor
    group: Tensor
    group_ids: Tensor
    step: int = 0

    def select(self, prompts: Sequence[int]) -> Seeds:
        """Return the seeds of the groups of some prompts, by their places."""
        places = list(prompts)
        by_group = self.row.reshape(len(self.group), -1)  # [B] -> [P, G]
        return replace(
            self,
            row=by_group[places].reshape(-1),
            group=self.group[places],
            group_ids=self.group_ids[places],
        )

    def to(self, device: torch.device | str) -> Seeds:
        """Return the same seeds on `device`."""
        ahead = str(device) != "cpu"  # a copy to the host must have arrived before it is read
        return replace(
            self,
            row=self.row.to(device, non_blocking=ahead),
            group=self.group.to(device, non_blocking=ahead),
            group_ids=self.group_ids.to(device, non_blocking=ahead),
        )


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """One parameter state's view of stored decisions.

    Attributes:
        logprobs: [b, t], in nats per action dimension (see `Rollout.action_dims`).
        entropy: [b, t] of the distribution that each decision was drawn from, or None.
        mean: [b, t, ...] of a Gaussian decision, or None.
        std: [b, t, ...], broadcastable to `mean`, or None.
        v_coef: [b, t, ...], broadcastable to `mean`: the derivative of a flow's mean by its velocity, or None.
        target: [b, t, ...], what `mean` is a prediction of, or None. If it is there, the decision has no density, and
            `logprobs` are scores that rise as `mean` comes nearer to it (see `grpokit.flow.Matching`).
        distribution: [b, t, ...], what the policy needs to compare another view with this one, such as hidden states;
            or None.
        kl: [b, t], the KL of each decision's whole distribution from that of `Ask.against`, or None.
    """

    logprobs: Tensor
    entropy: Tensor | None = None
    mean: Tensor | None = None
    std: Tensor | None = None
    v_coef: Tensor | None = None
    target: Tensor | None = None
    distribution: Tensor | None = None
    kl: Tensor | None = None

    def select(self, rows: Tensor | slice = slice(None), decisions: Tensor | slice = slice(None)) -> Decisions:
        """Return some rows and some decisions."""
        return self._each(lambda x: _rows(x, rows)[:, decisions])

    def detach(self) -> Decisions:
        """Return the same numbers without gradient."""
        return self._each(lambda x: x.detach())

    def to(self, device: torch.device | str) -> Decisions:
        """Return the same numbers on `device`."""
        return self._each(lambda x: x.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Decisions:
        fields = {name: change(x) for name, x in vars(self).items() if x is not None}
        return Decisions(**fields)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What the caller of `Policy.logprobs` will read besides log-probs; the rest need not be computed.

    Attributes:
        entropy: "no": it is not read; "value": it is read without gradient; "grad": with gradient.
        moments: whether mean, std, v_coef and target are read.
        distribution: whether `distribution` is read.
        against: [b, t, ...], the `distribution` of another view of the same decisions, if `kl` is read.
    """

    entropy: Literal["no", "value", "grad"] = "value"
    moments: bool = False
    distribution: bool = False
    against: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A policy's private record of a rollout: what `logprobs` needs to score the stored decisions again.

    A rollout may be drawn in several calls, whose tensors are concatenated. Where they differ in the length of axis 1,
    the shorter ones are padded with zeros at the end, like log-probs and mask. So column k must mean the same in every
    call. It does not in a left-padded tensor of prompt and response: there the responses start at another column in
    each call. Keep the responses in a tensor where column k is decision k, and the prompts in another tensor with an
    attention mask. Count positions from that mask, not from the width.

    Attributes:
        per_row: name -> [B, ...].
        per_group: name -> [P, ...], in ascending order of the group's id.
    """

    per_row: Mapping[str, Tensor] = field(default_factory=dict)
    per_group: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """B = P * G samples with the decisions that made them.

    Facts about groups and lengths are on the CPU, so deciding what to do next need not wait for the device.

    Attributes:
        samples: B samples, for the rewards.
        groups: [B] int64, each row's global group id; moved to the CPU.
        old: the decisions as the sampling policy saw them, [B, T].
        mask: [B, T] bool, True where the policy decided (not prompt, forced or padding).
        max_decisions: the most decisions a row can have; the constant of the fixed-length reduction.
        action_dims: dimensions of one decision: 1 for a token, C*H*W for a latent step.
        trace: the policy's private record.
        weights: [B, T], factors of each decision's policy loss, such as those of a flow's steps; None: all 1.
        decision_rewards: [B, T], what an environment gave for each decision at once, if the policy tells it; moved to
            the CPU. A reward that is their sum is in the rewards too, such as `episode-return`.
        exact: whether `old` comes from the arithmetic of `logprobs`. False for another engine, or a lower precision.
        version: of the weights that drew it, as `Policy.updated` counts them; None: those of the moment of the call.
        averaged: whether an average of the policy's weights drew it. Then `old` is that average's view, as an objective
            reads it, and no other pass replaces it.
    """

    samples: Sequence[Sample]
    groups: Tensor
    old: Decisions
    mask: Tensor
    max_decisions: int
    action_dims: int = 1
    trace: Trace = field(default_factory=Trace)
    weights: Tensor | None = None
    decision_rewards: Tensor | None = None
    exact: bool = True
    version: int | None = None
    averaged: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", self.groups.cpu())
        shape = tuple(self.old.logprobs.shape)
        mask_shape = tuple(self.mask.shape)
        groups_shape = tuple(self.groups.shape)
        if len(shape) != 2 or mask_shape != shape or groups_shape != shape[:1]:
            raise UsageError(
                "A rollout needs old.logprobs [B, T], mask [B, T] and groups [B]; got "
                f"{shape}, {mask_shape} and {groups_shape}."
            )
        for name in ("weights", "decision_rewards"):
            x = getattr(self, name)
            if x is not None and tuple(x.shape) != shape:
                raise UsageError(f"A rollout's {name} are [B, T] like its log-probs {shape}, got {tuple(x.shape)}.")
        if self.decision_rewards is not None:
            object.__setattr__(self, "decision_rewards", self.decision_rewards.cpu())
        if len(self.samples) != shape[0]:
            raise UsageError(f"A rollout of {shape[0]} rows needs as many samples, got {len(self.samples)}.")
        for kind, tensors, count in (
            ("per_row", self.trace.per_row, shape[0]),
            ("per_group", self.trace.per_group, len(set(self.groups.tolist()))),
        ):
            for name, x in tensors.items():
                if len(x) != count:
                    raise UsageError(f"trace.{kind}['{name}'] has {len(x)} entries; this rollout needs {count}.")

    @property
    def rows(self) -> int:
        """B, the number of samples."""
        return len(self.samples)

    @cached_property
    def group_index(self) -> Tensor:
        """[B] int64 on the CPU: for each row, its group's position in the tensors of `trace.per_group`.

        `per_group["x"][rollout.group_index.to(device, non_blocking=True)]` does not wait for the device.
        """
        groups = self.groups.tolist()
        position = {group: i for i, group in enumerate(sorted(set(groups)))}
        return self.groups.new_tensor([position[group] for group in groups])

    @cached_property
    def host_mask(self) -> Tensor:
        """[B, T] bool: `mask` on the CPU."""
        return self.mask.cpu()

    @cached_property
    def decided(self) -> Tensor:
        """[B] int64 on the CPU: each row's number of decisions."""
        return self.host_mask.sum(-1)

    @cached_property
    def lengths(self) -> Tensor:
        """[B] int64 on the CPU: each row's last decided column + 1, or 0."""
        return row_lengths(self.host_mask)

    def select(self, rows: Tensor) -> Rollout:
        """Return the rollout of some rows (`rows`: int64 indices), with everything that belongs to them."""
        here = rows.cpu()
        positions = sorted(set(self.group_index[here].tolist()))  # in per_group, which has the same ascending order
        groups = self.groups.new_tensor(positions)
        part = replace(
            self,
            samples=[self.samples[i] for i in here.tolist()],
            groups=self.groups[here],
            old=self.old.select(rows),
            mask=_rows(self.mask, rows),
            weights=None if self.weights is None else _rows(self.weights, rows),
            decision_rewards=None if self.decision_rewards is None else self.decision_rewards[here],
            trace=Trace(
                per_row={name: _rows(x, rows) for name, x in self.trace.per_row.items()},
                per_group={name: _rows(x, groups) for name, x in self.trace.per_group.items()},
            ),
        )
        known = {"host_mask": self.host_mask[here], "lengths": self.lengths[here]}  # without the device
        vars(part).update(known)
        return part

    def to(self, device: torch.device | str) -> Rollout:
        """Return the same rollout on `device`; groups and the rewards of decisions stay on the CPU."""
        return replace(
            self,
            old=self.old.to(device),
            mask=self.mask.to(device),
            weights=None if self.weights is None else self.weights.to(device),
            trace=Trace(
                per_row={name: x.to(device) for name, x in self.trace.per_row.items()},
                per_group={name: x.to(device) for name, x in self.trace.per_group.items()},
            ),
        )


class PendingRollout(Protocol):
    """A rollout that is being drawn elsewhere (see `Policy.begin`)."""

    def result(self) -> Rollout:
        """Wait for the rollout; called once, in the thread that learns."""
        ...

    def cancel(self) -> None:
        """Stop drawing it; the result is not needed."""
        ...


def row_lengths(mask: Tensor) -> Tensor:
    """Each row's last decided column + 1, or 0: mask [B, T] on the CPU -> [B] int64."""
    if not mask.shape[1]:
        return mask.sum(-1)
    last = mask.cumsum(-1).argmax(-1)
    return (last + 1) * mask.any(-1)


def _rows(x: Tensor, rows: Tensor | slice) -> Tensor:
    """Some rows of x on any device, since a policy may keep large parts of its trace off the rollout's."""
    if isinstance(rows, slice):
        return x[rows]
    return x[rows.to(x.device, non_blocking=True)]
