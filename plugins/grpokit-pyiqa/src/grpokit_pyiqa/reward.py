"""The reward `pyiqa`: `scoring` with pictures as grpokit's rewards see them.

Outputs and targets become upright RGB, transparent parts on white. An output is compared at its target's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from PIL import Image

from grpokit import Sample, UsageError
from grpokit.images import picture_to_compare, to_rgb
from grpokit.rewards.device import find_device
from grpokit_pyiqa.scoring import Metric, MetricError


class PyIQAReward:
    """A metric of pyiqa as it is, except that a distance counts negative: higher is always better.

    Args:
        metric: as `pyiqa.list_models()` names it, such as "topiq_nr" or "piqe". Those for sets of pictures, such as
            "fid", are refused.
        device: as torch names it; None: the GPU if there is one.

    Raises:
        UsageError: there is no such metric, it cannot be built, or its weights are not there.
    """

    def __init__(self, *, metric: str, device: str | None = None) -> None:
        place = find_device(device, reward="pyiqa")
        try:
            self.metric = Metric(metric, place)
        except MetricError as error:
            raise UsageError(f"pyiqa: {error}", page="image-quality") from error

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples.

        Args:
            samples: B samples whose outputs are pictures.

        Returns:
            B scores; NaN where the metric compares and the prompt has no target, or where pyiqa gives NaN.

        Raises:
            RewardError: an output is not a picture.
            DataError: a target is not a picture.
            UsageError: the pictures are too small for the metric.
        """
        targets: dict[int, Image.Image] = {}  # by the identity of the picture that a group's prompts share
        prepared = []
        for row, sample in enumerate(samples):
            picture = to_rgb(sample.output, what=f"the output of row {row} (reward 'pyiqa')")
            prompt = sample.prompt
            if self.metric.needs_target and prompt.target is not None:
                key = id(prompt.target)
                if key not in targets:
                    targets[key] = picture_to_compare(prompt.target, prompt.text, row, role="target", reward="pyiqa")
                prompt = replace(prompt, target=targets[key])
            prepared.append(replace(sample, output=picture, prompt=prompt))
        try:
            return self.metric(prepared)
        except MetricError as error:
            raise UsageError(f"pyiqa: {error}", page="image-quality") from error
