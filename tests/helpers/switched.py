"""Components of a run that a test can make fail at a chosen moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from safetensors.torch import save_file

from grpokit import DataError, Prompt, Sample, UsageError
from tiny_policies import TinyTokens, digit_sum


class Switch:
    """What happens when; a test sets it, and `off` undoes it."""

    before_reward: ClassVar[Callable[[Sequence[Sample]], None] | None] = None
    logprobs_are_nan: ClassVar[bool] = False

    @classmethod
    def off(cls) -> None:
        cls.before_reward, cls.logprobs_are_nan = None, False


def reward(samples: Sequence[Sample]) -> list[float]:
    if Switch.before_reward is not None:
        Switch.before_reward(samples)
    return digit_sum(samples)


class Switched(TinyTokens):
    def logprobs(self, rollout, steps):
        found = super().logprobs(rollout, steps)
        return type(found)(logprobs=found.logprobs * float("nan")) if Switch.logprobs_are_nan else found


class Picky(Switched):
    """Reads numbers below 90 and, where there is a picture, upright ones."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        for prompt in prompts:
            if not prompt.text.isdecimal() or int(prompt.text) > 90:
                raise DataError(f"{prompt.text!r} is no number below 90.")
            if prompt.image is not None and prompt.image.width > prompt.image.height:
                raise UsageError("The picture lies on its side.")


class Exported(Switched):
    """Writes its weights for others."""

    def export(self, folder: Path, *, merge: bool) -> dict[str, str]:
        if merge:
            raise UsageError("There is no adapter to merge.")
        save_file(self.state_dict(), folder / "net.safetensors")
        return {
            "base_model": "org/base",
            "library_name": "peft",
            "versions": "peft 9.9",
            "usage": 'load("BASE_MODEL", "FOLDER")',
        }
