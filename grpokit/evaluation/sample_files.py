"""Lists samples in files for `grpokit score`, without opening them.

They are a picture, a folder of pictures named by line number, a folder that `grpokit sample` wrote, or records. An
entry has the paths of its files, which are only opened by `Entry.open`, so a long list of entries stays small.
"""

from __future__ import annotations

import functools
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpokit import data
from grpokit.data.digests import digest
from grpokit.data.roles import Columns
from grpokit.errors import DataError, UsageError, counted, nearest, shown
from grpokit.images import MAX_PIXELS, PICTURES, hidden, open_picture, other_pictures, to_convert
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
        prompt: opens the prompt with its pictures; entries of one prompt may share the function.
        text: the prompt's text.
        group: the same for all samples of one prompt.
        max_pixels: a picture with more is refused.
        problem: why it cannot be opened; empty if no problem is known yet.
        line: its line or row in the file of records that lists it, from 1; 0 if there is none.
    """

    where: str
    output: Path | str
    prompt: Callable[[], Prompt]
    text: str
    group: int
    max_pixels: int = MAX_PIXELS
    problem: str = ""
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
        if self.problem:
            raise DataError(self.problem)
        if self.missing:
            raise DataError(f"there is no file {self.output}")
        output: Any = self.output
        if isinstance(output, Path):
            output = open_picture(output, max_pixels=self.max_pixels)
        return Sample(prompt=self.prompt() if prompt is None else prompt, output=output, group=self.group)


def find(
    path: Path,
    *,
    prompt: str | None = None,
    prompts: Path | None = None,
    target: Path | None = None,
    source: Path | None = None,
    targets: Path | None = None,
    sources: Path | None = None,
    columns: Columns | None = None,
    max_pixels: int = MAX_PIXELS,
) -> list[Entry]:
    """List the samples in a picture, a folder or a file of records; the samples of a group follow each other.

    Args:
        path: the picture, folder or file.
        prompt: the prompt of the picture, or of all pictures in the folder, which then are one group.
        prompts: a file of prompts, for a folder whose pictures are named by line number.
        target: the picture to compare with; goes with `prompt`.
        source: the picture that was edited; goes with `prompt`.
        targets: a folder of pictures to compare with, named by line number; goes with `prompts`.
        sources: a folder of pictures that were edited, named by line number; goes with `prompts`.
        columns: which of its columns are what, for a file of prompts that has columns.
        max_pixels: a picture with more is refused.

    Raises:
        UsageError: arguments do not go together.
        DataError: there is nothing to score, or a file is not as expected.
    """
    if path.suffix.lower() in _RECORDS and os.path.isfile(path):
        options = {"--prompt": prompt, "--prompts": prompts, "--target": target, "--targets": targets}
        options |= {"--source": source, "--sources": sources}
        return records(_without(path, options), max_pixels=max_pixels)
    one = prompt is not None or target is not None or source is not None
    _check_options(one=one, prompts=prompts, targets=targets, sources=sources)
    if os.path.isdir(path):
        _refuse_run(path)
        if prompts is not None:
            return numbered(path, prompts, targets=targets, sources=sources, columns=columns, max_pixels=max_pixels)
        if (path / SAMPLES).is_file():
            options = {"--prompt": prompt, "--target": target, "--source": source}
            return records(_without(path / SAMPLES, options), max_pixels=max_pixels)
        return _of_one_prompt(_pictures(path), prompt, target, source, max_pixels=max_pixels, group_each=not one)
    if not os.path.exists(path):
        raise DataError(f"There is no file or folder {shown(str(path), most=1000)[1:-1]} (looked in {Path.cwd()}).")
    if prompts is not None:
        raise UsageError(
            f"--prompts goes with a folder of pictures, but {path} is a file. Give its prompt with --prompt."
        )
    if path.suffix.lower() in PICTURES:
        return _of_one_prompt([path], prompt, target, source, max_pixels=max_pixels, group_each=False)
    raise DataError(
        f"{path} is neither a picture ({', '.join(PICTURES)}) nor a file of records ({', '.join(_RECORDS)}), by its "
        "name. A record has the keys `prompt` and `output`."
    )


def _check_options(*, one: bool, prompts: Path | None, targets: Path | None, sources: Path | None) -> None:
    """Refuse options for one prompt together with those for many."""
    if prompts is not None and one:
        raise UsageError(
            "--prompts is for pictures named by line number; it goes with --targets and --sources, not with --prompt, "
            "--target and --source."
        )
    if prompts is None and (targets is not None or sources is not None):
        name = "--targets" if targets is not None else "--sources"
        raise UsageError(f"{name} is a folder of pictures named by line number, so it needs --prompts. For one prompt "
                         f"give {name[:-1]}.")  # fmt: skip


def _refuse_run(folder: Path) -> None:
    """Refuse a run folder: its pictures belong to the report, and its samples are in folders below."""
    if not all(os.path.isfile(folder / name) for name in ("config.yaml", "metrics.jsonl")):
        return
    evaluated = sorted(folder.glob(f"samples/step_*/{SAMPLES}"))
    if evaluated:
        raise DataError(f"{folder} is a run; its latest samples are in {evaluated[-1].parent}.")
    raise DataError(
        f"{folder} is a run without samples, since it was never evaluated. Draw some: grpokit sample {folder} --out "
        "drawn"
    )


def _without(path: Path, options: Mapping[str, object]) -> Path:
    """The path of records; refuses a prompt, target or source given with it."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise UsageError(
            f"The records in {path} have their own prompts and pictures, under the keys `prompt`, `target` and `image` "
            f"(the source): leave out {' and '.join(given)}."
        )
    return path


