"""The engine on small real policies: exact gradients, the order of things, memory, guards."""

from __future__ import annotations

import gc
import itertools
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from grpokit import (
    Decisions,
    LearningStep,
    Observer,
    Prompt,
    RewardError,
    RewardTerm,
    RunError,
    Trainer,
    UsageError,
    advantages,
    evaluate,
    objectives,
)
from grpokit.builtin.entropy_filter import EntropyFilter
from grpokit.builtin.entropy_target import EntropyTarget
from grpokit.tracking.step_report import StepReport
from grpokit.training import updates
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.micro_batches import Limit, cuts
from grpokit.training.minibatches import minibatch_rows
from tiny_policies import OBJECTIVES_BY_NAME, BatchesSeen, Fails, TinyGaussian, TinyTokens, digit_sum, nearness

PROMPTS = [str(i) for i in range(12)]


def make(policy=None, reward=digit_sum, prompts=PROMPTS, **options) -> Trainer:
    defaults = {"prompts_per_step": 4, "group_size": 8, "micro_batch_size": 32, "learning_rate": 1e-2, "device": "cpu"}
    return Trainer(policy or TinyTokens(), [reward], prompts, **(defaults | options))


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.updates.parameters])


def record_gradients(trainer: Trainer) -> list[torch.Tensor]:
    """The flat gradient at every optimizer step, as it grows."""
    seen: list[torch.Tensor] = []
    trainer.updates.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.cat([p.grad.flatten() for p in trainer.updates.parameters]).clone())
    )
    return seen


def gradient(policy: TinyTokens, reward, **options) -> torch.Tensor:
    """The gradients of two updates on one rollout; the second is off-policy, so that clips act."""
    trainer = make(policy, reward, updates_per_rollout=2, max_grad_norm=None, learning_rate=0.05, **options)
    seen = record_gradients(trainer)
    trainer.step()
    return torch.cat(seen)


OBJECTIVES = {
    "grpo": {"kl_coef": 0.1, "entropy_coef": 0.01},
    "dapo": {"kl_coef": 0.1, "kl": "k2"},
    "dr_grpo": {"kl_coef": 0.1, "dual_clip": 3.0},
    "gspo": {"clip_range": 0.2, "clip_range_high": 0.3, "kl_coef": 0.1, "entropy_coef": 0.1},
    "cispo": {},
    "sapo": {},
    "bnpo": {"kl_coef": 0.1, "kl_bias_correction": True},
    "luspo": {"clip_range": 0.2, "clip_range_high": 0.3},
    "vespo": {"off_policy_mask_threshold": 0.003},
}


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), pytest.param(torch.float32, 1e-6, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_micro_batches_and_slices_add_up(name: str, dtype: torch.dtype, tolerance: float) -> None:
    objective = OBJECTIVES_BY_NAME[name](**OBJECTIVES[name])
    full = gradient(TinyTokens(dtype=dtype), digit_sum, objective=objective)
    sizes = [1, 4, 12] if dtype == torch.float64 else [2]  # float32 rounds, whatever the size
    for size, slices in itertools.product(sizes, [1, 3]):
        piecewise = gradient(
            TinyTokens(dtype=dtype, slices=slices), digit_sum, objective=objective, micro_batch_size=size
        )
        # a new rollout with other weights would differ by far more; the first half is before any update
        half = len(full) // 2
        for part in (slice(0, half), slice(half, None)):
            error = (piecewise[part] - full[part]).norm() / full[part].norm()
            assert error < (tolerance if part.stop else 100 * tolerance), (size, slices)


def test_masks_of_the_additivity_test_are_ragged() -> None:
    lengths = make().step().rollout.mask.sum(-1)
    assert lengths.min() <= 2
    assert lengths.max() == 7


def test_the_off_policy_mask_of_the_additivity_test_acts() -> None:
    objective = OBJECTIVES_BY_NAME["vespo"](**OBJECTIVES["vespo"])
    metrics = make(objective=objective, learning_rate=0.05, updates_per_rollout=2).step().metrics
    assert 0.1 < metrics["off_policy_mask/mean"] < 0.4  # over two updates, and none in the first
    assert metrics["vespo/phi_mean"] != 1


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_gaussian_steps_add_up_with_exact_kl(size: int) -> None:
    objective = objectives.GRPO(kl="gaussian", kl_coef=0.5, clip_range=1e-4)
    full = gradient(TinyGaussian(dtype=torch.float64), nearness, objective=objective)
    pieces = gradient(TinyGaussian(dtype=torch.float64), nearness, objective=objective, micro_batch_size=size)
    half = len(full) // 2
    assert (pieces[:half] - full[:half]).norm() / full[:half].norm() < 1e-12
    assert (pieces[half:] - full[half:]).norm() / full[half:].norm() < 1e-10


def test_sequence_ratio_with_exact_kl_adds_up_over_slices() -> None:
    objective = objectives.GSPO(kl="gaussian", kl_coef=0.5, clip_range=0.01, clip_range_high=0.01)
    whole = TinyGaussian(dtype=torch.float64)
    whole.slice_count = 1
    full = gradient(whole, nearness, objective=objective)
    sliced = TinyGaussian(dtype=torch.float64)
    pieces = gradient(sliced, nearness, objective=objective, micro_batch_size=4)
    assert (pieces - full).norm() / full.norm() < 1e-10
    assert {steps.stop - steps.start for _, steps in sliced.scored} == {1}  # never more than a slice at a time


def test_gradient_equals_one_written_by_hand() -> None:
    trainer = make(TinyTokens(dtype=torch.float64), max_grad_norm=None, micro_batch_size=3)
    seen = record_gradients(trainer)
    report = trainer.step()
    rollout, policy = report.rollout, TinyTokens(dtype=torch.float64)
    rewards = torch.tensor(digit_sum(rollout.samples), dtype=torch.float64)
    loss = torch.zeros((), dtype=torch.float64)
    for g in range(4):
        rows = slice(8 * g, 8 * g + 8)
        a = (rewards[rows] - rewards[rows].mean()) / (rewards[rows].std() + 1e-4)
        new = policy.logprobs(rollout, slice(0, 7)).logprobs[rows]
        m = rollout.mask[rows].double()
        loss = loss - ((new - new.detach()).exp() * a[:, None] * m).sum(-1).div(m.sum(-1)).sum() / 32
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in policy.net.parameters()])
    assert (seen[0] - expected).norm() / expected.norm() < 1e-12
    assert report.metrics["loss"] == pytest.approx(loss.item(), abs=1e-12)


