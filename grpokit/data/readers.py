"""Prompts from files of every kind that people have: lines of text, JSON, tables, folders of pictures, and shards.

A message names the file and the line. Pictures are found, and their headers read, before a run begins; those inside
shards and tables when they are asked for.
"""

from __future__ import annotations

import csv
import glob
import io
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from grpokit import files
from grpokit.data import shards
from grpokit.data.roles import Columns, Roles, assigned, parts, read_prompt
from grpokit.data.sequences import PromptSequence, Row, Rows
from grpokit.errors import DataError, counted, one_line, shown
from grpokit.images import MAX_PIXELS, PICTURES, check_picture, is_picture_name, other_pictures, to_convert

_REMEDY = "Run the command in the folder that holds it, or give its path."
_JSON_LINES = (".jsonl", ".ndjson")
_METADATA = ("metadata.jsonl", "metadata.csv")  # of a folder of pictures, as Hugging Face lays it out
_HEADER = re.compile(r"\s*(?=\w+[,;\t|]\w)(?:\w+[,;\t|])*prompt(?:[,;\t|]\w+)*\n")  # of a table, by any name
_Found: TypeAlias = tuple[int, str, dict[str, Any]]  # line from 1, where it is, its columns


def read_prompts(
    path: Path | str,
    *,
    columns: Columns | None = None,
    targets: Path | None = None,
    images: Path | None = None,
    problems: dict[int, str] | None = None,
    max_pixels: int = MAX_PIXELS,
) -> PromptSequence:
    """Read prompts from what lies at a path, by its ending or its content.

    Lines of text or of JSON objects, `.json`, `.csv`, `.tsv`, `.parquet`, a folder of pictures with `metadata.jsonl` or
    `metadata.csv`, and WebDataset shards: a `.tar`, a folder of them, or a pattern such as "shards/*.tar". Paths of
    pictures are relative to the file's folder.

    Args:
        path: the file, folder or pattern.
        columns: which of its columns are `prompt`, `target` and `image` (the source pictures), where they have other
            names. None takes the role from every column.
        targets: folder with one picture per prompt, named by the prompt's line number from 1: `1.png`, `0002.jpg`.
        images: folder with the source pictures of an editing task, named in the same way.
        problems: takes line number -> what is wrong with it; such lines are then left out instead of being an error.
        max_pixels: a picture with more is refused.

    Raises:
        DataError: a file is missing, empty or of another kind, a line has no prompt, or a picture cannot be read.
    """
    path = Path(path).expanduser()
    if path.suffix.lower() == ".parquet":
        from grpokit.data.datasets import read_dataset

        return read_dataset(str(path), columns=columns, max_pixels=max_pixels)
    archives = _archives(path)
    if archives:
        rows = _rows(_of_shards(archives), path, columns, problems, max_pixels)
    else:
        metadata = next((path / name for name in _METADATA if os.path.isfile(path / name)), None)
        if metadata is None and os.path.isdir(path):
            raise DataError(
                f"{path} is a folder without {' or '.join(_METADATA)} and without shards (.tar), so its pictures have "
                "no prompts. Give a folder of the datasets library as data.dataset, and pictures named by line number "
                "as data.targets, next to a file of prompts."
            )
        rows = _of_file(metadata or path, columns, problems, max_pixels)
    if rows and (targets or images):
        rows = _with_pictures(rows, path, targets, images, max_pixels)
    if not rows and not problems:
        raise DataError(f"{path} holds no prompt.")
    return Rows(rows, max_pixels=max_pixels)


def _archives(path: Path) -> list[Path]:
    """The shards that a path names; none where it names something else."""
    if path.suffix.lower() == ".tar":
        archives = [Path(name) for name in sorted(glob.glob(str(path)))]
        if not archives:
            raise DataError(f"There is no shard {path} (looked in {Path.cwd()}). {_REMEDY}")
        return archives
    return sorted(path.glob("*.tar")) if os.path.isdir(path) else []


