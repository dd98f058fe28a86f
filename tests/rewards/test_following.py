"""A reward that follows its run: it knows the folder, makes the run wait, is in checkpoints, and can be exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from following_reward import CALLS, Counting, Usual
from grpokit import ExportsReward, FollowsRun, RewardError, RewardTerm, RunError, UsageError
from grpokit.config import presets
from grpokit.errors import CheckpointError
from grpokit.report.view import view
from grpokit.rewards.calling import build
from grpokit.rewards.lessons import followers
from grpokit.run_folder.lock import locked
from grpokit.run_folder.reader import read_run
from grpokit.runs.export import export_reward
from grpokit.runs.replay import replay
from grpokit.runs.train import Watcher
from grpokit.training import checkpoint
from small_runs import rows, train, write_prompts

REWARDS = [{"use": "following_reward:Counting", "name": "counted"}, {"use": "switched:reward", "name": "digits"}]


@pytest.fixture(autouse=True)
def _prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_prompts(["1", "2", "3", "4"])


def _counted(folder: str) -> list[float]:
    return [row["rewards/counted/mean"] for row in rows(f"{folder}/metrics.jsonl")]


def test_who_follows_a_run_and_who_does_not() -> None:
    terms = [RewardTerm(name="a", reward=Counting()), RewardTerm(name="b", reward=lambda samples: [0.0])]
    assert [*followers(terms)] == ["a"]
    assert isinstance(terms[0].reward, ExportsReward)
    assert not isinstance(torch.nn.Linear(1, 1), FollowsRun)  # has a state, and is no part of the run


def test_it_does_not_score_outside_the_run() -> None:
    """Where it would never hear that a run begins, and its state would be in no checkpoint."""
    _, built = build("following_reward:Counting", {})
    assert isinstance(built.error, UsageError)
    assert "leave out workers and placement" in str(built.error)


def test_a_resumed_run_has_the_state_of_the_reward() -> None:
    train("whole", rewards=REWARDS)
    train("cut", rewards=REWARDS, trainer__steps=4, run__save_every=2)
    train("cut", rewards=REWARDS, resume=True, force=True)
    assert _counted("cut") == _counted("whole")
    state = checkpoint.read_state(Path("cut/checkpoints/step_000006"))
    assert state["parts"]["rewards/counted"] == {"calls": 6}
    assert replay(Path("cut"), 5, say=lambda line: None).equal


def test_a_failed_step_restores_the_state() -> None:
    failing = [REWARDS[0] | {"fails_at": 4}, REWARDS[1]]
    with pytest.raises(RewardError, match="not this time"):
        train("failed", rewards=failing)
    state = checkpoint.read_state(Path("failed/checkpoints/step_000003"))
    assert state["parts"]["rewards/counted"]["calls"] == 3


LEARNING = [{"use": "following_reward:Usual", "name": "usual"}]


def test_a_reward_learns_from_each_step_for_the_next_one() -> None:
    reports = []
    train("run", rewards=LEARNING, watcher=Watcher(step=reports.append))
    usual = 0.0
    for report in reports:
        mean = report.metrics["rewards/usual/mean"]
        assert report.metrics["rewards/usual/usual"] == pytest.approx(mean + usual)
        usual = report.metrics["rewards/usual/usual"]
        assert ("the sums are large" in report.warnings) == (usual > 1)
    assert len({row["rewards/usual/usual"] for row in rows("run/metrics.jsonl")}) > 2


def test_what_it_learns_is_in_checkpoints_and_replayed() -> None:
    train("whole", rewards=LEARNING)
    train("cut", rewards=LEARNING, trainer__steps=3)
    train("cut", rewards=LEARNING, resume=True, force=True)
    learned = [[row["rewards/usual/usual"] for row in rows(f"{run}/metrics.jsonl")] for run in ("cut", "whole")]
    assert learned[0] == learned[1]
    assert replay(Path("cut"), 5, say=lambda line: None).equal


def test_a_reward_that_cannot_learn_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Usual, "learn", lambda self, lessons, warn: 1 / 0)
    with pytest.raises(RunError, match="Reward 'usual' could not learn from the step: ZeroDivisionError"):
        train("run", rewards=LEARNING)


@pytest.mark.parametrize("learned", [None, {"usual": "large"}], ids=str)
def test_what_a_reward_has_learned_is_numbers(learned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Usual, "learn", lambda self, lessons, warn: learned)
    with pytest.raises(RunError, match="Reward 'usual' could not learn from the step: "):
        train("run", rewards=LEARNING)


def _killed(report: Any) -> None:
    raise KeyboardInterrupt


def test_a_run_that_should_resume_and_has_no_checkpoint_keeps_the_rewards_files() -> None:
    with pytest.raises(KeyboardInterrupt):
        train("run", rewards=REWARDS, watcher=Watcher(step=_killed))
    Path("run/other.txt").write_text("")
    train("run", rewards=REWARDS, trainer__steps=1, resume=True)
    assert Path("run", CALLS).read_text().split() == ["1", "1"]
    assert not Path("run/other.txt").exists()
    train("run", rewards=REWARDS, trainer__steps=1, overwrite=True)
    assert Path("run", CALLS).read_text().split() == ["1"]


def test_what_a_run_waits_for_is_shown_while_it_waits() -> None:
    words, pages = [], []

    def waiting(word: str) -> None:
        words.append(word)

    def look(report: Any) -> None:
        pages.append(Path("run/waiting.txt").exists())

    waits = [REWARDS[0] | {"words": "a person"}, REWARDS[1]]
    train("run", rewards=waits, trainer__steps=2, watcher=Watcher(waiting=waiting, step=look))
    assert words == ["a person", "", "a person", ""]
    assert pages == [False, False]


def test_the_page_says_what_a_run_waits_for_only_while_it_runs() -> None:
    train("run", rewards=REWARDS, trainer__steps=1)
    Path("run/waiting.txt").write_text("a person")
    Path("run/end.json").unlink()

    def state() -> str:
        return str(view([read_run(Path("run"))], [None])["runs"][0]["state"])  # type: ignore[list-item]

    assert "waits" not in state()
    with locked(Path("run")):
        assert state() == "running: 1 of 1 step, waits for a person"


def test_what_a_reward_has_learned_is_exported() -> None:
    train("run", rewards=REWARDS)
    config, _ = presets.read_config(Path("run"))
    place = Path("run/checkpoints/step_000006")
    export_reward(config, place, "counted", Path("mine"))
    assert Path("mine/calls.txt").read_text() == "mine 6"
    with pytest.raises(UsageError, match="has no reward 'nothing'"):
        export_reward(config, place, "nothing", Path("other"))
    with pytest.raises(UsageError, match="learns nothing"):
        export_reward(config, place, "digits", Path("other"))
    with pytest.raises(UsageError, match="already holds files"):
        export_reward(config, place, "counted", Path("mine"))
    with pytest.raises(CheckpointError, match="has no part"):
        checkpoint.load_part(place, "rewards/other", Counting())
    assert not Path("other").exists()