def test_gradients_of_groups_add_up_to_that_of_the_step_and_change_nothing() -> None:
    class Batches(Observer):
        def differentiated(self, step: LearningStep) -> list[str]:
            self.batch = step.minibatch
            return []

    seen, objective = Batches(), objectives.GRPO(kl_coef=0.1)
    trainer = make(TinyTokens(dtype=torch.float64), objective=objective, observers={"seen": seen}, max_grad_norm=None)
    start = [p.detach().clone() for p in trainer.updates.parameters]
    whole = record_gradients(trainer)
    trainer.step()
    for parameter, before in zip(trainer.updates.parameters, start, strict=True):
        parameter.data.copy_(before)
    groups = seen.batch.rollout.groups
    parts = [trainer.gradient_of(seen.batch.select((groups == g).nonzero()[:, 0])) for g in groups.unique()]
    total = torch.cat([torch.stack(own).sum(0).flatten() for own in zip(*parts, strict=True)])
    assert (total - whole[0]).norm() / whole[0].norm() < 1e-12
    assert torch.equal(weights(trainer), torch.cat([x.flatten() for x in start]))
    assert all(p.grad is None for p in trainer.updates.parameters)


@pytest.mark.parametrize(
    "policy", [TinyTokens(), TinyTokens(slices=3), TinyGaussian()], ids=["tokens", "slices", "sde"]
)
def test_ratio_is_one_before_the_first_update(policy: TinyTokens) -> None:
    report = make(policy, nearness if isinstance(policy, TinyGaussian) else digit_sum).step()
    assert report.metrics["logprob_diff/max"] < 1e-4
    assert report.metrics["ratio/max"] == pytest.approx(1.0, abs=1e-4)


def test_a_sampler_that_disagrees_shows_in_the_gap() -> None:
    class Hot(TinyTokens):
        def logprobs(self, rollout, steps):
            self.net[-1].weight.data *= 0.9  # scored at another temperature than sampled
            return super().logprobs(rollout, steps)

    with pytest.raises(
        RunError, match=r"they differ by 0\.06\d+ on average and 0\.4\d+ at most; the limit is 0\.0001 on"
    ):
        make(Hot()).step()
    report = make(Hot(), max_logprob_diff=0.2).step()
    assert report.metrics["logprob_diff/max"] > 0.05


def test_a_loop_prints_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make(steps=20)
    list(trainer)
    printed = capsys.readouterr()
    first, *lines = printed.err.splitlines()
    assert first == trainer.describe()
    assert [line.split("  ")[0] for line in lines] == [f"step {step}/20" for step in (1, *range(2, 21, 2))]
    assert all(" ETA 0:00:" in line for line in lines)
    assert printed.out == ""
    list(make(steps=7, progress=False))
    assert capsys.readouterr().err == ""


def test_it_learns() -> None:
    trainer = make(steps=40, learning_rate=3e-2, max_zero_std_steps=None)
    rewards = [report.metrics["reward"] for report in trainer]
    assert len(rewards) == trainer.completed == 40
    assert sum(rewards[-5:]) / 5 > 3 * sum(rewards[:3]) / 3


@pytest.mark.parametrize(
    "name", ["grpo", *(pytest.param(n, marks=pytest.mark.slow) for n in OBJECTIVES if n != "grpo")]
)
def test_every_objective_learns(name: str) -> None:
    # two passes over a rollout: with one, ratios never leave 1
    trainer = make(
        steps=25,
        learning_rate=2e-2,
        updates_per_rollout=2,
        minibatches=2,
        objective=OBJECTIVES_BY_NAME[name](**{k: v for k, v in OBJECTIVES[name].items() if not k.startswith("kl")}),
        advantage=advantages.centred if name == "dr_grpo" else advantages.group,
    )
    rewards = [report.metrics["reward"] for report in trainer]
    assert sum(rewards[-5:]) / 5 > 1.5 * sum(rewards[:3]) / 3


@pytest.mark.parametrize(
    "options",
    [
        {"modifiers": [EntropyFilter(share=0.3)]},
        {"modifiers": [EntropyTarget(target=1.0, delta=0.02)]},
        {"dynamic_sampling": 2},
        {"objective": objectives.GRPO(off_policy_mask_threshold=0.01, dual_clip=1.5)},
    ],
    ids=["entropy-filter", "entropy-target", "dynamic sampling", "off-policy mask"],
)
def test_it_learns_with_every_filter(options: dict[str, Any]) -> None:
    trainer = make(steps=25, learning_rate=2e-2, updates_per_rollout=2, minibatches=2, **options)
    rewards = [report.metrics["reward"] for report in trainer]
    assert sum(rewards[-5:]) / 5 > 1.5 * sum(rewards[:3]) / 3


