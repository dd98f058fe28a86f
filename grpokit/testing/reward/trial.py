"""The first scores of a reward under check: without one number per sample, the other checks have nothing to compare.

They are taken once, whichever check runs first. A reward that raises, or gives too few scores, so fails the check
`numbers` and no other: the rest is "not checked".
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpokit.errors import GrpokitError, RewardError
from grpokit.rewards.scoring import Reward, RewardTerm, score
from grpokit.testing.check import NotChecked, expect, told
from grpokit.testing.reward.examples import brief
from grpokit.types import Sample

UNSCORED = "numbers failed"
"""Why a check that needs scores was not made."""


class Trial:
    """A reward's answer to the samples that it is checked on, asked for when somebody first looks at it.

    Args:
        reward: the reward, with its parameters bound.
        samples: what it is asked to score.
    """

    def __init__(self, reward: Reward, samples: Sequence[Sample]) -> None:
        self.reward, self.samples = reward, samples
        self.before: list[dict[str, Any]] = []
        self.after: list[dict[str, Any]] = []

    @functools.cached_property
    def _answer(self) -> tuple[Any, BaseException | None]:
        self.before = [content(sample) for sample in self.samples]
        try:
            return self.reward(self.samples), None
        except (Exception, SystemExit) as error:  # whatever comes is the finding
            return None, error
        finally:
            self.after = [content(sample) for sample in self.samples]

    @functools.cached_property
    def scored(self) -> bool:
        """Whether there was one number per sample, infinity and NaN among them."""
        values, error = self._answer
        try:
            return error is None and len([float(x) for x in values]) == len(self.samples)
        except (TypeError, ValueError, OverflowError, RuntimeError):  # no sequence, or of something else
            return False

    def numbers(self) -> None:
        """The check: one finite number or NaN per sample, not all NaN."""
        values, error = self._answer
        wanted = "one finite number or NaN per sample"
        if isinstance(error, GrpokitError):
            expect(False, wanted, f"{type(error).__name__}: {told(error)}".rstrip("."),
                   "samples of another kind than this reward scores, or without what it reads")  # fmt: skip
        if error is not None:
            expect(False, wanted, f"{told(error, place=True)} {self._culprit()}",
                   "an output that was not thought of, or a bug; it stops a run in the same way")  # fmt: skip
        try:
            column = score([RewardTerm(name="checked", reward=lambda _: values)], self.samples).matrix[:, 0].tolist()
        except RewardError as refused:
            came = str(refused).removeprefix("Reward 'checked' ").partition("; expected")[0]
            expect(False, wanted, f"a reward that {came}",
                   "one score for the whole batch, what is no number, or a division by 0")  # fmt: skip
        expect(
            not all(map(math.isnan, column)),
            "at least one sample that the reward can score",
            f"NaN for all {len(self.samples)}",
            "samples without the target, or of the wrong kind; give the checks samples that this reward is made for",
        )

    def _culprit(self) -> str:
        """Which of the samples make a reward raise, when it scores each alone."""
        wrong = []
        for row, sample in enumerate(self.samples):
            try:
                self.reward([sample])
            except (Exception, SystemExit):  # the first call's is told
                wrong.append(row)
        if len(wrong) == len(self.samples):
            return "on every sample"
        return f"on row {wrong[0]}, {brief(self.samples[wrong[0]].output)}" if wrong else "on the samples together"

    def inputs(self) -> None:
        """The check: samples are after the first call what they were before it."""
        _ = self._answer
        for row, (before, after) in enumerate(zip(self.before, self.after, strict=True)):
            changed = [name for name, x in before.items() if after[name] != x]
            expect(not changed, "samples that are as they were before scoring",
                   f"another {', '.join(changed)} in row {row}",
                   "a change in place (thumbnail, putpixel, paste, pop); work on a copy")  # fmt: skip

    def needed_by(self, test: Callable[[], None]) -> Callable[[], None]:
        """A test that is not made where there are no scores."""

        def tried() -> None:
            if not self.scored:
                raise NotChecked(UNSCORED)
            test()

        return tried


def content(sample: Sample) -> dict[str, Any]:
    """What a sample holds, as values that a change in place leaves alone."""
    prompt = sample.prompt
    parts = {"prompt.text": prompt.text, "prompt.image": prompt.image, "prompt.target": prompt.target}
    parts |= {"prompt.meta": prompt.meta, "output": sample.output, "group": sample.group, "info": sample.info}
    return {name: _plain(part) for name, part in parts.items()}


def _plain(value: Any) -> Any:
    import numpy as np
    import torch
    from PIL import Image

    # the repr of a tensor or an array leaves out digits and the middle
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return str(value.dtype), list(value.shape), value.detach().cpu().flatten().view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Image.Image):
        return value.mode, value.size, value.tobytes(), value.getpalette()
    if isinstance(value, Mapping):
        return {key: _plain(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(x) for x in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else repr(value)
