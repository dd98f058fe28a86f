"""Prompts from Hugging Face datasets: by hub id, from a folder that was saved, or from data files."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from grpokit.data import hub
from grpokit.data.roles import Columns, Roles, assigned, parts, read_prompt
from grpokit.data.sequences import PromptSequence, one_or_all
from grpokit.errors import DataError, one_line, shown, typed_line
from grpokit.images import MAX_PIXELS, blank_picture, check_picture
from grpokit.types import Prompt


def read_dataset(
    name: str,
    *,
    subset: str | None = None,
    split: str = "train",
    columns: Columns | None = None,
    max_pixels: int = MAX_PIXELS,
) -> PromptSequence:
    """Read a Hugging Face dataset by hub id, from a folder (saved with `save_to_disk`, or of data files) or a file.

    Args:
        name: hub id, folder, or a Parquet file.
        subset: which of its subsets (also called configurations), where it has several.
        split: the split to read.
        columns: which of its columns are `prompt`, `target` and `image`, if they have other names; None takes
            the role from every column. A row of `image` may be a list of pictures.
        max_pixels: a picture with more is refused when it is read.

    Raises:
        DataError: `datasets` is not installed, the dataset cannot be read, or it has no prompt column.
    """
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise DataError(
            "Reading a Hugging Face dataset needs `datasets`. Run: pip install 'grpokit[datasets]'"
        ) from error
    table = _loaded(datasets, name, subset, split)
    where = f"dataset {name}, split '{split}'"
    if len(table) == 0:
        raise DataError(f"Dataset {name}, split '{split}' is empty.")
    roles = assigned(
        table.column_names, columns, where=f"Dataset {name}", pictured=lambda column: _pictures(table.features[column])
    )
    feature = table.features[roles["prompt"][0]]
    kind = getattr(feature, "dtype", "a group of values")
    inner = getattr(feature, "feature", None)  # of a list
    if kind not in ("string", "large_string", "null") and not (isinstance(inner, dict) and "role" in inner):
        raise DataError(
            f"Dataset {name}: the prompt's column '{roles['prompt'][0]}' holds {kind}; expected texts. Name the right "
            "one with `columns: {prompt: ...}`."
        )
    return Table(table, roles, where, max_pixels=max_pixels)


def _loaded(datasets: Any, name: str, subset: str | None, split: str) -> Any:
    """The rows of a split, whatever the dataset lies in."""
    away = _away(datasets, name)
    try:
        with _quiet(datasets), _offline(datasets) if away else nullcontext():
            if (Path(name) / "dataset_dict.json").exists() or (Path(name) / "state.json").exists():
                if subset is not None:
                    raise DataError(f"Dataset {name} was saved without subsets, so it has none called '{subset}'.")
                table = datasets.load_from_disk(name)
                if isinstance(table, datasets.DatasetDict):
                    if split not in table:
                        raise DataError(f"Dataset {name} has no split '{split}'; it has: {', '.join(table)}.")
                    table = table[split]
                elif split != "train" and split != str(table.split):
                    raise DataError(f"Dataset {name} was saved without splits, so it has none called '{split}'.")
            elif os.path.isfile(name):
                table = datasets.load_dataset("parquet", data_files=name, split=split)
            else:
                table = datasets.load_dataset(name, subset, split=split)
    except DataError:
        raise
    except Exception as error:  # datasets raises a dozen kinds: offline, unknown id, bad split, bad files
        reason = typed_line(error)
        if isinstance(error.__cause__, Exception):  # it often says more
            reason += f" ({one_line(error.__cause__)})"
        remedy = ""
        if isinstance(error, ConnectionError):
            reason = f"it is not in the cache, and {away}" if away else reason
            remedy = " Fetch it on a machine with a network, or give a folder with its files."
        elif "pick one among" in reason:
            remedy = " Name it with `subset`."
        raise DataError(f"Dataset {name!r}, split {split!r} cannot be read: {reason}.{remedy}") from error
    if away and not datasets.config.HF_HUB_OFFLINE:
        warnings.warn(f"{away}; the dataset {name!r} comes from the cache.", stacklevel=2)
    return table


def _pictures(feature: Any) -> bool:
    """Whether a column holds pictures or lists of them."""
    import datasets

    return isinstance(getattr(feature, "feature", feature), datasets.Image)


def _away(datasets: Any, name: str) -> str:
    """Why the hub cannot be asked for a dataset; empty if it can be, or need not."""
    if os.path.exists(name):
        return ""
    if datasets.config.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    endpoint = datasets.config.HF_ENDPOINT
    reason = hub.unreachable(endpoint)
    return reason and f"{endpoint} cannot be reached: {reason}"


@contextmanager
def _offline(datasets: Any) -> Iterator[None]:
    """Inside the context, only the cache is used: an unresponsive hub takes half a minute to fail."""
    before, datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Silences its log lines, and shows its progress bars on a terminal only."""
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


