"""What is played is what gymnasium plays, groups start alike, and each decision has its credit."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from grpokit import GrpokitError, Prompt, Sample, Trainer, UsageError, create
from grpokit.advantages import group, returns_to_go
from grpokit.sampling import derive_seeds, normals
from grpokit.types import Rollout, Seeds
from grpokit_gym.environments import Environments, Vectorization
from grpokit_gym.policy import GymPolicy
from grpokit_gym.starts import starts

SHORT = {"options": {"max_episode_steps": 40}, "normalise": 4, "hidden": [8]}


def seeds(prompts: int = 3, group_size: int = 4) -> Seeds:
    return derive_seeds(1, stream="train", step=0, prompts=prompts, group_size=group_size)


def play(policy: GymPolicy, *, evaluate: bool = False) -> Rollout:
    return policy.rollout(starts(limit=3), 4, seeds=seeds(), evaluate=evaluate)


def trainer(policy: GymPolicy, **options: Any) -> Trainer:
    settings = {"prompts_per_step": 2, "group_size": 4, "learning_rate": 1e-2, "device": "cpu", "progress": False}
    return Trainer(policy, [create("reward", "episode-return")], starts(), **{**settings, **options})


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_stored_actions_play_the_same_episodes_in_gymnasium(name: str) -> None:
    rollout, begun = play(GymPolicy(name, **SHORT)), seeds().group.tolist()
    env = gym.make(name, max_episode_steps=40)
    assert rollout.max_decisions == 40
    for row, sample in enumerate(rollout.samples):
        seen, _ = env.reset(seed=begun[row // 4] % 2**31)
        for t in range(int(rollout.lengths[row])):
            assert np.array_equal(rollout.trace.per_row["observations"][row, t].numpy(), seen)
            decision = rollout.trace.per_row["actions"][row, t]
            action = int(decision) if name == "CartPole-v1" else np.clip(2 * decision.numpy(), -2, 2)
            seen, reward, ended, cut, _ = env.step(action)
            assert rollout.decision_rewards[row, t] == float(reward)
        assert ended or cut
        actions = rollout.trace.per_row["actions"][row, : t + 1, 0].double().numpy()
        changes = np.abs(np.diff(actions))  # of an action of 0 or 1, or of one number
        assert sample.info == {
            "return": pytest.approx(float(rollout.decision_rewards[row].sum())),
            "length": int(rollout.lengths[row]),
            "truncated": bool(cut and not ended),
            "mean_action": pytest.approx(float(actions.mean())),
            "action_changes": pytest.approx(float(changes.mean())),
        }
        assert not rollout.decision_rewards[row, t + 1 :].any()


def test_a_group_starts_alike_and_parts_by_its_actions() -> None:
    first = play(GymPolicy("CartPole-v1", **SHORT)).trace.per_row
    begin = first["observations"][:, 0].view(3, 4, -1)
    assert torch.equal(begin, begin[:, :1].expand_as(begin))
    assert len({tuple(x) for x in begin[:, 0].tolist()}) == 3
    assert len({tuple(x) for x in first["actions"][:4, :8, 0].tolist()}) > 1


def test_constant_rewards_of_steps_teach() -> None:
    """In CartPole each step gives 1.

    A group of all actions of one step, each scored at the state that a single one of them led to, has equal rewards:
    all advantages would be exactly 0. Here a group is episodes, each with the rewards of its own actions.
    """
    policy = GymPolicy("CartPole-v1", **SHORT)
    for advantage in (group, returns_to_go):
        report = trainer(policy, advantage=advantage).step()
        assert set(report.rollout.decision_rewards[report.rollout.mask].tolist()) == {1.0}
        assert report.metrics["frac_reward_zero_std"] == 0
        assert report.metrics["grad_norm"] > 0
    own = report.advantages[report.rollout.mask]
    assert float(own.square().mean()) == pytest.approx(1, abs=1e-3)
    # The longest episode of a group does better than the others from every decision on that they share.
    rows = report.rollout.lengths[:4]
    assert (report.advantages[int(rows.argmax()), : int(rows.min())] > 0).all()


@pytest.mark.parametrize("advantage", [group, returns_to_go])
def test_a_tie_teaches_nothing_and_is_counted(advantage: Any) -> None:
    policy = GymPolicy("CartPole-v1", options={"max_episode_steps": 5}, normalise=4)  # nothing falls so soon
    before = {name: x.clone() for name, x in policy.state_dict().items()}
    report = trainer(policy, advantage=advantage, weight_decay=0.0).step()
    assert report.metrics["frac_reward_zero_std"] == 1
    assert not report.advantages.any()
    assert all(torch.equal(x, before[name]) for name, x in policy.state_dict().items())


def test_the_normalisation_is_saved_with_the_policy() -> None:
    policy, other = (GymPolicy("CartPole-v1", **SHORT, seed=seed) for seed in (1, 2))
    explored = [policy.actor.mean, policy.actor.scale]
    assert not torch.equal(explored[0], other.actor.mean)
    rollout = play(policy)
    other.load_state_dict(policy.state_dict())
    new = other.logprobs(rollout, slice(None)).logprobs
    assert torch.allclose(new, rollout.old.logprobs, atol=1e-6)
    trainer(policy).step()
    assert explored == [policy.actor.mean, policy.actor.scale]  # it stays, so that ratios start at 1
    with torch.no_grad():
        standard = (play(policy).trace.per_row["observations"] - policy.actor.mean) / policy.actor.scale
    assert 0.2 < float(standard[:, :10].std()) < 5


def test_the_reference_is_what_the_policy_was_built_with() -> None:
    policy, other = (GymPolicy("CartPole-v1", **SHORT, seed=seed) for seed in (1, 2))
    rollout = play(policy)
    built = policy.logprobs(rollout, slice(None)).logprobs
    policy.load_state_dict(other.state_dict())
    assert not torch.allclose(policy.logprobs(rollout, slice(None)).logprobs, built, atol=1e-4)
    with policy.reference():
        assert torch.equal(policy.logprobs(rollout, slice(None)).logprobs, built)


def test_evaluations_take_the_most_likely_action() -> None:
    for name in ("CartPole-v1", "Pendulum-v1"):
        policy = GymPolicy(name, **SHORT)
        rollout = play(policy, evaluate=True)
        best = policy.actor(rollout.trace.per_row["observations"])
        expected = best.logits.argmax(-1, keepdim=True) if name == "CartPole-v1" else best.mean
        assert torch.allclose(rollout.trace.per_row["actions"].double(), expected.double(), atol=1e-6)
        drawn = play(GymPolicy(name, **SHORT, greedy=False), evaluate=True)
        assert torch.equal(drawn.trace.per_row["actions"], play(policy).trace.per_row["actions"])


def test_gaussian_log_probs_are_those_of_torch_per_dimension() -> None:
    policy = GymPolicy("Pendulum-v1", **SHORT, std=0.3)
    rollout = play(policy)
    actions, stored = rollout.trace.per_row["actions"], rollout.trace.per_row["observations"]
    normal = torch.distributions.Normal(policy.actor(stored).mean, 0.3)
    torch.testing.assert_close(rollout.old.logprobs, normal.log_prob(actions).mean(-1), atol=1e-5, rtol=1e-5)
    drawn = (actions - normal.mean) / 0.3
    torch.testing.assert_close(drawn[..., 0], normals(seeds().row, 40).float(), atol=1e-5, rtol=1e-5)
    entropy = policy.logprobs(rollout, slice(0, 3)).entropy
    assert torch.allclose(entropy, torch.tensor(math.log(0.3) + 0.5 * math.log(2 * math.pi * math.e)))


def test_branches_part_from_a_copied_state() -> None:
    policy = GymPolicy("CartPole-v1", **SHORT, branch=20)
    rollout = play(policy)
    begin = rollout.trace.per_row["observations"][:, 0].view(3, 4, -1)
    assert torch.equal(begin, begin[:, :1].expand_as(begin))
    whole = play(GymPolicy("CartPole-v1", **SHORT)).trace.per_row["observations"][:, 0].view(3, 4, -1)
    assert not torch.equal(begin, whole)
    evaluated = play(policy, evaluate=True).trace.per_row["observations"][:, 0].view(3, 4, -1)
    assert torch.equal(evaluated, whole)
    assert torch.equal(play(policy).old.logprobs, rollout.old.logprobs)
    assert len({s.info["return"] for s in rollout.samples}) > 1
    with pytest.raises(UsageError, match=r"Single-v0' cannot be copied: .*only one robot"):
        play(GymPolicy("small_worlds:Single-v0", branch=2))


@pytest.mark.slow
def test_processes_play_the_same_episodes() -> None:
    here, apart = (play(GymPolicy("Pendulum-v1", **SHORT, vectorization=way)) for way in ("sync", "async"))
    assert torch.equal(here.old.logprobs, apart.old.logprobs)
    assert torch.equal(here.decision_rewards, apart.decision_rewards)
    name = "small_worlds:Corridor-v0"
    here, apart = (play(GymPolicy(name, vectorization=way)) for way in ("sync", "async"))
    assert torch.equal(here.mask, apart.mask)
    assert torch.equal(here.decision_rewards, apart.decision_rewards)
    assert [s.info for s in here.samples] == [s.info for s in apart.samples]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_success_is_what_an_environment_reports_and_not_what_one_beside_it_does(way: Vectorization) -> None:
    playing = Environments("small_worlds:Corridor-v0", {}, vectorization=way).begin([1, 1])
    for decisions in ([1, 1], [0, 0], [1, 1], [0, 0], [1, 1], [0, 1]):
        playing.step(np.array(decisions)[:, None])
    assert playing.success == [None, True]


def test_mappings_and_numbers_are_observed_as_one_row() -> None:
    policy = GymPolicy("small_worlds:Corridor-v0", normalise=0)
    rollout = play(policy)
    assert rollout.trace.per_row["observations"].shape[-1] == 6
    assert rollout.trace.per_row["observations"][:, 0, :4].tolist() == [[0, 1, 0, 0]] * 12
    infos = [sample.info for sample in rollout.samples]
    assert {info.get("success") for info in infos} <= {True, False, None}
    assert all(info["return"] == float(info.get("success", False)) for info in infos)
    assert {info["truncated"] for info in infos if "success" not in info} <= {True}


def test_pictures_show_an_episode() -> None:
    policy = GymPolicy("CartPole-v1", **SHORT, pictures=6)
    assert all(isinstance(s.output, str) for s in play(policy).samples)
    rollout = play(policy, evaluate=True)
    for sample in rollout.samples:
        assert isinstance(sample.output, Image.Image)
        assert sample.output.size == (3 * 180, 240)  # four to six frames of 600 x 400, in rows of three
    plain = play(GymPolicy("CartPole-v1", **SHORT), evaluate=True)
    assert torch.equal(plain.old.logprobs, rollout.old.logprobs)


def test_a_network_of_ones_own() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    policy = GymPolicy("CartPole-v1", network=Net(), options={"max_episode_steps": 40})
    assert trainer(policy).step().metrics["logprob_diff/max"] < 1e-5
    named = GymPolicy("CartPole-v1", network="torch.nn:Linear")
    assert isinstance(named.actor.net, nn.Linear)
    assert named.actor.net.weight.shape == (2, 4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env": "CartPole-v9"}, "CartPole-v9"),
        ({"env": "nowhere:CartPole-v1"}, "nowhere"),
        ({"env": "small_worlds:Unbounded-v0"}, "finite bounds"),
        ({"env": "small_worlds:Several-v0"}, "MultiDiscrete"),
        ({"env": "small_worlds:Growing-v0"}, "no fixed size"),
        ({"env": "small_worlds:Endless-v0"}, "max_episode_steps"),
        ({"env": "CartPole-v1", "options": {"gravity": 3}}, "gravity"),
        ({"env": "CartPole-v1", "network": "math:nothing"}, "math:nothing"),
        ({"env": "CartPole-v1", "network": "math:gcd"}, "torch.nn.Module"),
        ({"env": "CartPole-v1", "std": 0.0}, "above 0"),
        ({"env": "CartPole-v1", "vectorization": "fast"}, "'sync' or 'async'"),
    ],
)
def test_what_cannot_be_played(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        GymPolicy(**options)


def faulty(fault: str, **options: Any) -> GymPolicy:
    return GymPolicy("small_worlds:Faulty-v0", options={"fault": fault}, **{"normalise": 0, "hidden": [8], **options})


def answering(place: int, value: Any, **options: Any) -> Environments:
    """Worlds whose third step returns a value of one's own."""
    return Environments("small_worlds:Faulty-v0", {"answer": {place: value}}, **options)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("second reset", "raised in reset: RuntimeError: the door is shut"),
        ("cancelled", "raised in step 3: CancelledError"),
        ("nan", "observation in step 3 whose number 1 is nan"),
        ("inf", "observation in step 3 whose number 1 is inf"),
        ("one of three", "observation of 1 number in step 3"),
        ("bare reset", "answer in reset: .* expected observation and info"),
    ],
)
def test_an_environment_that_fails_is_named(fault: str, words: str) -> None:
    with pytest.raises(GrpokitError, match=f"Faulty-v0' .*{words}"):
        faulty(fault, normalise=2)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (0, np.array([1, 2j, 3]), "the observation is .* expected real numbers"),
        (0, np.array(["1", "2", "3"]), "the observation is .* expected real numbers"),
        (1, None, r"the reward is nothing \(null\), expected a finite number"),
        (1, np.nan, "the reward is nan"),
        (1, "1.0", "the reward is '1.0'"),
        (1, 1 + 0j, r"the reward is \(1\+0j\)"),
        (1, np.array([1.0, 2.0]), "the reward is array"),
        (2, "no", "terminated is 'no', expected True or False"),
        (2, None, "terminated is nothing"),
        (2, np.array([True, False]), "terminated is array"),
        (2, 2, "terminated is 2"),
        (3, "no", "truncated is 'no'"),
        (3, ..., "4 values, expected observation, reward, terminated, truncated and info"),
        (4, None, "info is nothing"),
        (4, {"is_success": "maybe"}, "is_success is 'maybe'"),
    ],
)
def test_an_answer_that_is_none_is_named(place: int, value: Any, words: str) -> None:
    with pytest.raises(UsageError, match=rf"Faulty-v0' gave a wrong answer in step 3: {words}"):
        answering(place, value).explored(1, seed=0)


