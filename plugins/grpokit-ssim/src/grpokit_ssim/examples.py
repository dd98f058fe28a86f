"""Pairs (better, worse) for `ssim`, `mse` and `structure`: drawn scenes, for their documentation and their checks."""

from __future__ import annotations

from typing import Any

from PIL import Image, ImageChops, ImageDraw, ImageFilter

Pairs = list[tuple[dict[str, Any], dict[str, Any]]]


def targets() -> Pairs:
    """The scene as it should be against one blurred, one shifted and one with other colours, and less against more."""
    scene = _scene()
    return [
        ({"prompt": _PROMPT, "target": scene, "output": better}, {"prompt": _PROMPT, "target": scene, "output": worse})
        for better, worse in _outputs(scene)
    ]


def sources() -> Pairs:
    """The scene with the asked change against changes beyond it."""
    scene = _scene()
    edited = scene.copy()
    ImageDraw.Draw(edited).rectangle((44, 34, 51, 47), fill="firebrick")
    prompt = "paint the door red"
    outputs = [(edited, edited.filter(ImageFilter.GaussianBlur(3))), (edited, ImageChops.offset(edited, 9, 0))]
    return [
        ({"prompt": prompt, "image": scene, "output": better}, {"prompt": prompt, "image": scene, "output": worse})
        for better, worse in outputs
    ]


_PROMPT = "a house under the sun"


def _outputs(scene: Image.Image) -> list[tuple[Image.Image, Image.Image]]:
    soft, softer = (scene.filter(ImageFilter.GaussianBlur(radius)) for radius in (1, 4))
    return [(scene, soft), (soft, softer), (scene, ImageChops.offset(scene, 4, 0)), (scene, ImageChops.invert(scene))]


def _scene() -> Image.Image:
    picture = Image.new("RGB", (72, 56), "lightblue")
    draw = ImageDraw.Draw(picture)
    draw.ellipse((6, 4, 20, 18), fill="gold")
    draw.rectangle((0, 44, 71, 55), fill="olivedrab")
    draw.rectangle((30, 24, 64, 47), fill="burlywood")
    draw.polygon([(26, 24), (47, 10), (68, 24)], fill="brown")
    draw.rectangle((44, 34, 51, 47), fill="saddlebrown")
    return picture