def _of_one_prompt(
    pictures: Sequence[Path],
    text: str | None,
    target: Path | None,
    source: Path | None,
    *,
    max_pixels: int,
    group_each: bool,
) -> list[Entry]:
    """Samples of one prompt or, without a prompt, unrelated pictures."""
    for role, file in (("--target", target), ("--source", source)):
        if file is not None and not os.path.isfile(file):
            raise DataError(f"{role}: there is no picture {file} (looked in {Path.cwd()}).")

    def prompt() -> Prompt:
        return Prompt(
            text=text or "",
            target=None if target is None else open_picture(target, where="--target", max_pixels=max_pixels),
            image=None if source is None else open_picture(source, where="--source", max_pixels=max_pixels),
        )

    prompt()  # a target that cannot be read is one error, not a problem of every picture
    return [
        Entry(
            where=str(path),
            output=path,
            prompt=prompt,
            text=text or "",
            group=i if group_each else 0,
            max_pixels=max_pixels,
        )
        for i, path in enumerate(pictures)
    ]


def numbered(
    folder: Path,
    prompts: Path,
    *,
    targets: Path | None = None,
    sources: Path | None = None,
    columns: Columns | None = None,
    max_pixels: int = MAX_PIXELS,
) -> list[Entry]:
    """Pictures for the lines of `prompts`: `7.png` for line 7, or `7_1.png`, `7_2.png`, ... for several samples.

    A line without a picture becomes an entry with a problem, so that it is counted.

    Raises:
        DataError: a picture has another name or no line, two have the same name, or a target or source is missing.
    """
    sequence = data.read_prompts(prompts, columns=columns, targets=targets, images=sources, max_pixels=max_pixels)
    texts = {sequence.number(i): sequence.parts(i)[0][0] for i in range(len(sequence))}
    of_line: dict[int, dict[int, Path]] = defaultdict(dict)
    strangers = []
    for path in _pictures(folder):
        match = _NUMBERED.fullmatch(path.stem)
        if match is None:
            raise DataError(
                f"{path} is not named by a line number: expected 7.png, or 7_1.png, 7_2.png, ... for several samples "
                f"of line 7 of {prompts}."
            )
        number, sample = int(match[1]), int(match[2] or -1)
        if number not in texts:
            strangers.append(path)
        elif of_line[number].setdefault(sample, path) != path:
            raise DataError(f"Both {of_line[number][sample]} and {path} are for line {number}; keep one.")
    if strangers:
        _refuse(strangers, prompts, texts, folder)
    others: dict[int, list[Path]] = defaultdict(list)
    for path in other_pictures(folder):
        if match := _NUMBERED.fullmatch(path.stem):
            others[int(match[1])].append(path)
    entries = []
    for i, (number, text) in enumerate(texts.items()):
        prompt = functools.partial(sequence.one, i)
        for _, path in sorted(of_line[number].items()):
            entries.append(
                Entry(where=str(path), output=path, prompt=prompt, text=text, group=number, max_pixels=max_pixels)
            )
        if not of_line[number]:
            picture = folder / f"{number}.png"
            problem = f"there is no picture for line {number} of {prompts} in {folder}"
            if number in others:
                problem += f"; {to_convert(others[number])}"
            entries.append(
                Entry(where=str(picture), output=picture, prompt=prompt, text=text, group=number, problem=problem)
            )
    return entries


