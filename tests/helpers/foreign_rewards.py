"""Rewards with the signatures that other trainers call, each with code of its own."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image

from grpokit import Sample

# --- TRL, and what is written for it: open-r1, notebooks of unsloth ------------------------------------------------


def length(completions, **kwargs):  # type: ignore[no-untyped-def]
    """TRL's documentation: texts, and all else in kwargs."""
    return [float(len(completion)) for completion in completions]


def accuracy(
    completions: list[list[dict[str, str]]],
    solution: list[str],
    log_extra: Callable[[str, list[Any]], None] | None = None,
    **kwargs: Any,
) -> list[float | None]:
    """TRL's shipped rewards: messages by annotation, a column of the data, None for a row to leave out."""
    if log_extra is not None:
        log_extra("solution", list(solution))
    answers = [completion[0]["content"] for completion in completions]
    return [float(a == s) if s else None for a, s in zip(answers, solution, strict=True)]


def tagged(completions, **kwargs):  # type: ignore[no-untyped-def]
    """open-r1: messages, without an annotation that says so."""
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match("<answer>.*</answer>$", content) else 0.0 for content in contents]


def correctness(prompts, completions, answer, **kwargs) -> list[float]:  # type: ignore[no-untyped-def]
    """Notebooks of unsloth: the last question is printed beside the answer."""
    question = prompts[0][-1]["content"]
    responses = [completion[0]["content"] for completion in completions]
    return [2.0 if r == a and question else 0.0 for r, a in zip(responses, answer, strict=True)]


def answers_in_kwargs(completions, **kwargs):  # type: ignore[no-untyped-def]
    return [float(c == a) for c, a in zip(completions, kwargs["answer"], strict=True)]


def warming_up(prompts, completions, trainer_state, log_metric, **kwargs):  # type: ignore[no-untyped-def]
    """What it asks for changes with the step."""
    log_metric("step", trainer_state.global_step)
    return [float(trainer_state.global_step) for _ in completions]


async def awaited(prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
    await asyncio.sleep(0)
    return [float(len(completion)) for completion in completions]


def get_overlong(max_completion_len: int, soft_punish_cache: int) -> Callable[..., list[float]]:
    """A function that makes one, of tokens alone."""

    class Overlong:
        def __call__(self, completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
            return [min(0.0, (max_completion_len - len(ids)) / soft_punish_cache) for ids in completion_ids]

    return Overlong()


def near(completions: list[str], difficulty: list[int], *, threshold: int = 2, bonus: Any = 0.5, **_: Any) -> list[Any]:
    """A column, a number to set in the config, and a column that may be missing."""
    bonuses = bonus if isinstance(bonus, list) else [bonus] * len(completions)
    return [d * (len(c) > threshold) + b for c, d, b in zip(completions, difficulty, bonuses, strict=True)]


def in_environments(completions: list[str], environments: list[Any]) -> list[float]:
    return [float(len(environment.log)) for environment in environments]


def seen(completions: list[str], images: list[Any]) -> list[float]:
    """Of a vision language model's question."""
    return [float(len(own)) for own in images]


def stripped(completions, word="4", **kwargs):  # type: ignore[no-untyped-def]
    """Texts, though the prompts are conversations."""
    return [float(completion.strip() == word) for completion in completions]


def defaulted(completions, answer=""):  # type: ignore[no-untyped-def]
    return [float(completion == given) for completion, given in zip(completions, answer, strict=True)]


def compared(solution_str, ground_truth="", label=""):  # type: ignore[no-untyped-def]
    return float(solution_str in (ground_truth, label))


def labelled(completions, solution, label="5"):  # type: ignore[no-untyped-def]
    """It names its target, so the other default stays."""
    return [float(c in (s, label)) for c, s in zip(completions, solution, strict=True)]


def gathered(**columns):  # type: ignore[no-untyped-def]
    return [float(c == t) for c, t in zip(columns["completions"], columns["target"], strict=True)]


def answered(completions, **kwargs):  # type: ignore[no-untyped-def]
    """All turns of an episode."""
    return [float(len(completion)) if completion[0]["role"] == "assistant" else 0.0 for completion in completions]


# --- verl ----------------------------------------------------------------------------------------------------------


def compute_score(data_source, solution_str, ground_truth, extra_info=None):  # type: ignore[no-untyped-def]
    return {"score": float(solution_str == ground_truth), "acc": 1, "source": data_source, "split": extra_info["split"]}


def gsm8k(solution_str: str, ground_truth: str, method: str = "strict", format_score: float = 0.0) -> float:
    return 1.0 if solution_str == ground_truth else format_score


def compute_score_batch(data_sources, solution_strs, ground_truths, extra_infos):  # type: ignore[no-untyped-def]
    return [{"score": float(x == y)} for x, y in zip(solution_strs, ground_truths, strict=True)]


# --- verifiers -----------------------------------------------------------------------------------------------------


def in_state(completion, **kwargs) -> float:  # type: ignore[no-untyped-def]
    return float(kwargs["state"]["completion"] == completion)


def polite(completion) -> float:  # type: ignore[no-untyped-def]
    return 0.0 if "sorry" in completion.lower() else 1.0


async def judged(prompt, completion, answer, state):  # type: ignore[no-untyped-def]
    await asyncio.sleep(0)
    return float(completion[-1]["content"] == answer == state["answer"]) if prompt[-1]["role"] == "user" else 0.0


# --- Flow-GRPO -----------------------------------------------------------------------------------------------------


def file_size():  # type: ignore[no-untyped-def]
    """Makes a function that saves pictures."""

    def _fn(images, prompts, metadata):  # type: ignore[no-untyped-def]
        files = [io.BytesIO() for _ in images]
        for image, file in zip(images, files, strict=True):
            Image.fromarray(image).save(file, format="JPEG")
        return [float(len(file.getvalue()) > row["least"]) for file, row in zip(files, metadata, strict=True)], {}

    return _fn


def brightness(images, prompts, metadata):  # type: ignore[no-untyped-def]
    """Pictures as one array [B, H, W, 3]."""
    import torch

    pixels = torch.tensor(images.transpose(0, 3, 1, 2), dtype=torch.uint8)
    return pixels.float().mean((1, 2, 3)) / 255, {"shape": pixels.shape}


def several(device, score_dict):  # type: ignore[no-untyped-def]
    """Makes a mix of scores."""

    def _fn(images, prompts, metadata, only_strict=True):  # type: ignore[no-untyped-def]
        scores = {name: [weight * image.width for image in images] for name, weight in score_dict.items()}
        return {**scores, "avg": [sum(each) for each in zip(*scores.values(), strict=True)]}, {}

    return _fn


# --- grpokit, async ------------------------------------------------------------------------------------------------


async def of_samples(samples: Sequence[Sample]) -> list[float]:
    await asyncio.sleep(0)
    return [float(len(s.output)) for s in samples]
