"""What a model that is fitted during a run sees of a picture: numbers, of which its score is a weighted sum.

    pixels  colours, contrast and a tiny thumbnail; needs nothing
    clip    the embedding of CLIP's image tower: what the picture shows, and its style
    lpips   how strongly each channel of the LPIPS trunk answers: textures and edges

The numbers of a picture follow from that picture alone, so that they are the same in every batch and after a resume.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_type_hints

import numpy as np
import torch
from PIL import Image

from grpokit import UsageError
from grpokit.errors import nearest
from grpokit.rewards.device import find_device
from grpokit.settings import problem
from grpokit_likeness.logistic import Array

Kind: TypeAlias = Literal["pixels", "clip", "lpips"]
"""What is looked at."""
Features: TypeAlias = Callable[[Sequence[Image.Image]], Array]
"""n RGB pictures -> their features [n, F]."""

_LUMA = np.array([0.299, 0.587, 0.114])


def features(kind: Kind, *, reward: str, **options: Any) -> Features:
    """A function of RGB pictures that returns their features.

    Args:
        kind: "pixels" (F is 60), "clip" or "lpips".
        reward: the name of the one that learns, for messages.
        options: `weights_path` and `device` of "clip" and "lpips"; `model` and `pretrained` of "clip", as those of the
            reward `clip-score`; `net` of "lpips", as that of the reward `lpips`.

    Raises:
        UsageError: an option is wrong, or a package, weights or the device are missing.
    """
    if kind == "pixels":
        return _pixels
    networks: dict[str, Callable[..., Features]] = {"clip": _clip, "lpips": _lpips}
    _check(options, networks[kind], what=f"the features '{kind}' of '{reward}'")
    try:
        return networks[kind](reward=reward, **options)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"The features '{kind}' of '{reward}' need the Python module '{error.name}', which is not installed. Run: "
            f"pip install 'grpokit-likeness[{kind}]'"
        ) from error


def _check(options: Mapping[str, Any], network: Callable[..., Features], *, what: str) -> None:
    known = {name: kind for name, kind in get_type_hints(network).items() if name not in ("reward", "return")}
    for name, value in options.items():
        if name not in known:
            raise UsageError(f"There is no option '{name}' of {what}{nearest(name, known)}. Known: {', '.join(known)}.")
        mistake = problem(value, known[name])
        if mistake:
            raise UsageError(f"The option '{name}' of {what} {mistake}.")


def _pixels(pictures: Sequence[Image.Image]) -> Array:
    rows = [_pixel_row(picture) for picture in pictures]
    return np.array(rows).reshape(-1, 60)


def _pixel_row(picture: Image.Image) -> Array:
    """Means and spreads of colours, light and vividness, the strength of edges, and a thumbnail: [60]."""
    colours = _levels(picture, 64)
    light = colours @ _LUMA
    vividness = colours.max(-1) - colours.min(-1)
    spreads = [colours.std((0, 1)), light.std(), vividness.std()]
    edges = [np.abs(np.diff(light, axis=axis)).mean() for axis in (0, 1)]
    means = [colours.mean((0, 1)), light.mean(), vividness.mean()]
    thumbnail = _levels(picture, 4)
    parts = [*means, *spreads, *edges, thumbnail]
    return np.concatenate([np.ravel(part) for part in parts])


def _levels(picture: Image.Image, side: int) -> Array:
    """The picture as a square [side, side, 3], from 0 to 1."""
    return np.asarray(picture.resize((side, side), Image.Resampling.BOX), dtype=np.float64) / 255


def _clip(
    *,
    reward: str,
    model: str = "ViT-L-14",
    pretrained: str | None = "openai",
    weights_path: str | Path | None = None,
    device: str | None = None,
) -> Features:
    from grpokit_clip import tower

    place = find_device(device, reward=reward)
    clip = tower.shared(
        model=model, pretrained=pretrained, weights_path=weights_path, device=place, dtype="float32", reward=reward
    )
    return lambda pictures: clip.images(pictures, batch_size=1, reward=reward).numpy()


def _lpips(
    *,
    reward: str,
    net: Literal["alex", "vgg", "squeeze"] = "alex",
    weights_path: str | Path | None = None,
    device: str | None = None,
) -> Features:
    from grpokit_lpips import trunk

    place = find_device(device, reward=reward)
    network: Any = trunk.build(net, weights_path).to(place)

    def means(picture: Image.Image) -> Array:
        pixels = torch.from_numpy(2 * _levels(picture, 256) - 1).permute(2, 0, 1)  # [h, w, 3] -> [3, h, w]
        with torch.inference_mode(), torch.autocast(place.type, enabled=False):
            layers = network.net(network.scaling_layer(pixels[None].float().to(place)))  # [1, C, h, w] each
            return torch.cat([layer.mean((0, 2, 3)) for layer in layers]).double().cpu().numpy()

    return lambda pictures: np.stack([means(picture) for picture in pictures])
