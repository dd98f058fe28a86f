"""The reward `lpips`: 1 minus the LPIPS distance of a picture and its prompt's target picture.

Pictures are RGB at the target's size (`for_comparison`), scaled to [-1, 1]; pairs of one size share a batch, so that no
pair is padded or scaled because of another. `trunk` brings the network; a row without a target is NaN, "cannot score".
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from PIL import Image

from grpokit import Sample, UsageError
from grpokit.images import picture_to_compare, to_rgb
from grpokit.rewards.device import find_device
from grpokit_lpips import trunk

MIN_SIDE = 32
"""Pixels; the trunks shrink a picture so often that less leaves nothing. Smaller sides get their edge repeated."""

RESAMPLING = Image.Resampling.BICUBIC
"""The filter that brings an output to its target's size (with Pillow's antialiasing where it shrinks)."""

Dtype = Literal["float32", "bfloat16", "float64"]


class LPIPSReward:
    """1 - LPIPS (Zhang et al. 2018, version 0.1) of each output and its target; 1 for the same picture.

    Args:
        net: the trunk: "alex" (the paper's choice for comparing), "vgg" or "squeeze".
        device: as torch names it; None: the GPU if there is one.
        batch_size: the most pairs of pictures per call of the network.
        dtype: of the network; "float16" is not offered, since LPIPS divides by 1e-10, which is 0 there.
        weights_path: the trunk's checkpoint; None: torch's download cache.
        clip: bring scores below 0, which very different pictures can have, to 0.

    Raises:
        UsageError: a parameter cannot be used, or the trunk's weights are not there.
    """

    def __init__(
        self,
        *,
        net: trunk.Net = "alex",
        device: str | None = None,
        batch_size: int = 16,
        dtype: Dtype = "float32",
        weights_path: str | Path | None = None,
        clip: bool = False,
    ) -> None:
        for name, value, known in (("net", net, get_args(trunk.Net)), ("dtype", dtype, get_args(Dtype))):
            if value not in known:
                raise UsageError(f"lpips: {name} must be one of {', '.join(known)}, got {value!r}.")
        if batch_size < 1:
            raise UsageError(f"lpips: batch_size must be at least 1, got {batch_size}.")
        self.device = find_device(device, reward="lpips")
        self.batch_size = batch_size
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.clip = clip
        self.model = trunk.build(net, weights_path).to(self.device, self.dtype)

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples.

        Args:
            samples: B samples whose outputs are pictures.

        Returns:
            B scores, at most 1; NaN where the prompt has no target.

        Raises:
            RewardError: an output is not a picture.
            DataError: a target is not a picture.
        """
        scores = [math.nan] * len(samples)
        pictures = [to_rgb(s.output, what=f"the output of row {row} (reward 'lpips')") for row, s in enumerate(samples)]
        targets: dict[int, Image.Image] = {}  # by the identity of the picture that a group's prompts share
        same_size: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row, sample in enumerate(samples):
            target = sample.prompt.target
            if target is None:
                continue
            if id(target) not in targets:
                text = sample.prompt.text
                targets[id(target)] = picture_to_compare(target, text, row, role="target", reward="lpips")
            same_size[targets[id(target)].size].append(row)
        for size, rows in same_size.items():
            for start in range(0, len(rows), self.batch_size):
                part = rows[start : start + self.batch_size]
                outputs = [
                    pictures[i] if pictures[i].size == size else pictures[i].resize(size, RESAMPLING) for i in part
                ]
                distances = self._distances(outputs, [targets[id(samples[i].prompt.target)] for i in part])
                for i, distance in zip(part, distances, strict=True):
                    scores[i] = max(0.0, 1.0 - distance) if self.clip else 1.0 - distance
        return scores

    def _distances(self, outputs: Sequence[Image.Image], targets: Sequence[Image.Image]) -> list[float]:
        with torch.inference_mode(), torch.autocast(self.device.type, enabled=False):
            distances: torch.Tensor = self.model(self._tensor(outputs), self._tensor(targets))  # [b, 1, 1, 1]
        return distances.flatten().double().tolist()

    def _tensor(self, pictures: Sequence[Image.Image]) -> torch.Tensor:
        """[b, 3, h, w] in [-1, 1]."""
        width, height = pictures[0].size
        down, right = max(0, MIN_SIDE - height), max(0, MIN_SIDE - width)
        missing = [(0, 0), (0, down), (0, right), (0, 0)]
        stack = np.stack([np.asarray(picture) for picture in pictures])
        pixels = np.pad(stack, missing, mode="edge")  # [b, h, w, 3]
        whole = torch.from_numpy(pixels).to(self.device).permute(0, 3, 1, 2)  # [b, h, w, 3] -> [b, 3, h, w]
        exact = whole.to(torch.promote_types(self.dtype, torch.float32))  # bfloat16 cannot hold all 256 values
        return (exact / 127.5 - 1).to(self.dtype).contiguous()
