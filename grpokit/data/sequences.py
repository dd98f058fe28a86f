"""Sequences of prompts that open their pictures when a prompt is asked for, and know where each prompt comes from.

A list of texts, lines of a file and rows of a dataset look the same from outside. Beside the prompts themselves they
give what a run needs before it begins: the place of a prompt for error messages, a prompt without its pixels, and the
parts of a prompt for a digest.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from grpokit.data.shards import Slice
from grpokit.errors import DataError, UsageError, counted, reworded, shown
from grpokit.images import MAX_PIXELS, blank_picture, open_picture
from grpokit.policy import Policy
from grpokit.types import Prompt

if TYPE_CHECKING:
    from PIL.Image import Image


_AT_ONCE = 500  # prompts that a policy checks together


class PromptSequence(Sequence[Prompt]):
    """Prompts by index; slices become lists.

    Attributes:
        checked: whether the policy's plugin has checked all prompts already.
    """

    checked = False

    @abstractmethod
    def one(self, index: int) -> Prompt:
        """The prompt at an index that is not negative."""

    @abstractmethod
    def unopened(self, index: int) -> Prompt:
        """The same prompt with blank pictures, of the right mode and size, in place of those that lie in files."""

    @abstractmethod
    def parts(self, index: int) -> tuple[Any, Any, Any]:
        """(text and meta, target, image) of a prompt, a `Path`, `Slice` or bytes for a picture that was not opened.

        Several source pictures are a list.
        """

    @abstractmethod
    def where(self, index: int) -> str:
        """Where a prompt comes from, to begin a message with: "prompts.txt, line 3"."""

    def number(self, index: int) -> int:
        """The number, from 1, by which pictures in a folder name a prompt: that of its line or row."""
        return index + 1

    def first(self, count: int | None) -> PromptSequence:
        """The first prompts, or all; unlike a slice they know where they come from."""
        return Subset(self, range(len(self))[:count])

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | Sequence[Prompt]:
        if isinstance(index, slice):
            return [self.one(i) for i in range(*index.indices(len(self)))]
        return self.one(range(len(self))[index])


def one_or_all(images: Sequence[Any]) -> Any:
    """The only source picture of a prompt, a list of several, or None."""
    return images[0] if len(images) == 1 else list(images) or None


class PromptList(PromptSequence):
    """Prompts in memory.

    Args:
        prompts: the prompts.
        source: where they come from, for messages; may be empty.
    """

    def __init__(self, prompts: Sequence[Prompt], source: str = "") -> None:
        self.prompts, self.source = prompts, source

    def __len__(self) -> int:
        return len(self.prompts)

    def one(self, index: int) -> Prompt:
        """The prompt."""
        return self.prompts[index]

    def unopened(self, index: int) -> Prompt:
        """The prompt: its pictures are in memory anyway."""
        return self.prompts[index]

    def parts(self, index: int) -> tuple[Any, Any, Any]:
        """As they are."""
        prompt = self.prompts[index]
        return (prompt.text, prompt.meta), prompt.target, one_or_all(prompt.images)

    def where(self, index: int) -> str:
        """Its index, from 0."""
        return f"prompt {index} of {self.source}" if self.source else f"prompt {index}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A prompt in a file, with the paths of its pictures.

    Attributes:
        text: of the prompt.
        target: a `Path` or `Slice` is a picture to open, anything else the target itself.
        images: the source pictures.
        meta: everything else.
        number: of the line, from 1.
        where: the file and the line.
    """

    text: str
    target: Any = None
    images: Sequence[Path | Slice] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    number: int
    where: str


