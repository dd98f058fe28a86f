"""The Policy contract, and helpers for the frozen reference.

A policy is anything that draws decisions at random and can give their log-probs again with gradient: tokens of a
language model, visual tokens of an image generator, SDE steps of a diffusion decoder. The trainer knows nothing
else about it. A policy may subclass `Policy` for the default `slices`, or just have the methods.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import nn

from grpokit.types import Decisions, Prompt, Rollout, Seeds


@runtime_checkable
class Policy(Protocol):
    """A stochastic generator that can score its own decisions again.

    Rules that every policy obeys:

    1. `logprobs` right after `rollout` gives the rollout's log-probs (fp32: to 1e-4). They are of the distribution
       that was sampled from: after temperature, truncation and guidance; dropout off in both.
    2. The output in a sample is decoded from exactly the stored decisions.
    3. A row's numbers do not depend on the other rows of its batch.
    4. Same seeds, same rollout, whatever the batch size; the global random state is neither read nor advanced.
    5. The reference never changes, and leaving `reference()` restores the policy.
    6. `mask` is True only where the policy decided, and where the decision has a density: a sampler's noiseless last
       step is masked out, and then never scored.
    7. Step slices follow each other from 0 to T. Tensors in `trace.per_group` are in ascending order of the group's id.

    The trainer moves `modules()` to its device; whatever else the policy needs there, it moves itself.
    """

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        """Draw `group_size` samples per prompt, without gradient.

        A step's prompts, and the samples of one prompt, may be asked for in several calls, whose answers are joined:
        `Trace` says what its tensors must be like for that.

        Args:
            prompts: P prompts.
            group_size: G; row p * G + i of the result is sample i of prompt p.
            seeds: all randomness; `seeds.group_ids` are the group ids to use.
            evaluate: use the policy's own settings for evaluation (greedy, ODE, or the training temperature). Where
                nothing is drawn there are no log-probs: such decisions are masked out, or get 0.
        """
        ...

    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        """Score the stored decisions `steps` of all rows in `rollout` again, with gradient: [b, t]."""
        ...

    def slices(self, rollout: Rollout) -> Iterable[slice]:
        """Cut the T decisions into the slices that `logprobs` can do at a time; by default one."""
        return [slice(0, rollout.mask.shape[1])]

    def reference(self) -> AbstractContextManager[Any]:
        """Inside this context `logprobs` uses the frozen reference: the policy as it was before training."""
        ...

    def modules(self) -> Mapping[str, nn.Module]:
        """The modules that hold the trainable parameters, by name."""
        ...

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that cannot be read; optional, and by default all can.

        It runs before a run writes or draws anything. A picture that lies in a file comes blank, of its mode and size.

        Args:
            prompts: any number, all of a run's or a single one. The caller adds the file and the line to an error.

        Raises:
            UsageError: what is wrong with the first prompt that cannot be read.
        """

    def save(self, folder: Path) -> None:
        """Write the weights into `folder` (safetensors; the adapter only, where there is one)."""
        ...

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        ...


METHODS = ("rollout", "logprobs", "slices", "reference", "modules", "save", "load")


def missing_methods(policy: object) -> list[str]:
    """The methods of the contract that `policy` lacks, or has from `Policy` alone, where they do nothing."""
    return [name for name in METHODS if not _has(policy, name)]


def _has(policy: object, name: str) -> bool:
    found = getattr(policy, name, None)
    inherited = getattr(found, "__func__", found) is getattr(Policy, name)
    return callable(found) and (name == "slices" or not inherited)


M = TypeVar("M", bound=nn.Module)


def frozen_copy(module: M) -> M:
    """A copy of `module` in eval mode whose parameters never need gradients: a reference without LoRA."""
    return copy.deepcopy(module).eval().requires_grad_(False)


@contextmanager
def swapped(owner: object, attribute: str, value: object) -> Iterator[None]:
    """Inside the context `owner.attribute` is `value`; afterwards, and after an error, what it was."""
    live = getattr(owner, attribute)
    setattr(owner, attribute, value)
    try:
        yield
    finally:
        setattr(owner, attribute, live)


class HasAdapter(Protocol):
    """A model with a removable adapter, such as a `peft.PeftModel`."""

    def disable_adapter(self) -> AbstractContextManager[Any]:
        """Inside this context the model is its base model."""
        ...


def adapter_off(model: HasAdapter) -> AbstractContextManager[Any]:
    """The reference of a LoRA policy: the base model with the adapter off, and no second copy of the weights."""
    return model.disable_adapter()
