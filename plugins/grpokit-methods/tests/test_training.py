"""The objectives in whole trainings of toy-flow: cuts, averages, teachers, resuming, and runs without rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import hypot
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from grpokit import Modifier, Observer, Prompt, RunError, Sample, Signal, Trainer, UsageError, create
from grpokit.builtin.more_objectives import NFT
from grpokit.objectives import Objective
from grpokit.rewards.terms import RewardTerm
from grpokit.sampling import derive_seeds
from grpokit.training.step import LearningStep, Step
from grpokit_methods.crd import CRD
from grpokit_methods.dgpo import DGPO
from grpokit_methods.opd import OPD
from grpokit_toy.flow import ToyFlow, on_ring, prompt_radius, ring_prompts

COPIES = {"times": 3, "weight": "uniform", "shared_noise": True}
RAMP = {"decay": 0.5, "ramp": 0.001}
SIZES = {"prompts_per_step": 4, "group_size": 5, "learning_rate": 5e-3, "device": "cpu", "progress": False}


@pytest.fixture(scope="session")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two files of weights near the start of toy-flow."""
    folder = tmp_path_factory.mktemp("teachers")
    files = {}
    for seed, name in enumerate(("wide", "narrow")):
        generator = torch.Generator().manual_seed(seed)
        state = ToyFlow().net.state_dict()
        noisy = {key: x + 0.05 * torch.randn(x.shape, generator=generator) for key, x in state.items()}
        files[name] = str(folder / f"{name}.safetensors")
        save_file(noisy, files[name])
    return files


def nearness(samples: Sequence[Sample]) -> list[float]:
    return [-abs(hypot(*sample.output) - prompt_radius(sample.prompt)) for sample in samples]


def trainer(objective: Objective, *, exact: bool = True, rewards: Any = None, **options: Any) -> Trainer:
    """Of toy-flow, in fp64 where that is `exact`; other options than the trainer's are the policy's."""
    own = {name: options.pop(name) for name in [*options] if name in ToyFlow.__init__.__kwdefaults__}
    policy = ToyFlow(steps=4, **own)
    if exact:
        every = [policy.net, *([policy._old._twin] if policy._old else [])]
        every += policy._teachers.models.values() if policy._teachers else []
        for module in every:
            module.double()
    rewards = [nearness] if rewards is None else rewards
    prompts = options.pop("prompts", None) or ring_prompts(limit=12)
    return Trainer(policy, rewards, prompts, objective=objective, **{**SIZES, **options})


def weights(trained: Trainer) -> Tensor:
    return torch.cat([p.detach().flatten() for p in trained.policy.net.parameters()])


@pytest.mark.parametrize(
    ("objective", "options"),
    [
        (DGPO(kl="velocity", kl_coef=0.1), {"matching": COPIES}),
        (CRD(temperature=0.3, kl="velocity", kl_coef=0.1), {"matching": COPIES, "old_ema": RAMP}),
        (OPD(), {}),
        (OPD(), {"sampler": "ode"}),
        (OPD(), {"matching": COPIES}),
    ],
    ids=["dgpo", "crd", "opd of steps", "opd of the ode", "opd of copies"],
)
def test_micro_batches_change_nothing(objective: Objective, options: dict[str, Any], teachers: dict[str, str]) -> None:
    if isinstance(objective, OPD):
        options = {**options, "teachers": teachers}
    learned, losses = [], []
    for size in (64, 7, 2):
        cut = {"micro_batch_size": size, "rollout_batch_size": size}
        trained = trainer(objective, minibatches=2, adam_epsilon=1.0, **cut, **options)
        reports = [trained.step() for _ in range(2)]
        learned.append(weights(trained))
        losses.append([report.metrics["loss"] for report in reports])
    for other, loss in zip(learned[1:], losses[1:], strict=True):
        torch.testing.assert_close(other, learned[0], rtol=0, atol=1e-12)
        assert loss == pytest.approx(losses[0], abs=1e-13)


class NoRow(Modifier):
    """Leaves all rows of the first group out, and of the others those with odd places."""

    def rows(self, signal: Signal, step: Step) -> Signal:
        groups = step.scores.groups
        places = torch.arange(len(groups))
        counts = (groups != groups[0]) & (places % 2 == 0)
        return replace(signal, weights=counts.double())


