"""What a model of a voter sees of a picture: numbers in which a taste is a weighted sum.

    pixels  colours, contrast and a tiny thumbnail; needs nothing
    clip    the embedding of CLIP's image tower: what the picture shows, and its style
    lpips   how strongly each feature of the LPIPS trunk is there: textures and edges

The numbers of a picture follow from that picture alone, so that they are the same in every batch and after a resume.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from PIL import Image

from grpokit import UsageError, registry
from grpokit.rewards.device import find_device
from grpokit_vote.bradley_terry import Array

Kind: TypeAlias = Literal["pixels", "clip", "lpips"]
Features: TypeAlias = Callable[[Sequence[Image.Image]], Array]
"""A function of n RGB pictures that returns their features [n, F]."""

_SIDE = 64  # pixels, to which `pixels` brings a picture
_TRUNK_SIDE = 256  # the same for `lpips`
_LUMA = np.array([0.299, 0.587, 0.114])


def features(kind: Kind, **options: Any) -> Features:
    """The features of a kind.

    Args:
        kind: "pixels", "clip" or "lpips".
        options: of `Clip` or `Lpips`, such as `weights_path`.

    Raises:
        UsageError: there is no such kind or option, or a package or weights are missing.
    """
    if kind not in get_args(Kind):
        raise UsageError(f"A model of the voter is one of {', '.join(get_args(Kind))}; got {kind!r}.")
    path = f"{__name__}:{kind.capitalize()}"
    return registry.call(path, options, what="model of the voter")  # type: ignore[no-any-return]


class Pixels:
    """60 numbers of colours and composition: means, spreads, contrast, and a thumbnail of 4 x 4."""

    def __call__(self, pictures: Sequence[Image.Image]) -> Array:
        """[n, 60] of n RGB pictures."""
        rows = [_pixel_row(picture) for picture in pictures]
        return np.array(rows).reshape(len(pictures), -1)


def _pixel_row(picture: Image.Image) -> Array:
    colours = _levels(picture.resize((_SIDE, _SIDE), Image.Resampling.BOX))  # [h, w, 3]
    light = colours @ _LUMA
    vividness = colours.max(-1) - colours.min(-1)
    across, down = np.abs(np.diff(light, axis=1)).mean(), np.abs(np.diff(light, axis=0)).mean()
    thumbnail = _levels(picture.resize((4, 4), Image.Resampling.BOX))
    return np.concatenate(
        [
            colours.mean((0, 1)),
            colours.std((0, 1)),
            [light.mean(), light.std(), vividness.mean(), vividness.std(), across, down],
            thumbnail.ravel(),
        ]
    )


def _levels(picture: Image.Image) -> Array:
    """[h, w, 3] from 0 to 1."""
    return np.asarray(picture, dtype=np.float64) / 255


class Clip:
    """Embeddings of length 1 from a CLIP model, which a process shares with `clip-score` and `aesthetic`.

    Args:
        model: open_clip's name of the architecture.
        pretrained: open_clip's name of the weights; None: of a `weights_path` that is no copy of published ones.
        weights_path: a file or a folder with the weights; None: the Hugging Face cache, filled where it lacks them.
        device: as torch names it; None: the GPU if there is one.
        dtype: of the large weights.
    """

    def __init__(
        self,
        *,
        model: str = "ViT-L-14",
        pretrained: str | None = "openai",
        weights_path: str | Path | None = None,
        device: str | None = None,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    ) -> None:
        try:
            from grpokit_clip import tower
        except ModuleNotFoundError as error:
            raise _missing("clip", error) from error
        self._tower = tower.shared(
            model=model,
            pretrained=pretrained,
            weights_path=weights_path,
            device=find_device(device, reward="human-vote"),
            dtype=dtype,
            reward="human-vote",
        )

    def __call__(self, pictures: Sequence[Image.Image]) -> Array:
        """[n, F] of n RGB pictures, F the width of the model."""
        return self._tower.images(pictures, batch_size=1, reward="human-vote").numpy()


class Lpips:
    """The mean of each channel of each layer of the LPIPS trunk, for the whole picture at 256 x 256.

    Args:
        net: "alex" (1,152 channels), "vgg" (1,472) or "squeeze" (2,560).
        weights_path: the trunk's checkpoint; None: torch's download cache.
        device: as torch names it; None: the GPU if there is one.
    """

    def __init__(
        self,
        *,
        net: Literal["alex", "vgg", "squeeze"] = "alex",
        weights_path: str | Path | None = None,
        device: str | None = None,
    ) -> None:
        try:
            from grpokit_lpips import trunk
        except ModuleNotFoundError as error:
            raise _missing("lpips", error) from error
        self._device = find_device(device, reward="human-vote")
        self._network: Any = trunk.build(net, weights_path).to(self._device)

    def __call__(self, pictures: Sequence[Image.Image]) -> Array:
        """[n, F] of n RGB pictures, F the number of channels."""
        rows = [self._row(picture) for picture in pictures]
        return torch.stack(rows).numpy()

    def _row(self, picture: Image.Image) -> torch.Tensor:
        square = picture.resize((_TRUNK_SIDE, _TRUNK_SIDE), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(2 * _levels(square) - 1).permute(2, 0, 1)  # [h, w, 3] -> [3, h, w]
        with torch.inference_mode(), torch.autocast(self._device.type, enabled=False):
            layers = self._network.net(self._network.scaling_layer(pixels[None].float().to(self._device)))
            means = torch.cat([layer.mean((0, 2, 3)) for layer in layers])  # of [1, C, h, w] each -> [F]
        return means.double().cpu()


def _missing(kind: str, error: ModuleNotFoundError) -> UsageError:
    return UsageError(
        f"The model '{kind}' of the voter needs the Python package '{error.name}', which is not installed. Run: pip "
        f"install 'grpokit-vote[{kind}]'"
    )
