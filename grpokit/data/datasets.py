"""Prompts from Hugging Face datasets: by hub id, from a folder that was saved, or from data files."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from grpokit.data.roles import ColumnNames, Roles, assign_roles, nested_columns, prompt_of
from grpokit.data.sequences import PromptRow, PromptSequence, Stored
from grpokit.errors import DataError, brief, error_line, one_line
from grpokit.images import MAX_PIXELS


def read_dataset(
    name: str,
    *,
    subset: str | None = None,
    split: str = "train",
    columns: ColumnNames | None = None,
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
    table = _table(datasets, name, subset, split)
    where = f"dataset {name}, split '{split}'"
    if len(table) == 0:
        raise DataError(f"The {where} is empty.")
    kinds = {}
    images = []
    others = []  # that may hold pictures too
    for column, feature in table.features.items():
        kinds[column] = getattr(feature, "feature", feature)  # of what a list holds
        if isinstance(kinds[column], datasets.Image):
            images.append(column)
        elif _may_be_picture(kinds[column]):
            others.append(column)
    roles = assign_roles(nested_columns(table.features), columns, where=f"Dataset {name}", pictured=[*images, *others])
    taken = (*roles["image"], *roles["target"])
    pictured = images + [column for column in others if column in taken]
    raw = datasets.Image(decode=False)  # to be opened here, after a check of their size
    for column in pictured:
        feature = table.features[column]
        is_list = feature != kinds[column]
        table = table.cast_column(column, type(feature)(raw) if is_list else raw)
    row = partial(_row, table, pictured, roles, where)
    return PromptSequence(row, range(len(table)), max_pixels=max_pixels)


def _table(datasets: Any, name: str, subset: str | None, split: str) -> Any:
    """The rows of a split, without what `datasets` prints."""
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    verbosity = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # the reason comes as an error
    try:
        return _loaded(datasets, name, subset, split)
    except DataError:
        raise
    except Exception as error:  # datasets raises a dozen kinds: offline, unknown id, bad split, bad files
        reason = error_line(error)
        if isinstance(error.__cause__, Exception):  # it often says more
            reason += f" ({one_line(error.__cause__)})"
        remedy = ""
        if isinstance(error, ConnectionError):
            remedy = " Fetch it on a machine with a network, or give a folder with its files."
        elif "pick one among" in reason:
            remedy = " Name it with `subset`."
        raise DataError(f"Dataset {name!r}, split {split!r} cannot be read: {reason}.{remedy}") from error
    finally:
        datasets.logging.set_verbosity(verbosity)


def _loaded(datasets: Any, name: str, subset: str | None, split: str) -> Any:
    """The rows of a split, whatever the dataset lies in."""
    if os.path.isfile(name):
        return datasets.load_dataset("parquet", data_files=name, split=split)
    signs = [Path(name) / "dataset_dict.json", Path(name) / "state.json"]
    if not any(sign.exists() for sign in signs):
        return datasets.load_dataset(name, subset, split=split)
    saved = datasets.load_from_disk(name)
    if isinstance(saved, datasets.DatasetDict):
        splits: Mapping[str, Any] = saved
    else:
        splits = dict.fromkeys(("train", str(saved.split or "train")), saved)
    if subset is not None or split not in splits:
        wanted = f"subset '{subset}'" if subset is not None else f"split '{split}'"
        raise DataError(f"Dataset {name} was saved without a {wanted}; its splits are {', '.join(splits)}.")
    return splits[split]


def _may_be_picture(feature: Any) -> bool:
    """Whether a column that other writers than `datasets` made may hold pictures: bytes, or a struct with them."""
    if isinstance(feature, Mapping):
        return set(feature) in ({"bytes"}, {"bytes", "path"})
    return getattr(feature, "dtype", "") in ("binary", "large_binary")


def _row(table: Any, pictured: list[str], roles: Roles, where: str, index: int) -> PromptRow:
    """A row of a dataset, with the pictures of its columns as they are stored."""
    where = f"{where}, row {index}"
    try:
        row = dict(table[index])
    except Exception as error:  # a damaged file: whatever its reader raises
        raise DataError(f"{where} cannot be read: {one_line(error)}.") from error
    for name in pictured:
        if isinstance(row[name], list):
            row[name] = [_file(picture) for picture in row[name]]
        elif row[name]:
            row[name] = _file(row[name])

    def stored(value: Any, role: str) -> Any:
        if role == "source" and not isinstance(value, Stored):
            raise DataError(
                f"{where} has {brief(value)} as its picture; expected a picture or a list of them. Cast the column to "
                "datasets.Image(), or write `columns: {image: null}`."
            )
        return value

    prompt = prompt_of(row, roles, where=where, stored=stored)
    return PromptRow(prompt=prompt, where=where, number=index + 1)


def _file(picture: Any) -> Stored:
    """A stored picture: the bytes of its file, or its path."""
    content = picture["bytes"]
    return Stored(Path(picture["path"]) if content is None else bytes(content))
