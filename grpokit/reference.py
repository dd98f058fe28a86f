"""The reference of a policy: a copy of its weights that is frozen or follows slowly, or the base under an adapter."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, Self, TypeVar

import torch
from annotated_types import Ge, Lt
from torch import Tensor, nn

from grpokit.errors import CheckpointError, UsageError, brief, nearest
from grpokit.policy import join_decisions
from grpokit.settings import Count, NotNegative, Settings
from grpokit.types import Decisions, Prompt, Rollout

M = TypeVar("M", bound=nn.Module)


def frozen_copy(module: M, *, dtype: torch.dtype | None = None) -> M:
    """Copy a module, in eval mode and with parameters that need no gradient: a reference without LoRA.

    Args:
        module: stays as it is.
        dtype: of the copy's floating-point parameters and buffers, such as `torch.bfloat16` for half the memory; None
            keeps each one's own. The KL then also measures the rounding.

    Raises:
        UsageError: several processes hold the weights together already.
    """
    refuse_shards(module)
    copied = copy.deepcopy(module).eval().requires_grad_(False)
    return copied if dtype is None else copied.to(dtype=dtype)


def refuse_shards(module: nn.Module) -> None:
    """Make sure that the module's weights are whole in this process.

    Raises:
        UsageError: this process has only a part of them.
    """
    if any(hasattr(p, "to_local") for p in module.parameters()):
        raise UsageError(
            "The frozen reference must be copied before the policy's weights are spread over the processes. With "
            "phases, give a kl_coef to the first one that trains this policy, or leave out run.sharding."
        )


@contextmanager
def swapped(owner: object, attribute: str, value: object) -> Iterator[None]:
    """Inside the context `owner.attribute` is `value`. Afterwards, even after an error, it has its former value."""
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
    """The reference of a LoRA policy: the base model with the adapter off, without a second copy of the weights."""
    return model.disable_adapter()


class Teachers:
    """Several models that a policy is held to, each in some groups of a rollout.

    It is the one that the group's prompt names, as in `meta={"teacher": "ocr"}`. Groups whose prompts name none take
    the models in turn, by the group's id.

    A policy's `reference()` is then `inside()`, where its `logprobs` asks `score`.

    Args:
        models: by name.

    Attributes:
        models: by name.
        asked: whether `logprobs` is to ask them.
    """

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        self.models = dict(models)
        self.asked = False

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that name another one.

        Raises:
            UsageError: with the first of them.
        """
        for prompt in prompts:
            name = prompt.meta.get("teacher")
            if name is not None and name not in [*self.models]:
                near = nearest(str(name), self.models)
                raise UsageError(
                    f"The prompt {brief(prompt.text)} names the teacher {brief(name)}{near}. The policy's teachers are "
                    f"{', '.join(self.models)}."
                )

    def name_for(self, prompt: Prompt, group: int) -> str:
        """The name of the model for a group."""
        name: str | None = prompt.meta.get("teacher")
        return name if name is not None else [*self.models][group % len(self.models)]

    def inside(self) -> AbstractContextManager[None]:
        """Inside, they are asked."""
        return swapped(self, "asked", True)

    def score(self, rollout: Rollout, score: Callable[[nn.Module, Rollout], Decisions]) -> Decisions:
        """What the models say of decisions [b, t], each of its own rows.

        Args:
            rollout: b rows.
            score: what one model says of some of them; it may call `logprobs`.
        """
        rows: dict[str, list[int]] = {}
        for row, sample in enumerate(rollout.samples):
            name = self.name_for(sample.prompt, sample.group)
            rows.setdefault(name, []).append(row)
        parts = []
        with swapped(self, "asked", False):
            for name, own in rows.items():
                part = rollout.select(torch.tensor(own))
                parts.append(score(self.models[name], part))
        whole = join_decisions(parts, dim=0)
        order = torch.tensor(list(itertools.chain.from_iterable(rows.values())))
        back = order.argsort().to(whole.logprobs.device, non_blocking=True)
        return whole.select(back)


@dataclass(frozen=True, kw_only=True)
class Average(Settings):
    """How an average of a policy's weights follows them: average = decay * average + (1 - decay) * policy.

    Attributes:
        decay: how much of the average stays at each of its steps.
        every: optimizer steps from one of its steps to the next.
        ramp: at optimizer step n of the run the decay is at most ramp * n, so that the average follows closely at
            first; None: it is `decay` from the start.
    """

    decay: Annotated[float, Ge(0), Lt(1)] = 0.99
    every: Count = 1
    ramp: NotNegative | None = None

    def at(self, version: int) -> float:
        """The decay at optimizer step `version`, from 1."""
        return self.decay if self.ramp is None else min(self.ramp * version, self.decay)


