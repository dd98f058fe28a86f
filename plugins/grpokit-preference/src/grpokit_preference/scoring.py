"""What the three rewards share: parameters, batches, the device, and rows that cannot be scored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, get_args

import torch
from PIL import Image
from torch import Tensor, nn

from grpokit import RewardError, Sample, UsageError
from grpokit.images import to_rgb
from grpokit.rewards.device import find_device

Dtype = Literal["float32", "bfloat16", "float16"]


class Preference:
    """A reward that reads picture and prompt; a subclass has a `name` and loads its model.

    Args:
        device: as torch names it; None: the GPU if there is one.
        batch_size: pictures per call of the model; a smaller batch is filled up.
        dtype: of the model's products. The weights stay in float32.

    Raises:
        UsageError: a parameter cannot be used.
    """

    name: ClassVar[str]

    def __init__(self, *, device: str | None, batch_size: int, dtype: Dtype) -> None:
        if dtype not in get_args(Dtype):
            raise UsageError(f"{self.name}: dtype must be one of {', '.join(get_args(Dtype))}, got {dtype!r}.")
        if batch_size < 1:
            raise UsageError(f"{self.name}: batch_size must be at least 1, got {batch_size}.")
        self.batch_size = batch_size
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.device = find_device(device, reward=self.name)

    def frozen(self, model: nn.Module) -> Any:
        """The model on the reward's device, in evaluation mode and without gradients."""
        return model.float().to(self.device).eval().requires_grad_(False)

    def scores(self, pictures: Sequence[Image.Image], texts: Sequence[str]) -> Tensor:
        """The published score of each of b RGB pictures with its text, [b]."""
        raise NotImplementedError

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples.

        Args:
            samples: B samples whose outputs are pictures.

        Returns:
            B scores; NaN for a sample without a prompt, or without a picture (None).

        Raises:
            RewardError: an output is something else than a picture, or a score is not finite.
        """
        values = [math.nan] * len(samples)
        rows = [row for row, s in enumerate(samples) if s.output is not None and s.prompt.text.strip()]
        pictures = {row: to_rgb(samples[row].output, what=self._what(row)) for row in rows}
        for start in range(0, len(rows), self.batch_size):
            part = rows[start : start + self.batch_size]
            full = part + part[-1:] * (self.batch_size - len(part))  # last digits depend on a batch's shape: keep it
            with (
                torch.inference_mode(),
                torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32),
            ):
                texts = [samples[row].prompt.text for row in full]
                scores = self.scores([pictures[row] for row in full], texts)
            for row, score in zip(part, scores.tolist(), strict=False):
                if not math.isfinite(score):
                    raise RewardError(
                        f"The score of {self._what(row)} is {score} in {self.dtype}. Use dtype: float32, or check the "
                        "model's weights."
                    )
                values[row] = score
        return values

    def _what(self, row: int) -> str:
        return f"the output of row {row} (reward '{self.name}')"


def cosines(images: Tensor, texts: Tensor) -> Tensor:
    """Cosine of each pair of embeddings, in float64, which not all devices have: [b, D], [b, D] -> [b] on the CPU."""
    images, texts = images.cpu().double(), texts.cpu().double()
    return torch.nn.functional.cosine_similarity(images, texts).clamp(-1.0, 1.0)