@pytest.mark.filterwarnings("ignore:.*ERROR")  # in which gymnasium shows it as well
@pytest.mark.parametrize(("place", "value"), [(1, "1.0"), (2, "no"), (3, None)])
def test_an_answer_of_another_process_is_held_to_the_same(place: int, value: Any) -> None:
    """gymnasium would cast it in silence."""
    with pytest.raises(UsageError, match=r"Faulty-v0' gave a wrong answer in step 3: .*, expected "):
        answering(place, value, vectorization="async").explored(1, seed=0)


@pytest.mark.parametrize("one", [True, np.True_, 1, np.int64(1), np.array(1.0), np.array([True])])
def test_truths_and_numbers_may_be_numpys(one: Any) -> None:
    for place, length, cut in ((1, 6, True), (2, 3, False), (3, 3, True)):
        playing = answering(place, one).begin([1])
        while playing.open.any():
            playing.step(np.zeros((1, 1)))
        assert (playing.rewards, playing.truncated) == ([[1.0] * length], [cut])
    playing = answering(4, {"is_success": one}).begin([1])
    for _ in range(3):
        playing.step(np.zeros((1, 1)))
    assert playing.success == [True]


@pytest.mark.parametrize("start", ["global start", "own start", "count"])
def test_an_environment_that_ignores_its_seed_is_refused(start: str) -> None:
    policy = faulty(start)
    with pytest.raises(
        UsageError, match=r"starts the episodes of a group at different .* super\(\).reset\(seed=seed\)"
    ):
        play(policy)
    alone = derive_seeds(1, stream="train", step=0, prompts=3, group_size=1)
    assert policy.rollout(starts(limit=3), 1, seeds=alone).rows == 3  # there is nothing to compare


