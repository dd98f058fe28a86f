"""What fails in one process ends all of them, with its message."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from in_processes import differ, fail, steps_of
from several import Processes, together
from whole_runs import newest

pytestmark = pytest.mark.several

FAILED = "Reward 'fails_later' raised ValueError: the model of the reward is gone"


@pytest.mark.parametrize(
    ("how", "here", "there"),
    [
        (
            "raises",
            "RewardError: In process 1 of 2: Reward 'it' raised ValueError: no room on the disk",
            "RewardError: Reward 'it' raised",
        ),
        (
            "raises too often",
            "RewardError: Reward 'it' lost 6 of 12 rows; skip_limit allows a share of 0.3.",
            "RewardError: Reward 'it' lost 6 of 12 rows; skip_limit allows a share of 0.3.",
        ),
        ("not finite", "RunError: In process 1 of 2: The loss is nan in step 1, update 1", "RunError: The loss is nan"),
        (
            "weights",
            "UsageError: Process 1 of 2 has other weights than process 0: net/0.weight, and 5 more.",
            "UsageError: Process 1 of 2",
        ),
        (
            "another phase",
            "RunError: In phase 'b', its step 1: In process 1 of 2: An average is gone.",
            "RunError: In phase 'b', its step 1: An average is gone.",
        ),
        ("a pass", "RunError: Another process has ended", "RunError: Out of memory while training: CUDA"),
        ("dies", "RunError: Another process has ended, or has not answered in time", "ended without a word"),
    ],
)
def test_all_end_with_the_message_of_the_one_that_failed(how: str, here: str, there: str, tmp_path: Path) -> None:
    start = time.monotonic()
    answers = together(2, steps_of, how)
    assert answers[0].startswith(here), answers[0]
    assert answers[1].startswith(there), answers[1]
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    ("how", "message", "first", "saved", "overrides"),
    [
        ("fails_later", FAILED, 1, 1, ["run.sharding=fsdp2", "run.save_every=0", "run.process_timeout=30"]),
        (
            "full disk",
            "step_000001 cannot be written: ",
            0,
            0,
            ["run.process_timeout=30"],
        ),
    ],
)
def test_a_run_that_fails_says_why_and_what_is_left(
    how: str, message: str, first: int, saved: int, overrides: list[str], tmp_path: Path
) -> None:
    """The message of the process in which it happened, in all; the checkpoint of the last whole step stays."""
    answers = together(2, fail, how, tmp_path / "run", *overrides)
    for rank, answer in enumerate(answers):
        assert message in answer, answer
        assert (f"In process {first} of 2: " in answer) == (rank != first)
    assert ("is saved in" in answers[0]) == ("continue with --resume" in answers[0]) == bool(saved)
    assert newest(tmp_path / "run/checkpoints") == saved


def test_a_process_that_hangs_is_waited_for_no_longer_than_the_timeout(tmp_path: Path) -> None:
    processes = Processes(2, fail, "hangs_later", tmp_path / "run")
    assert processes.ends[0].poll(40)
    assert "has not answered in time (run.process_timeout)" in processes.ends[0].recv()
    assert processes.processes[1].is_alive()
    processes.processes[1].kill()  # as torchrun does
    assert newest(tmp_path / "run/checkpoints") == 1


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.learning_rate=0.5", "  trainer.learning_rate: "),
        ("", "  contents of the prompts: "),
    ],
    ids=["config", "prompts"],
)
def test_processes_with_different_inputs_do_not_start(override: str, message: str, tmp_path: Path) -> None:
    for answer in together(2, differ, tmp_path / "run", override):
        assert answer.startswith("UsageError: Process 1 of 2 has another config or other prompts"), answer
        assert message in answer
    assert not (tmp_path / "run").exists()