def _refuse(strangers: Sequence[Path], prompts: Path, texts: Mapping[int, str], folder: Path) -> None:
    """Refuse pictures without a prompt: most likely it is the wrong file of prompts, so nothing is scored."""
    message = (
        f"{counted(len(strangers), 'picture')} in {folder} {'has' if len(strangers) == 1 else 'have'} no prompt: the "
        f"first is {strangers[0].name}, and {prompts} has {counted(len(texts), 'prompt')}, the last in line "
        f"{max(texts)}."
    )
    if (folder / SAMPLES).is_file():
        message += f" The folder has a {SAMPLES} with the prompts: leave out --prompts."
    elif _NUMBERED.fullmatch(strangers[0].stem)[1].strip("0") == "":  # type: ignore[index]
        message += " Lines are counted from 1."
    raise DataError(message)


def records(path: Path, *, max_pixels: int = MAX_PIXELS) -> list[Entry]:
    """Records with `prompt` and `output`, and optionally `target`, `image` and more, as `grpokit.data` reads them.

    An `output` with the ending of a picture's file name is a path relative to the file's folder; any other is a text.
    `file` is always a path. So the `samples.jsonl` of `grpokit sample` and of runs can be read too. Records with the
    same `group` share a group; without that key, records with the same prompt, target and source do. A line that is
    not such an object, or whose target or source is missing, becomes an entry with a problem, so that it is counted.

    Raises:
        DataError: the file cannot be read, or none of its lines; the message has the first line's problem.
    """
    problems: dict[int, str] = {}
    sequence = data.read_prompts(path, problems=problems, max_pixels=max_pixels)
    bad = [(number, f"{path}, line {number}", problem) for number, problem in problems.items()]
    groups: dict[str, int] = {}
    entries = []
    for i in range(len(sequence)):
        where, number = sequence.where(i), sequence.number(i)
        (text, meta), target, source = sequence.parts(i)
        try:
            output = _output(meta, path.parent, where)
        except DataError as error:
            bad.append((number, where, str(error)))
            continue
        # Of a picture its content counts, since each sample may have its own copy.
        same = [text, target, source, *(meta.get(key) for key in ("messages", "target_text", "source"))]
        key = digest(same if meta.get("group") is None else meta["group"])
        entries.append(
            Entry(
                where=str(output) if isinstance(output, Path) else where,
                output=output,
                prompt=functools.partial(_record, sequence, i),
                text=text,
                group=groups.setdefault(key, len(groups)),
                max_pixels=max_pixels,
                line=number,
            )
        )
    if not entries:
        raise DataError(min(bad)[2])
    unread = functools.partial(Prompt, text="")
    for group, (number, where, problem) in enumerate(sorted(bad), len(groups)):
        entries.append(Entry(where=where, output="", prompt=unread, text="", group=group, problem=problem, line=number))
    return sorted(entries, key=lambda entry: entry.group)


def _record(sequence: Sequence[Prompt], index: int) -> Prompt:
    prompt = sequence[index]
    return replace(
        prompt,
        target=prompt.meta.get("target_text") if prompt.target is None else prompt.target,
        meta={key: value for key, value in prompt.meta.items() if key not in _OWN_KEYS},
    )


def _output(row: Mapping[str, Any], folder: Path, where: str) -> Path | str:
    output, file = row.get("output"), row.get("file")
    for key, value in (("output", output), ("file", file)):
        is_set = value is not None or (key == "output" and key in row and file is None)
        if is_set and (not isinstance(value, str) or (key == "file" and not value)):
            kind = "a text or a picture's file name" if key == "output" else "a picture's file name"
            raise DataError(f"{where}: {key} is {shown(value)}; expected {kind}.")
    if file is not None:
        return folder / str(file)
    if output is None:
        raise DataError(
            f"{where}: there is no key 'output'{nearest('output', row)}, a text or a picture's file name (other keys: "
            f"{', '.join(row) or 'none'})."
        )
    return folder / output if output.lower().endswith(PICTURES) else str(output)


def _pictures(folder: Path) -> list[Path]:
    """The pictures in a folder, `2.png` before `10.png`."""
    try:
        pictures = [path for path in folder.iterdir() if path.suffix.lower() in PICTURES and not hidden(path)]
    except OSError as error:
        raise DataError(f"The folder {folder} cannot be read: {error}.") from error
    if not pictures:
        deeper = sorted(folder.glob(f"*/{SAMPLES}"))
        hint = f" There is one in {deeper[-1].parent}." if deeper else ""
        others = other_pictures(folder)
        hint += f" {to_convert(others)}." if others else ""
        raise DataError(f"{folder} contains no pictures ({', '.join(PICTURES)}) and no {SAMPLES}.{hint}")
    return sorted(pictures, key=lambda path: [int(x) if x.isdecimal() else x for x in re.split(r"([0-9]+)", path.name)])
