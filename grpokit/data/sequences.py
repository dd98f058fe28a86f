"""Sequences of prompts that open their pictures when a prompt is asked for, and know where each prompt comes from.

A list of texts, lines of a file and rows of a dataset look the same from outside. Beside the prompts themselves they
give what a run needs before it begins: the place of a prompt for error messages, a prompt without its pixels, and
where its pictures are stored, for a digest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from PIL.ContainerIO import ContainerIO

from grpokit.errors import DataError, UsageError, a_type, brief, plural, reword
from grpokit.images import MAX_PIXELS, blank_picture, check_whole, open_picture
from grpokit.policy import Policy
from grpokit.processes.forks import forks_ended
from grpokit.sampling import STREAMS, permutation
from grpokit.types import Prompt

_AT_ONCE = 500  # prompts that a policy checks together


@dataclass(frozen=True)
class Stored:
    """A picture that is not open: a file, a file's bytes, or a part of an archive."""

    file: Path | bytes
    start: int = 0
    size: int | None = None  # of the part, in bytes

    def read_bytes(self) -> bytes:
        """Its content."""
        if isinstance(self.file, bytes):
            return self.file
        with self.file.open("rb") as file:
            file.seek(self.start)
            return file.read(self.size)

    def opened(self, read: Callable[..., Any], *, where: str, max_pixels: int) -> Any:
        """What a function of `grpokit.images` makes of it; no more is read than that function asks for."""
        if isinstance(self.file, bytes) or self.size is None:
            return read(self.file, where=where, max_pixels=max_pixels)
        with self.file.open("rb") as file:
            return read(ContainerIO(file, self.start, self.size), where=where, max_pixels=max_pixels)


@dataclass(frozen=True, kw_only=True)
class PromptRow:
    """A prompt and where it comes from.

    Attributes:
        prompt: each of its pictures may be a `Stored`.
        where: the file and the line, or the dataset and the row, to begin a message with: "prompts.txt, line 3".
        number: of the line or row, from 1, by which pictures in a folder name it.
    """

    prompt: Prompt
    where: str
    number: int


class PromptSequence(Sequence[Prompt]):
    """Prompts by index, with their pictures; slices become lists.

    Args:
        row: index -> a prompt as it is stored, and where.
        order: the indices of the sequence's prompts.
        max_pixels: a picture with more is refused.

    Attributes:
        checked (bool): whether the policy's plugin has checked all prompts already.
    """

    checked = False

    def __init__(self, row: Callable[[int], PromptRow], order: Sequence[int], *, max_pixels: int = MAX_PIXELS) -> None:
        self._row = row
        self._order = order
        self._max_pixels = max_pixels

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | Sequence[Prompt]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        return self._read(range(len(self))[index], open_picture)

    def row(self, index: int) -> PromptRow:
        """A prompt as it is stored, and where; no picture is opened."""
        return self._row(self._order[index])

    def unopened(self, index: int) -> Prompt:
        """A prompt with blank pictures, of the right mode and size, in place of those that are stored."""
        return self._read(index, blank_picture)

    def check_pictures(self, index: int) -> None:
        """Read a prompt's pictures to their ends.

        Raises:
            DataError: one of them cannot be read.
        """
        self._read(index, check_whole)

    def first(self, count: int | None) -> PromptSequence:
        """The first prompts, or all."""
        return self.subset(range(len(self))[:count])

    def subset(self, indices: Iterable[int]) -> PromptSequence:
        """Some of the prompts; unlike those of a slice they know where they come from."""
        order = [self._order[i] for i in indices]
        return PromptSequence(self._row, order, max_pixels=self._max_pixels)

    def _read(self, index: int, read: Callable[..., Any]) -> Prompt:
        row = self.row(index)
        prompt = row.prompt
        parts = (*prompt.images, prompt.target, *prompt.meta.values())
        if not any(isinstance(part, (Stored, list)) for part in parts):
            return prompt

        def opened(value: Any) -> Any:
            if isinstance(value, list):
                return [opened(one) for one in value]
            if isinstance(value, Stored):
                return value.opened(read, where=row.where, max_pixels=self._max_pixels)
            return value

        return Prompt(
            text=prompt.text,
            images=opened(list(prompt.images)),
            target=opened(prompt.target),
            meta={name: opened(value) for name, value in prompt.meta.items()},
        )


