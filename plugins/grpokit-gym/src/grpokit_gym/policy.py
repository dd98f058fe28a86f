"""The policy `gym`: a small network that acts in an environment of gymnasium, with one decision for each step.

A group is G episodes from one start. They differ by the actions that were drawn: what the environment draws itself
comes from the group's seed, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from grpokit import Ask, Decisions, Policy, Prompt, Rollout, Sample, Seeds, Trace, UsageError, frozen_copy, swapped
from grpokit.sampling import normals, uniforms
from grpokit_gym.actor import Actor, network_of
from grpokit_gym.environments import Environments, Playing, Vectorization

_ASK = Ask()
_SEEDS = 2**31  # gymnasium takes smaller ones


class GymPolicy(Policy):
    """A network that acts.

    Args:
        env: gymnasium's name of the environment, such as "CartPole-v1"; "module:Name-v0" imports the module first.
        options: keywords of `gymnasium.make`.
        hidden: widths of the hidden layers.
        network: in place of these, a module from observations [..., O] to logits or means [..., A], or
            "package.module:function" that returns one for (O, A).
        std: of Gaussian actions at the start, as a share of half their range.
        normalise: the number of episodes of random actions by whose observations those of the policy are normalised;
            0 for none.
        greedy: evaluations take the most likely action, or the mean.
        branch: a group parts after up to so many random actions, from copies of one environment; 0: at the reset.
        vectorization: "sync" steps one environment after the other; "async" each in a process of its own, for those
            that take long.
        pictures: how many frames of an episode an evaluation shows, as one picture; 0 for a line of text.
        seed: of the network's start and of the random episodes.

    Raises:
        UsageError: there is no such environment, or a setting does not fit it.
    """

    def __init__(
        self,
        env: str,
        *,
        options: Mapping[str, Any] | None = None,
        hidden: Sequence[int] = (64, 64),
        network: nn.Module | str | None = None,
        std: float = 0.5,
        normalise: int = 32,
        greedy: bool = True,
        branch: int = 0,
        vectorization: Vectorization = "sync",
        pictures: int = 0,
        seed: int = 0,
    ) -> None:
        if not std > 0:
            raise UsageError(f"std must be above 0, got {std}.")
        self._environments = Environments(env, options or {}, vectorization=vectorization, pictured=pictures > 0)
        self._greedy, self._branch, self._pictures = greedy, branch, pictures
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = network_of(network, hidden, self._environments)
            self.actor = Actor(net, self._environments, std=std)
        if normalise:
            self.actor.normalise(self._environments.explored(normalise, seed))
        self._frozen: Actor | None = None

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.actor.mean.device

    @torch.no_grad()
    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        """Play `group_size` episodes per prompt, all side by side."""
        envs, device = self._environments, self.device
        starts = (seeds.group.cpu() % _SEEDS).tolist()
        if self._branch and not evaluate:
            playing = envs.branched(starts, group_size, self._branch)
        else:
            repeated = [start for start in starts for _ in range(group_size)]
            playing = envs.begin(repeated, pictures=self._pictures if evaluate else 0)
        wide = 1 if envs.discrete else envs.actions
        rows = seeds.row.to(device)
        if envs.discrete:
            draws = uniforms(rows, envs.limit)
        else:
            draws = normals(rows, envs.limit * wide).float()
        observations: list[Tensor] = []
        actions: list[Tensor] = []
        logprobs: list[Tensor] = []
        while playing.open.any():
            seen = torch.tensor(playing.observations, device=device)  # a copy: the next step overwrites them
            distribution = self.actor(seen)
            own = draws[:, len(actions) * wide : (len(actions) + 1) * wide]
            action = distribution.draw(own, greedy=evaluate and self._greedy)  # [B, A]
            observations.append(seen)
            actions.append(action)
            logprobs.append(distribution.logprobs(action))
            playing.step(action.cpu().numpy())
        lengths = torch.tensor([len(rewards) for rewards in playing.rewards])
        played = torch.arange(len(actions)) < lengths[:, None]
        mask = played.to(device)  # [B, T]
        groups = seeds.group_ids.cpu().repeat_interleave(group_size)
        prompt_of_row = [prompt for prompt in prompts for _ in range(group_size)]
        old = torch.where(mask, torch.stack(logprobs, 1), 0.0)
        return Rollout(
            samples=_samples(playing, prompt_of_row, groups.tolist(), action_facts(torch.stack(actions, 1), mask)),
            groups=groups,
            old=Decisions(logprobs=old),
            mask=mask,
            max_decisions=envs.limit,
            action_dims=wide,
            decision_rewards=pad_sequence(
                [torch.tensor(row, dtype=torch.float64) for row in playing.rewards], batch_first=True
            ),
            trace=Trace(per_row={"observations": torch.stack(observations, 1), "actions": torch.stack(actions, 1)}),
        )

    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = _ASK) -> Decisions:
        """Score the stored actions again in one pass: [b, t], with entropies and the moments of Gaussian actions."""
        seen = rollout.trace.per_row["observations"][:, steps].to(self.device)
        actions = rollout.trace.per_row["actions"][:, steps].to(self.device)
        decided = rollout.mask[:, steps].to(self.device)
        distribution = self.actor(seen)
        logprobs = torch.where(decided, distribution.logprobs(actions), 0.0)
        entropy = None
        if ask.entropy != "no":
            entropy = torch.where(decided, distribution.entropy(), 0.0)
        return Decisions(logprobs=logprobs, entropy=entropy, **distribution.moments())

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside, `logprobs` uses the weights that the policy was built with."""
        with swapped(self, "actor", self._reference().to(self.device)):
            yield

    def modules(self) -> Mapping[str, nn.Module]:
        """The network."""
        return {"actor": self.actor}

    def state_dict(self) -> dict[str, Any]:
        """The network's weights, with what normalises observations."""
        return self.actor.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take over weights; the reference stays what the policy was built with."""
        self._reference()
        self.actor.load_state_dict(dict(state))

    def _reference(self) -> Actor:
        if self._frozen is None:
            self._frozen = frozen_copy(self.actor)
        return self._frozen


def action_facts(actions: Tensor, mask: Tensor) -> list[dict[str, float]]:
    """What samples tell of the actions of each episode: their mean, and how much they change from step to step.

    Args:
        actions: [B, T, A], of discrete ones their numbers in int64.
        mask: [B, T], the steps that were played.
    """
    played = mask.double()
    steps = actions.double().diff(dim=1)  # [B, T - 1, A]
    sizes = steps.norm(dim=2) if actions.is_floating_point() else steps.any(2).double()
    mean = (actions.double().mean(2) * played).sum(1) / played.sum(1)
    changed = played[:, 1:]
    changes = (sizes * changed).sum(1) / changed.sum(1).clamp(min=1)
    pairs = zip(mean.tolist(), changes.tolist(), strict=True)
    return [{"mean_action": own_mean, "action_changes": own_changes} for own_mean, own_changes in pairs]


def _samples(
    playing: Playing, prompts: Sequence[Prompt], groups: Sequence[int], facts: Sequence[dict[str, float]]
) -> list[Sample]:
    samples = []
    for row, (prompt, group) in enumerate(zip(prompts, groups, strict=True)):
        rewards, cut = playing.rewards[row], playing.truncated[row]
        total, steps = sum(rewards), len(rewards)
        info: dict[str, Any] = {"return": total, "length": steps, "truncated": cut, **facts[row]}
        if playing.success[row] is not None:
            info["success"] = playing.success[row]
        line = f"return {total:g} in {steps} steps, {'cut' if cut else 'ended'}"
        output = playing.films[row].picture() if playing.films else line
        samples.append(Sample(prompt=prompt, output=output, group=group, info=info))
    share = playing.clipped / sum(map(len, playing.rewards))
    if share > 0.5:
        warnings.warn(
            f"{share:.0%} of the actions lay outside of the environment's bounds and were brought within "
            "them, where they are all alike. Lower policy.std or the learning rate.",
            stacklevel=3,
        )
    return samples