class Twin:
    """A copy of what trains.

    It is made when it is first asked for, so that work without a reference costs no memory. That must be while the
    policy has the weights of its start: before an update, and before others are loaded. A trainer does so if its
    objective needs a reference.

    Args:
        live: the policy's model; its parameters are replaced in place, never the object.
        dtype: of the twin's own weights; None for the model's.
        offload: whether they wait in the CPU's memory between two passes.
        average: how it follows the policy; None: it stays.
        name: what its part of a policy's state is called.
    """

    def __init__(
        self,
        live: nn.Module,
        *,
        dtype: torch.dtype | None = None,
        offload: bool = False,
        average: Average | None = None,
        name: str = "reference",
    ) -> None:
        self.moves = average is not None
        self._prefix, self._count = f"{name}/", f"{name}_version"
        self._live, self._dtype, self._offload, self._average = live, dtype, offload, average
        self._twin: nn.Module | None = None
        self._version = 0
        self._replaced = False  # whether the policy has other weights than at its start

    def take(self) -> Self:
        """Copy now, and not when the copy is first asked for."""
        self._make()
        return self

    @contextmanager
    def model(self) -> Iterator[nn.Module]:
        """Inside the context, the twin, on the policy's device."""
        if self._twin is None and self._replaced:
            raise UsageError(
                "The reference was asked for only after the policy's weights had changed. Call reference() once before "
                "training and before load_state_dict(), or set a kl_coef from the start."
            )
        twin = self._make()
        device = next(self._live.parameters()).device
        own = self._tensors(twin)
        waiting = [tensor.data for tensor in own]
        for tensor in own:
            tensor.data = tensor.data.to(device)
        try:
            yield twin
        finally:
            if self._offload:
                for tensor, place in zip(own, waiting, strict=True):
                    tensor.data = place

    def updated(self, version: int) -> None:
        """Follow the policy, if a step is due. A version that is known already is one that was loaded."""
        due = self._average is not None and version > self._version and version % self._average.every == 0
        self._version = version
        self._replaced = self._replaced or version > 0
        if not due or self._twin is None:
            return
        assert self._average is not None
        live = dict(self._live.named_parameters())
        with torch.no_grad():
            for name, tensor in _own(self._twin, self._live).items():
                now = _whole(live[name].detach()).to(tensor.device)
                tensor.lerp_(now, 1 - self._average.at(version))

    def state_dict(self) -> dict[str, Any]:
        """A reference that moves, if one was asked for; empty for any other."""
        if not self.moves or self._twin is None:
            return {}
        return {**self._named(self._twin), self._count: self._version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a reference that moves, if one was asked for.

        Raises:
            CheckpointError: there is none, or it is of another model.
        """
        self._replaced = True
        if not self.moves or self._twin is None:
            return
        if self._count not in state:
            raise CheckpointError(
                "holds no average of the weights: it was saved without ema, old_ema, or reference_ema and a KL. Leave "
                "out what was not there, or start another run."
            )
        own = self._named(self._twin)
        theirs = {name: state[name] for name in state if name.startswith(self._prefix)}
        shapes = {name: tensor.shape for name, tensor in own.items()}
        differing = own.keys() ^ theirs.keys()
        differing |= {name for name in own.keys() & theirs.keys() if theirs[name].shape != shapes[name]}
        if differing:
            raise CheckpointError(f"belongs to another model: '{min(differing)}' differs.")
        for name, tensor in own.items():
            tensor.data.copy_(theirs[name])
        self._version = state[self._count]

    def _make(self) -> nn.Module:
        if self._twin is None:
            self._twin = _twin(self._live, dtype=self._dtype)
            if self._offload:
                for tensor in self._tensors(self._twin):
                    tensor.data = tensor.data.cpu()
        return self._twin

    def _tensors(self, twin: nn.Module) -> list[Tensor]:
        """What a twin does not share with the model: parameters and buffers."""
        return [*_own(twin, self._live).values(), *_own_buffers(twin, self._live)]

    def _named(self, twin: nn.Module) -> dict[str, Tensor]:
        """Its parameters by their names in a policy's state."""
        own = _own(twin, self._live)
        return {self._prefix + name: tensor for name, tensor in own.items()}


def _twin(live: nn.Module, *, dtype: torch.dtype | None) -> nn.Module:
    """A copy in eval mode that shares what does not train.

    Frozen layers are shared as a whole. A layer of bitsandbytes keeps its weights beside its parameters as well, and
    FSDP2 puts parts in their place.
    """
    refuse_shards(live)
    frozen: list[Any] = [p for p in live.parameters() if not p.requires_grad]
    frozen += [m for m in live.modules() if _is_frozen(m)]
    shared = {id(each): each for each in frozen}
    twin = copy.deepcopy(live, shared).eval()
    for tensor in _own(twin, live).values():
        tensor.requires_grad_(False)
        if dtype is not None and tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    return twin


def _is_frozen(module: nn.Module) -> bool:
    """Whether a module has parameters, and none of them trains."""
    trains = [p.requires_grad for p in module.parameters()]
    return bool(trains) and not any(trains)


def _whole(tensor: Tensor) -> Tensor:
    """A whole tensor, also where each process has only a part of it; then all must ask."""
    part: Any = tensor
    result: Tensor = part.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return result


def _own_buffers(twin: nn.Module, live: nn.Module) -> list[Tensor]:
    """The buffers of a twin that are not the policy's as well."""
    shared = {id(x) for x in live.buffers()}
    return [x for x in twin.buffers() if id(x) not in shared]


def _own(twin: nn.Module, live: nn.Module) -> dict[str, Tensor]:
    """The parameters of a twin that are not the policy's as well."""
    shared = {id(p) for p in live.parameters()}
    return {name: p for name, p in twin.named_parameters() if id(p) not in shared}
