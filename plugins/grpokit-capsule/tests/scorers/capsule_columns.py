"""Functions with the signatures of TRL, which import nothing."""

from __future__ import annotations


async def right(completions, answer, bonus=0.0, **kwargs):
    contents = [completion[0]["content"] for completion in completions]
    return [float(content == answer[row]) + bonus for row, content in enumerate(contents)]


def make_overlong(most):
    def overlong(completion_ids, **kwargs):
        return [float(min(0, most - len(ids))) for ids in completion_ids]

    return overlong
