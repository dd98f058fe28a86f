"""Prompts from files of every kind that people have: lines of text, JSON, tables, folders of pictures, and shards.

A message names the file and the line. Pictures are found, and their headers read, before a run begins; those inside
shards and tables when they are asked for.
"""

from __future__ import annotations

import csv
import glob
import io
import itertools
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from grpokit import files
from grpokit.data import webdataset
from grpokit.data.roles import ColumnNames, assign_roles, nested_columns, prompt_of
from grpokit.data.sequences import PromptRow, PromptSequence, Stored
from grpokit.errors import DataError, brief, one_line, plural
from grpokit.images import MAX_PIXELS, PICTURES, check_picture, is_hidden, is_picture_name, other_pictures, to_convert

_REMEDY = "Run the command in the folder that holds it, or give its path."
_METADATA = ("metadata.jsonl", "metadata.csv")  # of a folder of pictures, as Hugging Face lays it out
_HEADER = re.compile(r"\s*(?=\w+[,;\t|]\w)(?:\w+[,;\t|])*prompt(?:[,;\t|]\w+)*\n")  # of a table, by any name
_Found: TypeAlias = tuple[int, str, dict[str, Any]]  # line from 1, where it is, its columns


def read_prompts(
    path: Path | str,
    *,
    columns: ColumnNames | None = None,
    targets: Path | None = None,
    images: Path | None = None,
    max_pixels: int = MAX_PIXELS,
) -> PromptSequence:
    """Read prompts from what lies at a path, by its ending or its content.

    Lines of text or of JSON objects, `.json`, `.csv`, `.tsv`, `.parquet`, a folder of pictures with `metadata.jsonl`,
    `metadata.csv`, or a `.txt` or `.caption` beside each, and WebDataset shards: a `.tar`, a folder of them, or a
    pattern such as "shards/*.tar". Paths of pictures are relative to the file's folder.

    Args:
        path: the file, folder or pattern.
        columns: which of its columns are `prompt`, `target` and `image` (the source pictures), where they have other
            names. None takes the role from every column.
        targets: folder with one picture per prompt, named by the prompt's line number from 1: `1.png`, `0002.jpg`.
        images: folder with the source pictures of an editing task, named in the same way.
        max_pixels: a picture with more is refused.

    Raises:
        DataError: a file is missing, empty or of another kind, a line has no prompt, or a picture cannot be read.
    """
    path = Path(path).expanduser()
    if path.suffix.lower() == ".parquet":
        from grpokit.data.datasets import read_dataset

        return read_dataset(str(path), columns=columns, max_pixels=max_pixels)
    rows = _rows(path, columns, max_pixels)
    if not rows:
        raise DataError(f"{path} holds no prompt.")
    if targets:
        pictures = _numbered(targets, rows, path, max_pixels)
        rows = [_with(row, target=pictures[row.number]) for row in rows]
    if images:
        pictures = _numbered(images, rows, path, max_pixels)
        rows = [_with(row, image=None, images=[pictures[row.number]]) for row in rows]
    return PromptSequence(rows.__getitem__, range(len(rows)), max_pixels=max_pixels)


def _rows(path: Path, columns: ColumnNames | None, max_pixels: int) -> list[PromptRow]:
    """The rows of a file, of a folder's metadata, or of shards; a column has the same role in all of them."""
    is_folder = os.path.isdir(path)  # unlike Path.is_dir, it is False for a name that no file can have
    if is_folder:
        archives = sorted(path.glob("*.tar"))
    else:
        archives = [Path(name) for name in sorted(glob.glob(str(path)))]
    metadata = [path / name for name in _METADATA if os.path.isfile(path / name)]
    if archives and archives[0].suffix.lower() == ".tar":
        samples = itertools.chain.from_iterable(map(webdataset.samples, archives))
        found = [(number, where, row) for number, (where, row) in enumerate(samples, 1)]
    elif is_folder and not metadata:
        found = list(_of_captions(path))
    else:
        file = metadata[0] if metadata else path
        text = files.read_text(file, kind="text file", error=DataError, remedy=_REMEDY)
        text = text.replace("\ufeff", "")
        kind = _kind(text, file.suffix.lower())
        columns = None if kind is _of_lines else columns
        found = list(kind(text, file))
    if not found:
        return []
    names: dict[str, None] = {}  # as an ordered set
    pictured = set()
    for _, _, row in found:
        names |= dict.fromkeys(nested_columns(row))
        pictured |= {name for name, value in row.items() if _is_picture(value)}
    roles = assign_roles(list(names), columns, where=str(path), pictured=pictured)
    folder = path if is_folder else path.parent
    rows = []
    for number, where, row in found:
        stored = partial(_stored, folder, where, max_pixels)
        prompt = prompt_of(row, roles, where=where, stored=stored)
        if not prompt.text.strip():
            raise DataError(f"{where}: the prompt is {brief(prompt.text)}; expected a text that is not empty.")
        meta = {name: value for name, value in prompt.meta.items() if not isinstance(value, Stored)}
        prompt = replace(prompt, image=None, meta=meta)
        rows.append(PromptRow(prompt=prompt, where=where, number=number))
    return rows


