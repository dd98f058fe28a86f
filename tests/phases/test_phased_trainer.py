"""Several trainers over one model that take turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from grpokit import CheckpointError, Policy, RewardError, RunError, Sample, Trainer, UsageError
from grpokit.objectives import GRPO
from grpokit.phases.phased_trainer import Phase, PhasedTrainer
from grpokit.tracking import trackers
from grpokit.training import checkpoint
from two_halves import Half, Writer, both, first_is_high, one, second_is_high

PROMPTS = [str(number) for number in range(4)]
REWARDS = [first_is_high, second_is_high]


def phased(
    policies: Mapping[str, Policy] | None = None,
    *,
    steps: Mapping[str, int] | None = None,
    rounds: int = 2,
    rewards: Any = REWARDS,
    **settings: Any,
) -> PhasedTrainer:
    """A phase for each policy, with the policy's name."""
    policies, phases = policies or both(), []
    steps = steps or dict.fromkeys(policies, 2)
    for index, (name, policy) in enumerate(policies.items()):
        options: dict[str, Any] = {"group_size": 4, "device": "cpu", "learning_rate": 0.3, "progress": False}
        trainer = Trainer(
            policy, rewards, PROMPTS, seed=Phase.seed(0, index), steps=steps[name] * rounds, **(options | settings)
        )
        phases.append(Phase(name=name, trainer=trainer, steps=steps[name], policy=name))
    return PhasedTrainer(phases, rounds=rounds)


def weights(trainer: PhasedTrainer) -> dict[str, Tensor]:
    halves = {name: phase.trainer.policy.modules()["half"] for name, phase in trainer.phases.items()}
    return {name: half.table.weight.detach().clone() for name, half in halves.items()}


def test_one_phase_learns_and_the_other_is_frozen_to_the_bit() -> None:
    trainer = phased(steps={"first": 2, "second": 1}, objective=GRPO(kl_coef=0.1))
    seen, before = [], weights(trainer)
    for report in trainer:
        seen.append((report.step, report.phase, report.phase_step, report.metrics["step"]))
        now = weights(trainer)
        assert {name for name in now if not torch.equal(now[name], before[name])} == {report.phase}
        before = now
    assert seen == [
        *[(1, "first", 1, 1), (2, "first", 2, 2), (3, "second", 1, 3)],
        *[(4, "first", 3, 4), (5, "first", 4, 5), (6, "second", 2, 6)],
    ]
    assert (trainer.completed, trainer.steps, trainer.converged) == (6, 6, "")
    with pytest.raises(UsageError, match="All 6 steps are taken"):
        trainer.step()


def test_what_others_train_has_no_gradient_while_a_phase_lasts() -> None:
    halves = [Half(), Half()]
    for half in halves:
        half.second = torch.nn.Parameter(torch.zeros(1))  # type: ignore[assignment]
    wanted: list[tuple[bool, ...]] = []

    class Watched(Writer):
        def logprobs(self, rollout, steps):  # type: ignore[no-untyped-def]
            wanted.append(tuple(p.requires_grad for half in self.halves for p in half.parameters()))
            return super().logprobs(rollout, steps)

    trainer = phased({"first": Watched(halves, 0), "second": Watched(halves, 1)})
    for _ in trainer:
        pass
    assert set(wanted) == {(True, True, False, False), (False, False, True, True)}
    assert all(p.requires_grad for half in halves for p in half.parameters())


def test_phases_draw_other_prompts_and_other_noise() -> None:
    trainer = phased(steps={"first": 1, "second": 1}, rounds=3, prompts_per_step=2)
    reports = list(trainer)
    pairs = list(zip(reports[::2], reports[1::2], strict=True))
    assert any(list(a.prompts) != list(b.prompts) for a, b in pairs)
    outputs = [[sample.output for sample in report.rollout.samples] for report in reports]
    assert len(set(map(tuple, outputs))) == len(outputs)


def test_rewards_get_the_step_of_the_run_and_not_of_the_phase() -> None:
    steps = []

    def reward(samples: Sequence[Sample]) -> Sequence[float]:
        steps.append(samples[0].info["training_step"])
        return first_is_high(samples)

    list(phased(rewards=[reward]))
    assert steps == [1, 2, 3, 4, 5, 6, 7, 8]


def test_both_halves_learn_more_than_one() -> None:
    after = {}
    for name, steps in (("both", {"first": 5, "second": 5}), ("first", {"first": 5, "second": 1})):
        trainer = phased(steps=steps, rounds=6 if name == "both" else 1, prompts_per_step=4)
        for report in trainer:
            after[name] = float(report.rewards.sum(1).mean())
    assert after["both"] > 1.6
    assert after["first"] < 1.5


def versions(trainer: PhasedTrainer) -> list[int]:
    return [phase.trainer.version for phase in trainer.phases.values()]


