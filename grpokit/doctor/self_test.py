"""Trains a tiny policy where a run would train, and measures the three things that every run relies on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grpokit.policy import Policy
from grpokit.reference import frozen_copy, swapped
from grpokit.sampling import derive_seeds, sample_categorical, uniforms
from grpokit.trainer import Trainer
from grpokit.types import Ask, Decisions, Prompt, Rollout, Sample, Seeds, Trace

STEPS = 10
_TOKENS, _DECISIONS = 8, 4
_TOLERANCE = 1e-4  # of log-probs in fp32, as in the conformance checks


class TinyPolicy(Policy):
    """Four independent tokens of eight; its weights are their logits."""

    def __init__(self) -> None:
        self.net = nn.Linear(_DECISIONS, _TOKENS, bias=False)
        nn.init.zeros_(self.net.weight)
        self.frozen: nn.Module | None = None

    def _logprobs(self) -> Tensor:
        weight = self.net.weight
        positions = torch.eye(_DECISIONS, device=weight.device, dtype=weight.dtype)
        return self.net(positions).log_softmax(-1)  # type: ignore[no-any-return]  # [T, V]

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        """Draw every token of every row."""
        rows = len(prompts) * group_size
        logits = self._logprobs().repeat(rows, 1)  # [B * T, V]
        draws = uniforms(seeds.row, _DECISIONS).to(logits.device)  # [B, T]
        tokens, logprobs = (x.view(rows, _DECISIONS) for x in sample_categorical(logits, draws.flatten()))
        groups = seeds.group_ids.repeat_interleave(group_size)
        return Rollout(
            samples=[
                Sample(prompt=prompts[row // group_size], output=str(tokens[row].tolist()), group=int(groups[row]))
                for row in range(rows)
            ],
            groups=groups.cpu(),
            old=Decisions(logprobs=logprobs),
            max_decisions=_DECISIONS,
            mask=torch.ones(rows, _DECISIONS, dtype=torch.bool, device=logits.device),
            trace=Trace(per_row={"tokens": tokens}),
        )

    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = Ask()) -> Decisions:
        """The drawn tokens again."""
        tokens = rollout.trace.per_row["tokens"][:, steps, None]
        logprobs = self._logprobs()[steps].expand(len(tokens), -1, -1)
        return Decisions(logprobs=logprobs.gather(-1, tokens)[..., 0])

    @contextmanager
    def reference(self) -> Iterator[None]:
        """The logits of the beginning."""
        if self.frozen is None:
            self.frozen = frozen_copy(self.net)
        with swapped(self, "net", self.frozen):
            yield

    def modules(self) -> Mapping[str, nn.Module]:
        """The logits."""
        return {"net": self.net}

    def state_dict(self) -> Mapping[str, Any]:
        """See `Policy`."""
        return dict(self.net.state_dict())

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """See `Policy`."""
        self.net.load_state_dict(state)


def zeros(samples: Sequence[Sample]) -> list[float]:
    """The reward: how many of the tokens are 0."""
    return [str(sample.output).strip("[]").split(", ").count("0") / _DECISIONS for sample in samples]


def trainer() -> Trainer:
    """Ten steps, on the device that a run would use."""
    return Trainer(
        TinyPolicy(),  # type: ignore[abstract]  # two methods of the protocol do nothing
        {"zeros": zeros},
        ["a", "b", "c", "d"],
        steps=STEPS,
        learning_rate=0.3,
        prompts_per_step=2,
        group_size=8,
    )


def ratio_difference(one: Trainer) -> float:
    """The largest difference between the rollout's log-probs and those of the same weights, in nats."""
    prompts = [Prompt(text="a"), Prompt(text="b")]
    with torch.no_grad():
        rollout = one.policy.rollout(prompts, 8, seeds=derive_seeds(0, stream="train", step=0, prompts=2, group_size=8))
        again = one.policy.logprobs(rollout, slice(0, _DECISIONS))
    return float((again.logprobs - rollout.old.logprobs).abs().max())


def mistakes() -> tuple[str, list[str]]:
    """What was measured, on one line, and what is wrong, a sentence each."""
    wrong: list[str] = []
    whole = trainer()
    device = next(iter(whole.policy.modules()["net"].parameters())).device
    difference = ratio_difference(whole)
    if not difference <= _TOLERANCE:
        wrong.append(
            f"Before the first update the log-probs differ by {difference:.2g} nats; expected at most {_TOLERANCE:g}"
        )
    with tempfile.TemporaryDirectory() as folder:
        rewards = []
        for report in whole:
            rewards.append(report.metrics["reward"])
            if report.step == STEPS // 2:
                whole.save(Path(folder) / "half")
        resumed = trainer()
        resumed.load(Path(folder) / "half")
        for _ in resumed:
            pass
    if not rewards[-1] > rewards[0]:
        wrong.append(f"The reward did not rise in {STEPS} steps: from {rewards[0]:.2f} to {rewards[-1]:.2f}")
    ends = [one.policy.modules()["net"].state_dict()["weight"] for one in (whole, resumed)]
    if not torch.equal(*ends):
        wrong.append(f"A resumed run ends with other weights, by {float((ends[0] - ends[1]).abs().max()):.2g}")
    measured = (
        f"on {device.type}: log-probs agree to {difference:.1g} nats, the reward rose from {rewards[0]:.2f} to "
        f"{rewards[-1]:.2f} in {STEPS} steps, a resumed run ended with the same weights"
    )
    return measured, wrong
