"""The rewards `aesthetic` and `clip-score`, both made of the CLIP embedding of the picture.

Pictures become RGB and go through the model's own preprocessing; `tower` embeds each content once for both rewards.
What follows the embedding runs in float64. Neither needs a target, so every picture gets a score.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import open_clip

from grpokit import Sample, UsageError
from grpokit.images import to_rgb
from grpokit.rewards.device import find_device
from grpokit_clip import tower, weights
from grpokit_clip.head import Head
from grpokit_clip.loading import Dtype

HEADED = {("ViT-L-14", "openai"), ("ViT-L-14-quickgelu", "openai")}
"""The models and weights that the published aesthetic predictor was trained on."""


class AestheticReward:
    """How well people like a picture: the LAION aesthetic predictor on its CLIP embedding, about 1 to 10.

    Schuhmann et al. (2022, "LAION-5B", arXiv:2210.08402, and the predictor's repository): embedding of ViT-L/14,
    brought to length 1, through five linear layers trained on people's ratings.

    Args:
        model: open_clip's name of the architecture.
        pretrained: open_clip's name of the weights; None: of a `weights_path` that is no copy of published ones.
        weights_path: the CLIP weights: a file, or a folder in open_clip's local form (which brings its own `model`);
            None: the Hugging Face cache, filled where it lacks them.
        head_path: the predictor's state dict; None: the published one in torch's cache, fetched where it is missing.
        scale: what scores are multiplied by.
        device: as torch names it; None: the GPU if there is one.
        batch_size: the most pictures per call of the model.
        dtype: of the CLIP model.

    Raises:
        UsageError: a parameter cannot be used, or weights are not there or not those of the model.
    """

    def __init__(
        self,
        *,
        model: str = "ViT-L-14",
        pretrained: str | None = "openai",
        weights_path: str | Path | None = None,
        head_path: str | Path | None = None,
        scale: float = 1.0,
        device: str | None = None,
        batch_size: int = 16,
        dtype: Dtype = "float32",
    ) -> None:
        _check("aesthetic", dtype=dtype, batch_size=batch_size, scale=scale)
        folder = weights_path is not None and Path(weights_path).expanduser().is_dir()
        if head_path is None and not folder and (model.replace("/", "-"), pretrained) not in HEADED:
            raise UsageError(
                "aesthetic: the published predictor was trained on embeddings of the model ViT-L-14 with the weights "
                f"openai, and says nothing about those of {model!r} with {pretrained!r}. Leave model and pretrained "
                "out, or give a predictor for yours as head_path."
            )
        device_here = find_device(device, reward="aesthetic")
        place = weights.head_file(head_path)  # before the large files
        self.batch_size = batch_size
        self.scale = scale
        self.tower = tower.shared(
            model=model,
            pretrained=pretrained,
            weights_path=weights_path,
            device=device_here,
            dtype=dtype,
            reward="aesthetic",
        )
        self.head = Head(place, width=self.tower.width)

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples.

        Args:
            samples: B samples whose outputs are pictures.

        Returns:
            B scores.

        Raises:
            RewardError: an output is not a picture, or its embedding is not finite.
        """
        pictures = [to_rgb(s.output, what=_what(row, "aesthetic")) for row, s in enumerate(samples)]
        embeddings = self.tower.images(pictures, batch_size=self.batch_size, reward="aesthetic")
        return (self.scale * self.head(embeddings)).tolist()


class ClipScoreReward:
    """How well a picture fits its prompt: the cosine of their CLIP embeddings, in [-1, 1] and mostly 0.1 to 0.4.

    CLIPScore (Hessel et al. 2021, arXiv:2104.08718, equation 1) without its factor of 2.5 and without its floor at 0.

    Args:
        model: open_clip's name of the architecture.
        pretrained: open_clip's name of the weights; None: of a `weights_path` that is no copy of published ones.
        weights_path: the CLIP weights: a file, or a folder in open_clip's local form (which brings its own `model`);
            None: the Hugging Face cache, filled where it lacks them.
        scale: what scores are multiplied by.
        device: as torch names it; None: the GPU if there is one.
        batch_size: the most pictures, or prompts, per call of the model.
        dtype: of the CLIP model.

    Raises:
        UsageError: a parameter cannot be used, or weights are not there or not those of the model.
    """

    def __init__(
        self,
        *,
        model: str = "ViT-L-14",
        pretrained: str | None = "openai",
        weights_path: str | Path | None = None,
        scale: float = 1.0,
        device: str | None = None,
        batch_size: int = 16,
        dtype: Dtype = "float32",
    ) -> None:
        _check("clip-score", dtype=dtype, batch_size=batch_size, scale=scale)
        self.batch_size = batch_size
        self.scale = scale
        self.tower = tower.shared(
            model=model,
            pretrained=pretrained,
            weights_path=weights_path,
            device=find_device(device, reward="clip-score"),
            dtype=dtype,
            reward="clip-score",
        )
        self._warned = False

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples.

        Args:
            samples: B samples whose outputs are pictures.

        Returns:
            B scores, in [-scale, scale].

        Raises:
            RewardError: an output is not a picture, or an embedding is not finite.
        """
        pictures = [to_rgb(s.output, what=_what(row, "clip-score")) for row, s in enumerate(samples)]
        texts = [s.prompt.text for s in samples]
        self._warn(texts)
        images = self.tower.images(pictures, batch_size=self.batch_size, reward="clip-score")  # [B, D]
        prompts = self.tower.texts(texts, batch_size=self.batch_size, reward="clip-score")  # [B, D]
        cosines = (images * prompts).sum(-1).clamp(-1.0, 1.0)  # [B, D] -> [B]
        return (self.scale * cosines).tolist()

    def _warn(self, texts: Sequence[str]) -> None:
        """Say once that a prompt is longer than what the model reads."""
        tokenizer = self.tower.tokenizer
        if self._warned or not isinstance(tokenizer, open_clip.SimpleTokenizer):
            return
        most = int(tokenizer.context_length) - 2  # beside the marks of start and end
        for text in dict.fromkeys(texts):
            tokens = len(tokenizer.encode(text))
            if tokens > most:
                self._warned = True
                warnings.warn(
                    f"clip-score reads the first {most} tokens of a prompt; '{text[:60]}...' has {tokens}. What comes "
                    "after them does not change its score.",
                    stacklevel=3,
                )
                return


def _what(row: int, reward: str) -> str:
    return f"the output of row {row} (reward '{reward}')"


def _check(reward: str, *, dtype: str, batch_size: int, scale: float) -> None:
    if dtype not in get_args(Dtype):
        raise UsageError(f"{reward}: dtype must be one of {', '.join(get_args(Dtype))}, got {dtype!r}.")
    if batch_size < 1:
        raise UsageError(f"{reward}: batch_size must be at least 1, got {batch_size}.")
    if not 0 < scale < math.inf:
        raise UsageError(f"{reward}: scale must be a number above 0, got {scale}.")