def test_gaussian_policy_learns() -> None:
    trainer = make(TinyGaussian(), nearness, steps=30, learning_rate=1e-2)
    rewards = [report.metrics["reward"] for report in trainer]
    assert sum(rewards[-5:]) / 5 > 0.5 * sum(rewards[:3]) / 3  # rewards are negative


@pytest.mark.parametrize("size", [1, 5, 8, 32])
def test_same_run_whatever_the_micro_batch(size: int) -> None:
    reports = [make(TinyTokens(dtype=torch.float64), micro_batch_size=s) for s in (size, 32)]
    for _ in range(3):
        a, b = (trainer.step() for trainer in reports)
        assert [s.output for s in a.rollout.samples] == [s.output for s in b.rollout.samples]
        assert a.metrics["grad_norm"] == pytest.approx(b.metrics["grad_norm"], rel=1e-9)


def test_same_seed_same_run_and_global_rng_untouched() -> None:
    policy = TinyTokens()
    before = torch.get_rng_state()
    first = [r.metrics["reward"] for r in make(policy, steps=3)]
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(99)
    assert first == [r.metrics["reward"] for r in make(steps=3)]
    assert first != [r.metrics["reward"] for r in make(steps=3, seed=1)]


def test_rewards_meet_their_own_samples_and_groups() -> None:
    prompts = [Prompt(text=str(i), target=str(i)) for i in range(12)]
    seen = []

    def spy(samples):
        seen.extend(samples)
        return [float(s.prompt.target) for s in samples]

    report = make(reward=spy, prompts=prompts, steps=3).step()
    assert report.rewards[:, 0].tolist() == [float(s.prompt.text) for s in seen]
    assert [prompts[i] for i in report.prompts] == [s.prompt for s in seen[::8]]
    groups = report.rollout.groups.tolist()
    assert groups == [s.group for s in report.rollout.samples]
    assert [groups.count(g) for g in dict.fromkeys(groups)] == [8] * 4
    for g in dict.fromkeys(groups):
        assert len({s.prompt.text for s in report.rollout.samples if s.group == g}) == 1


def test_groups_are_not_told_apart_by_text() -> None:
    report = make(prompts=["1"], prompts_per_step=3).step()
    assert len(report.rollout.groups.unique()) == 3


def test_no_reference_is_built_without_kl() -> None:
    policy = TinyTokens()
    make(policy).step()
    assert policy.frozen is None


def test_reference_is_frozen_at_the_start() -> None:
    policy = TinyTokens()
    start = [p.detach().clone() for p in policy.net.parameters()]
    trainer = make(policy, objective=objectives.GRPO(kl_coef=0.1), steps=3)
    reports = list(trainer)
    assert reports[0].metrics["kl"] == pytest.approx(0.0, abs=1e-9)
    assert reports[-1].metrics["kl"] > 1e-5
    assert all(torch.equal(a, b) for a, b in zip(start, policy.frozen.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(start, policy.net.parameters(), strict=True))


def test_kl_holds_the_policy_near_the_reference() -> None:
    drift = []
    for coefficient in (0.001, 5.0):
        trainer = make(steps=15, objective=objectives.GRPO(kl_coef=coefficient), learning_rate=3e-2)
        drift.append([r.metrics["kl"] for r in trainer][-1])
    assert drift[1] < 0.2 * drift[0]


def test_lora_reference_is_the_base_with_the_adapter_off() -> None:
    peft = pytest.importorskip("peft")
    from grpokit import adapter_off

    class Lora(TinyTokens):
        def __init__(self) -> None:
            super().__init__()
            self.net = peft.get_peft_model(self.net, peft.LoraConfig(target_modules=["0", "2", "4"], r=4))

        def reference(self):
            return adapter_off(self.net)

    torch.manual_seed(0)  # peft draws the adapter from the global state
    policy = Lora()
    base = {n: p.detach().clone() for n, p in policy.net.named_parameters() if not p.requires_grad}
    trainer = make(policy, objective=objectives.GRPO(kl_coef=0.05), steps=15, learning_rate=3e-2)
    reports = list(trainer)
    assert reports[0].metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert reports[-1].metrics["kl"] > 1e-3
    assert sum(r.metrics["reward"] for r in reports[-4:]) > 1.3 * sum(r.metrics["reward"] for r in reports[:4])
    assert all(torch.equal(base[n], p) for n, p in policy.net.named_parameters() if not p.requires_grad)


def test_minibatches_share_out_whole_groups() -> None:
    groups = torch.arange(4).repeat(8) + 40  # interleaved rows
    orders = set()
    for update in range(8):
        parts = minibatch_rows(groups, 2, key=(42, 0, update))
        assert [len(rows) for rows in parts] == [16, 16]
        assert sorted(torch.cat(parts).tolist()) == list(range(32))
        for rows in parts:
            assert all(groups[rows].tolist().count(g) == 8 for g in groups[rows].tolist())
        orders.add(tuple(parts[0].tolist()))
    assert len(orders) > 1


def test_every_pass_and_step_has_minibatches_of_its_own() -> None:
    policy = BatchesSeen()
    trainer = make(policy, prompts_per_step=8, group_size=2, updates_per_rollout=2, minibatches=2)
    prompts = [trainer.step().prompts for _ in range(2)]
    assert prompts[0] != prompts[1]
    first = [frozenset((batch % 8).tolist()) for batch in policy.batches[::2]]  # of each pass, counted in its rollout
    assert len(first) == len(set(first)) == 4


def test_each_minibatch_is_normalised_by_itself() -> None:
    trainer = make(TinyTokens(dtype=torch.float64), minibatches=2, max_grad_norm=None)
    seen = record_gradients(trainer)
    rollout = trainer.step().rollout
    assert len(seen) == 2
    policy = TinyTokens(dtype=torch.float64)
    rows = minibatch_rows(rollout.groups, 2, key=(42, 0, 0))[0]
    rewards = torch.tensor(digit_sum(rollout.samples), dtype=torch.float64)
    a = advantages.group(rewards[:, None], torch.ones(1), rollout.groups)
    m = rollout.mask.double()
    per_row = (policy.logprobs(rollout, slice(0, 7)).logprobs * m).sum(-1) / m.sum(-1) * -a
    (per_row[rows].sum() / 16).backward()
    expected = torch.cat([p.grad.flatten() for p in policy.net.parameters()])
    assert (seen[0] - expected).norm() / expected.norm() < 1e-12


def test_a_fixed_length_is_the_policys_and_not_the_rollouts() -> None:
    """Rows that all end early are divided by the same number as long ones, whatever the width of the tensors."""

    class Longer(TinyTokens):
        def rollout(self, prompts, group_size, *, seeds, evaluate=False):
            found = super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)
            return replace(found, max_decisions=2 * found.max_decisions)

    norms = [
        make(policy, objective=objectives.DrGRPO()).step().metrics["grad_norm"] for policy in (TinyTokens(), Longer())
    ]
    assert norms[1] == pytest.approx(norms[0] / 2)