class Whole(Observer):
    """The loss of each update, by a single call with all of its rows."""

    def __init__(self, objective: Objective) -> None:
        self.objective, self.policy = objective, ToyFlow()
        self.losses: list[tuple[float, float]] = []

    def differentiated(self, step: LearningStep) -> Sequence[str]:
        batch, expected = step.minibatch, 0.0
        if batch.rollout.rows:
            new = self.policy.logprobs(batch.rollout, slice(0, 3))
            old = batch.old or new.detach()
            groups = batch.rollout.group_index
            loss = self.objective(new, old, batch.advantages, batch.mask, batch.reference, groups=groups)
            expected = (loss.value.mean(1).sum() / batch.rollout.rows).item()
        self.losses.append((sum(step.losses[-1]), expected))
        return ()


@pytest.mark.parametrize("objective", [DGPO(), CRD(), CRD(temperature=0.3)], ids=["dgpo", "crd", "crd, tempered"])
def test_the_loss_is_that_of_the_rows_that_count(objective: Objective) -> None:
    """A group without any row is an update of its own."""
    whole = Whole(objective)
    trained = trainer(
        objective, matching=COPIES, minibatches=4, micro_batch_size=2, modifiers=[NoRow()], observers={"whole": whole}
    )
    whole.policy = trained.policy
    trained.step()
    assert [ours == pytest.approx(expected, abs=1e-13) for ours, expected in whole.losses] == [True] * 4
    assert sorted(abs(expected) > 1e-4 for _, expected in whole.losses) == [False, True, True, True]


@pytest.mark.parametrize("objective", [NFT(), CRD()], ids=["nft", "crd"])
def test_the_old_policy_is_an_average_that_draws(objective: Objective) -> None:
    """At step n its decay is min(0.001 n, 0.5), by hand; it is behind the policy from the first update on."""
    trained = trainer(objective, matching=COPIES, old_ema=RAMP)
    policy = trained.policy
    average, contrasts = weights(trained), []
    for step in (1, 2, 3):
        seeds = derive_seeds(trained.seed, stream="train", step=step - 1, prompts=4, group_size=5)
        alone = ToyFlow(steps=4, matching=COPIES)
        alone.net.double()
        torch.nn.utils.vector_to_parameters(average, alone.net.parameters())
        report = trained.step()
        drawn = alone.rollout([trained.train_prompts[i] for i in report.prompts], 5, seeds=seeds)
        assert torch.equal(report.rollout.trace.per_row["latents"], drawn.trace.per_row["latents"])
        assert torch.equal(report.rollout.old.mean, drawn.old.mean)
        assert report.rollout.averaged
        assert "logprob_diff/mean" not in report.metrics
        contrasts.append(report.metrics["ratio/max"] - 1)
        if isinstance(objective, CRD):
            contrasts[-1] = abs(report.metrics["crd/own_reward"])
        decay = min(0.001 * step, 0.5)
        average = decay * average + (1 - decay) * weights(trained)
        twin = torch.cat([p.flatten() for p in policy._old._twin.parameters()])
        torch.testing.assert_close(twin, average, rtol=0, atol=1e-15)
        average = twin.clone()
    assert contrasts[0] < 1e-15
    assert min(contrasts[1:]) > 1e-5


@pytest.mark.parametrize(
    ("objective", "name"), [(NFT(), "ratio/max"), (CRD(), "crd/own_reward"), (DGPO(), "ratio/max")]
)
def test_without_an_average_the_first_update_compares_equals(objective: Objective, name: str) -> None:
    trained = trainer(objective, matching=COPIES, exact=False)
    for _ in range(2):
        report = trained.step()
        # a product of fewer rows may be rounded differently
        assert report.metrics[name] == pytest.approx(0.0 if name == "crd/own_reward" else 1.0, abs=1e-6)
        assert report.metrics["logprob_diff/max"] < 1e-6


def test_the_average_is_the_old_policy_in_16_bits_too() -> None:
    """There the policy's own view of a rollout is that of another pass, which must not take the average's place."""
    trained = trainer(CRD(), exact=False, matching=COPIES, old_ema={"decay": 0.9}, mixed_precision="bf16")
    contrasts = [abs(trained.step().metrics["crd/own_reward"]) for _ in range(5)]
    assert min(contrasts[1:]) > 1e-3


