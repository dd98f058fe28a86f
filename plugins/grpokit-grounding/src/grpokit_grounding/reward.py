"""The rewards `box-iou` and `box-format`: texts that think, and then answer with a box.

`boxes` reads and compares boxes; this module finds the answer in the text. A wrong answer is a score of 0, since the
policy wrote it; a wrong target is an error, since a person did. Both need only Python.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from typing import get_args

from grpokit import DataError, Prompt, RewardError, Sample, UsageError
from grpokit.rewards.missing_inputs import missing_role, source
from grpokit_grounding.boxes import Box, Edges, iou, read_box

OUTSIDE = 0.05
"""The share of a picture's side by which a target may lie outside of it, since people draw boxes with a swing."""

FEWEST_ANSWERS = 8
"""Boxes in the answers of a call from which something about all answers may be said."""

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_WHOLE = re.compile(r"\s*<think>(.*)</think>\s*<answer>.*</answer>\s*", re.DOTALL)


class BoxIoU:
    """Intersection over union of the answer's box and the target box, in [0, 1].

    The answer is what is between `<answer>` and `</answer>`; where the text does not have exactly one of each, or
    no box between them (`boxes.read_box`), the score is 0. Thoughts are not looked at; `box-format` does that.

    Args:
        threshold: in (0, 1]; 1 is scored where the IoU reaches it and 0 elsewhere. None: the IoU itself.
        edges: what x2 and y2 are, in answers and targets alike: "exclusive", the first coordinate outside the box;
            "inclusive", the last pixel inside.
        scale: what the picture's width and its height count as in answers, such as 1000; None: coordinates are pixels.
            Targets are pixels of the prompt's picture in any case.

    Raises:
        UsageError: a parameter is out of its range.
    """

    def __init__(
        self, *, threshold: float | None = None, edges: Edges = "exclusive", scale: float | None = None
    ) -> None:
        if threshold is not None and not 0 < threshold <= 1:
            raise UsageError(f"box-iou: threshold must lie above 0 and at most at 1 (null: graded), got {threshold}.")
        self.threshold = threshold
        self.edges, self.scale = checked_edges(edges, "box-iou"), checked_scale(scale, "box-iou")
        self._warned = False

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples.

        Args:
            samples: B samples whose outputs are texts; targets are boxes, each a list of four numbers or its JSON text.

        Returns:
            B scores; NaN where the prompt has no target, or with `scale` no picture.

        Raises:
            RewardError: an output is not a text.
            DataError: a target is not a box, or lies outside of the picture.
        """
        texts = [text_of(row, sample, "box-iou") for row, sample in enumerate(samples)]
        boxes = [answer_box(text, self.edges) for text in texts]
        self._warned = self._warned or warn_of_scale("box-iou", samples, boxes, self.scale)
        return [self._one(row, samples[row], box) for row, box in enumerate(boxes)]

    def _one(self, row: int, sample: Sample, answer: Box | None) -> float:
        prompt = sample.prompt
        if _lacks(prompt, self.scale):
            return math.nan
        try:
            target = _target_box(prompt, self.edges)
        except DataError as error:
            raise DataError(f"The target of row {row} (prompt {prompt.text!r}): {error}") from error
        if answer is not None and prompt.image is not None:
            answer = answer.in_pixels(prompt.image.size, self.scale)
        overlap = 0.0 if answer is None else iou(answer, target)
        return overlap if self.threshold is None else float(overlap >= self.threshold)


def unscorable(prompt: Prompt, *, edges: Edges = "exclusive", scale: float | None = None) -> str:
    """Why `box-iou` cannot score a prompt; empty if it can.

    Raises:
        DataError: its target is not a box, or lies outside of the picture.
    """
    lacks = _lacks(prompt, scale)
    if not lacks:
        _target_box(prompt, edges)
    return lacks


def _lacks(prompt: Prompt, scale: float | None) -> str:
    if prompt.target is None:
        return missing_role("target", [prompt])
    return source(prompt) if scale is not None else ""


def _target_box(prompt: Prompt, edges: Edges) -> Box:
    try:
        box = read_box(prompt.target, edges)
        if prompt.image is not None:
            _check_place(box, prompt.image.size)
        return box
    except ValueError as error:
        text = repr(prompt.target)
        target = text if len(text) <= 80 else f"{text[:80]}..."
        less = "<" if edges == "exclusive" else "<="
        raise DataError(
            f"box-iou: expected a box [x1, y1, x2, y2] with x1 {less} x2 and y1 {less} y2 in pixels of the prompt's "
            f"picture, as a list or its JSON text, as the target, got {target}: "
            f"{error}. Correct the target, or leave it out where there is no box."
        ) from error


def _check_place(box: Box, size: tuple[int, int]) -> None:
    """Refuse a target that was measured in something else than pixels of this picture."""
    width, height = size
    picture = f"the picture of {width} x {height} pixels"
    if box.x2 - box.x1 < 1 or box.y2 - box.y1 < 1:
        raise ValueError(f"in {picture} it is less than a pixel wide or high")
    across, down = OUTSIDE * width, OUTSIDE * height
    beside = box.x1 < -across or box.x2 > width + across
    if beside or box.y1 < -down or box.y2 > height + down:
        raise ValueError(f"it lies outside of {picture}")


class BoxFormat:
    """1 where the whole text is `<think>thoughts</think><answer>box</answer>`, else 0. It needs no target.

    White space may stand around the two parts. The thoughts must not be blank, no tag may come twice, and the answer
    must have a box (`boxes.read_box`): so a text that scores 1 here is one that `box-iou` can grade.

    Args:
        edges: as for `box-iou`; it decides whether a box may be one pixel wide with x2 equal to x1.

    Raises:
        UsageError: `edges` is neither of the two.
    """

    def __init__(self, *, edges: Edges = "exclusive") -> None:
        self.edges = checked_edges(edges, "box-format")

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples.

        Args:
            samples: B samples whose outputs are texts.

        Returns:
            B scores, each 0 or 1.

        Raises:
            RewardError: an output is not a text.
        """
        texts = [text_of(row, sample, "box-format") for row, sample in enumerate(samples)]
        return [float(self._holds(text)) for text in texts]

    def _holds(self, text: str) -> bool:
        if any(text.count(tag) != 1 for tag in _TAGS):
            return False
        whole = _WHOLE.fullmatch(text)
        if whole is None or not whole[1].strip():
            return False
        return answer_box(text, self.edges) is not None