def test_micro_batches_keep_groups_together() -> None:
    groups = torch.arange(4).repeat(8)  # interleaved rows
    for size, count in ((8, 4), (16, 2), (12, 4), (32, 1), (4, 8), (3, 12)):
        mask = torch.ones(32, 1, dtype=torch.bool)
        pieces = [cut.rows for cut in cuts(groups, mask, [slice(0, 1)], Limit(rows=size))]
        assert len(pieces) == count
        assert sorted(torch.cat(pieces).tolist()) == list(range(32))
        assert all(len(p) <= size for p in pieces)
        if size >= 8:
            assert all(groups[p].tolist().count(g) == 8 for p in pieces for g in groups[p].tolist())


class Live:
    """Bytes that autograd holds for backward, now and at the most."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def hooks(self):
        live = self

        class Held:
            def __init__(self, x: torch.Tensor) -> None:
                self.x, self.size = x.detach(), x.numel() * x.element_size()  # detached: no cycle
                live.now += self.size
                live.peak = max(live.peak, live.now)

            def __del__(self) -> None:
                live.now -= self.size

        return torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.x)


def test_activation_memory_does_not_grow_with_the_group() -> None:
    peaks = {}
    for group, size in ((8, 4), (64, 4), (8, 32), (64, 32)):
        live = Live()
        trainer = make(TinyTokens(width=64), group_size=group, micro_batch_size=size)
        with live.hooks():
            trainer.step()
        gc.collect()
        peaks[group, size] = live.peak
    assert peaks[64, 4] == peaks[8, 4]
    assert peaks[64, 32] == peaks[8, 32]
    assert peaks[8, 32] > 4 * peaks[8, 4]  # the measure sees activations at all


def test_warmup_and_cosine() -> None:
    trainer = make(steps=10, learning_rate=1.0e-3, warmup_steps=2, schedule="cosine")
    rates = [report.metrics["learning_rate"] for report in trainer]
    assert rates[:2] == pytest.approx([0.5e-3, 1.0e-3])
    assert rates[-1] == pytest.approx(1e-3 * (1 + math.cos(math.pi * 7 / 8)) / 2)


@pytest.mark.parametrize(("epsilon", "share"), [(1e-8, 0.0), (1e3, 1.0)])
def test_updates_that_epsilon_swallows_are_counted(epsilon: float, share: float) -> None:
    trainer = make(steps=3, adam_epsilon=epsilon)
    before = weights(trainer).clone()
    reports = list(trainer)
    assert [report.metrics["updates_swallowed"] for report in reports] == [share] * 3
    assert ["epsilon" in " ".join(report.warnings) for report in reports] == [False, share == 1, False]
    assert ((weights(trainer) - before).abs().max() < 1e-4) == (share == 1)


def test_the_betas_are_those_of_adamw() -> None:
    trainer, plain = make(steps=2, adam_beta1=0.5, adam_beta2=0.75), make(steps=2)
    for one in (trainer, plain):
        one.step()
    ratio = [
        next(iter(one.updates.optimizer.state.values()))[name].abs().sum()
        for name in ("exp_avg", "exp_avg_sq")
        for one in (trainer, plain)
    ]
    assert float(ratio[0] / ratio[1]) == pytest.approx(0.5 / 0.1)
    assert float(ratio[2] / ratio[3]) == pytest.approx(0.25 / 0.001, rel=1e-4)


def test_gradient_clipping() -> None:
    free, held = make(max_grad_norm=None), make(max_grad_norm=1e-3)
    a, b = free.step().metrics["grad_norm"], held.step().metrics["grad_norm"]
    assert a == pytest.approx(b)
    assert a > 1e-2


def test_save_and_load_go_on_exactly(tmp_path: Path) -> None:
    whole = make(steps=6, objective=objectives.GRPO(kl_coef=0.1), updates_per_rollout=2)
    for _ in range(3):
        whole.step()
    whole.save(tmp_path / "c")
    rest = [r.metrics["reward"] for r in whole]
    again = make(steps=6, objective=objectives.GRPO(kl_coef=0.1), updates_per_rollout=2)
    again.load(tmp_path / "c")
    assert again.completed == 3
    assert [r.metrics["reward"] for r in again] == rest
    assert torch.equal(weights(again), weights(whole))


def test_describe_resolves_the_arithmetic() -> None:
    line = make(steps=50, micro_batch_size=4, minibatches=2, updates_per_rollout=3).describe()
    assert "4 prompts x 8 samples = 32 rows a step" in line
    assert "6 updates of 16 rows in 4 micro-batches of at most 4" in line
    assert "50 steps = 300 updates on 1,600 samples" in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": 1}, r"group_size must be at least 2, got 1\. group_size: G, samples per prompt; GRPO compares"),
        ({"minibatches": 3}, "minibatches=3 does not divide prompts_per_step=4"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"micro_batch_size": 0}, "micro_batch_size must be at least 1"),
        ({"learning_rate": -1.0}, "learning_rate must be above 0, got -1"),
        ({"schedule": "step"}, "schedule must be 'constant' or 'linear' or 'cosine', got 'step'"),
        ({"adam_beta2": 1.0}, "adam_beta2 must be below 1, got 1"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be above 0"),
        ({"warmup_steps": -1}, "warmup_steps must be at least 0, got -1"),
        ({"prompts": []}, "no prompt"),
        ({"prompts": "one text"}, "list of prompts"),
        ({"prompts": [3]}, "Prompt 0 is 3; expected a text"),
        ({"mixed_precision": "fp16"}, "needs a GPU"),
        ({"mixed_precision": "int8"}, "mixed_precision must be"),
        ({"device": "tpu"}, "device must be"),
        ({"trackers": ["tensorboard"]}, "need a folder"),
        ({"trackers": ["nosuch"], "folder": "x"}, "nosuch"),
    ],
)
def test_bad_arguments_name_the_numbers(options: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(**options)


def test_no_trainable_parameter_is_refused() -> None:
    policy = TinyTokens()
    policy.net.requires_grad_(False)
    with pytest.raises(UsageError, match="no trainable parameter"):
        make(policy)


def test_non_finite_gradient_stops_before_the_weights_change() -> None:
    class Broken(TinyTokens):
        def logprobs(self, rollout, steps):
            found = super().logprobs(rollout, steps)
            return type(found)(logprobs=found.logprobs * math.nan)

    trainer = make(Broken())
    before = weights(trainer)
    with pytest.raises(RunError, match="loss is nan in step 1"):
        trainer.step()
    assert torch.equal(before, weights(trainer))


def test_bad_advantage_function_is_named() -> None:
    with pytest.raises(RunError, match=r"32 of them not finite; expected finite numbers, one per row \(32,\)"):
        make(advantage=lambda r, w, g: r[:, 0] * math.nan).step()


class Wrong(TinyGaussian):
    """Breaks the contract in one way; each must be named, for each would train wrongly without an error."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def rollout(self, prompts, group_size, *, seeds, evaluate=False):
        rollout = super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)
        if self.way == "groups":
            return replace(rollout, groups=rollout.groups.flip(0))
        samples = rollout.samples
        if self.way == "samples":
            samples = samples[::-1]
        if self.way == "one group of samples":
            samples = [replace(s, group=samples[0].group) for s in samples]
        if self.way == "prompts":
            samples = [replace(s, prompt=other.prompt) for s, other in zip(samples, samples[::-1], strict=True)]
        if self.way == "copies":
            samples = [replace(s, prompt=replace(s.prompt, meta={"seen": True})) for s in samples]
        return replace(rollout, samples=samples)

    def logprobs(self, rollout, steps):
        found = super().logprobs(rollout, slice(0, 4) if self.way == "all steps" else steps)
        return Decisions(logprobs=found.logprobs[:, 0]) if self.way == "no time" else found

    def slices(self, rollout):
        slices = super().slices(rollout)
        return {"backwards": slices[::-1], "left out": slices[1:]}.get(self.way, slices)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("groups", r"rollout has the groups \[3, 3.*expected \[0, 0"),
        (
            "samples",
            r"sample of group 3, prompt '1', in row 0; expected group 0, prompt '6'\. Row p \* 8 \+ i must",
        ),
        (
            "one group of samples",
            r"sample of group 0, prompt '\d+', in row 8; expected group 1, prompt '\d+'\. Row p",
        ),
        (
            "prompts",
            r"sample of group 0, prompt '1', in row 0; expected group 0, prompt '6'\. Row p \* 8 \+ i must",
        ),
        (
            "all steps",
            r"0 to 1 of 32 rows gave logprobs of shape \(32, 4\); expected a shape that begins with \(32, 1\)",
        ),
        ("no time", r"gave logprobs of shape \(32,\); expected a shape that begins with \(32, 1\)"),
        ("backwards", r"slices are \[\(3, 4\).*follow each other from 0 to 4"),
        ("left out", r"slices are \[\(1, 2\).*Mask decisions that are not"),
    ],
)
def test_a_policy_that_breaks_the_contract_is_stopped(way: str, message: str) -> None:
    with pytest.raises(RunError, match=message):
        make(Wrong(way), nearness).step()