class Rows(PromptSequence):
    """Prompts in a file.

    Args:
        rows: one per prompt.
        max_pixels: a picture with more is refused.
    """

    def __init__(self, rows: Sequence[Row], *, max_pixels: int = MAX_PIXELS) -> None:
        self.rows, self.max_pixels = rows, max_pixels

    def __len__(self) -> int:
        return len(self.rows)

    def one(self, index: int) -> Prompt:
        """Open the pictures."""
        return self._prompt(self.rows[index], open_picture)

    def unopened(self, index: int) -> Prompt:
        """Read the headers of the pictures."""
        return self._prompt(self.rows[index], blank_picture)

    def parts(self, index: int) -> tuple[Any, Any, Any]:
        """Pictures as paths, or as slices where they lie in an archive."""
        row = self.rows[index]
        return (row.text, row.meta), row.target, one_or_all(row.images)

    def _prompt(self, row: Row, read: Callable[..., Image]) -> Prompt:
        def picture(stored: Path | Slice) -> Image:
            with stored.opened() if isinstance(stored, Slice) else nullcontext(stored) as file:
                return read(file, where=row.where, max_pixels=self.max_pixels)

        target = picture(row.target) if isinstance(row.target, (Path, Slice)) else row.target
        return Prompt(text=row.text, images=[picture(image) for image in row.images], target=target, meta=row.meta)

    def number(self, index: int) -> int:
        """Of its line."""
        return self.rows[index].number

    def where(self, index: int) -> str:
        """The file and the line."""
        return self.rows[index].where


class Subset(PromptSequence):
    """Some prompts of another sequence.

    Args:
        prompts: the other sequence.
        indices: of the prompts, in their order here.
    """

    def __init__(self, prompts: PromptSequence, indices: Sequence[int]) -> None:
        self.prompts, self.indices = prompts, indices

    def __len__(self) -> int:
        return len(self.indices)

    def one(self, index: int) -> Prompt:
        """As the other sequence gives it."""
        return self.prompts.one(self.indices[index])

    def unopened(self, index: int) -> Prompt:
        """As the other sequence gives it."""
        return self.prompts.unopened(self.indices[index])

    def parts(self, index: int) -> tuple[Any, Any, Any]:
        """As the other sequence gives them."""
        return self.prompts.parts(self.indices[index])

    def where(self, index: int) -> str:
        """As the other sequence gives it."""
        return self.prompts.where(self.indices[index])


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
    if isinstance(prompts, str):
        raise DataError(f"Expected a list of prompts, got the single text {prompts!r}.")
    if isinstance(prompts, PromptSequence):
        return prompts
    if not isinstance(prompts, Iterable) or isinstance(prompts, (Mapping, set, frozenset)):  # a set has no order
        raise DataError(f"Expected a list of prompts, got a value of type {type(prompts).__name__}.")
    sequence: list[Prompt] = []
    for i, item in enumerate(prompts):
        prompt = Prompt(text=item) if isinstance(item, str) else item
        if not isinstance(prompt, Prompt):
            raise DataError(f"Prompt {i} is of type {type(item).__name__}; expected a text or a grpokit.Prompt.")
        if not isinstance(prompt.text, str):
            raise DataError(f"Prompt {i} has {shown(prompt.text)} as its text; expected a text.")
        for picture in prompt.images:
            if isinstance(picture, (str, Path)):
                raise DataError(
                    f"Prompt {i} has the text '{picture}' among its pictures; expected a list of pictures, such as "
                    "[PIL.Image.open(path)]."
                )
        sequence.append(prompt)
    return PromptList(sequence, source)


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
        portion = [sequence.unopened(i) for i in range(start, min(start + _AT_ONCE, len(sequence)))]
        try:
            check(portion)
        except UsageError:
            for index, prompt in enumerate(portion, start):
                try:
                    check([prompt])
                except UsageError as error:
                    raise reworded(error, f"{sequence.where(index)}: {error}") from error
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
                f"The prompt {shown(prompt.text, most=60)} has {counted(len(prompt.images), 'source picture')}, and "
                f"{reader} reads only text. If the output should look like a picture, make it the target: name its "
                "column, as in data.columns.target=image, or its folder as data.targets. To ignore the pictures, set "
                f"data.columns.image=null.{otherwise and f' {otherwise}'}"
            )
