"""Policies and rewards that are each wrong in one way, for the tests of the conformance kit."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from grpokit import Decisions, Prompt, RewardError, Rollout, Sample, Seeds, Trace, frozen_copy, swapped
from grpokit.sampling import uniforms
from grpokit.training.contract import METHODS
from tiny_policies import TinyGaussian, TinyTokens

Tokens = TinyTokens  # the good one that the broken ones change
NoSubclass = type("NoSubclass", (), {name: getattr(Tokens, name) for name in METHODS})


def decode(rollout: Rollout) -> list[str]:
    pairs = zip(rollout.trace.per_row["tokens"], rollout.mask, strict=True)
    return ["".join(str(int(v)) for v in row[keep]) for row, keep in pairs]


def decisions(rollout: Rollout) -> Tensor:
    return rollout.trace.per_row["path"][:, 1:]


class After(Tokens):
    """Changes a rollout that is done."""

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        rollout = super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)
        return self.change(rollout, seeds, evaluate)

    def change(self, rollout: Rollout, seeds: Seeds, evaluate: bool) -> Rollout:
        raise NotImplementedError


def with_outputs(rollout: Rollout, outputs: Sequence[Any]) -> Rollout:
    pairs = zip(rollout.samples, outputs, strict=True)
    return replace(rollout, samples=[replace(sample, output=output) for sample, output in pairs])


class NoSave(Tokens):
    state_dict = None  # type: ignore[assignment]


class GroupsFromZero(After):
    def change(self, rollout: Rollout, seeds: Seeds, evaluate: bool) -> Rollout:
        first = int(seeds.group_ids.min())
        return replace(rollout, samples=[replace(s, group=s.group - first) for s in rollout.samples])


class PromptsInterleaved(After):
    """Sample.prompt as if the rows went prompt 0, prompt 1, ..., prompt 0, ..."""

    def change(self, rollout: Rollout, seeds: Seeds, evaluate: bool) -> Rollout:
        size = rollout.rows // len(seeds.group)
        prompts = [s.prompt for s in rollout.samples[::size]]
        return replace(
            rollout, samples=[replace(s, prompt=prompts[i % len(prompts)]) for i, s in enumerate(rollout.samples)]
        )


class BeforeTemperature(After):
    """Old log-probs that are not of the distribution sampled from."""

    def change(self, rollout: Rollout, seeds: Seeds, evaluate: bool) -> Rollout:
        return replace(rollout, old=Decisions(logprobs=rollout.old.logprobs * 1.1))


class DrawsWithOldWeights(Tokens):
    """Its sampler has a copy of the weights, which an update leaves behind."""

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        self.frozen = self.frozen or frozen_copy(self.net)
        with swapped(self, "net", self.frozen):
            return super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)


class PerGroupByPlace(After):
    """per_group in the order of the prompts, not of the ids."""

    def change(self, rollout: Rollout, seeds: Seeds, evaluate: bool) -> Rollout:
        number = torch.tensor([int(s.prompt.text) for s in rollout.samples[:: rollout.rows // len(seeds.group_ids)]])
        return replace(rollout, trace=replace(rollout.trace, per_group={"number": number}))


class OutputsShifted(After):
    def change(self, rollout: Rollout, seeds: Seeds, evaluate: bool) -> Rollout:
        outputs = [s.output for s in rollout.samples]
        return with_outputs(rollout, outputs[1:] + outputs[:1])


class OutputsOfThePrompt(After):
    """Decoded from something else than what was drawn."""

    def change(self, rollout: Rollout, seeds: Seeds, evaluate: bool) -> Rollout:
        return with_outputs(rollout, [s.prompt.text for s in rollout.samples])


class OutputsRedrawn(After):
    """Decoded from a second draw; only `decode` can tell."""

    def change(self, rollout: Rollout, seeds: Seeds, evaluate: bool) -> Rollout:
        return with_outputs(rollout, [str(float(u)) for u in uniforms(seeds.row, 1)])


class PaddedLeft(Tokens):
    """`logprobs` counts positions from the batch's longest row."""

    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        view = super().logprobs(rollout, steps)
        missing = self.length - int(rollout.mask.sum(-1).max())
        return replace(view, logprobs=view.logprobs - 0.05 * missing)


