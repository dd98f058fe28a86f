"""Windows of decided steps: where they lie, and when they move."""

from __future__ import annotations

import pytest

from grpokit import UsageError
from grpokit_hf.diffusion.windows import Window


def firsts(window: Window, *, decisions: int, groups: int = 400, step: int = 0) -> set[int]:
    return {window.first(seed, step=step, decisions=decisions) for seed in range(groups)}


@pytest.mark.parametrize(
    ("window", "decisions", "places"),
    [
        (Window(width=2), 10, {0, 1, 2, 3}),  # inside the first five steps
        (Window(width=2, share=1.0), 10, set(range(9))),
        (Window(width=4), 6, {0}),  # wider than half of the schedule
        (Window(width=10, share=1.0), 10, {0}),
    ],
)
def test_random_windows_lie_in_their_share(window: Window, decisions: int, places: set[int]) -> None:
    assert firsts(window, decisions=decisions) == places


def test_sliding_windows_move_and_begin_again() -> None:
    window = Window(width=2, start="sliding", every=25)
    starts = [firsts(window, decisions=4, step=step) for step in (0, 24, 25, 50, 74, 75)]
    assert starts == [{0}, {0}, {1}, {2}, {2}, {0}]


@pytest.mark.parametrize(
    "keys",
    [
        {"width": 0},
        {"width": 2, "share": 1.5},
        {"width": 2, "start": "first"},
        {"width": 2, "every": 5},
        {"width": 2, "start": "sliding", "share": 1.0},
    ],
)
def test_keys_are_checked(keys: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Window(**keys)  # type: ignore[arg-type]
