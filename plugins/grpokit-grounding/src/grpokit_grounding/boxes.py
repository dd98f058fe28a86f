"""Boxes: read from a list or a JSON text, and compared by intersection over union.

Pure Python, so that every number can be checked by hand. Whether the right and lower edge belong to a box is a
convention that data sets differ in; it is said where a box is read, and never guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Edges = Literal["exclusive", "inclusive"]
"""What x2 and y2 are: "exclusive", the first coordinate outside (width x2 - x1); "inclusive", the last pixel inside
(width x2 - x1 + 1)."""

KEYS = ("bbox_2d", "bbox", "box")
"""Names under which a JSON object may hold its box."""

LARGEST = 1e9
"""Coordinates beyond it belong to no picture, and their areas would leave the exact numbers."""

_OPENING = re.compile(r'\[|\{\s*"')


@dataclass(frozen=True, kw_only=True)
class Box:
    """A rectangle whose left upper corner is (x1, y1); (x2, y2) is the first place outside; y points down."""

    x1: float
    y1: float
    x2: float
    y2: float

    @property
    def area(self) -> float:
        """Width times height."""
        return (self.x2 - self.x1) * (self.y2 - self.y1)

    def in_pixels(self, size: tuple[int, int], scale: float | None) -> Box:
        """The box in pixels of a picture.

        Args:
            size: the picture's width and height.
            scale: what both count as in this box, such as 1000; None: it is in pixels already.
        """
        if scale is None:
            return self
        across, down = size[0] / scale, size[1] / scale
        x1, x2 = self.x1 * across, self.x2 * across
        y1, y2 = self.y1 * down, self.y2 * down
        return Box(x1=x1, y1=y1, x2=x2, y2=y2)


def read_box(value: Any, edges: Edges) -> Box:
    """Return the one box that a list of four numbers, or the JSON in a text, holds.

    In JSON the list may stand in an object under one of `KEYS` (others of its keys are not looked at), and list or
    object may be the only entry of a list, as vision-language models write them. Around it may be a code fence, LaTeX
    and words.

    Args:
        value: the list, tuple or text.
        edges: what its x2 and y2 are.

    Raises:
        ValueError: it is no box; the message says why and starts with a small letter.

    >>> read_box("[10, 20, 30, 40]", "exclusive")
    Box(x1=10.0, y1=20.0, x2=30.0, y2=40.0)
    >>> read_box('[{"bbox_2d": [1, 2, 3.5, 4], "label": "cup"}]', "exclusive")
    Box(x1=1.0, y1=2.0, x2=3.5, y2=4.0)
    >>> read_box("```json\\n[10, 20, 30, 40]\\n```", "inclusive")
    Box(x1=10.0, y1=20.0, x2=31.0, y2=41.0)
    """
    found = _unwrapped(value) if isinstance(value, str) else value
    if not isinstance(found, Sequence) or isinstance(found, (str, bytes)):
        raise ValueError(f"it is a {type(found).__name__}, not a list")
    if len(found) != 4:
        raise ValueError(f"it has {len(found)} entries")
    for name, x in zip(("x1", "y1", "x2", "y2"), found, strict=True):
        if isinstance(x, bool) or not isinstance(x, (int, float)):
            raise ValueError(f"its {name} is a {type(x).__name__}, not a number")
        if not abs(x) <= LARGEST:  # written this way so that NaN is refused too
            raise ValueError(f"its {name} is not a number between -{LARGEST:,.0f} and {LARGEST:,.0f}")
    x1, y1, x2, y2 = map(float, found)
    if x2 < x1 or y2 < y1:
        raise ValueError("its second corner is not right of and below its first; a width and a height are none")
    more = 1 if edges == "inclusive" else 0
    box = Box(x1=x1, y1=y1, x2=x2 + more, y2=y2 + more)
    if not box.area > 0:
        raise ValueError(f"it is empty (with {edges} edges)")
    return box


def iou(a: Box, b: Box) -> float:
    """Intersection over union of two boxes that are not empty, in [0, 1].

    >>> iou(Box(x1=0, y1=0, x2=4, y2=4), Box(x1=2, y1=2, x2=6, y2=6)) == 4 / 28
    True
    """
    width = min(a.x2, b.x2) - max(a.x1, b.x1)
    height = min(a.y2, b.y2) - max(a.y1, b.y1)
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    return shared / (a.area + b.area - shared)


def _unwrapped(text: str) -> Any:
    """What is between the first and the last bracket of a text; two boxes there are no JSON."""
    text = text.replace(r"\[", "").replace(r"\]", "")  # LaTeX
    opening = _OPENING.search(text)
    start = opening.start() if opening else 0
    end = text.rfind("]" if text[start:].startswith("[") else "}") + 1
    try:
        found = json.loads(text[start:end])
    except (ValueError, RecursionError) as error:  # the second: thousands of brackets
        raise ValueError("it is not JSON") from error
    if isinstance(found, list) and len(found) == 1:
        found = found[0]
    if isinstance(found, dict):
        present = [key for key in KEYS if key in found]
        if len(present) != 1:
            raise ValueError(f"its object should have one of the keys {', '.join(KEYS)}, and has {len(present)}")
        found = found[present[0]]
    return found
