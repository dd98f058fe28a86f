"""benchmarks/simulate_step.py: waiting by hand, the shares of a team, its page, and bad options."""

from __future__ import annotations

from pathlib import Path

import pytest
import simulate_step
from step_model import Ring, Step, line, share, simulate

from grpokit.processes.team import Team

RING = Ring(bandwidth=100.0, latency=0.5)


def step(**changes: object) -> Step:
    """Each group takes 2 s to draw and 3 s to learn from."""
    settings = {"groups": 3, "updates": 0, "work": lambda groups: {"rollout": 2.0 * groups, "train": 3.0 * groups}}
    return Step(**{**settings, "stretches": (("rollout",), ("train",)), **changes})  # type: ignore[arg-type]


def test_all_wait_for_the_slowest_where_they_meet() -> None:
    """3 groups are 1 + 2. Twice as slow, the first takes 4 and 6 s, like the second."""
    alone, two = simulate(step(), 1, RING), simulate(step(), 2, RING)
    assert (alone.seconds, alone.waiting) == (15.0, 0.0)
    assert two.phases == {"rollout": 4.0, "train": 6.0}
    assert (two.seconds, two.waiting) == (10.0, 0.25)  # the first waits for half of the time
    assert simulate(step(slow={0: 2.0}), 2, RING).waiting == 0.0
    assert simulate(step(slow={0: 3.0}), 2, RING).seconds == 15.0
    assert simulate(step(), 4, RING).seconds == 5.0  # one has no group


def test_a_ring_sends_a_sum_twice_and_a_meeting_s_lengths_first() -> None:
    """4 processes: each sends 3/4 of 400 bytes twice in 2 x 3 messages, and meets in as many."""
    network = simulate(step(meetings=2, gradients=400.0, updates=3), 4, RING).network
    assert network == pytest.approx(2 * (6 * 0.5) + 3 * (600.0 / 100.0 + 6 * 0.5))


@pytest.mark.parametrize(("groups", "size"), [(64, 8), (3, 2), (2, 4), (7, 3)])
def test_groups_are_shared_as_in_a_run(groups: int, size: int) -> None:
    class One(Team):
        def __init__(self, rank: int) -> None:
            self.rank, self.size = rank, size

    assert [share(groups, rank, size) for rank in range(size)] == [len(One(rank).share(groups)) for rank in range(size)]


def test_a_line_goes_through_its_two_points() -> None:
    work = line({2: {"rollout": 3.0}, 8: {"rollout": 9.0}})
    assert [work(groups)["rollout"] for groups in (2, 4, 8)] == [3.0, 5.0, 9.0]


def test_a_changed_page_is_noticed_and_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the table that needs no plan; `make docs` checks all."""
    monkeypatch.setattr(simulate_step, "TABLES", {"held": simulate_step.held_table})
    assert simulate_step.main(["--check"]) == 0
    page = tmp_path / simulate_step.PAGE.name
    page.write_text(simulate_step.PAGE.read_text().replace("| 8: 4 + 4 |", "| 8: 5 + 3 |"))
    monkeypatch.setattr(simulate_step, "PAGE", page)
    assert simulate_step.main(["--check"]) == 1
    assert "run python benchmarks/simulate_step.py --write" in capsys.readouterr().err
    assert simulate_step.main(["--write"]) == simulate_step.main(["--check"]) == 0


@pytest.mark.parametrize("words", [["--gpus", "0"], ["--slow", "0.5"], ["--reward", "-1"], ["--write", "--check"]])
def test_bad_options(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        simulate_step.main(words)