class CountsFromTheEnd(After):
    """Its trace says how far each row ends before the batch's longest."""

    def change(self, rollout: Rollout, seeds: Seeds, evaluate: bool) -> Rollout:
        counts = rollout.mask.sum(-1)
        longest = int(counts.max())
        behind = (longest - counts)[:, None].expand(-1, longest + 1)
        tokens = rollout.trace.per_row["tokens"][:, :longest]
        return replace(
            rollout,
            trace=replace(rollout.trace, per_row={"tokens": tokens, "behind": behind}),
            old=rollout.old.select(decisions=slice(0, longest)),
            mask=rollout.mask[:, :longest],
            decision_rewards=rollout.decision_rewards[:, :longest],
        )

    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        longest = rollout.mask.shape[1]
        lost = longest - rollout.trace.per_row["behind"][:, :1] - rollout.mask.sum(-1, keepdim=True)
        tokens = nn.functional.pad(rollout.trace.per_row["tokens"], (0, self.length - longest))
        full = replace(rollout, trace=replace(rollout.trace, per_row={"tokens": tokens}))
        view = super().logprobs(full, slice(*steps.indices(longest)))
        return Decisions(logprobs=view.logprobs - 0.1 * lost)

    def slices(self, rollout: Rollout) -> list[slice]:
        return [slice(0, rollout.mask.shape[1])]


class DrawsByPlace(Tokens):
    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        moved = replace(seeds, row=seeds.row + torch.arange(len(seeds.row)))
        return super().rollout(prompts, group_size, seeds=moved, evaluate=evaluate)


class Unseeded(Tokens):
    """One draw for ever."""

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        same = replace(seeds, row=torch.full_like(seeds.row, 11))
        return super().rollout(prompts, group_size, seeds=same, evaluate=evaluate)


class MovesGlobalState(After):
    def change(self, rollout: Rollout, seeds: Seeds, evaluate: bool) -> Rollout:
        torch.rand(1)
        return rollout


class RunningAverage(Tokens):
    """A state that each call moves, as batch norm in training mode does."""

    calls = 0

    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        self.calls += 1
        view = super().logprobs(rollout, steps)
        return replace(view, logprobs=view.logprobs * (1 + 1e-7 * min(self.calls, 9)))


class LooksBehindTheEnd(After):
    def change(self, rollout: Rollout, seeds: Seeds, evaluate: bool) -> Rollout:
        tokens = torch.where(rollout.mask, rollout.trace.per_row["tokens"], 0)
        return replace(rollout, trace=replace(rollout.trace, per_row={"tokens": tokens}))

    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        view = super().logprobs(rollout, steps)
        after = torch.where(rollout.mask, 0, rollout.trace.per_row["tokens"]).sum(-1, keepdim=True)
        return replace(view, logprobs=view.logprobs - 0.01 * after)


class SlicesOverlap(Tokens):
    def slices(self, rollout: Rollout) -> list[slice]:
        return [slice(0, 4), slice(3, self.length)]


class SlicesBackwards(Tokens):
    def slices(self, rollout: Rollout) -> list[slice]:
        return [slice(4, self.length), slice(0, 4)]


class ShortSlicesIgnored(Tokens):
    """Scores up to the width of the rollout, wherever a slice ends."""

    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        return super().logprobs(rollout, slice(steps.start, self.length))


class CountsFromTheSlicesEnd(Tokens):
    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        view = super().logprobs(rollout, steps)
        return replace(view, logprobs=view.logprobs - 0.05 * (self.length - steps.stop))


class AnotherStd(TinyGaussian):
    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        view = super().logprobs(rollout, steps)
        assert view.std is not None
        return replace(view, std=view.std * 2)


class SummedDensity(TinyGaussian):
    def _steps(self, trace: Trace, steps: slice) -> Decisions:
        view = super()._steps(trace, steps)
        return replace(view, logprobs=view.logprobs * self.dims)


class Copies(TinyGaussian):
    """Means that predict the next point, without a density: a good policy."""

    def _steps(self, trace: Trace, steps: slice) -> Decisions:
        view, target = super()._steps(trace, steps), trace.per_row["path"][:, 1:][:, steps]
        assert view.mean is not None
        return replace(view, logprobs=-(view.mean - target).square().mean(-1), std=None, target=target)