@pytest.mark.parametrize("step", range(7))
def test_a_resume_is_exact_at_every_step(step: int, tmp_path: Path) -> None:
    """Also where the next phase begins: weights, optimizers and the draws that follow."""
    options: dict[str, Any] = {
        "steps": {"first": 2, "second": 1},
        "objective": GRPO(kl_coef=0.1),
        "updates_per_rollout": 2,
    }
    whole, half, again = (phased(**options) for _ in range(3))
    reports = list(whole)
    for _ in range(step):
        half.step()
    half.save(tmp_path / "state")
    again.load(tmp_path / "state")
    assert (again.completed, again.current.name) == (step, half.current.name)
    assert versions(again) == versions(half) == [2 * phase.trainer.completed for phase in half.phases.values()]
    left = again.steps_left
    rest = list(again)
    assert left == {name: [r.phase for r in rest].count(name) for name in left}
    assert [r.phase for r in rest] == [r.phase for r in reports[step:]]
    for ours, theirs in zip(rest, reports[step:], strict=True):
        assert torch.equal(ours.rewards, theirs.rewards)
        assert ours.metrics["loss"] == theirs.metrics["loss"]
    for name, weight in weights(whole).items():
        assert torch.equal(weight, weights(again)[name])
    assert [r.metrics["learning_rate"] for r in reports] == [0.3] * 6


def test_an_only_phase_is_its_trainer(tmp_path: Path) -> None:
    """The same steps and the same checkpoint as without phases."""

    def built() -> Trainer:
        return Trainer(one(), REWARDS, PROMPTS, steps=3, group_size=4, device="cpu", progress=False)

    alone, trainer = built(), PhasedTrainer([Phase(name="", trainer=built(), steps=3)])
    for ours, theirs in zip(trainer, alone, strict=True):
        assert (ours.step, ours.phase) == (theirs.step, "")
        assert torch.equal(ours.rewards, theirs.rewards)
    alone.save(tmp_path / "a")
    trainer.save(tmp_path / "b")
    files = [sorted(p.relative_to(tmp_path / name) for p in (tmp_path / name).rglob("*")) for name in "ab"]
    assert files[0] == files[1]
    assert checkpoint.read_state(tmp_path / "a") == checkpoint.read_state(tmp_path / "b")
    again = PhasedTrainer([Phase(name="", trainer=built(), steps=3)])
    again.load(tmp_path / "a")
    assert again.completed == 3
    built().load(tmp_path / "b")


def test_a_policy_of_two_phases_is_told_of_every_change(tmp_path: Path) -> None:
    """Its versions go on from one phase to the next, since an average of weights moves with them."""

    def built() -> PhasedTrainer:
        policy, phases = one(), []
        for index, (name, reward) in enumerate([("first", first_is_high), ("second", second_is_high)]):
            trainer = Trainer(policy, [reward], PROMPTS, seed=index, steps=4, group_size=4, minibatches=2, device="cpu")
            phases.append(Phase(name=name, trainer=trainer, steps=2))
        return PhasedTrainer(phases, rounds=2)

    trainer = built()
    policy = trainer.current.trainer.policy
    assert isinstance(policy, Writer)
    for _ in range(6):
        trainer.step()
    assert sorted(policy.versions) == policy.versions
    assert set(policy.versions) == set(range(1, 13))
    trainer.save(tmp_path / "state")
    assert (tmp_path / "state/policy.safetensors").is_file()
    again = built()
    again.load(tmp_path / "state")
    policy = again.current.trainer.policy
    assert isinstance(policy, Writer)
    assert set(policy.versions) == {12}
    again.step()
    assert policy.versions[-2:] == [13, 14]


def constant(samples: Sequence[Sample]) -> list[float]:
    return [1.0] * len(samples)


def test_a_phase_that_has_converged_is_skipped() -> None:
    """The second half has learnt all that it can when the first has not."""
    policies = both()
    first, second = (
        Trainer(
            policy,
            [reward],
            PROMPTS,
            seed=seed,
            steps=60,
            group_size=8,
            device="cpu",
            learning_rate=rate,
            max_zero_std_steps=2,
            progress=False,
        )
        for seed, (policy, reward, rate) in enumerate(
            zip(policies.values(), (first_is_high, second_is_high), (0.01, 3.0), strict=True)
        )
    )
    trainer = PhasedTrainer(
        [
            Phase(name="slow", trainer=first, steps=30, policy="first"),
            Phase(name="quick", trainer=second, steps=30, policy="second"),
        ],
        rounds=2,
    )
    phases = "".join(report.phase[0] for report in trainer)
    quick = phases.count("q")
    assert 2 < quick < 30
    assert phases == "s" * 30 + "q" * quick + "s" * 30
    assert trainer.converged.startswith("Phase 'quick': For 2 steps in a row")
    assert trainer.completed == 60 + quick < trainer.steps == 120


def test_errors_and_warnings_name_the_phase() -> None:
    def fails(samples: Sequence[Sample]) -> list[float]:
        raise RuntimeError("no more")

    with pytest.raises(RewardError, match=r"^In phase 'first', its step 1: .*no more"):
        phased(rewards={"failing": fails}).step()
    trainer = phased(rewards=[constant], max_zero_std_steps=1)
    with pytest.raises(RunError, match=r"^In phase 'first', its step 1: For 1 steps in a row"):
        trainer.step()
    assert (trainer.completed, trainer.current.name) == (0, "first")
    trainer = phased(rewards=[constant], max_zero_std_steps=None)
    assert trainer.step().warnings[0].startswith("phase 'first', its step 1: In step 1")


