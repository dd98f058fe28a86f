"""Pictures as rewards want them: whatever a policy made, as RGB, or a message that says what was wrong.

Pillow's modes differ in what a number means; this is the one place that decides it, so that all rewards see the same.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from PIL import Image

from grpokit.errors import RewardError


@runtime_checkable
class Drawable(Protocol):
    """An output that is no picture and can be shown as one: IPython's display protocol for PNG.

    Notebooks show such an object by themselves; a run keeps the picture for its report.
    """

    def _repr_png_(self) -> bytes:
        """The picture as the bytes of a PNG file."""


def to_rgb(picture: Any, *, what: str = "the output") -> Image.Image:
    """Return a picture as RGB with 8 bits per colour: transparent parts on white, 16-bit gray scaled down.

    Args:
        picture: a `PIL.Image.Image` of any mode but `I` and `F`, in which no number is agreed to be white.
        what: names it in errors, such as "the output of row 3".

    Raises:
        RewardError: it is no picture, has no pixels, or has the mode `I` or `F`.
    """
    if not isinstance(picture, Image.Image):
        raise RewardError(
            f"Expected a PIL.Image.Image as {what}, got {type(picture).__name__}. This reward scores pictures: use it "
            "with a policy that makes images, or convert with Image.fromarray."
        )
    if 0 in picture.size:
        size = f"{picture.width} x {picture.height} pixels"
        raise RewardError(f"Expected a picture with pixels as {what}, got one of {size}.")
    if picture.mode in ("I", "F"):
        raise RewardError(
            f"The picture that is {what} has the mode '{picture.mode}', in which no number is agreed to be white; "
            "expected RGB, RGBA, a palette or gray with 8 or 16 bits. Convert it first, with your own scale."
        )
    if picture.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(picture) // 257).astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        rgba = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return picture.convert("RGB")
