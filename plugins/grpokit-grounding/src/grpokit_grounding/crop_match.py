"""The reward `crop-match`: how well what a text points at, cut out of the picture, fits the prompt.

The box is the answer's, never the target's: a reward on the target's crop is the same whatever the policy writes.
Another reward for pictures scores the crops, such as CLIP's similarity, so no target is needed at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from PIL import Image

from grpokit import RewardError, Sample, create
from grpokit.errors import plural
from grpokit_grounding.boxes import Box, Edges
from grpokit_grounding.reward import answer_box, checked_edges, checked_scale, text_of, warn_of_scale

NAME = "crop-match"


class CropMatch:
    """The score that another reward gives to the part of the source picture which the answer's box encloses.

    An answer counts as in `box-iou`. Without a box, and where nothing of the box lies in the picture, the score is 0. A
    box is clipped to the picture, and a pixel that it covers in part belongs to the crop.

    Args:
        match: a reward for pictures: a plugin's name for it, such as "clip-score", or "package.module:function". It
            gets samples whose output is the crop and whose prompt is the prompt.
        match_params: its parameters.
        edges: what x2 and y2 are; see `box-iou`.
        scale: what the picture's width and its height count as in answers, such as 1000; None: coordinates are pixels.

    Raises:
        UsageError: a parameter is out of its range.
        PluginError: `match` cannot be built with `match_params`.
    """

    def __init__(
        self,
        *,
        match: str,
        match_params: Mapping[str, Any] | None = None,
        edges: Edges = "exclusive",
        scale: float | None = None,
    ) -> None:
        self.edges, self.scale = checked_edges(edges, NAME), checked_scale(scale, NAME)
        self._warned = False
        self.match = create("reward", match, match_params)

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples.

        Args:
            samples: B samples whose outputs are texts.

        Returns:
            B scores, those of `match` or 0; NaN where the prompt has no source picture.

        Raises:
            RewardError: an output is not a text, or `match` does not give a score for each crop.
        """
        scores, crops = [0.0] * len(samples), {}
        texts = [text_of(row, sample, NAME) for row, sample in enumerate(samples)]
        boxes = [answer_box(text, self.edges) for text in texts]
        self._warned = self._warned or warn_of_scale(NAME, samples, boxes, self.scale)
        for row, (sample, box) in enumerate(zip(samples, boxes, strict=True)):
            if sample.prompt.image is None:
                scores[row] = math.nan
            elif box is not None and (crop := self._crop(sample.prompt.image, box)):
                crops[row] = replace(sample, output=crop)
        matched = self.match(list(crops.values())) if crops else []
        if len(matched) != len(crops):
            raise RewardError(f"{NAME}: match gave {len(matched)} scores for {plural(len(crops), 'crop')}.")
        for row, score in zip(crops, matched, strict=True):
            scores[row] = float(score)
        return scores

    def _crop(self, image: Image.Image, box: Box) -> Image.Image | None:
        """The pixels that a box covers; None if there are none."""
        box = box.in_pixels(image.size, self.scale)
        left = max(0, math.floor(box.x1))
        top = max(0, math.floor(box.y1))
        right = min(image.width, math.ceil(box.x2))
        bottom = min(image.height, math.ceil(box.y2))
        empty = left >= right or top >= bottom
        return None if empty else image.crop((left, top, right, bottom))