def trainers(count: int = 2, **changes: Any) -> list[Trainer]:
    built: list[Trainer] = []
    for index, policy in enumerate([*both().values()][:count]):
        options: dict[str, Any] = {"seed": index} | changes
        built.append(Trainer(policy, REWARDS, PROMPTS, steps=2, group_size=4, device="cpu", **options))
    return built


def pair(
    first: Mapping[str, Any] | None = None, second: Mapping[str, Any] | None = None, **changes: Any
) -> list[Phase]:
    one, other = trainers(**changes)
    return [
        Phase(**{"name": "a", "trainer": one, "steps": 2, "policy": "x"} | dict(first or {})),
        Phase(**{"name": "b", "trainer": other, "steps": 2, "policy": "y"} | dict(second or {})),
    ]


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        (lambda: pair({"name": "b"}), "Two phases are called 'b'"),
        (lambda: pair({"steps": 3}), "'a' may take 3 steps in all rounds, and its trainer has steps=2. Build"),
        (lambda: pair(seed=7), "'a' and 'b' have the same seed, 7, and would draw the same prompts"),
        (lambda: pair({"policy": "y"}), "'a' and 'b' have two policies, called 'y' and 'y'"),
    ],
    ids=range(4),
)
def test_phases_that_do_not_go_together(phases: Callable[[], list[Phase]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PhasedTrainer(phases())


def test_two_policies_that_train_the_same_weights() -> None:
    halves = [Half(), Half()]
    policy, other = Writer(halves, 0), Writer(halves, 0)
    options: dict[str, Any] = {"steps": 2, "group_size": 4, "device": "cpu"}
    first = Trainer(policy, REWARDS, PROMPTS, seed=0, **options)
    second = Trainer(other, REWARDS, PROMPTS, seed=1, **options)
    phases = [Phase(name="a", trainer=first, steps=2, policy="x"), Phase(name="b", trainer=second, steps=2, policy="y")]
    with pytest.raises(UsageError, match=r"'a' and 'b' both train the weight '.*table\.weight'"):
        PhasedTrainer(phases)
    second = Trainer(policy, REWARDS, PROMPTS, seed=1, **options)
    phases[1] = Phase(name="b", trainer=second, steps=2, policy="y")
    with pytest.raises(UsageError, match="'a' and 'b' have one policy, called 'x' and 'y'"):
        PhasedTrainer(phases)


@pytest.mark.parametrize("owner", [0, 1])
def test_the_trackers_of_one_trainer_get_the_steps_of_all(owner: int, tmp_path: Path) -> None:
    seen: list[tuple[int | None, Any]] = []
    phases = pair()
    phases[owner].trainer.loggers = [
        trackers.Tracker(SimpleNamespace(name="own", log=lambda v, step: seen.append((step, v["phase"]))), print)
    ]
    for _ in PhasedTrainer(phases):
        pass
    assert seen == [(1, 0), (2, 0), (3, 1), (4, 1)]


def test_a_checkpoint_of_other_phases(tmp_path: Path) -> None:
    trainer = phased()
    trainer.save(tmp_path / "two")
    alone = Trainer(one(), REWARDS, PROMPTS, group_size=4, device="cpu")
    with pytest.raises(CheckpointError, match="a run with the phases 'first', 'second', and this one has no phases"):
        alone.load(tmp_path / "two")
    alone.save(tmp_path / "one")
    with pytest.raises(CheckpointError, match="a run with no phases, and this one has the phases 'first', 'second'"):
        phased().load(tmp_path / "one")
    with pytest.raises(CheckpointError, match="the policies 'first', 'second', and the config gives no policies"):
        checkpoint.load_policies(tmp_path / "two", {"": one()})
    policies = {**both(), "third": one()}
    assert checkpoint.load_policies(tmp_path / "two", policies) == ["first", "second"]


def test_each_phase_has_a_loss_scale_of_its_own() -> None:
    """Of fp16 training, which needs a GPU: two phases of one policy have two optimizers of the same weights."""
    norms = []
    for scales in ((1.0, 1.0), (1024.0, 16.0)):
        policy, phases = one(), []
        for index, name in enumerate("ab"):
            options: dict[str, Any] = {"steps": 2, "group_size": 4, "device": "cpu", "progress": False}
            trainer = Trainer(policy, REWARDS, PROMPTS, seed=index, **options)
            trainer.updates.scaler = torch.amp.GradScaler("cpu", init_scale=scales[index])
            phases.append(Phase(name=name, trainer=trainer, steps=2))
        norms.append([report.metrics["grad_norm"] for report in PhasedTrainer(phases)])
    assert norms[0] == pytest.approx(norms[1])
    assert all(norms[0])
