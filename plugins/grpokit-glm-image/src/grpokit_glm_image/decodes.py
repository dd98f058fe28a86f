"""Says how well a cheap decode ranks pictures: the training's decode settings against those of evaluation.

GRPO learns from the order of a group's rewards. A decode of few steps, or of the draft, is as good as a full one if its
pictures get rewards in the same order. `python -m grpokit_glm_image.decodes CONFIG` draws samples by a config's policy,
makes the pictures of the same tokens both ways, and scores all of them by the config's rewards.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grpokit import GrpokitError, Prompt, RewardTerm, UsageError
from grpokit.config import presets
from grpokit.rewards.scoring import score_samples
from grpokit.runs import build, build_rewards
from grpokit.runs.rescore import kendall_tau
from grpokit.sampling import derive_seeds
from grpokit_glm_image.policy import GlmImageAR


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """One reward on pictures of the same tokens, decoded in two ways.

    Attributes:
        name: of the reward, or "reward" for the weighted sum.
        training: its mean over the training's decode.
        evaluation: its mean over the evaluation's.
        tau: mean of Kendall's tau-b over the groups in which both tell samples apart; NaN if there is none.
        groups: how many of them there are.
    """

    name: str
    training: float
    evaluation: float
    tau: float
    groups: int


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a cheap decode is worth.

    Attributes:
        agreements: of each reward, and of their weighted sum at the end.
        seconds: per picture, of the training's decode and of the evaluation's.
    """

    agreements: Sequence[Agreement]
    seconds: tuple[float, float]


def compare(
    policy: GlmImageAR, terms: Sequence[RewardTerm], prompts: Sequence[Prompt], *, group_size: int, seed: int = 0
) -> Comparison:
    """Draw, decode in both ways and score.

    Args:
        policy: with its settings `decode` and `eval_decode`.
        terms: the rewards.
        prompts: P prompts.
        group_size: samples of each, at least 2.
        seed: of the draws.
    """
    seeds = derive_seeds(seed, stream="sample", step=0, prompts=len(prompts), group_size=group_size)
    rollout = policy.rollout(prompts, group_size, seeds=seeds)
    scores, seconds = [], []
    for evaluate in (False, True):
        start = time.perf_counter()
        samples = policy.decoded(rollout, evaluate=evaluate)
        seconds.append((time.perf_counter() - start) / len(samples))
        scores.append(score_samples(terms, samples))
    cheap, full = scores
    columns = [(name, cheap.matrix[:, i], full.matrix[:, i]) for i, name in enumerate(cheap.names)]
    agreements = []
    for name, own, other in [*columns, ("reward", cheap.totals, full.totals)]:
        taus = [kendall_tau(own[rows], other[rows]) for rows in _groups(cheap.groups)]
        known = [tau for tau in taus if not math.isnan(tau)]
        agreements.append(
            Agreement(
                name=name,
                training=float(own.nanmean()),
                evaluation=float(other.nanmean()),
                tau=sum(known) / len(known) if known else math.nan,
                groups=len(known),
            )
        )
    return Comparison(agreements=agreements, seconds=(seconds[0], seconds[1]))


def _groups(groups: torch.Tensor) -> list[torch.Tensor]:
    return [groups == group for group in groups.unique()]


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m grpokit_glm_image.decodes", description=__doc__.partition("\n")[0])
    parser.add_argument("config", help="a preset, a YAML file or a run folder; of a run, the untrained start")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as in policy.decode.steps=4")
    parser.add_argument("--prompts", type=int, default=8, help="how many of the held-out prompts (8)")
    parser.add_argument("--count", type=int, default=8, help="samples of each (8)")
    options = parser.parse_intermixed_args(words)
    terms: Sequence[RewardTerm] = ()
    try:
        if options.prompts < 1 or options.count < 2:
            raise UsageError("--prompts must be at least 1, and --count at least 2: an order needs two samples.")
        config, _ = presets.read_config(options.config, options.overrides)
        train, held_out = build.prompts(config)
        prompts = (train if held_out is None else held_out)[: options.prompts]
        build.check_readable(config, prompts)
        terms = build_rewards.rewards(config)
        policy = build.policy(config)
        if not isinstance(policy, GlmImageAR):
            raise UsageError(f"The policy must be glm-image-ar, and '{config.policy.use}' is another.")
        found = compare(policy, terms, prompts, group_size=options.count, seed=config.seed)
    except GrpokitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    finally:
        build_rewards.close(terms)
    width = max(len("seconds per picture"), *(len(each.name) for each in found.agreements))
    print(f"{'':{width}}  training  evaluation    tau  groups")
    for each in found.agreements:
        tau = "-" if math.isnan(each.tau) else f"{each.tau:+.3f}"
        print(f"{each.name:{width}}  {each.training:8.3f}  {each.evaluation:10.3f}  {tau:>5}  {each.groups:6d}")
    print(f"{'seconds per picture':{width}}  {found.seconds[0]:8.3f}  {found.seconds[1]:10.3f}")
    print("tau: mean of Kendall's tau-b inside the groups in which both decodes tell samples apart")
    return 0


if __name__ == "__main__":
    sys.exit(main())
