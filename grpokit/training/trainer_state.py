"""What a checkpoint keeps of a trainer besides weights and guards: its optimizer and its position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from grpokit.errors import CheckpointError
from grpokit.processes.fsdp2 import cut_as
from grpokit.training.optimizers import load_optimizer
from grpokit.training.state import State
from grpokit.training.updates import Updates


@dataclass(frozen=True)
class Moments:
    """An optimizer's state by the names of its parameters, so that their order does not matter."""

    updates: Updates

    def state_dict(self) -> State:
        """Each moment as "moments/NAME/KEY", the kind of the optimizer, and the shapes of all parameters."""
        moments = {
            f"moments/{name}/{key}": x
            for name, parameter in self.updates.names.items()
            for key, x in self.updates.optimizer.state.get(parameter, {}).items()
        }
        return {"optimizer": self._kind, "parameters": self._shapes(), **moments}

    def load_state_dict(self, state: State) -> None:
        """Load a result of `state_dict`, with whole tensors, if it is of the same parameters and kind of optimizer."""
        theirs, ours = state["parameters"], self._shapes()
        if theirs != ours:
            changes = {
                "only in the checkpoint": [name for name in theirs if name not in ours],
                "only in this policy": [name for name in ours if name not in theirs],
                "with another shape": [n for n in theirs if n in ours and theirs[n] != ours[n]],
            }
            difference = "; ".join(f"{_few(names)} {how}" for how, names in changes.items() if names)
            raise CheckpointError(
                f"belongs to another policy, with other trainable parameters ({difference}). Resume with the policy "
                "of the run's config.",
                page="guards#checkpoints",
            )
        kind = state["optimizer"]
        if kind != self._kind:
            raise CheckpointError(
                f"was written with trainer.optimizer '{kind}', whose state '{self.updates.settings.optimizer}' cannot "
                "take over. Resume with the optimizer of the run's config.",
                page="guards#checkpoints",
            )
        index = {name: place for place, name in enumerate(ours)}
        moments: dict[int, dict[str, Any]] = {}
        for key, x in state.items():
            if key.startswith("moments/"):
                name, _, moment = key.removeprefix("moments/").rpartition("/")
                parameter = self.updates.names[name]
                if isinstance(x, Tensor) and x.shape == parameter.shape:
                    x = cut_as(x, parameter)
                moments.setdefault(index[name], {})[moment] = x
        load_optimizer(self.updates.optimizer, moments)

    @property
    def _kind(self) -> str:
        return self.updates.settings.optimizer.removeprefix("paged_")  # a matter of place alone

    def _shapes(self) -> dict[str, list[int]]:
        return {name: list(p.shape) for name, p in self.updates.names.items()}


def _few(names: Sequence[str]) -> str:
    first = ", ".join(f"'{name}'" for name in names[:3])
    return f"{first} and {len(names) - 3:,} more" if len(names) > 3 else first


@dataclass(frozen=True)
class Position:
    """How far a trainer has come."""

    trainer: Any

    def state_dict(self) -> State:
        """Completed steps, updates of the interrupted step, and how often the weights have changed."""
        trainer = self.trainer
        return {"step": trainer.completed, "updates_done": trainer.updates.done, "version": trainer.version}

    def load_state_dict(self, state: State) -> None:
        """Load a result of `state_dict`; an interrupted step starts over."""
        trainer = self.trainer
        trainer.completed, trainer.version = int(state["step"]), int(state["version"])
        trainer.updates.done, trainer.updates.incomplete = 0, False
