"""Every registered objective trains with every registered advantage, on the gradient that its formula says."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from grpokit.config import presets
from grpokit.errors import UsageError
from grpokit.objectives import reduction_weights
from grpokit.registry.name_lookup import installed
from grpokit.runs import build, build_rewards
from grpokit.tracking.step_report import StepReport

OBJECTIVES, ADVANTAGES = ([spec.name for _, spec in installed(kind)] for kind in ("objective", "advantage"))
ADVANTAGES.remove("returns_to_go")  # which needs an environment
OBJECTIVES = [name for name in OBJECTIVES if name not in ("nft", "dgpo", "crd", "opd")]  # for flows, or of no reward
OTHER_OBJECTIVES = [name for name in OBJECTIVES if name != "grpo"]
OTHER_ADVANTAGES = [name for name in ADVANTAGES if name != "group"]
SETTINGS = (
    "trainer.prompts_per_step=4",
    "trainer.group_size=4",
    "trainer.micro_batch_size=16",
    "trainer.updates_per_rollout=2",
    "trainer.max_grad_norm=null",
    "trainer.learning_rate=5e-4",  # after one update, ratios lie within and beyond every clip range
    "trainer.warmup_steps=0",
)


@cache
def trained(objective: str, advantage: str, *overrides: str) -> tuple[list[Tensor], StepReport]:
    """The gradients of both updates of the first step of toy-lm, and the report of the second step."""
    chosen = (f"trainer.objective={objective}", f"trainer.advantage={advantage}")
    config, _ = presets.read_config("toy-lm", [*SETTINGS, *chosen, *overrides])
    prompts, _ = build.prompts(config)
    trainer = build.trainer(config, build.policies(config), build_rewards.rewards(config), prompts)
    updates = trainer.current.trainer.updates
    gradients: list[Tensor] = []
    updates.optimizer.register_step_pre_hook(
        lambda *_: gradients.append(torch.cat([p.grad.flatten() for p in updates.parameters]))
    )
    first = trainer.step()
    assert all(map(math.isfinite, (*first.metrics.values(), *trainer.step().metrics.values())))
    return gradients[:2], first


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def pair(objective: str, advantage: str) -> Any:
    """Each objective once with groups and each advantage once with grpo; `make test-slow` has the other pairs."""
    usual = objective == "grpo" or advantage == "group"
    return pytest.param(objective, advantage, marks=() if usual else pytest.mark.slow)


@pytest.mark.parametrize(("objective", "advantage"), [pair(o, a) for o in OBJECTIVES for a in ADVANTAGES])
def test_the_first_gradient_is_the_policy_gradient(objective: str, advantage: str) -> None:
    """On-policy every objective has the slope -A; only its mean and the advantage make the gradient."""
    (first, _), report = trained(objective, advantage)
    config, _ = presets.read_config("toy-lm", [f"trainer.objective={objective}"])
    policy, rollout = build.policy(config), report.rollout
    mean = build.objective(config).reduction
    counts = {"rows": rollout.rows, "decisions": int(rollout.mask.sum()), "max_decisions": rollout.max_decisions}
    weights = reduction_weights(rollout.mask, mean, **counts)
    logprobs = policy.logprobs(rollout, slice(0, rollout.mask.shape[1])).logprobs
    loss = -(torch.where(rollout.mask, logprobs, 0.0) * weights * report.advantages[:, None]).sum()
    expected = torch.autograd.grad(loss, [p for p in policy.modules()["model"].parameters() if p.requires_grad])
    assert distance(first, torch.cat([x.flatten() for x in expected])) < 1e-5


@pytest.mark.parametrize("update", [0, 1])
def test_advantages_train_apart(update: int) -> None:
    """All differ; without a std, the mean of the others is that of the group but for a factor of 4 / 3."""
    gradients = {name: trained("grpo", name)[0][update] for name in ADVANTAGES}
    assert all(distance(a, b) > 0.05 for a, b in itertools.permutations(gradients.values(), 2))
    assert distance(gradients["rloo"], gradients["centred"] * 4 / 3) < 1e-3


@pytest.mark.parametrize("advantage", ["group", *(pytest.param(a, marks=pytest.mark.slow) for a in OTHER_ADVANTAGES)])
def test_objectives_come_apart_in_the_second_update(advantage: str) -> None:
    gradients = {name: trained(name, advantage)[0][1] for name in OBJECTIVES}
    for (one, a), (other, b) in itertools.permutations(gradients.items(), 2):
        assert distance(a, b) > 0.01, (one, other)


@pytest.mark.parametrize(
    ("setting", "refused", "words"),
    [
        ("clip_range=0.1", {"cispo", "sapo", "vespo", "dppo"}, "has no parameter 'clip_range'. It accepts: "),
        ("dual_clip=3", {"cispo", "sapo", "vespo", "dppo"}, "has no parameter 'dual_clip'. It accepts: "),
        ("ratio=token", {"gspo", "luspo", "vespo"}, "has no parameter 'ratio'. It accepts: "),
        ("reduction=token_mean", {"dapo", "dr_grpo", "bnpo", "luspo"}, "has no parameter 'reduction'. It accepts: "),
    ],
)
def test_settings_that_an_objective_does_not_have_are_refused(setting: str, refused: set[str], words: str) -> None:
    for name in OBJECTIVES:
        config, _ = presets.read_config("toy-lm", [f"trainer.objective={name}", f"trainer.{setting}"])
        if name not in refused:
            build.objective(config)
            continue
        with pytest.raises(UsageError, match=words) as error:
            build.objective(config)
        assert f"objective '{name}'" in str(error.value)


@pytest.mark.parametrize("objective", ["grpo", *(pytest.param(o, marks=pytest.mark.slow) for o in OTHER_OBJECTIVES)])
def test_every_filter_goes_with_every_objective(objective: str) -> None:
    """All at once: the KL with its correction, entropies filtered and held up, groups drawn again, rows masked."""
    settings = (
        "kl_coef=0.1 kl_bias_correction=true dynamic_sampling=1 "
        "off_policy_mask_threshold=0.01 minibatches=2 correction={}"
    )
    modifiers = "trainer.modifiers=[{use: entropy-target, target: 1}, {use: entropy-filter, share: 0.3}]"
    overrides = [f"trainer.{setting}" for setting in settings.split()]
    gradients, report = trained(objective, "gdpo", modifiers, *overrides)
    assert distance(gradients[0], trained(objective, "gdpo")[0][0]) > 0.1
    assert report.metrics["kl"] > 0
    assert {"entropy_coef", "off_policy_mask/mean", "dynamic_sampling/reward_before"} <= report.metrics.keys()