def test_samples_may_hold_copies_of_their_prompts() -> None:
    assert make(Wrong("copies"), nearness).step().step == 1


def test_samples_are_held_against_their_prompts_in_an_evaluation_too() -> None:
    with pytest.raises(RunError, match=r"sample of group 11, prompt '11', in row 0; expected group 0, prompt '0'"):
        evaluate(Wrong("samples"), [nearness], PROMPTS)


class NoNumbers(TinyTokens):
    """A row of prompt 6 has logits that are NaN, as an overflow in low precision leaves them."""

    def logits(self, prompt, position, previous):
        found = super().logits(prompt, position, previous)
        return torch.where((prompt == 6)[..., None], torch.nan, found)


def test_logits_that_are_no_numbers_name_their_prompt() -> None:
    said = (
        r"rollout gave the log-prob nan for decision 0 of row {} \(prompt '6'; {} rows are affected\)\. Usual causes: "
        "weights that are not finite, or an overflow in low precision"
    )
    with pytest.raises(RunError, match=said.format(0, "8 of 32")):
        make(NoNumbers()).step()
    with pytest.raises(RunError, match=said.format(6, "1 of 12")):
        evaluate(NoNumbers(), [digit_sum], PROMPTS)


@pytest.mark.parametrize("kl", ["k2", "k3"])
def test_a_kl_that_does_not_suit_latents_is_refused_before_any_update(kl: str) -> None:
    trainer = make(TinyGaussian(), nearness, objective=objectives.GRPO(kl=kl, kl_coef=0.1))
    with pytest.raises(UsageError, match=rf"kl '{kl}' does not suit decisions of 3 dimensions.*1/3 of .*kl: gaussian"):
        trainer.step()
    assert trainer.completed == trainer.updates.done == 0
    make(TinyGaussian(dims=1), nearness, objective=objectives.GRPO(kl=kl, kl_coef=0.1)).step()
    make(TinyGaussian(), nearness, objective=objectives.GRPO(kl=kl)).step()  # measured nowhere