class Table(PromptSequence):
    """A Hugging Face dataset, whose pictures are decoded here, after a check of their size.

    Args:
        table: the dataset.
        roles: its columns.
        source: names it in messages.
        max_pixels: a picture with more is refused.
    """

    def __init__(self, table: Any, roles: Roles, source: str, *, max_pixels: int = MAX_PIXELS) -> None:
        import datasets

        self.decoders = {}
        for name, feature in table.features.items():
            several = isinstance(feature, (datasets.Sequence, datasets.List))  # one class since datasets 4
            one = feature.feature if several else feature
            if isinstance(one, datasets.Image) and one.decode:
                self.decoders[name], raw = one, datasets.Image(decode=False)
                table = table.cast_column(name, type(feature)(raw) if several else raw)
        self.table, self.roles, self.source, self.max_pixels = table, roles, source, max_pixels

    def __len__(self) -> int:
        return len(self.table)

    def one(self, index: int) -> Prompt:
        """Decode the pictures."""
        return self._prompt(index, self._decoded)

    def unopened(self, index: int) -> Prompt:
        """Read the headers of the pictures."""
        return self._prompt(index, self._blank)

    def parts(self, index: int) -> tuple[Any, Any, Any]:
        """Pictures as the bytes of their files, or as paths."""
        row = self._row(index)
        for name in self.decoders:
            row[name] = _each(row[name], _file)
        value, target, image, meta = parts(row, self.roles, where=self.where(index))
        return (
            read_prompt(value, meta, where=self.where(index)),
            target,
            one_or_all(image) if isinstance(image, list) else image,
        )

    def where(self, index: int) -> str:
        """The dataset and the row, from 0."""
        return f"row {index} of {self.source}"

    def _prompt(self, index: int, picture: Callable[[str, str, Any], Any]) -> Prompt:
        row, where = self._row(index), f"Row {index} of {self.source}"
        for name in self.decoders:
            row[name] = _each(row[name], partial(picture, name, where))
        value, target, image, meta = parts(row, self.roles, where=where)
        text, meta = read_prompt(value, meta, where=where)
        images = image if isinstance(image, list) else [image] if image is not None else []
        if not all(isinstance(each, Image.Image) for each in images):
            raise DataError(
                f"{where} has {shown(image)} as its picture; expected a picture or a list of "
                "them. Cast the column to datasets.Image(), or write `columns: {image: null}`."
            )
        return Prompt(text=text, target=target, images=images, meta=meta)

    def _row(self, index: int) -> dict[str, Any]:
        try:
            return dict(self.table[index])
        except Exception as error:  # a damaged file: whatever its reader raises
            raise DataError(f"Row {index} of {self.source} cannot be read: {one_line(error)}.") from error

    def _decoded(self, column: str, where: str, stored: Mapping[str, Any]) -> Any:
        file = _file(stored)
        if not isinstance(file, str):  # else it lies behind an address, which only datasets can follow
            check_picture(file, where=f"{where}, column '{column}'", max_pixels=self.max_pixels)
        try:
            return self.decoders[column].decode_example(dict(stored))
        except Exception as error:  # a damaged picture: whatever its decoder raises
            raise DataError(f"{where} cannot be read: {one_line(error)}.") from error

    def _blank(self, column: str, where: str, stored: Mapping[str, Any]) -> Any:
        file = _file(stored)
        if isinstance(file, str):
            return self._decoded(column, where, stored)
        return blank_picture(file, where=f"{where}, column '{column}'", max_pixels=self.max_pixels)


def _each(stored: Any, change: Callable[[Any], Any]) -> Any:
    """A stored picture or a list of them, changed; None stays."""
    return [change(one) for one in stored] if isinstance(stored, list) else stored and change(stored)


def _file(stored: Mapping[str, Any]) -> bytes | Path | str:
    """A stored picture as the bytes of its file, its path, or another address."""
    if stored.get("bytes") is not None:
        return bytes(stored["bytes"])
    path = str(stored.get("path"))
    return Path(path) if os.path.exists(path) else path