def _of_file(path: Path, columns: Columns | None, problems: dict[int, str] | None, max_pixels: int) -> list[Row]:
    text = files.read_text(path, kind="text file", error=DataError, remedy=_REMEDY).replace("\ufeff", "")
    ending = path.suffix.lower()
    found: Iterator[_Found]
    if ending in (".csv", ".tsv") or _HEADER.match(text):
        found = _of_table(text, path)
    elif re.match(r"\s*\[\s*\{" if ending != ".json" else r"\s*\[", text):
        found = _of_list(text, path)
    elif ending == ".json" or ending in _JSON_LINES or re.match(r'\s*\{\s*"', text):
        found = _of_objects(text, path, problems)
    else:
        return [Row(text=line.strip(), number=n, where=f"{path}, line {n}") for n, line in _lines(text, path)]
    return _rows(found, path, columns, problems, max_pixels)


def _lines(text: str, path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, as an editor counts them: `splitlines` would also cut at U+2028 inside a text."""
    for number, line in enumerate(text.split("\n"), 1):
        if "\0" in line:
            raise DataError(
                f"{path}, line {number}, holds a NUL byte: expected UTF-8 text. Is it a picture, an archive or UTF-16?"
            )
        if line.strip():
            yield number, line


def _of_objects(text: str, path: Path, problems: dict[int, str] | None) -> Iterator[_Found]:
    for number, line in _lines(text, path):
        try:
            where = f"{path}, line {number}"
            yield number, where, _checked(_parsed(line, where), where)
        except DataError as error:
            if problems is None:
                raise
            problems[number] = str(error)


def _of_list(text: str, path: Path) -> Iterator[_Found]:
    for number, row in enumerate(_parsed(text, str(path)), 1):
        where = f"{path}, entry {number}"
        yield number, where, _checked(row, where)


def _of_table(text: str, path: Path) -> Iterator[_Found]:
    header = text.lstrip().partition("\n")[0]
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t|", key=header.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    try:
        names = [name.strip() for name in next(reader, [])]
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise DataError(f"{path} has two columns '{double}'.")
        for number, cells in enumerate(reader, 1):
            if not any(cells):
                continue
            where = f"{path}, row {number}"
            if len(cells) != len(names):
                raise DataError(
                    f"{where} (line {reader.line_num}) has {counted(len(cells), 'cell')}, and the first line names "
                    f"{counted(len(names), 'column')}. Put a text with '{delimiter}' in it into double quotes."
                )
            yield number, where, {name: cell or None for name, cell in zip(names, cells, strict=True)}
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: {one_line(error)}. Put a cell that contains quotes in quotes, and "
            'double those inside it: """CAT"" on a sign".'
        ) from error


def _of_shards(archives: list[Path]) -> Iterator[_Found]:
    return ((number, where, row) for number, (row, where) in enumerate(shards.samples(archives), 1))


def _parsed(text: str, where: str) -> Any:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error.msg} at column {error.colno}).") from error
    except (ValueError, RecursionError) as error:  # a repeated key, a number too long for Python, deep nesting
        raise DataError(f"{where}: cannot be read: {error}.") from error