def as_prompts(prompts: Iterable[str | Prompt], *, source: str = "") -> PromptSequence:
    """Texts or prompts in a list -> prompts.

    What `read_prompts` and `read_dataset` give is passed through, and opens pictures when they are asked for; anything
    else is read whole.

    Args:
        prompts: texts, prompts, or both.
        source: where they come from, for messages.

    Raises:
        DataError: it is not a list of prompts, or one of them is not a prompt.
    """
    if isinstance(prompts, PromptSequence):
        return prompts
    if not isinstance(prompts, Iterable) or isinstance(prompts, (str, Mapping, set, frozenset)):  # a set has no order
        raise DataError(f"Expected a list of prompts, got {a_type(prompts)}.")
    rows = []
    for i, item in enumerate(prompts):
        prompt = Prompt(text=item) if isinstance(item, str) else item
        if not isinstance(prompt, Prompt) or not isinstance(prompt.text, str):
            raise DataError(f"Prompt {i} is {brief(item)}; expected a text, or a grpokit.Prompt with one.")
        names = [picture for picture in prompt.images if isinstance(picture, (str, Path))]
        if names:
            raise DataError(
                f"Prompt {i} has the text '{names[0]}' among its pictures; expected a list of pictures, such as "
                "[PIL.Image.open(path)]."
            )
        rows.append(PromptRow(prompt=prompt, where=f"prompt {i}{source and f' of {source}'}", number=i + 1))
    return PromptSequence(rows.__getitem__, range(len(rows)))


def hold_out(prompts: PromptSequence, fraction: float, seed: int) -> tuple[PromptSequence, PromptSequence]:
    """Split into (training, held out): a pure function of the number of prompts, the fraction and the seed.

    Raises:
        DataError: the fraction, between 0 and 1, leaves one of the two parts without prompts.
    """
    held = round(len(prompts) * fraction)
    if held == 0 or held == len(prompts):
        raise DataError(
            f"Holding out {fraction} of {plural(len(prompts), 'prompt')} leaves {len(prompts) - held} for training "
            f"and {held} for evaluation; give more prompts, another fraction, or an evaluation file."
        )
    order = permutation(len(prompts), seed, STREAMS["evaluate"])
    training = prompts.subset(sorted(order[held:]))
    held_out = prompts.subset(sorted(order[:held]))
    return training, held_out


def check_prompts(policy: Policy, prompts: Iterable[str | Prompt]) -> None:
    """Let a policy refuse prompts that it cannot read, before anything is drawn.

    Args:
        policy: its `check`, where it has one, sees the prompts, some hundreds at a time. A picture in a file is passed
            as a blank one of its mode and size.
        prompts: of a run.

    Raises:
        UsageError: as the policy says it, with the file and the line of the first such prompt.
    """
    check = getattr(policy, "check", None)  # optional in the contract
    sequence = as_prompts(prompts)
    if check is None or sequence.checked:
        return
    for start in range(0, len(sequence), _AT_ONCE):
        end = min(start + _AT_ONCE, len(sequence))
        portion = [sequence.unopened(i) for i in range(start, end)]
        try:
            with forks_ended():
                check(portion)
        except UsageError:
            for index, prompt in enumerate(portion, start):
                try:
                    with forks_ended():
                        check([prompt])
                except UsageError as error:
                    raise reword(error, f"{sequence.row(index).where}: {error}") from error
            raise


def refuse_pictures(prompts: Iterable[Prompt], reader: str, *, otherwise: str = "") -> None:
    """Refuse prompts with source pictures, for a policy that reads only texts.

    Args:
        prompts: of a run.
        reader: the policy in a message.
        otherwise: a sentence on how it would read pictures.

    Raises:
        UsageError: a prompt has a source picture.
    """
    for prompt in prompts:
        if prompt.images:
            raise UsageError(
                f"The prompt {brief(prompt.text, most=60)} has {plural(len(prompt.images), 'source picture')}, and "
                f"{reader} reads only text. If the output should look like a picture, make it the target: name its "
                "column, as in data.columns.target=image, or its folder as data.targets. To ignore the pictures, set "
                f"data.columns.image=null.{otherwise and f' {otherwise}'}"
            )