class TargetsOfOtherRows(Copies):
    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        view = super().logprobs(rollout, steps)
        assert view.target is not None
        return replace(view, target=view.target.flip(0))


class TargetsByWeights(Copies):
    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        view = super().logprobs(rollout, steps)
        return replace(view, target=view.mean)


class UnusedParameter(Tokens):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)
        nn.init.zeros_(self.unused.weight)

    def modules(self) -> Mapping[str, nn.Module]:
        return {"net": self.net, "unused": self.unused}


class LogprobsDetached(Tokens):
    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        return super().logprobs(rollout, steps).detach()


class ReferenceIsLive(Tokens):
    @contextmanager
    def reference(self) -> Iterator[None]:
        yield


class ReferenceNotRestored(Tokens):
    """Only an error shows it."""

    @contextmanager
    def reference(self) -> Iterator[None]:
        live = self.net
        self.frozen = self.frozen or frozen_copy(live)
        self.net = self.frozen
        yield
        self.net = live


class ReferenceCopiedAnew(Tokens):
    @contextmanager
    def reference(self) -> Iterator[None]:
        with swapped(self, "net", frozen_copy(self.net)):
            yield


class SavesHalf(Tokens):
    def state_dict(self) -> Any:
        return {name: x for name, x in self.net.state_dict().items() if name != "4.weight"}

    def load_state_dict(self, state: Any) -> None:
        self.net.load_state_dict(state, strict=False)


class Pickles(Tokens):
    def state_dict(self) -> Any:
        return {"net": self.net}

    def load_state_dict(self, state: Any) -> None:
        self.net = state["net"]


class EvaluationUnseeded(Tokens):
    evaluations = 0

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        if evaluate:
            self.evaluations += 1
            seeds = replace(seeds, row=seeds.row + self.evaluations)
        return super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)


class EvaluationStays(Tokens):
    """A setting of evaluation that is not put back."""

    shift = 0

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        if evaluate:
            self.shift = 1
        return super().rollout(prompts, group_size, seeds=replace(seeds, row=seeds.row + self.shift), evaluate=evaluate)


class EvaluationWithoutLogProbs(Tokens):
    """What a greedy or an ODE draw may look like."""

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        found = super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)
        if evaluate:
            found = replace(found, old=Decisions(logprobs=found.old.logprobs * float("nan")))
        return found


class WrongSign(Tokens):
    """Right numbers with the gradient upside down."""

    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        view = super().logprobs(rollout, steps)
        return replace(view, logprobs=2 * view.logprobs.detach() - view.logprobs)


class DrawsBoldly(Tokens):
    """Draws from a flatter distribution than the one whose log-probs it gives: the ratio is 1 all the same."""

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        self.heat = 1.3
        rollout = super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)
        self.heat = 1.0
        own = [super(DrawsBoldly, self).logprobs(rollout, steps).logprobs for steps in self.slices(rollout)]
        return replace(rollout, old=Decisions(logprobs=torch.cat(own, dim=1).detach()))

    heat = 1.0

    def logits(self, prompt: Tensor, position: Tensor, previous: Tensor) -> Tensor:
        return super().logits(prompt, position, previous) / self.heat


