"""Statistics of lengths, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from grpokit import Decisions, Prompt, Rollout, Sample
from grpokit.processes.team import Team
from grpokit.training.metrics import length_metrics
from grpokit.training.rollout_parts import gather_rows


def rollout(infos: list[dict[str, Any]]) -> Rollout:
    mask = torch.arange(4) < torch.tensor([2, 0, 3, 4])[:, None]  # the second is masked, though it has tokens
    return Rollout(
        samples=[Sample(prompt=Prompt(text="p"), output="", group=0, info=info) for info in infos],
        groups=torch.zeros(4, dtype=torch.int64),
        old=Decisions(logprobs=torch.zeros(4, 4)),
        mask=mask,
        max_decisions=4,
    )


STOP, CUT = "stop", "length"
DECIDED = {"length/mean": 2.25, "length/max": 4.0}


@pytest.mark.parametrize(
    ("infos", "expected"),
    [
        (
            [
                {"finish": STOP, "tokens": 2},
                {"finish": CUT, "tokens": 4},
                {"finish": STOP, "tokens": 3},
                {"finish": STOP, "tokens": 4},
            ],
            {"clipped_ratio": 0.25, "mean_terminated_length": 3.0, "min_terminated_length": 2.0}
            | {"max_terminated_length": 4.0},
        ),
        ([{"finish": CUT, "tokens": 4}] * 4, {"clipped_ratio": 1.0}),
        ([{"finish": STOP}, {"finish": CUT}, {}, {"finish": "crash"}], {"clipped_ratio": 0.5}),
        ([{"finish": STOP, "tokens": [1, 2]}] * 4, {"clipped_ratio": 0.0}),
        ([{}] * 4, {}),
    ],
)
def test_how_texts_ended(infos: list[dict[str, Any]], expected: dict[str, float]) -> None:
    """Of no others is said anything: pictures, and texts that ended in another way."""
    _, rows = gather_rows(rollout(infos), Team(), torch.device("cpu"))
    assert length_metrics(rows) == DECIDED | {f"completions/{name}": x for name, x in expected.items()}