def test_advantages_of_a_shape_that_would_broadcast_are_refused() -> None:
    with pytest.raises(RunError, match=r"gave \(32, 1\) values"):
        make(advantage=lambda r, w, g: advantages.group(r, w, g)[:, None]).step()


def test_a_broken_off_step_leaves_no_gradient_behind() -> None:
    policy = Fails()
    policy.left, policy.error = 3, MemoryError("out of memory")
    clean, broken = make(TinyTokens(), micro_batch_size=8), make(policy, micro_batch_size=8)
    with pytest.raises(MemoryError):
        broken.step()
    a, b = clean.step(), broken.step()
    assert a.metrics["grad_norm"] == b.metrics["grad_norm"]
    assert torch.equal(weights(clean), weights(broken))


@pytest.mark.parametrize(
    ("place", "updates", "torn"),
    [
        ("rollout 1", 0, False),
        ("reward 1", 0, False),
        ("advantage 1", 0, False),
        ("logprobs 1", 0, False),
        ("backward 1", 0, False),
        ("before update 1", 0, True),
        ("after update 1", 0, True),
        ("logprobs 2", 1, False),
        ("backward 2", 1, False),
        ("before update 2", 1, True),
        ("after update 2", 1, True),
        ("tracker 1", 0, False),
    ],
)
def test_after_an_exception_the_trainer_knows_what_its_weights_are(place: str, updates: int, torn: bool) -> None:
    """Whole updates of the step under way, and whether one more may be half made."""
    seen: list[str] = []

    def pass_through(here: str) -> None:
        seen.append(here)
        if place == f"{here} {seen.count(here)}":
            raise ValueError(place)

    class Faulty(TinyTokens):
        def rollout(self, prompts, group_size, *, seeds, evaluate=False):
            pass_through("rollout")
            return super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)

        def logprobs(self, rollout, steps):
            pass_through("logprobs")
            found = super().logprobs(rollout, steps)
            found.logprobs.register_hook(lambda _: pass_through("backward"))
            return found

    def reward(samples):
        pass_through("reward")
        return digit_sum(samples)

    def advantage(rewards, weights, groups):
        if len(rewards) > 2:  # not the trial
            pass_through("advantage")
        return advantages.group(rewards, weights, groups)

    trainer = make(Faulty(), reward, advantage=advantage, updates_per_rollout=2)
    trainer.loggers = [SimpleNamespace(log=lambda *_, **__: pass_through("tracker"))]
    optimizer = trainer.updates.optimizer
    optimizer.register_step_pre_hook(lambda *_: pass_through("before update"))
    optimizer.register_step_post_hook(lambda *_: pass_through("after update"))
    before = weights(trainer)
    with pytest.raises((ValueError, RewardError), match=place):
        trainer.step()
    done = place == "tracker 1"  # the step is over, only its report is lost
    assert (trainer.completed, trainer.updates.done, trainer.updates.incomplete) == (int(done), updates, torn)
    made = sum(here == "after update" for here in seen)
    assert torch.equal(weights(trainer), before) == (made == 0)
    if not torn:
        assert made == (2 if done else updates)
    trainer.step()
    assert (trainer.completed, trainer.updates.done) == (1 + done, 0)


def test_an_update_that_the_device_has_not_confirmed_is_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU reports what went wrong in a kernel when it is waited for, after the optimizer's step has returned."""
    trainer = make()

    def fail(device: torch.device) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(updates, "wait_for", fail)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        trainer.step()
    assert (trainer.completed, trainer.updates.done, trainer.updates.incomplete) == (0, 0, True)


def test_modules_that_logprobs_does_not_use_are_noticed() -> None:
    class Detached(TinyTokens):
        def modules(self):
            return {"net": TinyTokens().net}

    with pytest.raises(RunError, match="No trainable parameter got a gradient"):
        make(Detached()).step()


def test_an_update_that_changes_no_weight_is_noticed() -> None:
    with pytest.raises(RunError, match=r"No weight changed in the first update, though the gradient's norm is 0\."):
        make(learning_rate=1e-12).step()


def test_trainable_parameters_in_low_precision_are_refused() -> None:
    policy = TinyTokens()
    policy.net.to(torch.bfloat16)
    with pytest.raises(UsageError, match=r"Trainable parameters are torch.bfloat16.*mixed_precision: bf16"):
        make(policy)


