"""Checks that the reference policy has not changed since the start of the run.

One sample is stored with the reference's log-probs for it. Checkpoints contain it too, so a resumed run can check that
it has the same reference. Log-probs work for copies and adapters alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grpokit.errors import CheckpointError, GrpokitError, RunError
from grpokit.processes.team import Team
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.checks import LogprobDiffLimit
from grpokit.training.micro_batches import Limit
from grpokit.training.state import State
from grpokit.types import Ask, Decisions, Prompt, Rollout, Sample, Trace


class ReferenceProbe:
    """The longest row of the first step, with the reference's log-probs."""

    def __init__(self, policy: CheckedPolicy, prompts: Sequence[Prompt], limit: LogprobDiffLimit) -> None:
        self.policy, self.prompts, self.limit = policy, prompts, limit
        self.rollout: Rollout | None = None  # the row, after the first step
        self.prompt = 0  # its place in the training prompts
        self.logprobs = torch.empty(0)  # [1, T] of the reference before the first update; of ODE steps the means

    @property
    def wanted(self) -> bool:
        """Whether a row is still to be stored: there is none, and the reference is not meant to move."""
        return self.rollout is None and not self.policy.reference_moves

    def take(self, rollout: Rollout, prompts: Sequence[int], team: Team) -> None:
        """Store the longest row of the first step in all processes, unless all its decisions are masked.

        `rollout` has this process's rows, and `prompts` the place of each group's prompt in the training prompts.
        """
        decided = rollout.decided
        lengths = team.gather(max(decided.tolist(), default=0))
        owner = lengths.index(max(lengths))
        if not lengths[owner]:
            return
        if team.rank == owner:
            row = int(decided.argmax())
            longest = rollout.select(torch.tensor([row]))
            self.logprobs = self._score(longest)
            group_size = rollout.rows // len(prompts)
            self.rollout, self.prompt = longest, prompts[row // group_size]
        own = dict(self.state_dict())
        for key, x in own.items():
            if isinstance(x, Tensor):
                own[key] = x.cpu()
        state = team.gather(own)[owner]
        if team.rank != owner:
            self.load_state_dict(state)

    def _score(self, row: Rollout) -> Tensor:
        certain = not row.old.logprobs.any()  # steps of the ODE have no density, and their means tell
        ask = Ask(entropy="no", moments=certain)
        view = self.policy.all_logprobs(row, Limit(rows=1), self.policy.reference, ask=ask)
        if certain and view.mean is not None:
            return view.mean.flatten(2).mean(-1).to(view.logprobs)
        return view.logprobs

    def check(self, *, when: str) -> None:
        """Stop if the reference gives other log-probs for the row than at the start of the run."""
        if self.rollout is None:
            return
        with self.policy.during("score"):
            now = self._score(self.rollout)
        mask = self.rollout.mask
        distance = (now - self.logprobs.to(now)).abs()
        difference = torch.where(mask, distance, 0.0).double()
        mean = float(difference.sum() / mask.sum().clamp(min=1))
        largest = float(difference.max())
        if self.limit.exceeded(mean, largest) or mean != mean:
            raise RunError(
                f"The reference has changed: {when}, its log-probs for a sample of the first step differ from those "
                f"at the start by {mean:.3g} on average and {largest:.3g} at most; the limit is {self.limit}. Usual "
                "causes: the reference shares its weights with the policy (copy them, see grpokit."
                "frozen_copy), an adapter that stays on, or a policy that starts from other weights in every build."
            )

    def check_before_save(self, *, step: int) -> None:
        """Check before a checkpoint is written. A policy that cannot score any more is let through.

        The next step reports such a policy, and its weights are worth saving.
        """
        try:
            self.check(when=f"after step {step}")
        except GrpokitError:
            raise
        except Exception:
            pass

    def state_dict(self) -> State:
        """The row and its log-probs; empty before the first step."""
        if self.rollout is None:
            return {}
        return {
            "prompt": self.prompt,
            "max_decisions": self.rollout.max_decisions,
            "action_dims": self.rollout.action_dims,
            "reference": self.logprobs,
            "logprobs": self.rollout.old.logprobs,
            "mask": self.rollout.mask,
            "groups": self.rollout.groups,
            **{f"per_row.{name}": x for name, x in self.rollout.trace.per_row.items()},
            **{f"per_group.{name}": x for name, x in self.rollout.trace.per_group.items()},
        }

    def load_state_dict(self, state: State) -> None:
        """Load a result of `state_dict`, if its prompt is still there."""
        self.rollout = None
        if not state:
            return
        self.prompt = state["prompt"]
        if self.prompt >= len(self.prompts):
            raise CheckpointError(
                f"is of a run that had at least {self.prompt + 1} training prompts, this one has {len(self.prompts)}. "
                "Resume with the prompts of the run's start."
            )
        tensors = {name: x.to(self.policy.device) for name, x in state.items() if isinstance(x, Tensor)}

        def trace(kind: str) -> dict[str, Tensor]:
            names = [name for name in tensors if name.startswith(kind)]
            return {name.removeprefix(kind): tensors[name] for name in names}

        self.logprobs, groups = tensors["reference"], tensors["groups"]
        self.rollout = Rollout(
            samples=[Sample(prompt=self.prompts[self.prompt], output=None, group=int(groups[0]))],
            groups=groups,
            old=Decisions(logprobs=tensors["logprobs"]),
            mask=tensors["mask"],
            max_decisions=state["max_decisions"],
            action_dims=state["action_dims"],
            trace=Trace(per_row=trace("per_row."), per_group=trace("per_group.")),
        )
