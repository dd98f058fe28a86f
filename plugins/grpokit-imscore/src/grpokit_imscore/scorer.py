"""The reward `imscore`, as it stands in its capsule: pictures become tensors, and a model of imscore scores them.

No grpokit is installed there, so this module imports none.
"""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from PIL import Image

_OVERALL = "RE-N-Y/imreward-overall_rating"


class Model(NamedTuple):
    """The folder and class of a model in imscore, and in what it differs from others."""

    scorer: str
    repository: str  # of the hub
    reads_prompt: bool = True
    one_score: bool = False  # for a whole batch


MODELS = {
    "cyclereward": Model("cyclereward:CycleReward", "NagaSaiAbhinay/CycleReward-Combo"),
    "mps": Model("mps:MPS", "RE-N-Y/mpsv1"),
    "pickscore": Model("pickscore:PickScorer", "RE-N-Y/pickscore"),
    "hpsv21": Model("hps:HPSv2", "RE-N-Y/hpsv21"),
    "hpsv3": Model("hpsv3:HPSv3", "RE-N-Y/hpsv3"),
    "imreward": Model("imreward:ImageReward", "RE-N-Y/ImageReward"),
    "evalmuse": Model("evalmuse:EvalMuse", "RE-N-Y/evalmuse"),
    "vqascore": Model("vqascore:VQAScore", "RE-N-Y/clip-t5-xxl", one_score=True),
    "clipscore": Model("preference:CLIPScore", "RE-N-Y/clipscore-vit-large-patch14"),
    "pickscore-clip": Model("preference:CLIPPreferenceScorer", "RE-N-Y/pickscore-clip"),
    "pickscore-siglip": Model("preference:SiglipPreferenceScorer", "RE-N-Y/pickscore-siglip"),
    "laion-aesthetic": Model("aesthetic:LAIONAestheticScorer", "RE-N-Y/laion-aesthetic", reads_prompt=False),
    "clip-aesthetic": Model("aesthetic:CLIPAestheticScorer", f"{_OVERALL}-clip", reads_prompt=False),
    "siglip-aesthetic": Model("aesthetic:SiglipAestheticScorer", f"{_OVERALL}-siglip", reads_prompt=False),
    "dinov2-aesthetic": Model("aesthetic:Dinov2AestheticScorer", f"{_OVERALL}-dinov2", reads_prompt=False),
}
"""What the parameter `model` names."""


class Imscore:
    """Scores of pictures by a model of imscore.

    Pictures of one prompt and one size are scored together, `batch_size` at a time. The last batch is filled up, so
    that a score does not depend on how many there are.

    Args:
        model: its name, such as cyclereward, mps or vqascore; the package's README has all.
        weights: a repository of the hub, or a folder that the model's `save_pretrained` wrote; by default the model's
            own repository.
        device: as torch names it; None: the GPU if there is one.
        batch_size: pictures that are scored at a time.

    Raises:
        ValueError: there is no such model.
    """

    def __init__(
        self, model: str = "cyclereward", *, weights: str | None = None, device: str | None = None, batch_size: int = 8
    ) -> None:
        if model not in MODELS:
            near = difflib.get_close_matches(model, MODELS, n=1)
            guess = f"; did you mean '{near[0]}'?" if near else "."
            raise ValueError(f"there is no model '{model}'{guess} The models are {', '.join(MODELS)}.")
        import torch

        self.model = MODELS[model]
        self.batch_size = 1 if self.model.one_score else batch_size
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        folder, _, name = self.model.scorer.partition(":")
        scorer = getattr(importlib.import_module(f"imscore.{folder}.model"), name)
        self.scorer = scorer.from_pretrained(weights or self.model.repository).to(self.device).eval()

    def __call__(self, samples: Sequence[Any]) -> list[float]:
        """Score samples, [B]; NaN for one without a picture, or without a prompt that the model reads."""
        scores = [math.nan] * len(samples)
        for text, rows, pictures in self._batches(samples):
            values = self._score(pictures, text)
            for row, value in zip(rows, values, strict=False):
                scores[row] = value
        return scores

    def _batches(self, samples: Sequence[Any]) -> Iterator[tuple[str, list[int], list[Image.Image]]]:
        """The prompt, the rows and the pictures of each batch."""
        alike: dict[tuple[str, tuple[int, int]], list[int]] = {}
        for row, sample in enumerate(samples):
            text = sample.prompt.text
            if sample.output is not None and (text.strip() or not self.model.reads_prompt):
                alike.setdefault((text, sample.output.size), []).append(row)
        for (text, _), rows in alike.items():
            for start in range(0, len(rows), self.batch_size):
                part = rows[start : start + self.batch_size]
                pictures = [_rgb(samples[row].output) for row in part]
                pictures += pictures[-1:] * (self.batch_size - len(part))
                yield text, part, pictures

    def _score(self, pictures: list[Image.Image], text: str) -> list[float]:
        """The scores of pictures of one size, [b]."""
        import numpy as np
        import torch

        pixels = torch.stack([torch.from_numpy(np.array(picture)) for picture in pictures])  # [b, H, W, 3]
        fractions = pixels.to(self.device).permute(0, 3, 1, 2) / 255
        scores: list[float] = self.scorer.score(fractions, [text] * len(pictures)).float().reshape(-1).tolist()
        return scores


def _rgb(picture: Image.Image) -> Image.Image:
    """A picture with three colours; what is transparent lies on white."""
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert("RGB")
