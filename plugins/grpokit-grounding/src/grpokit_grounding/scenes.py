"""Synthetic scenes: pictures of 64 x 64 pixels with two to four shapes, and a phrase that names exactly one of them.

All of a scene follows from its split and its number, so nothing is downloaded. They are made for the preset
`grounding-scenes`: small enough to learn on a CPU, and no measure of how well a model finds things in photographs.
"""

from __future__ import annotations

import itertools
import math
import random
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from grpokit import Prompt, Sample, UsageError

SIZE = 64
"""Pixels of a picture's side."""

COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (215, 40, 40),
    "green": (40, 160, 60),
    "blue": (50, 80, 215),
    "orange": (245, 150, 30),
}
SMALLEST, LARGEST = 11, 24
"""Pixels of a shape's side."""

SPLITS = {"train": 2000, "eval": 167, "pretrain": 8000}
"""Scenes of each split. Which one a scene belongs to follows from its shapes, so no scene is in two."""

EXTREMES = ("largest", "smallest")

_DIFFERENCE = 3  # pixels by which the largest of some shapes is larger than the next
_BACKGROUND, _NOISE = 232, 6.0  # of 255; the deviation of the noise

Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A shape in a picture; its box has exclusive edges and touches the shape on all four sides."""

    colour: str
    form: str
    x: int
    y: int
    side: int

    @property
    def box(self) -> tuple[int, int, int, int]:
        """[x1, y1, x2, y2] in pixels."""
        return self.x, self.y, self.x + self.side, self.y + self.side


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Shapes, which of them is meant, and the phrase that says so."""

    shapes: tuple[Shape, ...]
    target: Shape
    phrase: str


def mask(form: str, width: int, height: int) -> Mask:
    """Which pixels of a box a form fills, [height, width]: it touches all four sides.

    >>> mask("cross", 3, 3).astype(int).tolist()
    [[0, 1, 0], [1, 1, 1], [0, 1, 0]]
    """
    across = (np.arange(width) + 0.5) / width
    down = (np.arange(height) + 0.5) / height
    v, u = np.meshgrid(down, across, indexing="ij")
    return FORMS[form](u, v)


def _triangle(u: NDArray[np.float64], v: NDArray[np.float64]) -> Mask:
    off_centre = np.abs(u - 0.5)
    inside: Mask = off_centre <= np.maximum(v / 2, off_centre.min())  # its tip is a pixel or two wide
    return inside


FORMS: Mapping[str, Callable[[NDArray[np.float64], NDArray[np.float64]], Mask]] = {
    "circle": lambda u, v: (u - 0.5) ** 2 + (v - 0.5) ** 2 <= 0.25,
    "square": lambda u, v: np.ones_like(u, dtype=bool),
    "triangle": _triangle,
    "cross": lambda u, v: (abs(u - 0.5) < 1 / 6) | (abs(v - 0.5) < 1 / 6),
}
"""Forms by name: functions of a pixel's place across and down its box, both in (0, 1)."""

RELATIONS: Mapping[str, Callable[[Shape, Shape], int]] = {
    "left of": lambda a, b: b.x - (a.x + a.side),
    "right of": lambda a, b: a.x - (b.x + b.side),
    "above": lambda a, b: b.y - (a.y + a.side),
    "below": lambda a, b: a.y - (b.y + b.side),
}
"""Relations of a shape to another, as the gap in pixels between their boxes: there is one where it is not negative."""


def matching(phrase: str, shapes: Sequence[Shape]) -> list[Shape]:
    """The shapes that a phrase may name.

    Args:
        phrase: such as "the red circle", "the largest square" or "the red circle left of the cross".
        shapes: of a scene.

    >>> small, large = (Shape(colour="red", form="circle", x=x, y=9, side=12) for x in (2, 40))
    >>> matching("the red circle", [small, large]) == [small, large]
    True
    """
    first, relation, other = re.fullmatch(rf"(.*?)(?: ({'|'.join(RELATIONS)}) (.*))?", phrase).groups()  # type: ignore[union-attr]
    extreme, colour, form = described(first)
    found = [shape for shape in shapes if shape.form == form]
    if colour:
        found = [shape for shape in found if shape.colour == colour]
    if extreme:
        found.sort(key=lambda shape: shape.side, reverse=extreme == "largest")
        return [shape for shape in found if abs(shape.side - found[0].side) < _DIFFERENCE]
    if relation:
        others = matching(other, shapes)
        found = [shape for shape in found if any(_holds(relation, shape, each) for each in others)]
    return found


def _holds(relation: str, a: Shape, b: Shape) -> bool:
    """Whether one shape stands in a relation to another, if they overlap by less than half of the smaller one."""
    return RELATIONS[relation](a, b) > -min(a.side, b.side) / 2


def described(phrase: str) -> tuple[str | None, str | None, str | None]:
    """What the first noun of a phrase says: "largest" or "smallest", a colour and a form; None where it says nothing.

    >>> described("the red circle left of the cross"), described("the largest square")
    ((None, 'red', 'circle'), ('largest', None, 'square'))
    """
    words = rf"\bthe(?: (largest|smallest))?(?: ({'|'.join(COLOURS)}))? ({'|'.join(FORMS)})\b"
    found = re.search(words, phrase)
    return (None, None, None) if found is None else (found[1], found[2], found[3])


