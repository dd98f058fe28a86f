"""How many held-out samples a run draws at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpokit.runs import run
from small_runs import train, write_prompts


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, 8), ({"trainer__rollout_batch_size": 5}, 5), ({"eval__batch_size": 3}, 3)],
)
def test_an_evaluation_takes_as_much_room_as_a_rollout(
    settings: dict[str, Any], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    evaluate = run.evaluate

    def seen(*args: Any, batch_size: int, **options: Any) -> Any:
        sizes.append(batch_size)
        return evaluate(*args, batch_size=batch_size, **options)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "evaluate", seen)
    write_prompts([str(i) for i in range(4)])
    train("run", trainer__steps=1, **settings)
    assert sizes == [expected] * 2  # before and after