def test_masked_decisions_are_never_scored() -> None:
    class LastStepNoiseless(TinyGaussian):
        def rollout(self, prompts, group_size, *, seeds, evaluate=False):
            rollout = super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)
            mask = rollout.mask.clone()
            mask[:, -1] = False
            return replace(rollout, mask=mask)

        def logprobs(self, rollout, steps):
            assert steps.stop < 4
            return super().logprobs(rollout, steps)

    for objective in (objectives.GRPO(kl="gaussian", kl_coef=0.1), objectives.DAPO(kl="k1", kl_coef=0.1)):
        report = make(LastStepNoiseless(), nearness, objective=objective).step()
        assert report.metrics["grad_norm"] > 0


def test_a_step_without_decisions_changes_nothing_and_says_so() -> None:
    """Such as where all completions were cut and are masked: the next step goes on."""

    class FirstStepMasked(TinyTokens):
        def rollout(self, prompts, group_size, *, seeds, evaluate=False):
            rollout = super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)
            return replace(rollout, mask=rollout.mask & bool(trainer.completed))

    objective = objectives.GRPO(kl_coef=0.1, entropy_coef=0.01)
    trainer = make(FirstStepMasked(), objective=objective, minibatches=2, modifiers=[EntropyTarget(target=1.0)])
    before = weights(trainer)
    report = trainer.step()
    assert torch.equal(weights(trainer), before)
    assert report.metrics["grad_norm"] == report.metrics["loss"] == 0
    assert report.warnings == [
        f"Update {update} of step 1 changes nothing: all decisions of its rows are masked." for update in (1, 2)
    ]
    report = trainer.step()
    assert report.warnings == []
    assert not torch.equal(weights(trainer), before)
    assert trainer._reference_probe.rollout.mask.any()


def test_rewards_run_without_gradient() -> None:
    seen = []
    make(reward=lambda samples: [float(seen.append(torch.is_grad_enabled()) is None)] * len(samples)).step()
    assert seen == [False]


def test_evaluation_uses_the_precision_of_training() -> None:
    class HalfBody(TinyTokens):
        def logits(self, prompt, position, previous):
            if not torch.is_autocast_enabled("cpu"):
                raise AssertionError("sampled outside autocast")
            return super().logits(prompt, position, previous)

    evaluate(HalfBody(), [digit_sum], PROMPTS, mixed_precision="bf16")


def test_reward_errors_pass_through() -> None:
    with pytest.raises(RewardError, match="Reward 'broken' raised ValueError"):
        Trainer(
            TinyTokens(),
            [RewardTerm(name="broken", reward=lambda s: (_ for _ in ()).throw(ValueError("no")))],
            PROMPTS,
            device="cpu",
        ).step()


def test_the_advantage_function_gets_rewards_with_their_weights_and_no_monitor() -> None:
    calls = []

    def spy(rewards, weights, groups):
        calls.append((rewards, weights, groups))
        return advantages.group(rewards, weights, groups)

    terms = [
        RewardTerm(name="watched", reward=lambda samples: [100.0 * len(s.output) for s in samples], weight=0, every=2),
        RewardTerm(name="digits", reward=digit_sum, weight=2),
        RewardTerm(name="short", reward=lambda samples: [-float(len(s.output)) for s in samples], weight=0.5),
    ]
    trainer = Trainer(TinyTokens(), terms, PROMPTS, advantage=spy, device="cpu")
    report = trainer.step()
    rewards, weights, groups = calls[-1]
    assert torch.equal(rewards, report.rewards[:, 1:])
    assert (weights.tolist(), groups.tolist()) == ([2, 0.5], report.rollout.groups.tolist())
    assert report.metrics["reward"] == pytest.approx(float((rewards @ weights).mean()))
    assert "rewards/watched/mean" in report.metrics.keys() - trainer.step().metrics.keys()  # it is not due in step 2


def test_unscored_rows_are_counted_and_do_nothing() -> None:
    report = make(reward=lambda samples: [math.nan if i % 8 == 0 else i for i, _ in enumerate(samples)]).step()
    assert report.metrics["unscored_rows"] == 4
    assert report.advantages[::8].eq(0).all()


def test_a_first_step_in_which_a_reward_scores_nothing_stops() -> None:
    """Of two prompts one is declared unscorable; what an undeclared reward reads is not known, and not guessed."""
    prompts = [Prompt(text=prompt, meta={"answer": "x"}) for prompt in PROMPTS[:2]]
    right = RewardTerm(name="right", reward=lambda samples: list(range(len(samples))))
    mute = RewardTerm(name="mute", reward=lambda samples: [math.nan] * len(samples))

    def step(term: RewardTerm) -> StepReport:
        return Trainer(TinyTokens(), [right, term], prompts, device="cpu", prompts_per_step=2).step()

    partly = replace(mute, unscorable=lambda prompt: "no" if prompt.text == PROMPTS[0] else "")
    for broken, scorable in ((mute, "[01]"), (partly, "1")):
        with pytest.raises(UsageError, match=rf"'mute' could score .* '{scorable}' have meta\['answer'\]") as caught:
            step(broken)
        assert "picture" not in str(caught.value)
    for harmless in (replace(mute, weight=0.0), replace(mute, unscorable=lambda prompt: "it has no quotes")):
        assert step(harmless).metrics["unscored_rows"] == 0


def test_a_reward_whose_failures_may_be_skipped_is_not_mute() -> None:
    skipped = RewardTerm(name="raises", reward=lambda samples: 1 / 0, on_error="skip", skip_limit=1)
    right = RewardTerm(name="right", reward=lambda samples: list(range(len(samples))))
    warnings = Trainer(TinyTokens(), [right, skipped], PROMPTS, device="cpu").step().warnings
    assert any("ZeroDivisionError" in warning for warning in warnings)


