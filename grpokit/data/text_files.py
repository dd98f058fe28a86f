"""Prompts from text files and JSON lines, with pictures beside them.

A message names the file and the line. Pictures are found, and their headers read, before a run begins.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from grpokit import files
from grpokit.data.sequences import PromptSequence, Row, Rows
from grpokit.errors import DataError, counted, one_line, shown
from grpokit.images import MAX_PIXELS, PICTURES, check_picture, other_pictures, to_convert

_REMEDY = "Run the command in the folder that holds it, or give its path."


def read_text(
    path: Path, *, targets: Path | None = None, images: Path | None = None, max_pixels: int = MAX_PIXELS
) -> PromptSequence:
    """Read one prompt per line; empty lines are skipped.

    Args:
        path: a UTF-8 text file.
        targets: folder with one picture per prompt, named by the prompt's line number from 1: `1.png`, `0002.jpg`.
        images: folder with the source pictures of an editing task, named likewise.
        max_pixels: a picture with more is refused.

    Raises:
        DataError: a file is missing, not text or empty, or a line has no picture, or a file that is none.
    """
    lines = _lines(path)
    target_pictures = _numbered(targets) if targets else None
    source_pictures = _numbered(images) if images else None
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            rows.append(
                Row(
                    text=line.strip(),
                    target=next(iter(_pictures(target_pictures, targets, number, path, max_pixels)), None),
                    images=_pictures(source_pictures, images, number, path, max_pixels),
                    where=f"{path}, line {number}",
                )
            )
    if not rows:
        raise DataError(f"{path} holds no prompt: expected one per line.")
    return Rows(rows, max_pixels=max_pixels)


def read_jsonl(path: Path, *, problems: dict[int, str] | None = None, max_pixels: int = MAX_PIXELS) -> PromptSequence:
    """Read one JSON object per line with `prompt`, optional `target` and `image` or `images`; other keys go to `meta`.

    `image`, those in the list `images`, and a `target` that ends like a picture's file name, are paths relative to the
    file's folder; any other target is a text.

    Args:
        path: a UTF-8 text file.
        problems: takes line number -> what is wrong with it; such lines are then left out instead of being an error.
        max_pixels: a picture with more is refused.

    Raises:
        DataError: a file is missing, a line is no JSON object or lacks `prompt`, a picture is missing or is none.
    """
    rows = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            rows.append(_from_line(line, path.parent, f"{path}, line {number}", max_pixels))
        except DataError as error:
            if problems is None:
                raise
            problems[number] = str(error)
    if not rows and not problems:
        raise DataError(f"{path} holds no prompt: expected one JSON object per line.")
    return Rows(rows, max_pixels=max_pixels)


def _from_line(line: str, folder: Path, where: str, max_pixels: int) -> Row:
    try:
        row = json.loads(line, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error.msg} at column {error.colno}).") from error
    except (ValueError, RecursionError) as error:  # a repeated key, a number too long for Python, deep nesting
        raise DataError(f"{where}: cannot be read: {error}.") from error
    if not isinstance(row, dict):
        raise DataError(f'{where}: expected an object like {{"prompt": ...}}, got {line[:40]!r}.')
    return _from_mapping(row, folder, where, max_pixels)


def _lines(path: Path) -> list[str]:
    """Lines as an editor counts them: `splitlines` would also cut at U+2028 and other separators inside a text."""
    text = files.read_text(path, kind="text file", error=DataError, remedy=_REMEDY)
    lines = text.split("\n")
    binary = next((number for number, line in enumerate(lines, 1) if "\0" in line), None)
    if binary is not None:
        raise DataError(
            f"{path}, line {binary}, holds a NUL byte: expected UTF-8 text. Is it a picture, an archive or UTF-16?"
        )
    return lines


def _numbered(folder: Path) -> dict[int, Path]:
    """Line number -> picture, for the pictures in `folder` that are named by a number."""
    try:
        places = sorted(folder.iterdir())
    except NotADirectoryError as error:
        raise DataError(f"{folder} is a file; expected a folder of pictures named by line number.") from error
    except FileNotFoundError as error:
        raise DataError(
            f"The folder {folder} does not exist (looked in {Path.cwd()}). Expected in it a picture for each line of "
            f"the prompts: 1.png, 2.jpg, ... {_REMEDY}"
        ) from error
    except (OSError, ValueError) as error:  # the second: a name that no folder can have
        raise DataError(f"The folder {shown(str(folder), most=1000)} cannot be read: {one_line(error)}.") from error
    pictures: dict[int, Path] = {}
    for path in places:
        if path.suffix.lower() in PICTURES and path.stem.isdecimal():
            other = pictures.setdefault(int(path.stem), path)
            if other != path:
                raise DataError(f"Both {other} and {path} are for line {int(path.stem)}; keep one.")
    return pictures


def _pictures(
    pictures: dict[int, Path] | None, folder: Path | None, number: int, prompts: Path, max_pixels: int
) -> list[Path]:
    """The picture of a line, in a list; an empty one where no folder was given."""
    if pictures is None or folder is None:
        return []
    if number not in pictures:
        hint = " Numbering starts at 1, but there is a file for 0." if 0 in pictures else ""
        others = [path for path in other_pictures(folder) if path.stem.isdecimal() and int(path.stem) == number]
        hint += f" {to_convert(others)}." if others else ""
        raise DataError(
            f"{prompts}, line {number}, has no picture in {folder}: expected {number}.png (or .jpg, .jpeg, .webp). "
            f"The folder has {counted(len(pictures), 'numbered picture')}.{hint}"
        )
    check_picture(pictures[number], where=f"{prompts}, line {number}", max_pixels=max_pixels)
    return [pictures[number]]


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in pairs:
        if key in row:
            raise ValueError(f"the key {shown(key)} appears twice")
        row[key] = value
    return row


def _from_mapping(row: dict[str, Any], folder: Path, where: str, max_pixels: int) -> Row:
    row = dict(row)
    if "prompt" not in row:
        keys = shown(", ".join(row), most=200)[1:-1]
        raise DataError(f"{where}: the key 'prompt' is missing (keys: {keys or 'none'}).")
    text, target = row.pop("prompt"), row.pop("target", None)
    image, images = row.pop("image", None), row.pop("images", None)
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{where}: the prompt is {shown(text)}; expected a text that is not empty.")
    for role, value in (("prompt", text), ("target", target)):
        if isinstance(value, str) and not _writable(value):
            raise DataError(f"{where}: the {role} {shown(value)} has half a surrogate pair, which no file can hold.")
    if image is not None and images is not None:
        raise DataError(f"{where} has both image and images; put all pictures into images.")
    if not isinstance(images, (list, type(None))):
        raise DataError(f"{where}: images is {shown(images)}; expected a list of file names.")
    named = [("image", image)] if image is not None else [(f"image {n}", x) for n, x in enumerate(images or (), 1)]
    paths = [_existing(folder, name, f"{where}: {what}", max_pixels) for what, name in named]
    if isinstance(target, str) and target.lower().endswith(PICTURES):
        target = _existing(folder, target, f"{where}: target", max_pixels)
    return Row(text=text, target=target, images=paths, meta=row, where=where)


def _writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _existing(folder: Path, name: Any, where: str, max_pixels: int) -> Path:
    if not isinstance(name, str) or not name:
        raise DataError(f"{where} is {shown(name)}; expected a file name.")
    path = folder / name
    if not os.path.exists(path):  # unlike Path.exists, it is False for a name that no file can have
        raise DataError(f"{where}: the file {shown(str(path), most=1000)[1:-1]} does not exist.")
    check_picture(path, where=where, max_pixels=max_pixels)
    return path
