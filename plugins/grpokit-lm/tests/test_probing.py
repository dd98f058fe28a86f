"""A path is taken by its numbers, and low precision is no reason to refuse it."""

from __future__ import annotations

import pytest
import torch
from tiny_models import tiny_model
from torch import Tensor

from grpokit import Decisions
from grpokit_hf.tokens.group_decoding import Written
from grpokit_lm.probing import Probe


@pytest.mark.parametrize(
    ("dtype", "one", "all_of_them", "words"),
    [
        (torch.float32, 0.0, 0.0, ""),
        (torch.float32, 0.01, 0.0, "in scoring, log-probs differ by 0.01 nats from"),
        (torch.bfloat16, 1.0, 0.0, ""),  # a rare token, as random ones are
        (torch.bfloat16, 0.0, 0.5, "in scoring, log-probs differ by 0.5 nats on average from"),
    ],
)
def test_what_counts_as_another_distribution(dtype: torch.dtype, one: float, all_of_them: float, words: str) -> None:
    probe = Probe(tiny_model("llama").to(dtype))
    found: Tensor = probe.expected + all_of_them
    found[0, 0] += one
    problems = probe.problems(
        score=lambda *_, **__: Decisions(logprobs=found),
        write=lambda *_, **__: Written(tokens=probe.completions.tokens[:, :3], logprobs=found[:, :3]),
    )
    assert len(problems) == bool(words)
    assert all(problem.startswith(words) for problem in problems)
