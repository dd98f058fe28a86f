"""Whether a policy's outputs have become one, whatever the prompt: blank pictures, or one answer to every question.

A score may rise by that, and no other score need fall.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from grpokit.report.pictures import picture_of
from grpokit.report.samples import by_prompt
from grpokit.run_folder.names import SAMPLES
from grpokit.run_folder.reader import Row, RunHistory

_PROMPTS = 4  # fewer may have the same output by chance
_SHARE = 0.9  # of the outputs that are alike
_SIDE, _LEVELS = 16, 8  # pictures of so many pixels a side look alike if no colour differs by more

Seen = str | np.ndarray | None


def sameness(run: RunHistory) -> str:
    """How many held-out outputs of the last evaluation are alike though their prompts differ; empty if few are.

    Texts count only where their targets differ: elsewhere one answer may be right, as the same return in all episodes.
    """
    folders = run.sample_folders(SAMPLES)
    if not folders:
        return ""
    step, folder = folders[-1]
    outputs = []
    targets = []
    for row in _one_of_each_prompt(folder):
        output = _seen(folder, row, "file", "output")
        if output is not None:
            outputs.append(output)
            targets.append(_seen(folder, row, "target", "target_text"))
    same = _alike(outputs)
    needed = _SHARE * len(outputs)
    if len(outputs) < _PROMPTS or same < needed or _alike(targets) >= needed:
        return ""
    if _has_text(outputs) and not _has_text(targets):
        return ""
    return f"{same} of {len(outputs)} held-out samples after step {step} are alike, though their prompts differ"


def _has_text(parts: Sequence[Seen]) -> bool:
    return any(isinstance(part, str) for part in parts)


def _one_of_each_prompt(folder: Path) -> list[Row]:
    """The first sample of each text and source."""
    first: dict[tuple[str, bytes], Row] = {}
    for (prompt, _), row in by_prompt(folder).items():
        source = _picture(folder, row, "source")
        first.setdefault((prompt, b"" if source is None else source.tobytes()), row)
    return [*first.values()]


def _seen(folder: Path, row: Row, picture: str, text: str) -> Seen:
    """A part of a row, which is a picture or a text; None where it has none."""
    if row.get(picture):
        return _picture(folder, row, picture)
    return str(row[text]).strip() if text in row else None


def _picture(folder: Path, row: Row, part: str) -> np.ndarray | None:
    """A small copy [_SIDE, _SIDE, 3] of a picture; None where it cannot be read."""
    picture = picture_of(folder, row, part)
    if picture is None:
        return None
    small = picture.resize((_SIDE, _SIDE), Image.Resampling.BOX)
    return np.asarray(small, int)


def _alike(parts: Sequence[Seen]) -> int:
    """The most that are alike: texts to the letter, pictures up to what an eye does not see."""
    texts = Counter(part for part in parts if isinstance(part, str))
    pictures = [part for part in parts if isinstance(part, np.ndarray)]
    same = max(texts.values(), default=0)
    if pictures:
        stack = np.stack(pictures)  # [n, _SIDE, _SIDE, 3]
        difference = np.abs(stack - np.median(stack, 0))
        furthest = difference.max((1, 2, 3))
        same = max(same, int((furthest <= _LEVELS).sum()))
    return same