def scenes(split: str, limit: int | None = None) -> Iterator[Scene]:
    """The scenes of a split.

    Args:
        split: "train", "eval" or "pretrain".
        limit: only the first so many; None for all.

    Raises:
        UsageError: there is no such split.
    """
    if split not in SPLITS:
        raise UsageError(f"There is no split {split!r} of scenes: {', '.join(SPLITS)}.")
    wanted = list(SPLITS).index(split)
    size = SPLITS[split]
    for number in range(size if limit is None else min(limit, size)):
        draw = random.Random(f"{split} {number}")
        found = None
        while found is None or _part(found.shapes) != wanted:
            found = _scene(draw)
        yield found


def _part(shapes: Sequence[Shape]) -> int:
    """The split that shapes belong to, whatever the phrase."""
    words = repr(sorted(map(repr, shapes)))
    return zlib.crc32(words.encode()) % len(SPLITS)


def _scene(draw: random.Random) -> Scene | None:
    """A scene in which a shape can be named; None where none can, or there was no room."""
    kinds = [(draw.choice([*COLOURS]), draw.choice([*FORMS])) for _ in range(draw.randint(2, 4))]
    if draw.random() < 0.6:
        kinds[0] = kinds[1]  # twins, which need a relation
    shapes: list[Shape] = []
    for _ in range(100):  # tries to find room
        side = draw.randint(SMALLEST, LARGEST)
        x, y = (draw.randint(1, SIZE - 1 - side) for _ in "xy")
        colour, form = kinds[len(shapes)]
        shape = Shape(colour=colour, form=form, x=x, y=y, side=side)
        if all(_apart(shape, other) for other in shapes):
            shapes.append(shape)
        if len(shapes) == len(kinds):
            break
    else:
        return None
    meant = draw.choice(shapes)
    names = phrases(meant, shapes)
    if not names:
        return None
    return Scene(shapes=tuple(shapes), target=meant, phrase=draw.choice(names))


def _apart(a: Shape, b: Shape) -> bool:
    """Whether there is a pixel between two shapes."""
    return max(gap(a, b) for gap in RELATIONS.values()) >= 1


def phrases(target: Shape, shapes: Sequence[Shape]) -> list[str]:
    """The phrases that name a shape of a scene and no other; none where the scene has two that are too much alike."""
    plain = f"the {target.colour} {target.form}"
    forms = [shape.form for shape in shapes]
    if matching(plain, shapes) == [target]:
        names = [plain]
        if forms.count(target.form) > 1:
            names += [f"the {extreme} {target.form}" for extreme in EXTREMES]
    else:
        others = [shape for shape in shapes if forms.count(shape.form) == 1]
        names = [
            f"{plain} {relation} the {other.form}"
            for (relation, gap), other in itertools.product(RELATIONS.items(), others)
            if gap(target, other) >= 0
        ]
    return [name for name in names if matching(name, shapes) == [target]]


@lru_cache(maxsize=4096)
def picture(scene: Scene) -> Image.Image:
    """The picture of a scene, 64 x 64 in RGB: flat shapes on a light background with noise all over."""
    noise = np.random.default_rng(zlib.crc32(repr(scene.shapes).encode()))
    pixels = np.full((SIZE, SIZE, 3), float(_BACKGROUND))
    for shape in scene.shapes:
        x1, y1, x2, y2 = shape.box
        inside = mask(shape.form, shape.side, shape.side)
        pixels[y1:y2, x1:x2][inside] = COLOURS[shape.colour]
    pixels += noise.normal(0, _NOISE, pixels.shape)
    return Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8))


def prompts(split: str = "train", limit: int | None = None) -> list[Prompt]:
    """The prompts of a split: the phrase, its picture, and the box that is meant as the target.

    Args:
        split: "train", "eval" or "pretrain".
        limit: only the first so many; None for all.

    Raises:
        UsageError: there is no such split.
    """
    made = []
    for scene in scenes(split, limit):
        box = list(scene.target.box)
        made.append(Prompt(text=scene.phrase, image=picture(scene), target=box))
    return made


def fits(samples: Sequence[Sample]) -> list[float]:
    """How well crops show the shape that their prompts describe, and it alone, in [0, 1]; for these scenes only.

    It is the intersection over union of two sets of pixels: those of the crop that have the colour that the prompt
    names, and those that the form would fill if its box were the crop. Where the prompt names no colour, the best one
    counts. Neither the target nor the rest of the picture is looked at, so relations and "the largest" say nothing
    here. A crop narrower than the smallest shape scores 0: inside of a square, it would look like a square.

    Args:
        samples: B of them whose outputs are pictures, as `crop-match` hands them on.

    Returns:
        B scores; NaN where the prompt names no form of these scenes.
    """
    scores = []
    for sample in samples:
        _, colour, form = described(sample.prompt.text)
        scores.append(_fit(sample.output, colour, form))
    return scores


def _fit(crop: Image.Image, colour: str | None, form: str | None) -> float:
    if form is None:
        return math.nan
    if min(crop.size) < SMALLEST:
        return 0.0
    references = np.array([[_BACKGROUND] * 3, *COLOURS.values()], dtype=np.float64)
    pixels = np.asarray(crop.convert("RGB"), dtype=np.float64)
    distances = ((pixels[:, :, None] - references) ** 2).sum(-1)  # [H, W, C]
    nearest = distances.argmin(-1)  # [H, W]
    wanted = mask(form, *crop.size)
    best = 0.0
    for number, name in enumerate(COLOURS, 1):
        if colour in (None, name):
            shown = nearest == number
            best = max(best, float((shown & wanted).sum() / (shown | wanted).sum()))
    return best