def _with(row: PromptRow, **parts: Any) -> PromptRow:
    return replace(row, prompt=replace(row.prompt, **parts))


def _kind(text: str, ending: str) -> Callable[[str, Path], Iterator[_Found]]:
    """The reader of a text, by its file's ending or its content."""
    if ending in (".csv", ".tsv") or _HEADER.match(text):
        return _of_table
    if ending in (".json", ".jsonl", ".ndjson") or re.match(r'\s*(\[\s*\{|\{\s*")', text):
        return _of_json
    return _of_lines


def _of_lines(text: str, path: Path) -> Iterator[_Found]:
    """Lines that are not empty, as an editor counts them: `splitlines` would also cut at U+2028 inside a text."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, f"{path}, line {number}", {"prompt": line.strip()}


def _of_json(text: str, path: Path) -> Iterator[_Found]:
    """Objects, in a list or one on a line."""
    if text.lstrip().startswith("["):
        for number, entry in enumerate(_parsed(text, str(path)), 1):
            where = f"{path}, entry {number}"
            yield number, where, _object(entry, where)
    else:
        for number, where, line in _of_lines(text, path):
            entry = _parsed(line["prompt"], where)
            yield number, where, _object(entry, where)


def _object(entry: Any, where: str) -> dict[str, Any]:
    if isinstance(entry, dict):
        return entry
    raise DataError(f'{where}: expected an object like {{"prompt": ...}}, got {json.dumps(entry)[:40]!r}.')


def _of_table(text: str, path: Path) -> Iterator[_Found]:
    header = text.lstrip().partition("\n")[0]
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t|", key=header.count)
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
    csv.field_size_limit(max(len(text), csv.field_size_limit()))  # of a cell, in all of the process
    try:
        names = [name.strip() for name in next(reader, [])]
        twice = [name for name in names if name and names.count(name) > 1]
        if twice:
            raise DataError(f"{path}: two columns are called '{twice[0]}'. Rename one, or take it out.")
        for number, cells in enumerate(reader, 1):
            if not any(cells):
                continue
            where = f"{path}, row {number}"
            if len(cells) != len(names):
                raise DataError(
                    f"{where} (line {reader.line_num}) has {plural(len(cells), 'cell')}, and the first line names "
                    f"{plural(len(names), 'column')}. Put a text with '{delimiter}' in it into double quotes."
                )
            row = dict(zip(names, cells, strict=True))
            yield number, where, {name: cell or None for name, cell in row.items()}
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: {one_line(error)}. Put a cell that contains quotes in quotes, and "
            'double those inside it: """CAT"" on a sign".'
        ) from error


def _of_captions(folder: Path) -> Iterator[_Found]:
    """Pictures, also in folders such as `10_name`, with a text of the same name beside each, as trainers of LoRA have.

    Raises:
        DataError: there is no picture with a text, or one of the pictures has none.
    """
    paths = sorted([*folder.glob("*"), *folder.glob("*/*")])
    pictures = [path for path in paths if is_picture_name(path.name) and not is_hidden(path)]
    captions = [_caption(path) for path in pictures]
    alone = [path for path in captions if not path.is_file()]
    if len(alone) == len(captions):
        raise DataError(
            f"{folder} is a folder without {' or '.join(_METADATA)}, without shards (.tar), and without a .txt or "
            ".caption beside each picture, so its pictures have no prompts. Give a folder of the datasets library as "
            "data.dataset, and pictures named by line number as data.targets, next to a file of prompts."
        )
    if alone:
        some = f"{len(alone):,} of {plural(len(captions), 'picture')}"
        raise DataError(f"{some} in {folder} have no text beside them: the first that is missing is {alone[0]}.")
    for number, (picture, caption) in enumerate(zip(pictures, captions, strict=True), 1):
        text = files.read_text(caption, kind="text file", error=DataError).strip()
        name = str(picture.relative_to(folder))
        yield number, str(caption), {"file_name": name, "text": text}