def answer_box(text: str, edges: Edges) -> Box | None:
    """The box between the only `<answer>` and the only `</answer>` of a text, or None.

    >>> answer_box("<answer>[0, 0, 2, 1]</answer>", "exclusive")
    Box(x1=0.0, y1=0.0, x2=2.0, y2=1.0)
    >>> answer_box("<answer>[0, 0, 2, 1]</answer><answer>[5, 5, 6, 6]</answer>", "exclusive") is None
    True
    """
    if text.count("<answer>") != 1 or text.count("</answer>") != 1:
        return None  # several guesses, of which one may fit, are no answer
    inside, closed, _ = text.partition("<answer>")[2].partition("</answer>")
    try:
        return read_box(inside, edges) if closed else None
    except ValueError:
        return None


def text_of(row: int, sample: Sample, reward: str) -> str:
    """The text that a reward scores.

    Raises:
        RewardError: the output is something else.
    """
    if not isinstance(sample.output, str):
        raise RewardError(
            f"Expected a text as the output of row {row} (reward '{reward}'), got {type(sample.output).__name__}. This "
            "reward scores texts: use it with a policy that writes them."
        )
    return sample.output


def warn_of_scale(reward: str, samples: Sequence[Sample], answers: Sequence[Box | None], scale: float | None) -> bool:
    """Warn where most boxes in answers do not fit their pictures, so that they may count in something else.

    Args:
        reward: its name.
        samples: B samples.
        answers: B boxes.
        scale: of the answers.

    Returns:
        Whether there was a warning.
    """
    misfits, count = [], 0
    for sample, box in zip(samples, answers, strict=True):
        image = sample.prompt.image
        if box is None or image is None:
            continue
        count += 1
        try:
            _check_place(box.in_pixels(image.size, scale), image.size)
        except ValueError as error:
            misfits.append(str(error))
    if count < FEWEST_ANSWERS or 2 * len(misfits) <= count:
        return False
    warnings.warn(
        f"{reward}: of {count:,} boxes in answers {len(misfits):,} cannot be right, the first because "
        f"{misfits[0]}. Set `scale` to what a picture's sides count as in the model's answers: 1000 for thousandths, 1 "
        "for parts of 1, null for pixels.",
        stacklevel=3,
    )
    return True


def checked_scale(scale: float | None, reward: str) -> float | None:
    """The scale itself.

    Raises:
        UsageError: it is not above 0.
    """
    if scale is not None and not scale > 0:
        raise UsageError(f"{reward}: scale must be above 0 (null: coordinates are pixels), got {scale}.")
    return scale


def checked_edges(edges: Edges, reward: str) -> Edges:
    """The edges themselves.

    Raises:
        UsageError: they are neither of the two.
    """
    if edges not in get_args(Edges):
        raise UsageError(f"{reward}: edges must be 'exclusive' or 'inclusive', got {edges!r}.")
    return edges
