"""A trial from the words of a command to its result: read, score, rank, and take the first samples apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from grpokit import DataError, RewardSpec, RewardTerm, Sample, UsageError, registry
from grpokit.config.evaluation import of_rewards
from grpokit.evaluation.files import check_kinds
from grpokit.evaluation.intervals import or_none
from grpokit.runs import build_rewards
from grpokit_diagnosis.trial.inputs import Given
from grpokit_diagnosis.trial.measure import Scorer, Tried, as_scored, needs, try_whole, without_parts
from grpokit_diagnosis.trial.parts import Square, Words, divide
from grpokit_diagnosis.trial.sentences import why_no_score


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What came of it.

    Attributes:
        reward: its name.
        settings: its parameters.
        compares: whether it compares the samples of a group.
        tried: the samples, the best first and those without a score last.
        samples: how many were scored in all, parts left out among them.
    """

    reward: str
    settings: dict[str, Any]
    compares: bool
    tried: Sequence[Tried]
    samples: int

    @property
    def apart(self) -> list[Tried]:
        """The samples that were taken apart, the best first."""
        return [tried for tried in self.tried if tried.divided is not None]

    @property
    def most(self) -> float:
        """The size of the largest change that counts."""
        return max(tried.largest for tried in self.tried)


def compares_groups(reward: str) -> bool:
    """Whether a reward's plugin says that it compares samples; a function without a plugin is taken not to."""
    spec = registry.spec_of("reward", reward)
    return isinstance(spec, RewardSpec) and not spec.per_sample


def refuse(reward: str, given: Sequence[Given]) -> None:
    """Refuse samples that a reward cannot score, before it is built.

    Raises:
        UsageError: it scores outputs of another kind, or compares samples and gets only one.
    """
    check_kinds([reward], [each.entry for each in given])
    if not compares_groups(reward):
        return
    groups = [each.group for each in given]
    alone = [each.entry.where for each in given if groups.count(each.group) == 1]
    if alone:
        raise UsageError(
            f"The reward '{reward}' compares the samples of a group, so {alone[0]} has no score of its own. Give two "
            "or more samples of the same prompt."
        )


@contextmanager
def built(reward: str, parameters: Sequence[str]) -> Iterator[tuple[RewardTerm, dict[str, Any]]]:
    """A reward by its name and `key=value` words, with its parameters; closed at the end.

    Raises:
        UsageError: there is no such reward, or it cannot be built.
    """
    evaluation = of_rewards([reward], parameters)
    terms = build_rewards.rewards(evaluation)
    try:
        yield terms[0], dict(evaluation.rewards[0].params)
    finally:
        build_rewards.close(terms)


def run(
    reward: str,
    parameters: Sequence[str],
    given: Sequence[Given],
    *,
    squares: int,
    maps: int,
    batch_size: int,
    progress: Callable[[int, int], None],
) -> Trial:
    """Try a reward.

    Args:
        reward: its name, or package.module:function.
        parameters: `key=value` words.
        given: the samples.
        squares: along the longer side of a picture.
        maps: how many samples are taken apart, the best first.
        batch_size: the most samples in a call of the reward.
        progress: called with how many outputs were scored, and how many will be.

    Raises:
        UsageError: a file cannot be read, the reward cannot be built, or no sample has a score.
        RewardError: the reward raised on a whole sample.
    """
    refuse(reward, given)
    samples = [as_scored(each.entry.open(), each.entry.where) for each in given]
    compares = compares_groups(reward)
    with built(reward, parameters) as (term, settings):
        reasons = [_reason(term, each) for each in given]
        scorer = Scorer(term, batch_size, progress)
        groups = [_group(place, given, samples) if compares else [sample] for place, sample in enumerate(samples)]
        scores = try_whole(scorer, groups)
        tried = []
        for each, sample, reason, own in zip(given, samples, reasons, scores, strict=True):
            tried.append(_tried(each, sample, reason, own))
        if all(each.problem for each in tried):
            raise DataError(f"'{reward}' gives {tried[0].where} no score with this prompt: {tried[0].problem}")
        best = sorted((i for i, each in enumerate(tried) if not each.problem), key=lambda i: -tried[i].score)[:maps]
        divided = {place: divide(samples[place].output, squares) for place in best}
        scorer.plan(sum(len(each.parts) for each in divided.values()))
        for place in best:
            sample, *others = groups[place]
            apart = without_parts(scorer, tried[place], others, divided[place])
            tried[place] = replace(apart, needs=needs(scorer, sample, others))
        tried.sort(key=lambda each: math.inf if each.problem else -each.score)  # repeated scores may have moved it
        return Trial(reward=term.name, settings=settings, compares=compares, tried=tried, samples=scorer.samples)


def _group(place: int, given: Sequence[Given], samples: Sequence[Sample]) -> list[Sample]:
    """A sample with the others of its prompt behind it."""
    others = [i for i, each in enumerate(given) if each.group == given[place].group and i != place]
    return [samples[place], *(samples[i] for i in others)]


def _reason(term: RewardTerm, each: Given) -> str:
    """Why a reward cannot score a sample, as far as its plugin says; empty if it can."""
    if term.unscorable is None:
        return ""
    try:
        return term.unscorable(each.entry.stored)
    except DataError as error:
        raise DataError(f"'{term.name}' cannot score {each.entry.where}: {error}") from error


def _tried(each: Given, sample: Sample, reason: str, scores: Sequence[float]) -> Tried:
    prompt = sample.prompt
    has = {"prompt": prompt.text, "target": prompt.target not in (None, ""), "source": prompt.images}
    missing = [name for name, value in has.items() if not value]
    problem = why_no_score(reason, missing) if any(map(math.isnan, scores)) else ""
    if problem and not all(map(math.isnan, scores)):
        problem = "the reward scored it in one of two calls."
    return Tried(where=each.entry.where, sample=sample, scores=scores, problem=problem)


def as_json(trial: Trial) -> dict[str, Any]:
    """The result as plain data; a missing score is None."""
    return {
        "reward": trial.reward,
        "parameters": trial.settings,
        "scored": trial.samples,
        "samples": [_sample_as_json(tried) for tried in trial.tried],
    }


def _sample_as_json(tried: Tried) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "where": tried.where,
        "kind": "text" if isinstance(tried.sample.output, str) else "image",
        "score": or_none(tried.score),
        "scores": [or_none(score) for score in tried.scores],
    }
    if tried.problem:
        facts["problem"] = tried.problem
    if tried.divided is None:
        return facts
    facts |= {"without": dict(tried.needs), "empty": or_none(tried.empty), "chance": tried.chance}
    parts: list[dict[str, Any]] = []
    every: Sequence[Square | Words] = tried.divided.parts
    for part, change in zip(every, tried.changes, strict=True):
        words = {"words": tried.sample.output[part.start : part.end]} if isinstance(part, Words) else {}
        parts.append({**asdict(part), **words, "worth": or_none(change)})
    return {**facts, "parts": parts}
