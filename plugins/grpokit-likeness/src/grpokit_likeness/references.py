"""A user's own pictures as numbers: those that a head learns from, and those that it never sees."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grpokit import UsageError
from grpokit.images import PICTURES, is_hidden, open_picture, other_pictures, to_convert, to_rgb
from grpokit_likeness.features import Features
from grpokit_likeness.logistic import Array

_FEWEST = 4
_MAX_PIXELS = 150_000_000  # of a picture; none is kept, so that photographs of all cameras may be references


@dataclass(frozen=True, kw_only=True)
class References:
    """Features of pictures.

    Attributes:
        training: [n, F] of those that a head learns from.
        held_out: [m, F] of those that it does not.
        digest: stands for the pictures, for how they were parted, and for F.
    """

    training: Array
    held_out: Array
    digest: str


def read_references(folder: str | Path, features: Features, *, held_out: float, reward: str) -> References:
    """Read the pictures of a folder. Equal ones count once, and which are held out follows from their pixels.

    Args:
        folder: of pictures; other files and folders in it are left alone.
        features: of pictures.
        held_out: the share that is held out; one picture at least.
        reward: its name, for messages.

    Raises:
        UsageError: there is no such folder, or it has too few pictures.
        DataError: a picture cannot be read.
    """
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise UsageError(f"{reward}: there is no folder of references at {folder} (looked in {Path.cwd()}).")
    shown = [file for file in sorted(place.iterdir()) if not is_hidden(file)]
    files = [file for file in shown if file.suffix.lower() in PICTURES]
    rows: dict[str, Array] = {}
    for file in files:
        picture = to_rgb(open_picture(file, max_pixels=_MAX_PIXELS), what=str(file))
        name = hashlib.sha256(f"{picture.size}".encode() + picture.tobytes()).hexdigest()
        if name not in rows:
            (rows[name],) = features([picture])
    held = max(1, round(held_out * len(rows)))
    if len(rows) < _FEWEST or len(rows) - held < 2:
        others = other_pictures(place)
        raise UsageError(
            f"{reward}: {folder} has {len(rows)} different pictures ({', '.join(PICTURES)}), of which {held} would "
            f"be held out. Expected at least {_FEWEST}, and two to learn from: some 20 are a good start."
            f"{f' {to_convert(others)}.' if others else ''}"
        )
    names = sorted(rows)
    vectors = np.stack([rows[name] for name in names])
    digest = hashlib.sha256(f"{held} {vectors.shape[1]} {' '.join(names)}".encode()).hexdigest()
    return References(training=vectors[held:], held_out=vectors[:held], digest=digest)


def distances(ones: Array, others: Array) -> Array:
    """How far each of the ones [n, F] is from each of the others [m, F], in their features: [n, m]."""
    return np.stack([np.linalg.norm(others - one, axis=1) for one in ones])
