"""The ward's cases can be built, and a sick run is sick where its base is not.

`test_ward_tokens.py` and `test_ward_others.py` diagnose them: files run side by side.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ward import patients, treatment
from ward.components import Coarse, EngineLM, Noisy, RoundedLM, sums

from grpokit import Prompt, Sample
from grpokit.config import presets
from grpokit.sampling import derive_seeds

WARD = patients.read()
CASES = {case.name: case for case in WARD.cases}
CAUSES = """
step-too-short step-too-long epsilon-swallows lora-too-weak weights-rounded gradient-clipped clip-too-narrow
group-too-small reward-noise reward-coarse reward-saturated prompts-too-hard samples-alike kl-too-strong rewards-oppose
reward-sign evaluation-settings stale-rollouts evaluation-too-small warm-up-too-long weight-decay-too-strong
"""


@pytest.mark.parametrize("case", WARD.cases, ids=CASES)
def test_a_case_is_a_config_with_and_without_its_cure(case: patients.Case) -> None:
    sick, _ = presets.read_config(case.run.preset, case.run.overrides)
    base, _ = presets.read_config(case.base.preset, case.base.overrides)
    cured, _ = presets.read_config(case.run.preset, [*case.run.overrides, *case.cure])
    assert sick != base
    assert (cured != sick) == bool(case.cure)


def test_each_cause_has_a_case() -> None:
    assert {case.cause for case in WARD.cases} == set(CAUSES.split())
    assert len(CASES) == len(WARD.cases)


def test_a_run_is_healed_where_it_is_better_by_more_than_chance() -> None:
    def of(change: float, width: float) -> treatment.Outcome:
        return treatment.Outcome(first=0, last=0, change=change, width=width, seconds=1)

    assert of(0.5, 0.1).clearly_better(of(0.1, 0.1))
    assert not of(0.2, 0.1).clearly_better(of(0.1, 0.1))
    assert not of(0.1, 0.2).clearly_better(of(-0.5, 0.1))  # nearer to where it began, and no higher
    assert of(0.5, 0.1).clearly_better(of(float("nan"), float("nan")))  # it stopped before its last evaluation


def test_rewards_are_sick_by_their_setting_alone() -> None:
    samples = [Sample(prompt=Prompt(text="1"), output="x" * n, group=0) for n in (3, 4, 9)]
    assert Noisy(reward="length", noise=0, maximum=0)(samples) == [-3, -4, -9]
    noisy = Noisy(reward="length", noise=1, maximum=0)
    assert noisy(samples) != noisy(samples)
    assert Coarse(reward="length", step=0, maximum=0)(samples) == [-3, -4, -9]
    assert Coarse(reward="length", step=8, maximum=0)(samples) == [0, 0, -8]


def test_sums_may_be_longer_than_what_the_model_knows() -> None:
    assert [int(prompt.target) for prompt in sums("eval", digits=4, held_out=10)] == [
        sum(int(word) for word in prompt.text.rstrip("?").split() if word.isdigit())
        for prompt in sums("eval", digits=4, held_out=10)
    ]
    assert len(sums("eval", held_out=10)) == 10
    assert len(sums("train", held_out=10)) > 1000


def test_weights_in_bf16_swallow_a_short_step() -> None:
    moved = []
    for dtype in ("float32", "bfloat16"):
        policy = RoundedLM(dtype=dtype)
        weight = policy.model.head.weight
        before = weight.detach().clone()
        with torch.no_grad():
            weight.add_(1e-5)
        policy.updated(1)
        moved.append(float((weight != before).float().mean()))
    assert moved[0] == 1
    assert moved[1] < 0.1


@pytest.mark.parametrize("tells", [True, False])
def test_an_engine_draws_with_the_weights_that_were_pushed(tells: bool) -> None:
    policy = EngineLM(push_every=2, tells=tells)
    seeds = derive_seeds(0, stream="train", step=0, prompts=1, group_size=2)
    old = policy.rollout([Prompt(text="12+34")], 2, seeds=seeds).old.logprobs
    for version, is_new in ((1, False), (2, True)):
        with torch.no_grad():
            policy.model.head.weight.mul_(1.5)
        policy.updated(version)
        rollout = policy.rollout([Prompt(text="12+34")], 2, seeds=seeds)
        assert torch.equal(rollout.old.logprobs, old) != is_new
        assert rollout.version == ((2 if is_new else 0) if tells else None)
        assert rollout.exact == tells
    again = EngineLM(push_every=2, tells=tells)
    again.load_state_dict(policy.state_dict())
    assert torch.equal(again.rollout([Prompt(text="12+34")], 2, seeds=seeds).old.logprobs, rollout.old.logprobs)


@pytest.mark.slow
def test_a_sick_run_does_not_rise_where_its_base_does(tmp_path: Path) -> None:
    case = CASES["flow-kl-100"]
    sick = treatment.outcome(treatment.train(case.run, tmp_path), case.score)
    base = treatment.outcome(treatment.train(case.healthy, tmp_path), case.score)
    assert base.rises
    assert base.clearly_better(sick)
    assert abs(sick.change) < 0.1 < base.change


@pytest.mark.very_slow
@pytest.mark.parametrize("case", WARD.cases, ids=CASES)
def test_its_advice_heals(case: patients.Case, tmp_path: Path) -> None:
    assert treatment.treated(case, tmp_path).healed
