"""Lists samples in files for `grpokit evaluate`, without opening them.

They are a picture, a folder of pictures named by line number, a folder that `grpokit sample` wrote, or records. An
entry has the paths of its files, which are only opened by `Entry.open`, so a long list of entries stays small.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from grpokit import data
from grpokit.data import PromptSequence
from grpokit.data.digests import digest
from grpokit.errors import DataError, UsageError, brief, nearest, plural
from grpokit.images import MAX_PIXELS, PICTURES, is_hidden, open_picture, other_pictures, to_convert
from grpokit.types import Prompt, Sample

SAMPLES = "samples.jsonl"
"""The file that `grpokit sample` and a run's evaluations write next to their pictures."""

_RECORDS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
_NUMBERED = re.compile(r"([0-9]+)(?:[-_]([0-9]+))?")
_OWN_KEYS = ("output", "file", "group", "source", "target_text", "scores", "reward", "place", "advantage", "error")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One sample in a file.

    Attributes:
        where: names it in tables and messages.
        output: a picture's path, or a text.
        stored: the prompt; its pictures need not be opened.
        prompt: opens the prompt with its pictures; entries of one prompt may share the function.
        group: the same for all samples of one prompt.
        max_pixels: a picture with more is refused.
        line: its line or row in the file of records that lists it, from 1; 0 if there is none.
    """

    where: str
    output: Path | str
    stored: Prompt
    prompt: Callable[[], Prompt]
    group: int
    max_pixels: int = MAX_PIXELS
    line: int = 0

    @property
    def kind(self) -> str:
        """The kind of its output: "image" or "text"."""
        return "image" if isinstance(self.output, Path) else "text"

    @property
    def missing(self) -> bool:
        """Whether it is a picture whose file does not exist."""
        return isinstance(self.output, Path) and not os.path.exists(self.output)

    def open(self, prompt: Prompt | None = None) -> Sample:
        """Read the files.

        Args:
            prompt: an earlier result of `self.prompt`, so that its pictures are read once.

        Raises:
            DataError: a file cannot be read.
        """
        if self.missing:
            raise DataError(f"{self.output} does not exist")
        output: Any = self.output
        if isinstance(output, Path):
            output = open_picture(output, max_pixels=self.max_pixels)
        return Sample(prompt=prompt or self.prompt(), output=output, group=self.group)


def find_samples(
    path: Path,
    *,
    prompts: PromptSequence | None = None,
    prompt: Prompt | None = None,
    max_pixels: int = MAX_PIXELS,
) -> list[Entry]:
    """List the samples in a picture, a folder or a file of records; the samples of a group follow each other.

    Args:
        path: the picture, folder or file.
        prompts: those of a folder whose pictures are named by line number.
        prompt: that of the picture, or of all pictures in the folder, which then are one group.
        max_pixels: a picture with more is refused.

    Raises:
        UsageError: arguments do not go together.
        DataError: there is nothing to score, or a file is not as expected.
    """
    if not os.path.exists(path):  # unlike Path.exists, it is False for a name that no file can have
        raise DataError(f"There is no file or folder {brief(str(path), most=1000)[1:-1]} (looked in {Path.cwd()}).")
    if prompts is not None and path.is_dir():
        return numbered_pictures(path, prompts, max_pixels=max_pixels)
    table = path / SAMPLES if path.is_dir() else path
    if is_table(table):
        if prompt is not None or prompts is not None:
            raise UsageError(
                f"The records in {table} have their own prompts, and pictures under the keys `target` and `image` "
                "(the source). Leave out the other prompts; those of an evaluation with data=null."
            )
        return read_records(table, max_pixels=max_pixels)
    pictures = _pictures(path)
    if prompts is not None:
        raise UsageError(f"{path} is one picture; several prompts go with a folder of them. Give --prompt.")
    only = prompt or Prompt("")
    return [
        Entry(
            where=str(picture),
            output=picture,
            stored=only,
            prompt=lambda: only,
            group=i if prompt is None else 0,  # without a prompt each picture stands for itself
            max_pixels=max_pixels,
        )
        for i, picture in enumerate(pictures)
    ]


def is_table(path: Path) -> bool:
    """Whether a file has records, by its name."""
    return path.suffix.lower() in _RECORDS and path.is_file()


def numbered_pictures(folder: Path, prompts: PromptSequence, *, max_pixels: int = MAX_PIXELS) -> list[Entry]:
    """Pictures for the lines of `prompts`: `7.png` for line 7, or `7_1.png`, `7_2.png`, ... for several samples.

    A line without a picture becomes an entry whose picture is missing, so that it is counted.

    Raises:
        DataError: a picture has another name or no line, or two have the same name.
    """
    rows = [prompts.row(i) for i in range(len(prompts))]
    of_line: dict[int, dict[int, Path]] = {row.number: {} for row in rows}
    strangers = []
    for path in _pictures(folder):
        match = _NUMBERED.fullmatch(path.stem)
        if match is None:
            raise DataError(
                f"{path} is not named by a line number: expected 7.png, or 7_1.png, 7_2.png, ... for several samples "
                "of the prompt in line 7."
            )
        number = int(match[1])
        sample = int(match[2] or -1)
        if number not in of_line:
            strangers.append(path)
        elif of_line[number].setdefault(sample, path) != path:
            raise DataError(f"Both {of_line[number][sample]} and {path} are for line {number}; keep one.")
    if strangers:  # most likely they are the wrong prompts, so nothing is scored
        raise DataError(
            f"{plural(len(strangers), 'picture')} in {folder} {'has' if len(strangers) == 1 else 'have'} no prompt: "
            f"the first is {strangers[0].name}, and the last of {plural(len(rows), 'prompt')} is {rows[-1].where}. "
            "Lines are counted from 1."
        )
    entries = []
    for i, row in enumerate(rows):
        prompt = partial(prompts.__getitem__, i)
        samples = of_line[row.number] or {0: folder / f"{row.number}.png"}
        for _, path in sorted(samples.items()):
            entries.append(
                Entry(
                    where=str(path),
                    output=path,
                    stored=row.prompt,
                    prompt=prompt,
                    group=row.number,
                    max_pixels=max_pixels,
                )
            )
    return entries


def read_records(path: Path, *, max_pixels: int = MAX_PIXELS) -> list[Entry]:
    """Records with `prompt` and `output`, and optionally `target`, `image` and more, as `grpokit.data` reads them.

    An `output` with the ending of a picture's file name is a path relative to the file's folder; any other is a text.
    `file` is always a path. So the `samples.jsonl` of `grpokit sample` and of runs can be read too. Records with the
    same `group` share a group; without that key, records with the same prompt, target and source do.

    Raises:
        DataError: the file cannot be read, or a line is not such an object; a target or a source is missing.
    """
    sequence = data.read_prompts(path, max_pixels=max_pixels)
    groups: dict[str, int] = {}
    entries = []
    for i in range(len(sequence)):
        row = sequence.row(i)
        prompt = row.prompt
        meta = prompt.meta
        group = meta.get("group")
        if group is None:  # of a picture its content counts, since each sample may have its own copy
            group = [prompt.text, prompt.target, prompt.images]
            group += map(meta.get, ("messages", "target_text", "source"))
        key = digest(group)
        output = _output(meta, path.parent, row.where)
        entries.append(
            Entry(
                where=str(output) if isinstance(output, Path) else row.where,
                output=output,
                stored=_asked(prompt),
                prompt=partial(_record, sequence, i),
                group=groups.setdefault(key, len(groups)),
                max_pixels=max_pixels,
                line=row.number,
            )
        )
    return sorted(entries, key=lambda entry: entry.group)


def _record(sequence: Sequence[Prompt], index: int) -> Prompt:
    return _asked(sequence[index])


def _asked(record: Prompt) -> Prompt:
    """The prompt of a record, without what the record says of the sample itself."""
    target = record.meta.get("target_text") if record.target is None else record.target
    meta = {key: value for key, value in record.meta.items() if key not in _OWN_KEYS}
    return replace(record, target=target, meta=meta)


def _output(record: Mapping[str, Any], folder: Path, where: str) -> Path | str:
    output = record.get("output")
    if record.get("file") is not None:
        return folder / str(record["file"])
    if not isinstance(output, str):
        hint = "" if "output" in record else nearest("output", record)
        raise DataError(f"{where}: output is {brief(output)}{hint}; expected a text or a picture's file name.")
    return folder / output if output.lower().endswith(PICTURES) else output


def _pictures(path: Path) -> list[Path]:
    """A picture, or the pictures in a folder, `2.png` before `10.png`; those of a run are its report's."""
    kinds = ", ".join(PICTURES)
    if not path.is_dir():
        if path.suffix.lower() in PICTURES:
            return [path]
        raise DataError(
            f"{path} is neither a picture ({kinds}) nor a file of records ({', '.join(_RECORDS)}), by its name. A "
            "record has the keys `prompt` and `output`."
        )
    files = [file for file in path.iterdir() if not is_hidden(file)]
    pictures = [file for file in files if file.suffix.lower() in PICTURES]
    if not pictures or (path / "metrics.jsonl").is_file() or any(path.glob(f"*/{SAMPLES}")):  # a run, or --before
        deeper = sorted(path.glob(f"**/{SAMPLES}"))
        hint = f" There is one in {deeper[-1].parent}." if deeper else ""
        others = other_pictures(path)
        hint += f" {to_convert(others)}." if others else ""
        raise DataError(f"{path} contains no pictures of samples ({kinds}) and no {SAMPLES}.{hint}")
    return sorted(pictures, key=_with_numbers)


def _with_numbers(file: Path) -> list[int | str]:
    """A name whose numbers are compared as numbers."""
    parts = re.split(r"([0-9]+)", file.name)
    return [int(part) if part.isdecimal() else part for part in parts]
