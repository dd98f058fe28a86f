"""The Policy contract.

A policy is anything that draws decisions at random and can give their log-probs again with gradient: tokens of a
language model, visual tokens of an image generator, SDE steps of a diffusion decoder. The trainer knows nothing
else about it. A policy may subclass `Policy` for the default `slices` and all that is optional, or just have the
methods.
`grpokit.reference` helps with the frozen reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MethodType
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch import nn

from grpokit.types import Ask, Decisions, PendingRollout, Prompt, Rollout, Seeds

CutBy: TypeAlias = Literal["group", "one group", "length"]
"""How rows are cut into micro-batches; `Policy.cut_by` says more."""
Work: TypeAlias = Literal["rollout", "score", "train"]
"""A stretch of a step: drawing samples, log-probs without gradient, or log-probs with gradient."""


@runtime_checkable
class Policy(Protocol):
    """A stochastic generator that can score its own decisions again.

    Rules that every policy obeys:

    1. `logprobs` right after `rollout` gives the rollout's log-probs (fp32: to 1e-4). They belong to the distribution
       that was sampled from: after temperature, truncation and guidance, with dropout off in both.
    2. The output of a sample is decoded from exactly the stored decisions.
    3. A row's numbers do not depend on the other rows of its batch.
    4. The same seeds give the same rollout, whatever the batch size. The global random state is not used.
    5. The reference never changes, and leaving `reference()` restores the policy.
    6. `mask` is True only where the policy decided and the decision has a density. A sampler's noiseless last step is
       masked out, and is then never scored.
    7. Slices follow each other from 0 to T. `logprobs` also takes slices that are cut short, at the last decision of
       the longest row. Tensors in `trace.per_group` are in ascending order of the group's id.

    The trainer moves `modules()` to its device. The policy moves whatever else it needs there.

    Attributes:
        cut_by: how rows are cut into micro-batches; optional. "group" keeps the rows of a group together, for a policy
            that shares work inside a group. "one group" also keeps groups apart, for one that calls its model once for
            each group. "length" puts rows of about the same length together, for one that pads.
        packs: whether `logprobs` scores rows without padding between them; optional. Then a micro-batch is as large as
            its rows' lengths together, else as the longest of them times the rows.
        reference_moves: whether the reference follows the policy, as an average of its weights does; optional. If so,
            `state_dict` keeps it, and a run does not check that it stays the same.
        reference_teaches: whether the reference is a teacher, and not what the policy was before training; optional. A
            run in which nothing reads it is refused.
    """

    cut_by: CutBy = "group"
    packs: bool = False
    reference_moves: bool = False
    reference_teaches: bool = False

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        """Draw `group_size` samples per prompt, without gradient.

        One step may take several calls, even for the samples of one prompt. Their rollouts are concatenated, so the
        tensors of the trace follow the layout that `Trace` describes.

        Args:
            prompts: P prompts.
            group_size: G; row p * G + i of the result is sample i of prompt p.
            seeds: all randomness; `seeds.group_ids` are the group ids to use.
            evaluate: use the policy's own settings for evaluation (greedy, ODE, or the training temperature). A
                decision that is not drawn at random has no log-prob: it is masked out, or gets 0.
        """
        ...

    def begin(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds) -> PendingRollout | None:
        """Begin a rollout that is drawn elsewhere, in an engine, while this process learns; optional.

        It is drawn with the weights at the time of the call, and its `version` says so. A run calls this if
        `trainer.max_policy_lag` allows weights of one step ago.

        Args:
            prompts: as for `rollout`.
            group_size: as for `rollout`.
            seeds: as for `rollout`.

        Returns:
            The pending rollout; None, the default, if this process draws it.
        """
        return None

    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = Ask()) -> Decisions:
        """Score the decisions in the slice `steps` of all rows in `rollout` again, with gradient: [b, t].

        Args:
            rollout: b rows.
            steps: consecutive decisions.
            ask: what the caller will read. A method without this parameter is called without it.
        """
        ...

    def slices(self, rollout: Rollout) -> Iterable[slice]:
        """Cut the T decisions into slices that `logprobs` scores one at a time; by default a single one."""
        return [slice(0, rollout.mask.shape[1])]

    def reference(self) -> AbstractContextManager[Any]:
        """Inside this context `logprobs` uses the frozen reference: the policy as it was before training, or an
        average of its weights, or teachers.

        A run whose objective needs it enters it once before any update or `load_state_dict`, so a copy can be made
        then. Other work never asks for it.
        """
        ...

    def modules(self) -> Mapping[str, nn.Module]:
        """The modules that hold the trainable parameters, by name."""
        ...

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that the policy cannot read; optional, by default it accepts all.

        It is called before a run writes or draws anything. A picture in a file is passed as a blank picture of the same
        mode and size.

        Args:
            prompts: all prompts of a run, or a single one. The caller adds the file and the line to an error.

        Raises:
            UsageError: a prompt cannot be read; the message says what is wrong with the first one.
        """
        return None

    def during(self, work: Work) -> AbstractContextManager[Any]:
        """Wrap a stretch of work; optional. Here a policy merges an adapter, loads weights or wakes an engine, once.

        Args:
            work: "rollout": draws, of an evaluation too. "score": log-probs without gradient. "train": log-probs with
                gradient, and the updates in between.
        """
        return nullcontext()

    def blocks(self) -> Iterable[nn.Module]:
        """The parts of `modules()` whose weights `run.sharding` spreads over the processes; optional.

        Each is called as a module, equally often in every pass of `logprobs` over a micro-batch (see
        `cut_by`). By default they are the layers of each `nn.ModuleList` that holds several of one kind.
        """
        return [layer for module in self.modules().values() for layer in layers(module)]

    def updated(self, version: int) -> None:
        """React to new weights; optional. Here a policy hands them to an engine, or moves an average of them.

        Args:
            version: how often the weights have changed in the run. It is called after each optimizer step that changed
                some, and after `load_state_dict` with the number that the checkpoint had: so an average moves only if
                the number has grown.
        """
        return None

    def state_dict(self) -> Mapping[str, Any]:
        """The weights that train, as tensors by name, and plain data that a resume needs; only the adapter, if any.

        Names are those of modules: letters, digits and . _ / -. Tensors may be the weights themselves.
        """
        ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Load what `state_dict` returned, exact to the bit.

        Args:
            state: tensors are on the CPU, or sharded as the policy's own.

        Raises:
            CheckpointError: it is of another model; the message continues after "The checkpoint FOLDER ".
        """
        ...


def layers(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of each `nn.ModuleList` in a module that holds several of one kind; not what is inside of them."""
    for child in module.children():
        parts = list(child) if isinstance(child, nn.ModuleList) else []
        alike = len(parts) > 1 and len({type(part) for part in parts}) == 1
        if alike and not isinstance(parts[0], nn.ModuleList):
            yield from child.children()
        else:
            yield from layers(child)


def optional(policy: object, name: str) -> Any:
    """What a policy has under an optional name of the contract; the default of `Policy` if it is not a subclass."""
    default = getattr(Policy, name)
    return getattr(policy, name, MethodType(default, policy) if callable(default) else default)


def join_decisions(parts: Sequence[Decisions], *, dim: int) -> Decisions:
    """Concatenated: rows (`dim` 0), or consecutive slices of the same rows (1).

    A part without a field that another one has is 0 there: a policy may leave it out where nothing was decided.
    """
    fields = {}
    for name in vars(parts[0]):
        tensors = [getattr(part, name) for part in parts]
        known = [tensor for tensor in tensors if tensor is not None]
        for place, part in enumerate(parts):
            if known and tensors[place] is None:
                tensors[place] = known[0].new_zeros(*part.logprobs.shape, *known[0].shape[2:])
        if known:
            fields[name] = torch.cat(tensors, dim=dim)
    return Decisions(**fields)
