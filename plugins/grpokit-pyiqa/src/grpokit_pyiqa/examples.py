"""Pairs (better, worse) for `pyiqa`: photographs of scikit-image, for its documentation and its checks."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image, ImageFilter
from skimage import data

SIZE = (192, 192)


def pairs() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each photograph against its blurred copy, and against its copy with blocks of JPEG."""
    examples = []
    for photograph in (data.astronaut(), data.coffee()):  # type: ignore[no-untyped-call]
        picture = Image.fromarray(photograph).resize(SIZE)
        blurred = picture.filter(ImageFilter.GaussianBlur(4))
        prompt = {"prompt": "a photograph", "target": picture}
        for worse in (blurred, _blocks(picture)):
            examples.append((prompt | {"output": picture}, prompt | {"output": worse}))
    return examples


def _blocks(picture: Image.Image) -> Image.Image:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=3)
    return Image.open(file).convert("RGB")