POLICIES: list[tuple[Callable[[], Any], set[str]]] = [
    (NoSave, {"protocol", "save-load"}),  # without save there is nothing to load
    (GroupsFromZero, {"shapes"}),
    (PromptsInterleaved, {"shapes"}),
    (BeforeTemperature, {"ratio-is-one"}),
    (PerGroupByPlace, {"ratio-is-one"}),
    (DrawsWithOldWeights, {"ratio-is-one"}),
    (OutputsShifted, {"scored-is-sampled"}),
    (OutputsOfThePrompt, {"scored-is-sampled"}),
    (OutputsRedrawn, {"scored-is-sampled"}),
    (PaddedLeft, {"rows-independent"}),
    (CountsFromTheEnd, {"joined"}),
    (DrawsByPlace, {"batch-size"}),
    (Unseeded, {"seeded", "frequencies"}),  # the same draw every time has no frequencies
    (MovesGlobalState, {"global-rng"}),
    (RunningAverage, {"logprobs-repeat"}),
    (LooksBehindTheEnd, {"mask"}),
    (SlicesOverlap, {"slices"}),
    (SlicesBackwards, {"slices"}),
    (ShortSlicesIgnored, {"trimmed"}),
    (CountsFromTheSlicesEnd, {"trimmed"}),
    (DrawsBoldly, {"frequencies"}),
    (AnotherStd, {"gaussian"}),
    (SummedDensity, {"gaussian"}),
    (TargetsOfOtherRows, {"target"}),
    (TargetsByWeights, {"target"}),
    (UnusedParameter, {"gradient"}),
    (LogprobsDetached, {"gradient"}),
    (WrongSign, {"gradient"}),
    (ReferenceIsLive, {"reference"}),
    (ReferenceNotRestored, {"reference"}),
    (ReferenceCopiedAnew, {"reference"}),
    (SavesHalf, {"save-load"}),
    (Pickles, {"save-load"}),
    (EvaluationUnseeded, {"evaluate"}),
    (EvaluationWithoutLogProbs, {"evaluate"}),
    (EvaluationStays, {"evaluate"}),
]


def good(samples: Sequence[Sample]) -> list[float]:
    """The good reward: the share of letters `a`."""
    for sample in samples:
        if not isinstance(sample.output, str):
            raise RewardError(f"Expected a text, got a {type(sample.output).__name__}.")
    return [s.output.count("a") / max(1, len(s.output)) for s in samples]


def infinite(samples: Sequence[Sample]) -> list[float]:
    return [math.inf if x == 1 else x for x in good(samples)]


def too_high(samples: Sequence[Sample]) -> list[float]:
    return [2 * x for x in good(samples)]


def batch_centred(samples: Sequence[Sample]) -> list[float]:
    scores = good(samples)
    return [x - min(scores) for x in scores]


def by_group(samples: Sequence[Sample]) -> list[float]:
    ordered = sorted(samples, key=lambda s: s.group)
    return [x for _, members in itertools.groupby(ordered, key=lambda s: s.group) for x in good(list(members))]


class Drifts:
    calls = 0

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        self.calls += 1
        return [x * (1 - 1e-12 * self.calls) for x in good(samples)]


def marks_prompts(samples: Sequence[Sample]) -> list[float]:
    scores = good(samples)
    for sample in samples:
        sample.prompt.meta["seen"] = sample.prompt.meta.get("seen", 0) + 1  # type: ignore[index]
    return scores


def sorts_in_place(samples: Sequence[Sample]) -> list[float]:
    scores = good(samples)
    samples.sort(key=lambda s: str(s.output))  # type: ignore[attr-defined]
    return scores


def takes_out(samples: Sequence[Sample]) -> list[float]:
    return [good([samples.pop(0)])[0] for _ in range(len(samples))]  # type: ignore[attr-defined]


def seeds_numpy(samples: Sequence[Sample]) -> list[float]:
    np.random.seed(0)
    return good(samples)


def draws(samples: Sequence[Sample]) -> list[float]:
    random.random()
    return good(samples)


def believes(samples: Sequence[Sample]) -> list[float]:
    return [s.output.count("a") / max(1, len(s.output)) for s in samples]


def longest_first(samples: Sequence[Sample]) -> list[float]:
    max(len(str(s.output)) for s in samples)
    return good(samples)


REWARDS: list[tuple[Callable[[], Any], set[str]]] = [
    (lambda: infinite, {"numbers"}),
    (lambda: too_high, {"range"}),
    (lambda: batch_centred, {"batch-size"}),
    (lambda: by_group, {"order"}),
    (Drifts, {"deterministic"}),
    (lambda: marks_prompts, {"inputs-unchanged"}),
    (lambda: sorts_in_place, {"list-unchanged"}),
    (lambda: takes_out, {"list-unchanged"}),
    (lambda: seeds_numpy, {"global-rng"}),
    (lambda: draws, {"global-rng"}),
    (lambda: believes, {"wrong-type"}),
    (lambda: longest_first, {"empty"}),
]
