"""Pairs (better, worse) for `ssim`, `mse` and `structure`: drawn scenes, for their documentation and their checks."""

from __future__ import annotations

from typing import Any

from PIL import Image, ImageChops, ImageDraw, ImageFilter

Pairs = list[tuple[dict[str, Any], dict[str, Any]]]


def targets() -> Pairs:
    """The scene as it should be against one blurred, one shifted and one with other colours, and less against more."""
    scene = _scene()
    prompt = {"prompt": _PROMPT, "target": scene}
    return [({**prompt, "output": better}, {**prompt, "output": worse}) for better, worse in _outputs(scene)]


def sources() -> Pairs:
    """The scene with the asked change against changes beyond it."""
    scene = _scene()
    edited = scene.copy()
    ImageDraw.Draw(edited).rectangle((44, 34, 51, 47), fill="firebrick")
    prompt = {"prompt": "paint the door red", "image": scene}
    blurred = edited.filter(ImageFilter.GaussianBlur(3))
    shifted = ImageChops.offset(edited, 9, 0)
    return [({**prompt, "output": edited}, {**prompt, "output": worse}) for worse in (blurred, shifted)]


_PROMPT = "a house under the sun"


def _outputs(scene: Image.Image) -> list[tuple[Image.Image, Image.Image]]:
    soft = scene.filter(ImageFilter.GaussianBlur(1))
    softer = scene.filter(ImageFilter.GaussianBlur(4))
    shifted = ImageChops.offset(scene, 4, 0)
    return [(scene, soft), (soft, softer), (scene, shifted), (scene, ImageChops.invert(scene))]


def _scene() -> Image.Image:
    picture = Image.new("RGB", (72, 56), "lightblue")
    draw = ImageDraw.Draw(picture)
    draw.ellipse((6, 4, 20, 18), fill="gold")
    draw.rectangle((0, 44, 71, 55), fill="olivedrab")
    draw.rectangle((30, 24, 64, 47), fill="burlywood")
    draw.polygon([(26, 24), (47, 10), (68, 24)], fill="brown")
    draw.rectangle((44, 34, 51, 47), fill="saddlebrown")
    return picture
