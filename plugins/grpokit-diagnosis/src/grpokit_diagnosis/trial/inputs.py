"""Reads what is tried: words of a command line that name pictures, folders, records or files of text, or are texts."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from grpokit import DataError, Prompt, UsageError
from grpokit.errors import on_one_line
from grpokit.evaluation.sample_files import SAMPLES, Entry, find_samples, is_table
from grpokit.files import read_text
from grpokit.images import is_picture_name, open_picture

MOST_SAMPLES = 100
"""More are a matter for `grpokit evaluate`."""

_PARAMETER = re.compile(r"[A-Za-z_][\w.-]*=")
_FILES = (".txt", ".md", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")  # that a word may be meant to name
_TEXT = 2**20  # bytes of a file of text


@dataclass(frozen=True, kw_only=True)
class Given:
    """A sample with the others that belong to its prompt.

    Attributes:
        entry: the sample.
        group: the same for all samples of one prompt.
    """

    entry: Entry
    group: tuple[int, int]


def is_parameter(word: str) -> bool:
    """Whether a word of the command line is `key=value`, and names no file."""
    return _PARAMETER.match(word) is not None and not os.path.exists(word)


def read_prompt(prompt: str | None, target: str | None, source: Path | None, max_pixels: int) -> Prompt | None:
    """The prompt of the options; None without any.

    Raises:
        UsageError: a file cannot be read.
    """
    if prompt is None and target is None and source is None:
        return None
    image = None if source is None else _picture(source, "--source", max_pixels)
    return Prompt(prompt or "", target=None if target is None else _target(target, max_pixels), image=image)


def _picture(path: Path, option: str, max_pixels: int) -> Image.Image:
    if not os.path.isfile(path):
        raise DataError(f"{option}: there is no file {path} (looked in {Path.cwd()}).")
    return open_picture(path, where=option, max_pixels=max_pixels)


def _target(word: str, max_pixels: int) -> Any:
    """A picture, the content of a file of text, or the word itself."""
    path = Path(word)
    if is_picture_name(word):
        return _picture(path, "--target", max_pixels)
    if os.path.isfile(word):
        return read_text(path, kind="target", error=DataError, most=_TEXT).strip()
    return word


def samples_of(words: Sequence[str], prompt: Prompt | None, *, max_pixels: int) -> list[Given]:
    """List the samples that words name; pictures are not opened yet.

    Args:
        words: each is a picture, a folder of pictures, a table of records, a file of text, or a text.
        prompt: of all of them; records have their own.
        max_pixels: a picture with more is refused.

    Raises:
        DataError: a file is missing, or not as expected.
        UsageError: there is nothing, or there are too many samples.
    """
    given: list[Given] = []
    for place, word in enumerate(words, 1):
        table = _is_table(word)
        for entry in _entries(word, prompt, max_pixels):
            group = (place, entry.group) if table else (0, 0)  # all that is no record has the same prompt
            given.append(Given(entry=entry, group=group))
    if len(given) > MOST_SAMPLES:
        raise UsageError(
            f"{len(given):,} samples; `grpokit try` shows at most {MOST_SAMPLES}. `grpokit evaluate FILES --reward "
            "NAME` scores any number."
        )
    return given


def _is_table(word: str) -> bool:
    return is_table(Path(word)) or (os.path.isdir(word) and (Path(word) / SAMPLES).is_file())


def _entries(word: str, prompt: Prompt | None, max_pixels: int) -> list[Entry]:
    if is_picture_name(word) or os.path.isdir(word) or _is_table(word):
        return find_samples(Path(word), prompt=prompt, max_pixels=max_pixels)
    text = word
    where = f'"{on_one_line(word, most=40)}"'
    if os.path.exists(word) or (word.lower().endswith(_FILES) and " " not in word):
        text = read_text(Path(word), kind="text", error=DataError, most=_TEXT)
        where = word
    only = prompt or Prompt("")
    return [Entry(where=where, output=text, stored=only, prompt=lambda: only, group=0)]


def frames(given: Given) -> int:
    """How many pictures a file has that was opened before, of which the first is scored; 1 for a text."""
    if not isinstance(given.entry.output, Path):
        return 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the user has raised the limit
        with Image.open(given.entry.output) as picture:
            return getattr(picture, "n_frames", 1)
