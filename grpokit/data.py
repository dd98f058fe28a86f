"""Prompts from files, datasets and lists, and the order in which training meets them.

Every source becomes a `Sequence[Prompt]`; pictures are read when a prompt is asked for, but that their files are
pictures is checked at once. The order is a pure function of (seed, step), so a resumed run meets the same prompts.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from PIL import Image

from grpokit.errors import DataError, counted, nearest, shown
from grpokit.images import PICTURES, check_picture, open_picture, other_pictures, to_convert
from grpokit.sampling import STREAMS, mix, permutation
from grpokit.types import Prompt


def prompt_indices(seed: int, step: int, *, per_step: int, total: int) -> list[int]:
    """Which prompts step number `step` (from 0) trains on; every pass over the data has an order of its own.

    >>> sorted(prompt_indices(1, 0, per_step=2, total=4) + prompt_indices(1, 1, per_step=2, total=4))
    [0, 1, 2, 3]
    """
    places = (divmod(step * per_step + i, total) for i in range(per_step))
    return [_order(total, seed, epoch)[place] for epoch, place in places]


@functools.lru_cache(maxsize=4)
def _order(total: int, seed: int, epoch: int) -> list[int]:
    return permutation(total, seed, STREAMS["data"], epoch)


def hold_out(prompts: Sequence[Prompt], fraction: float, seed: int) -> tuple[Sequence[Prompt], Sequence[Prompt]]:
    """Split into (training, held out): a pure function of the number of prompts, the fraction and the seed."""
    if not 0 < fraction < 1:
        raise DataError(f"The held-out fraction must lie between 0 and 1, got {fraction}.")
    held = round(len(prompts) * fraction)
    if held == 0 or held == len(prompts):
        raise DataError(
            f"Holding out {fraction} of {counted(len(prompts), 'prompt')} leaves {len(prompts) - held} for training "
            f"and {held} for evaluation; give more prompts, another fraction, or an evaluation file."
        )
    order = sorted(range(len(prompts)), key=lambda i: (mix(seed, STREAMS["evaluate"], i), i))
    return _Subset(prompts, sorted(order[held:])), _Subset(prompts, sorted(order[:held]))


def as_prompts(given: Iterable[str | Prompt]) -> Sequence[Prompt]:
    """Texts or prompts in a list -> prompts.

    What `read_text` and the other readers give is passed through, and opens pictures when they are asked for; anything
    else is read whole.
    """
    if isinstance(given, str):
        raise DataError(f"Expected a list of prompts, got the single text {given!r}.")
    if isinstance(given, _Sequence):
        return given
    if not isinstance(given, Iterable) or isinstance(given, (Mapping, set, frozenset)):  # a set has no order to keep
        raise DataError(f"Expected a list of prompts, got one of type {type(given).__name__}.")
    prompts = []
    for i, item in enumerate(given):
        prompt = Prompt(text=item) if isinstance(item, str) else item
        if not isinstance(prompt, Prompt):
            raise DataError(f"Prompt {i} is of type {type(item).__name__}; expected a text or a grpokit.Prompt.")
        if not isinstance(prompt.text, str):
            raise DataError(f"Prompt {i} has {shown(prompt.text)} as its text; expected a text.")
        prompts.append(prompt)
    return prompts


def read_text(path: Path, *, targets: Path | None = None, images: Path | None = None) -> Sequence[Prompt]:
    """Read one prompt per line; empty lines are skipped.

    Args:
        path: a UTF-8 text file.
        targets: folder with one picture per prompt, named by the prompt's line number from 1: `1.png`, `0002.jpg`.
        images: folder with the source pictures of an editing task, named likewise.

    Raises:
        DataError: a file is missing, not text or empty, or a line has no picture, or a file that is none.
    """
    lines = _lines(path)
    target_files = _numbered(targets) if targets else None
    image_files = _numbered(images) if images else None
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            rows.append(
                _Row(
                    text=line.strip(),
                    target=_picture(target_files, targets, number, path),
                    image=_picture(image_files, images, number, path),
                    where=f"{path}, line {number}",
                )
            )
    if not rows:
        raise DataError(f"{path} holds no prompt: expected one per line.")
    return _Lazy(rows)


def read_jsonl(path: Path, *, problems: dict[int, str] | None = None) -> Sequence[Prompt]:
    """Read one JSON object per line with `prompt`, optional `target` and `image`; other keys go to `meta`.

    `image`, and a `target` that ends like a picture's file name, are paths relative to the file's folder; any other
    target is a text.

    Args:
        path: a UTF-8 text file.
        problems: takes line number -> what is wrong with it; such lines are then left out instead of being an error.

    Raises:
        DataError: a file is missing, a line is no JSON object or lacks `prompt`, a picture is missing or is none.
    """
    rows = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            rows.append(_from_line(line, path.parent, f"{path}, line {number}"))
        except DataError as error:
            if problems is None:
                raise
            problems[number] = str(error)
    if not rows and not problems:
        raise DataError(f"{path} holds no prompt: expected one JSON object per line.")
    return _Lazy(rows)


def _from_line(line: str, folder: Path, where: str) -> _Row:
    try:
        row = json.loads(line, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error.msg} at column {error.colno}).") from error
    except (ValueError, RecursionError) as error:  # a repeated key, a number too long for Python, deep nesting
        raise DataError(f"{where}: cannot be read: {error}.") from error
    if not isinstance(row, dict):
        raise DataError(f'{where}: expected an object like {{"prompt": ...}}, got {line[:40]!r}.')
    return _from_mapping(row, folder, where)


def read_dataset(name: str, *, split: str = "train", columns: Mapping[str, str] | None = None) -> Sequence[Prompt]:
    """Read a Hugging Face dataset by hub id, or from a folder (saved with `save_to_disk`, or of data files).

    Args:
        name: hub id or folder.
        split: the split to read.
        columns: which of its columns are `prompt`, `target` and `image`, where they are called otherwise.

    Raises:
        DataError: `datasets` is not installed, the dataset cannot be read, or it has no prompt column.
    """
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise DataError(
            "Reading a Hugging Face dataset needs `datasets`. Run: pip install 'grpokit[datasets]'"
        ) from error
    try:
        with _quiet(datasets):
            if (Path(name) / "dataset_dict.json").exists() or (Path(name) / "state.json").exists():
                table = datasets.load_from_disk(name)
                if isinstance(table, datasets.DatasetDict):
                    if split not in table:
                        raise DataError(f"Dataset {name} has no split '{split}'; it has: {', '.join(table)}.")
                    table = table[split]
                elif split != "train" and split != str(table.split):
                    raise DataError(f"Dataset {name} was saved without splits, so it has none called '{split}'.")
            else:
                table = datasets.load_dataset(name, split=split)
    except DataError:
        raise
    except Exception as error:  # datasets raises a dozen kinds: offline, unknown id, bad split, bad files
        said = f"{type(error).__name__}: {_said(error)}"
        if isinstance(error.__cause__, Exception):  # it often says more
            said += f" ({_said(error.__cause__)})"
        raise DataError(f"Dataset {name!r}, split {split!r} cannot be read: {said}.") from error
    names = {"prompt": "prompt", "target": "target", "image": "image", **(columns or {})}
    unknown = sorted(set(names) - {"prompt", "target", "image"})
    if unknown:
        raise DataError(f"`columns` maps prompt, target and image, not {shown(unknown[0])}.")
    for role, column in names.items():
        if column not in table.column_names and (role == "prompt" or role in (columns or {})):
            raise DataError(
                f"Dataset {name} has no column '{column}' for the {role}{nearest(column, table.column_names)}; it has: "
                f"{', '.join(table.column_names)}. Name the right one with `columns: {{{role}: ...}}`."
            )
    if len(table) == 0:
        raise DataError(f"Dataset {name}, split '{split}' is empty.")
    kind = getattr(table.features[names["prompt"]], "dtype", "a group of values")
    if kind not in ("string", "large_string", "null"):
        raise DataError(
            f"Dataset {name}: the prompt's column '{names['prompt']}' holds {kind}; expected texts. Name the right one "
            "with `columns: {prompt: ...}`."
        )
    return _Table(table, names, f"dataset {name}, split '{split}'")


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Keep its log lines out of the message, and its progress bars for a person who watches."""
    verbosity, bars = datasets.logging.get_verbosity(), datasets.are_progress_bars_disabled()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if not bars:
            datasets.enable_progress_bars()


