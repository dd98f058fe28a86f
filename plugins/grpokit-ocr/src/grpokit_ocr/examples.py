"""Pairs (better, worse) for the reward `ocr`: drawn signs, for its documentation and its checks."""

from __future__ import annotations

from typing import Any

from PIL import Image, ImageDraw, ImageFont


def pairs() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The quoted text against a wrong letter, too much text, another order of letters, and none."""
    return [(_sign(text, text), _sign(text, drawn)) for text, drawn in _DRAWN]


_DRAWN = (
    ("river", "rivet"),
    ("tea", "tea shop"),
    ("open daily", "daily"),
    ("night market", "thgin tekram"),
    ("lemon", ""),
)


def _sign(text: str, drawn: str) -> dict[str, Any]:
    face = ImageFont.load_default(size=24)
    width = 32 + round(face.getlength(drawn))
    picture = Image.new("RGB", (width, 48), "white")
    ImageDraw.Draw(picture).text((16, 10), drawn, fill="black", font=face)
    return {"prompt": f'a sign that says "{text}"', "output": picture}