def _caption(picture: Path) -> Path:
    """The file beside a picture with its text: kohya's sd-scripts write `.caption`, others `.txt`."""
    caption = picture.with_suffix(".caption")
    return caption if caption.is_file() else picture.with_suffix(".txt")


def _parsed(text: str, where: str) -> Any:
    try:
        return files.parse_json(text)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({one_line(error)}).") from error


def _is_picture(value: Any) -> bool:
    """Whether a value is a picture's file or name, also of a kind that is not read, or a list of them."""
    if isinstance(value, list):
        return bool(value) and all(map(_is_picture, value))
    return isinstance(value, Stored) or (isinstance(value, str) and is_picture_name(value))


def _stored(folder: Path, where: str, max_pixels: int, value: Any, role: str) -> Any:
    """A source picture or a target as the prompt holds it; its file is there, and its header is a picture's."""
    if isinstance(value, Stored):
        return value
    if role == "target" and (isinstance(value, list) or not _is_picture(value)):
        return value
    if not isinstance(value, str) or not value:
        raise DataError(f"{where}: {role} is {brief(value)}; expected a file name.")
    if "://" in value:
        raise DataError(f"{where}: {role} is the address {brief(value)}. Download it: pictures are read from files.")
    if is_picture_name(value) and not value.lower().endswith(PICTURES):
        raise DataError(f"{where}: {role} is {brief(value)}, and {', '.join(PICTURES)} are read. Convert it.")
    path = folder / Path(value).expanduser()
    if not os.path.exists(path):
        raise DataError(f"{where}: {role}: the file {brief(str(path), most=1000)[1:-1]} does not exist.")
    check_picture(path, where=f"{where}: {role}", max_pixels=max_pixels)
    return Stored(path)


def _numbered(folder: Path, rows: Sequence[PromptRow], prompts: Path, max_pixels: int) -> dict[int, Stored]:
    """The pictures of a folder by their line numbers, after a check that each row has one."""
    if not os.path.isdir(folder):
        raise DataError(
            f"There is no folder {folder} (looked in {Path.cwd()}). It should hold a picture for each line of the "
            f"prompts: 1.png, 2.jpg, ... {_REMEDY}"
        )
    pictures: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in PICTURES and path.stem.isdecimal():
            other = pictures.setdefault(int(path.stem), path)
            if other != path:
                raise DataError(f"Both {other} and {path} are for line {int(path.stem)}; keep one.")
    for row in rows:
        if row.number not in pictures:
            hint = " Numbering starts at 1, but there is a file for 0." if 0 in pictures else ""
            others = [path for path in other_pictures(folder) if path.stem == str(row.number)]
            hint += f" {to_convert(others)}." if others else ""
            raise DataError(
                f"{prompts}, line {row.number}, has no picture in {folder}: expected {row.number}.png (or .jpg, .jpeg, "
                f".webp). The folder has {plural(len(pictures), 'numbered picture')}.{hint}"
            )
        check_picture(pictures[row.number], where=f"{prompts}, line {row.number}", max_pixels=max_pixels)
    spare = [number for number in sorted(pictures) if not 1 <= number <= rows[-1].number]
    if spare:
        warnings.warn(
            f"{plural(len(spare), 'picture')} in {folder} {'has' if len(spare) == 1 else 'have'} no prompt: the first "
            f"is {pictures[spare[0]].name}, and {prompts} has lines from 1 to {rows[-1].number}. If a line was taken "
            "out, all prompts below it have the wrong pictures",
            stacklevel=2,
        )
    return {number: Stored(picture) for number, picture in pictures.items()}