@dataclass(frozen=True, kw_only=True)
class _Row:
    text: str
    target: Any = None  # a Path is a picture to open
    image: Path | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    where: str


class _Sequence(Sequence[Prompt]):
    """Slices become lists; a single index is what a subclass gives."""

    @abstractmethod
    def one(self, index: int) -> Prompt:
        """The prompt at an index that is not negative."""

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | Sequence[Prompt]:
        if isinstance(index, slice):
            return [self.one(i) for i in range(*index.indices(len(self)))]
        return self.one(range(len(self))[index])


class _Lazy(_Sequence):
    """Rows whose pictures are opened on access."""

    def __init__(self, rows: Sequence[_Row]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def one(self, index: int) -> Prompt:
        row = self.rows[index]
        return Prompt(
            text=row.text,
            image=None if row.image is None else open_picture(row.image, where=row.where),
            target=open_picture(row.target, where=row.where) if isinstance(row.target, Path) else row.target,
            meta=row.meta,
        )


class _Table(_Sequence):
    """A Hugging Face dataset."""

    def __init__(self, table: Any, names: Mapping[str, str], where: str) -> None:
        self.table, self.names, self.where = table, names, where

    def __len__(self) -> int:
        return len(self.table)

    def one(self, index: int) -> Prompt:
        try:
            row = self.table[index]
        except Exception as error:  # a damaged picture or file: whatever its decoder raises
            raise DataError(f"Row {index} of {self.where} cannot be read: {_said(error)}.") from error
        text, target, image = (row.get(self.names[role]) for role in ("prompt", "target", "image"))
        if not isinstance(text, str):
            raise DataError(f"Row {index} of {self.where} has the prompt {shown(text)}; expected a text.")
        if image is not None and not isinstance(image, Image.Image):
            raise DataError(
                f"Row {index} of {self.where} has {shown(image)} in the column '{self.names['image']}'; expected a "
                "picture. Cast the column to datasets.Image(), or leave it out of `columns`."
            )
        meta = {column: value for column, value in row.items() if column not in self.names.values()}
        return Prompt(text=text, target=target, image=image, meta=meta)


class _Subset(_Sequence):
    """Some prompts of another sequence."""

    def __init__(self, prompts: Sequence[Prompt], indices: Sequence[int]) -> None:
        self.prompts, self.indices = prompts, indices

    def __len__(self) -> int:
        return len(self.indices)

    def one(self, index: int) -> Prompt:
        return self.prompts[self.indices[index]]


def _said(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _lines(path: Path) -> list[str]:
    """Lines as an editor counts them: `splitlines` would also cut at U+2028 and other separators inside a text."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DataError(f"The file {path} does not exist (looked in {Path.cwd()}).") from error
    except IsADirectoryError as error:
        raise DataError(f"{path} is a folder; expected a text file.") from error
    except (OSError, ValueError) as error:  # the second: not UTF-8, or a name that no file can have
        raise DataError(f"{shown(str(path), most=1000)[1:-1]} cannot be read as UTF-8 text: {_said(error)}.") from error
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
        found = sorted(folder.iterdir())
    except NotADirectoryError as error:
        raise DataError(f"{folder} is a file; expected a folder of pictures named by line number.") from error
    except FileNotFoundError as error:
        raise DataError(f"The folder {folder} does not exist (looked in {Path.cwd()}).") from error
    except (OSError, ValueError) as error:  # the second: a name that no folder can have
        raise DataError(f"The folder {shown(str(folder), most=1000)} cannot be read: {_said(error)}.") from error
    files: dict[int, Path] = {}
    for path in found:
        if path.suffix.lower() in PICTURES and path.stem.isdecimal():
            other = files.setdefault(int(path.stem), path)
            if other != path:
                raise DataError(f"Both {other} and {path} are for line {int(path.stem)}; keep one.")
    return files


def _picture(files: dict[int, Path] | None, folder: Path | None, number: int, prompts: Path) -> Path | None:
    if files is None or folder is None:
        return None
    if number not in files:
        hint = " Numbering starts at 1, but there is a file for 0." if 0 in files else ""
        others = [path for path in other_pictures(folder) if path.stem.isdecimal() and int(path.stem) == number]
        hint += f" {to_convert(others)}." if others else ""
        raise DataError(
            f"{prompts}, line {number}, has no picture in {folder}: expected {number}.png (or .jpg, .jpeg, .webp). "
            f"The folder has {len(files)} numbered pictures.{hint}"
        )
    check_picture(files[number], where=f"{prompts}, line {number}")
    return files[number]


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in pairs:
        if key in row:
            raise ValueError(f"the key {shown(key)} stands twice")
        row[key] = value
    return row


def _from_mapping(row: dict[str, Any], folder: Path, where: str) -> _Row:
    row = dict(row)
    if "prompt" not in row:
        raise DataError(
            f"{where}: there is no key 'prompt'{nearest('prompt', row)} (keys: {', '.join(row) or 'none'})."
        )
    text, target, image = row.pop("prompt"), row.pop("target", None), row.pop("image", None)
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{where}: the prompt is {shown(text)}; expected a text.")
    for role, value in (("prompt", text), ("target", target)):
        if isinstance(value, str) and not _writable(value):
            raise DataError(f"{where}: the {role} {shown(value)} has half a surrogate pair, which no file can hold.")
    if image is not None:
        image = _existing(folder, image, f"{where}: image")
    if isinstance(target, str) and target.lower().endswith(PICTURES):
        target = _existing(folder, target, f"{where}: target")
    return _Row(text=text, target=target, image=image, meta=row, where=where)


def _writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _existing(folder: Path, name: Any, where: str) -> Path:
    if not isinstance(name, str) or not name:
        raise DataError(f"{where} is {shown(name)}; expected a file name.")
    path = folder / name
    if not os.path.exists(path):  # unlike Path.exists, it is False for a name that no file can have
        raise DataError(f"{where}: the file {shown(str(path), most=1000)[1:-1]} does not exist.")
    check_picture(path, where=where)
    return path