def test_the_decay_of_a_late_step_is_its_bound() -> None:
    average = trainer(NFT(), matching=COPIES, old_ema=RAMP).policy._old._average
    assert [average.at(step) for step in (1, 499, 500, 10_000)] == [0.001, 0.499, 0.5, 0.5]


def named(names: Sequence[str | None]) -> list[Prompt]:
    prompts = ring_prompts(limit=len(names))
    return [
        prompt if name is None else replace(prompt, meta={"teacher": name})
        for prompt, name in zip(prompts, names, strict=True)
    ]


RESUMED: dict[str, tuple[Objective, dict[str, Any]]] = {
    "nft": (NFT(), {"matching": COPIES, "old_ema": {"decay": 0.5, "ramp": 0.1}}),
    "crd": (CRD(), {"matching": COPIES, "old_ema": {"decay": 0.5, "ramp": 0.1}}),
    "dgpo": (DGPO(), {"matching": COPIES}),
    "opd, in turn": (OPD(), {}),
    "opd, by name": (OPD(), {"prompts": named(["narrow", "wide", "wide", "narrow", "wide", None] * 2)}),
}


@pytest.mark.parametrize("case", RESUMED)
def test_a_resumed_training_is_the_same_to_the_bit(case: str, teachers: dict[str, str], tmp_path: Path) -> None:
    objective, options = RESUMED[case]
    if case.startswith("opd"):
        options = {**options, "teachers": teachers}
    options |= {"exact": False, "updates_per_rollout": 2}
    straight = trainer(objective, **options)
    for _ in range(2):
        straight.step()
    straight.save(tmp_path / "saved")
    resumed = trainer(objective, **options)
    resumed.load(tmp_path / "saved")
    for _ in range(2):
        assert straight.step().metrics["loss"] == resumed.step().metrics["loss"]
    state, again = straight.policy.state_dict(), resumed.policy.state_dict()
    assert state.keys() == again.keys()
    assert any(name.startswith("old/") for name in state) == ("old_ema" in options)
    for name, x in state.items():
        assert torch.equal(torch.as_tensor(x), torch.as_tensor(again[name])), name
    if "old_ema" in options:
        assert state["old_version"] == 8


def test_rows_are_held_to_the_teacher_of_their_group(teachers: dict[str, str]) -> None:
    """By name, or in turn by the group's id; with rows in any order."""
    prompts = named(["narrow", None, "wide", None])
    policy = ToyFlow(steps=4, teachers=teachers)
    policy.check(prompts)
    rollout = policy.rollout(prompts, 3, seeds=derive_seeds(1, stream="train", step=1, prompts=4, group_size=3))
    order = torch.tensor([7, 0, 11, 3, 1, 9, 4, 2, 10, 5, 8, 6])
    shuffled = rollout.select(order)
    alone = {name: ToyFlow(steps=4, weights=file).logprobs(shuffled, slice(1, 3)) for name, file in teachers.items()}
    alone = {name: view.detach() for name, view in alone.items()}
    before = policy.logprobs(shuffled, slice(1, 3)).logprobs
    with policy.reference():
        told = policy.logprobs(shuffled, slice(1, 3)).detach()
    assert torch.equal(policy.logprobs(shuffled, slice(1, 3)).logprobs, before)
    names = {0: "narrow", 2: "wide"}
    for row, group in enumerate(shuffled.groups.tolist()):
        name = names.get(group % 4, ["wide", "narrow"][group % 2])
        torch.testing.assert_close(told.mean[row], alone[name].mean[row], rtol=0, atol=1e-6)
        other = alone["narrow" if name == "wide" else "wide"].mean[row]
        assert float((told.mean[row] - other).abs().max()) > 1e-4
    with pytest.raises(UsageError, match=r"names the teacher 'narow' \(did you mean 'narrow'\?\)"):
        policy.check(named(["narow"]))
    several = [replace(prompts[0], meta={"teacher": ["narrow", "wide"]})]
    with pytest.raises(UsageError, match=r"names the teacher a list of 2\. The policy's teachers are wide, narrow\."):
        policy.check(several)
    with pytest.raises(UsageError, match="teachers is empty"):
        ToyFlow(teachers={})