def test_a_first_step_without_any_output_stops() -> None:
    class Mute(TinyTokens):
        def rollout(self, *args: Any, **kwargs: Any) -> Any:
            rollout = super().rollout(*args, **kwargs)
            return replace(rollout, samples=[replace(sample, output=None) for sample in rollout.samples])

    with pytest.raises(UsageError, match="The policy made no output in the first step"):
        make(Mute()).step()


def test_options_of_the_advantage_are_tried_before_anything_is_drawn() -> None:
    with pytest.raises(UsageError, match="std must be"):
        make(advantage=lambda r, w, g: advantages.group(r, w, g, std="foo"))


def test_a_gap_is_no_spread_inside_a_group() -> None:
    """Each prompt has its own score, and half its samples have none: no group has any spread."""

    def by_prompt(samples):
        return [float("nan") if i % 2 else float(s.prompt.text) for i, s in enumerate(samples)]

    rewards = [RewardTerm(name="level", reward=by_prompt), RewardTerm(name="flat", reward=lambda s: [1.0] * len(s))]
    report = Trainer(TinyTokens(), rewards, PROMPTS, prompts_per_step=4, group_size=8, device="cpu").step()
    assert (report.metrics["frac_reward_zero_std"], report.metrics["rewards/level/unscored"]) == (1.0, 16)
    assert report.metrics["reward_std"] < 1e-12 < report.metrics["rewards/level/std"]


def test_constant_rewards_teach_nothing() -> None:
    trainer = make(reward=lambda samples: [0.1] * len(samples), weight_decay=0.0)
    before = weights(trainer)
    report = trainer.step()
    assert report.metrics["frac_reward_zero_std"] == 1.0
    assert report.metrics["grad_norm"] == 0.0
    assert torch.equal(before, weights(trainer))


def test_advantages_per_decision() -> None:
    def by_position(rewards, w, groups):
        return advantages.group(rewards, w, groups)[:, None] * torch.linspace(1, 0, 7, dtype=torch.float64)

    a = gradient(TinyTokens(dtype=torch.float64), digit_sum, advantage=by_position)
    b = gradient(TinyTokens(dtype=torch.float64, slices=7), digit_sum, advantage=by_position, micro_batch_size=3)
    assert (a - b).norm() / a.norm() < 1e-10


@pytest.mark.parametrize("updates", [1, 2])
def test_bf16_uses_the_training_forwards_own_log_probs(updates: int) -> None:
    report = make(mixed_precision="bf16", updates_per_rollout=updates, learning_rate=1e-5).step()
    assert report.metrics["ratio/max"] == pytest.approx(1.0, abs=1e-6 if updates == 1 else 0.02)
    assert 0 <= report.metrics["logprob_diff/max"] < 0.1
    far = make(mixed_precision="bf16", updates_per_rollout=updates, learning_rate=0.03).step()
    assert (far.metrics["ratio/max"] > 1.1) == (updates > 1)  # the old ones stay those of before the first update


def test_a_frozen_base_in_bf16_counts_as_low_precision() -> None:
    """Trained in fp32 beside it, so nothing but its weights tells that sampling and scoring disagree a little."""

    class HalfBase(TinyTokens):
        def modules(self):
            return {"net": self.net, "base": nn.Linear(2, 2).bfloat16().requires_grad_(False)}

        def logprobs(self, rollout, steps):
            found = super().logprobs(rollout, steps)
            return replace(found, logprobs=found.logprobs + 0.01)

    report = make(HalfBase()).step()
    assert (report.metrics["ratio/min"], report.metrics["ratio/max"]) == (1, 1)
    assert report.metrics["logprob_diff/mean"] == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize(
    ("dtype", "low"), [(torch.uint8, True), (torch.int32, True), (torch.float16, True), (torch.float64, False)]
)
def test_a_quantised_base_counts_as_low_precision(dtype: torch.dtype, low: bool) -> None:
    class OnBase(TinyTokens):
        def modules(self):
            base = nn.Module()
            base.weight = nn.Parameter(torch.zeros(2, dtype=dtype), requires_grad=False)
            return {"net": self.net, "base": base}

    assert CheckedPolicy(OnBase()).low_precision == low


def test_tensorboard_gets_the_metrics(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trainer = make(trackers=["tensorboard"], folder=tmp_path)
    rewards = [trainer.step().metrics["reward"] for _ in range(2)]
    trainer.close()
    (file,) = tmp_path.rglob("events.out.tfevents*")
    written = events.EventAccumulator(str(file)).Reload().Scalars("reward")
    assert [event.step for event in written] == [1, 2]
    assert [event.value for event in written] == pytest.approx(rewards)


@pytest.mark.gpu
def test_activation_memory_on_cuda() -> None:
    peaks = []
    for group in (8, 64):
        sizes = {"group_size": group, "micro_batch_size": 4, "rollout_batch_size": 32}
        trainer = make(TinyTokens(width=1024), device="cuda", **sizes)
        trainer.step()
        peaks.append(trainer.step().metrics["memory/peak_mb"])
        del trainer
        gc.collect()
    assert peaks[1] < 1.05 * peaks[0] + 1


def test_the_share_of_swallowed_updates_reads_the_step_of_any_optimizer() -> None:
    """Which counts in a tensor, or in a plain number."""
    trainer = make()
    trainer.step()
    expected = trainer.updates.metrics(2, print)
    for state in trainer.updates.optimizer.state.values():
        state["step"] = int(state["step"])
    assert trainer.updates.metrics(2, print) == expected
