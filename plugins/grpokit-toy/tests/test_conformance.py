"""The toy policies against grpokit's conformance checks."""

from __future__ import annotations

import torch

from grpokit.config import presets
from grpokit.runs import build
from grpokit_check import Check, outcomes, parametrize_with_checks, policy_checks
from grpokit_toy.codebook import codebook
from grpokit_toy.data import glyph_prompts
from grpokit_toy.glyph import ToyGlyph
from grpokit_toy.lm import CHARACTERS, END, ToyLM, sum_prompts
from grpokit_toy.plugin import grpokit_presets

PLUGIN = "grpokit_toy.plugin"


def texts(rollout):
    pairs = zip(rollout.trace.per_row["tokens"], rollout.mask, strict=True)
    return ["".join(CHARACTERS[t] for t in row[keep].tolist() if t != END) for row, keep in pairs]


def pictures(rollout):
    return [codebook().picture(tokens) for tokens in rollout.trace.per_row["tokens"].tolist()]


@parametrize_with_checks(
    policy_checks(lambda: ToyLM(temperature=0.8), sum_prompts(limit=3), decode=texts, makes="text", module=PLUGIN)
)
def test_toy_lm(check: Check) -> None:
    check()


@parametrize_with_checks(
    policy_checks(
        lambda: ToyGlyph(temperature=0.7),
        glyph_prompts("train", limit=3),
        decode=pictures,
        makes="image",
        module=PLUGIN,
    )
)
def test_toy_glyph(check: Check) -> None:
    check()


@parametrize_with_checks(
    check
    for check in policy_checks(lambda: ToyLM(eval_temperature=0), sum_prompts(limit=3), decode=texts)
    if check.name in ("shapes", "scored-is-sampled", "evaluate")
)
def test_toy_lm_with_greedy_evaluation(check: Check) -> None:
    check()


def test_every_policy_with_a_preset() -> None:
    """Of those without a test of their own above."""
    torch.set_num_threads(1)
    for spec in grpokit_presets():
        config, _ = presets.read_config(spec.name)
        if config.policy.use in ("toy-lm", "toy-glyph"):
            continue
        checks = policy_checks(lambda config=config: build.policy(config), build.prompts(config)[0][:3])
        wrong = {o.name: o.message for o in outcomes(checks) if not o.ok}
        assert wrong == {"target": "its decisions have no target"}, (spec.name, wrong)