def _checked(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise DataError(f'{where}: expected an object like {{"prompt": ...}}, got {json.dumps(row)[:40]!r}.')
    return row


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {shown(next(name for name in names if names.count(name) > 1))} appears twice")
    return row


_DECODER = json.JSONDecoder(object_pairs_hook=_without_repeats)


def _rows(
    found: Iterator[_Found], path: Path, columns: Columns | None, problems: dict[int, str] | None, max_pixels: int
) -> list[Row]:
    """Rows whose columns have roles: the same in all rows."""
    every = list(found)
    if not every:
        return []
    names = list(dict.fromkeys(name for _, _, row in every for name in row))

    def pictured(name: str) -> bool:
        return any(_is_picture(row[name]) for _, _, row in every if row.get(name) is not None)

    roles = assigned(names, columns, where=str(path), pictured=pictured)
    folder = path if path.is_dir() else path.parent
    rows = []
    for number, where, row in every:
        try:
            rows.append(_row(row, roles, folder, number, where, max_pixels))
        except DataError as error:
            if problems is None:
                raise
            problems[number] = str(error)
    return rows


def _is_picture(value: Any) -> bool:
    """Whether a value is a picture's file or name, also of a kind that is not read, or a list of them."""
    if isinstance(value, list):
        return bool(value) and all(map(_is_picture, value))
    return isinstance(value, shards.Slice) or (isinstance(value, str) and is_picture_name(value))


def _row(row: Mapping[str, Any], roles: Roles, folder: Path, number: int, where: str, max_pixels: int) -> Row:
    prompt, target, image, meta = parts(row, roles, where=where)
    text, meta = read_prompt(prompt, meta, where=where)
    if not text.strip():
        raise DataError(f"{where}: the prompt is {shown(text)}; expected a text that is not empty.")
    for role, value in (("prompt", text), ("target", target)):
        if isinstance(value, str) and not _writable(value):
            raise DataError(f"{where}: the {role} {shown(value)} has an unpaired surrogate, which no file can hold.")
    sources = [] if image is None else image if isinstance(image, list) else [image]
    if not isinstance(target, list) and _is_picture(target):
        target = _existing(folder, target, f"{where}: target", max_pixels)
    return Row(
        text=text,
        target=target,
        images=[_existing(folder, source, f"{where}: source", max_pixels) for source in sources],
        meta={name: value for name, value in meta.items() if not isinstance(value, shards.Slice)},
        number=number,
        where=where,
    )


def _existing(folder: Path, name: Any, where: str, max_pixels: int) -> Path | shards.Slice:
    if isinstance(name, shards.Slice):
        return name
    if not isinstance(name, str) or not name:
        raise DataError(f"{where} is {shown(name)}; expected a file name.")
    if "://" in name:
        raise DataError(f"{where} is the address {shown(name)}. Download it: pictures are read from files.")
    if is_picture_name(name) and not name.lower().endswith(PICTURES):
        raise DataError(f"{where} is {shown(name)}, and {', '.join(PICTURES)} are read. Convert it.")
    path = folder / Path(name).expanduser()
    if not os.path.exists(path):  # unlike Path.exists, it is False for a name that no file can have
        raise DataError(f"{where}: the file {shown(str(path), most=1000)[1:-1]} does not exist.")
    check_picture(path, where=where, max_pixels=max_pixels)
    return path


def _with_pictures(
    rows: list[Row], path: Path, targets: Path | None, images: Path | None, max_pixels: int
) -> list[Row]:
    """Rows with the pictures of two folders, by line number."""
    by_target = _numbered(targets) if targets else None
    by_source = _numbered(images) if images else None
    found = [
        replace(
            row,
            target=next(iter(_pictures(by_target, targets, row.number, path, max_pixels)), row.target),
            images=_pictures(by_source, images, row.number, path, max_pixels) or row.images,
        )
        for row in rows
    ]
    for folder, pictures in ((targets, by_target), (images, by_source)):
        spare = [number for number in sorted(pictures or ()) if not 1 <= number <= rows[-1].number]
        if pictures and spare:
            warnings.warn(
                f"{counted(len(spare), 'picture')} in {folder} {'has' if len(spare) == 1 else 'have'} no prompt: the "
                f"first is {pictures[spare[0]].name}, and {path} has lines from 1 to {rows[-1].number}. If a line was "
                "taken out, all prompts below it have the wrong pictures",
                stacklevel=2,
            )
    return found


def _numbered(folder: Path) -> dict[int, Path]:
    """Line number -> picture, for the pictures in `folder` that are named by a number."""
    try:
        places = sorted(folder.iterdir())
    except NotADirectoryError as error:
        raise DataError(f"{folder} is a file; expected a folder of pictures named by line number.") from error
    except FileNotFoundError as error:
        raise DataError(
            f"The folder {folder} does not exist (looked in {Path.cwd()}). It should hold a picture for each line of "
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
    """The picture of a line, in a list; an empty list if no folder was given."""
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


def _writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