@pytest.mark.parametrize(
    "options",
    [
        {"env": "small_worlds:Corridor-v0"},
        *({"env": "small_worlds:Faulty-v0", "options": {"fault": fault}} for fault in ("frames", "no rows")),
    ],
)
def test_an_environment_without_pictures_names_the_setting(options: dict[str, Any]) -> None:
    with pytest.raises(GrpokitError, match=r"set policy.pictures: 0"):
        play(GymPolicy(**options, normalise=0, pictures=2), evaluate=True)


def test_what_an_environment_changes_of_torch_is_restored() -> None:
    rollout = play(faulty("torch"))
    assert torch.get_default_dtype() == torch.float32
    assert not rollout.old.logprobs.requires_grad
    assert torch.is_grad_enabled()


def test_an_end_at_the_limit_is_no_cut() -> None:
    cut, ended = ([s.info["truncated"] for s in play(faulty(fault)).samples] for fault in ("", "end at the limit"))
    assert cut == [True] * 12
    assert ended == [False] * 12


def test_actions_out_of_bounds_are_brought_within_them() -> None:
    policy = GymPolicy("Pendulum-v1", **SHORT, std=5.0)
    with pytest.warns(UserWarning, match=r"\d\d% of the actions lay outside"):
        rollout = play(policy)
    assert float(rollout.trace.per_row["actions"].abs().max()) > 2  # and log-probs are of what was drawn
    assert torch.allclose(policy.logprobs(rollout, slice(None)).logprobs, rollout.old.logprobs, atol=1e-6)


def test_starts() -> None:
    assert len(starts()) == 64
    assert not {p.text for p in starts()} & {p.text for p in starts("eval")}
    with pytest.raises(UsageError, match="'test'"):
        starts("test")


def test_a_sample_without_a_return_is_not_scored() -> None:
    reward = create("reward", "episode-return")
    samples = [Sample(prompt=Prompt(text=""), output="", group=0, info=info) for info in ({"return": 3}, {})]
    assert str(reward(samples)) == "[3.0, nan]"
