"""Announces three rewards and an evaluation, which ask a judge; they need no package beyond grpokit's own."""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import EvaluationSpec, RewardSpec, hookimpl

_EXAMPLE = """
rewards:
  - use: NAME
    weight: 1.0
    url: http://localhost:8000/v1
    model: Qwen/Qwen3-VL-8B-Instruct
"""


@hookimpl
def grpokit_rewards() -> Iterator[RewardSpec]:
    """Yield the rewards."""
    yield RewardSpec(
        api=1,
        name="vlm-judge",
        factory="grpokit_judge.reward:VLMJudge",
        example=_EXAMPLE.replace("NAME", "vlm-judge"),
        summary="the rating that a vision-language model behind an OpenAI-compatible URL gives the picture",
        accepts={"image"},
        range=(0.0, 1.0),
    )
    yield RewardSpec(
        api=1,
        name="vlm-ranking",
        factory="grpokit_judge.ranking:VLMRanking",
        example=_EXAMPLE.replace("NAME", "vlm-ranking"),
        summary="the picture's rank in its group, by such a model that sees all of them",
        accepts={"image"},
        range=(0.0, 1.0),
        per_sample=False,
    )
    yield RewardSpec(
        api=1,
        name="vlm-checklist",
        factory="grpokit_judge.checklist:VLMChecklist",
        example=_EXAMPLE.replace("NAME", "vlm-checklist"),
        summary="how probable such a model finds the right answers to a prompt's questions (Soft-TIFA)",
        accepts={"image"},
        range=(0.0, 1.0),
        unscorable="grpokit_judge.checklist:unscorable",
    )


@hookimpl
def grpokit_evaluations() -> Iterator[EvaluationSpec]:
    """Yield `checklist`."""
    yield EvaluationSpec(
        api=1,
        name="checklist",
        factory="grpokit_judge:evaluations/checklist.yaml",
        summary="objects, counts, attributes and places that a prompt asks for, by a judge's answers (Soft-TIFA)",
        needs="the address of a judge and its model",
        example="grpokit evaluate RUN --with checklist rewards.0.url=http://localhost:8000/v1 "
        "rewards.0.model=Qwen/Qwen3-VL-8B-Instruct",
    )