@pytest.mark.parametrize("options", [{}, {"sampler": "ode"}, {"matching": COPIES}], ids=["steps", "ode", "copies"])
def test_a_resumed_training_has_the_teachers_of_its_start(
    options: dict[str, Any], teachers: dict[str, str], tmp_path: Path
) -> None:
    """Steps of the ODE have no log-probs that would tell; their means do."""
    trained = trainer(OPD(), exact=False, teachers={"it": teachers["wide"]}, **options)
    trained.step()
    trained.save(tmp_path / "saved")
    trainer(OPD(), exact=False, teachers={"it": teachers["wide"]}, **options).load(tmp_path / "saved")
    other = trainer(OPD(), exact=False, teachers={"it": teachers["narrow"]}, **options)
    with pytest.raises(RunError, match="The reference has changed"):
        other.load(tmp_path / "saved")


def test_a_student_gets_closer_to_its_teacher(teachers: dict[str, str]) -> None:
    trained = trainer(OPD(), rewards=[], teachers={"wide": teachers["wide"]}, exact=False, learning_rate=2e-3)
    kls = [trained.step().metrics["opd/kl"] for _ in range(20)]
    assert sum(kls[-4:]) < 0.2 * sum(kls[:4])


def test_a_student_that_is_its_own_teacher_is_told(teachers: dict[str, str], tmp_path: Path) -> None:
    """Without teachers it is held to where it began: a warning at once, and an error when it goes on."""
    trained = trainer(OPD(), exact=False, max_zero_std_steps=3, minibatches=2)
    (warning,) = trained.step().warnings
    assert warning.startswith("In step 1 the gradient was 0, so nothing was learned: the policy and its teacher say")
    assert warning.endswith("If this goes on for 3 steps, the run stops.")
    assert not trained.step().warnings
    trained.save(tmp_path / "saved")
    resumed = trainer(OPD(), exact=False, max_zero_std_steps=3, minibatches=2)
    resumed.load(tmp_path / "saved")
    for same in (trained, resumed):
        with pytest.raises(RunError, match="In 3 steps in a row the gradient was 0"):
            same.step()


def test_a_teacher_that_is_the_start_may_be_one_of_several(teachers: dict[str, str], tmp_path: Path) -> None:
    save_file(ToyFlow().net.state_dict(), tmp_path / "start.safetensors")
    both = {"start": str(tmp_path / "start.safetensors"), "wide": teachers["wide"]}
    prompts = named(["start", "wide"] * 6)
    trained = trainer(OPD(), exact=False, teachers=both, prompts=prompts, prompts_per_step=1, max_zero_std_steps=12)
    steps = [trained.step() for _ in range(12)]
    idle = [report.metrics["grad_norm"] == 0 for report in steps]
    assert any(idle) <= any(report.warnings for report in steps)
    assert not idle[-1]


REWARDS: dict[str, Any] = {
    "none": [],
    "a monitor": [RewardTerm(name="ring", reward=on_ring, weight=0)],
    "a reward": [RewardTerm(name="ring", reward=on_ring)],
    "one that is always the same": [lambda samples: [1.0] * len(samples)],
}


@pytest.mark.parametrize("case", REWARDS)
def test_rewards_do_not_teach(case: str, teachers: dict[str, str]) -> None:
    """The same weights whatever they are; equal ones stop nothing; totals are there if a reward has a weight."""
    alone, trained = (
        trainer(OPD(), rewards=[], teachers=teachers),
        trainer(OPD(), rewards=REWARDS[case], teachers=teachers, max_zero_std_steps=1),
    )
    for _ in range(3):
        alone.step()
        report = trained.step()
        assert not report.warnings
    assert torch.equal(weights(alone), weights(trained))
    names = {"reward", "reward_std", "unscored_rows", "advantage/mean", "frac_reward_zero_std"}
    assert names & report.metrics.keys() == (names if case not in ("none", "a monitor") else set())
    assert ("rewards/ring/mean" in report.metrics) == ("ring" in report.reward_names)


def test_what_learns_from_rewards_needs_one(teachers: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="No reward was given, and DGPO learns from rewards"):
        trainer(DGPO(), rewards=[], matching=COPIES)
    with pytest.raises(UsageError, match="dynamic_sampling draws again where a group's rewards are equal, but OPD"):
        trainer(OPD(), teachers=teachers, dynamic_sampling=2)


@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_steps_of_the_ode_have_no_density(name: str) -> None:
    trained = trainer(create("objective", name), sampler="ode")
    with pytest.raises(UsageError, match=r"Take a sampler with noise \(policy\.sampler=flow-sde\) or policy\.matching"):
        trained.step()
