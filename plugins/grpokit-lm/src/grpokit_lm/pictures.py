"""From a prompt's pictures to what a vision-language model reads, by the model's own processor.

The processor writes as many image tokens as the model wants for a picture, and gives what else the model's family
needs: pixels, grids, kinds of tokens. All of that is passed to the model as it is, so no family is named here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from grpokit import GrpokitError, UsageError
from grpokit.errors import error_line
from grpokit.images import to_rgb
from grpokit.types import Trace
from grpokit_hf.tokens.ragged import flattened, padded, restored

_PREFIX = "pictures."


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A prompt as a model reads it.

    Attributes:
        tokens: [S] int64, at least one; the model puts features of pictures in the place of some.
        pictures: further arguments of the model, such as `pixel_values`; empty without pictures.
        positions: [3, S] int64 on the CPU, where the model counts on three axes; None: a token's position is its index.
    """

    tokens: Tensor
    pictures: Mapping[str, Tensor] = field(default_factory=dict)
    positions: Tensor | None = None

    def to(self, device: torch.device) -> Reading:
        """The same on a device."""
        pictures = {name: x.to(device, non_blocking=True) for name, x in self.pictures.items()}
        return replace(self, tokens=self.tokens.to(device, non_blocking=True), pictures=pictures)

    def span(self, further: int) -> Tensor:
        """Positions of the tokens and of `further` ones behind them: [S + further] or [3, S + further] on the CPU."""
        own = torch.arange(len(self.tokens)) if self.positions is None else self.positions
        return following(own, further)


class PictureReader:
    """Reads texts with pictures.

    Args:
        processor: of the model.
        model: a vision-language model.
    """

    def __init__(self, processor: Any, model: Any) -> None:
        self.processor, self.model = processor, model
        self._further: dict[tuple[str, tuple[int, int]], int] = {}

    @property
    def placeholder(self) -> str:
        """The text that stands for a picture."""
        return str(self.processor.image_token)

    @cached_property
    def example(self) -> Reading:
        """A picture of a few colours, alone: it shows what the processor gives, and in which types."""
        pixels = torch.randint(256, (32, 32, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        return self.read(f"{self.placeholder}a", [Image.fromarray(pixels.numpy())])

    @cached_property
    def special(self) -> bool:
        """Whether the processor, left to itself, puts special tokens around a text."""
        blank = [Image.new("RGB", (32, 32))]
        lengths = [len(self.read(self.placeholder, blank, special=special).tokens) for special in (None, False)]
        return lengths[0] != lengths[1]

    def read(self, text: str, images: Sequence[Image.Image], *, special: bool | None = None) -> Reading:
        """Read a text in which each picture has its placeholder.

        Args:
            text: what the chat template wrote, or plain text.
            images: at least one.
            special: whether the tokenizer adds its special tokens; None leaves that to the processor.

        Raises:
            UsageError: a picture has a mode that does not tell its colours, or the processor refuses.
        """
        try:
            converted = [to_rgb(image, what="a picture of a prompt") for image in images]
            options = {} if special is None else {"add_special_tokens": special}
            given = self.processor(text=[text], images=converted, return_tensors="pt", **options)
            pictures = {name: x for name, x in given.items() if name not in ("input_ids", "attention_mask")}
            reading = Reading(tokens=given["input_ids"][0], pictures=pictures)
            return replace(reading, positions=positions(self.model, reading))
        except GrpokitError as error:
            raise UsageError(str(error)) from error
        except Exception as error:  # the code of a processor is anybody's
            raise UsageError(f"The model's processor cannot read a picture: {error_line(error)}.") from error

    def further_tokens(self, images: Sequence[Image.Image]) -> int:
        """How many tokens pictures become, beside their placeholders.

        Every mode and size is read once, so a data set of like pictures is checked in no time.

        Raises:
            UsageError: as `read`.
        """
        for image in images:
            kind = (image.mode, image.size)
            if kind not in self._further:
                self._further[kind] = len(self.read(self.placeholder, [Image.new(*kind)], special=False).tokens) - 1
        return sum(self._further[image.mode, image.size] for image in images)

    def entries(self, readings: Sequence[Reading]) -> dict[str, Tensor]:
        """What `Trace.per_group` keeps of readings; the names and types are the same whether there are pictures."""
        kept: dict[str, Tensor] = {}
        for name, x in self.example.pictures.items():
            nothing = x.new_zeros(0).to(readings[0].tokens.device)
            kept |= flattened(_PREFIX + name, [reading.pictures.get(name, nothing) for reading in readings])
        if self.example.positions is not None:
            rows = [reading.positions.T for reading in readings if reading.positions is not None]
            kept["positions"] = padded(rows)  # [P, S, 3]
        return kept


def positions(model: Any, reading: Reading) -> Tensor | None:
    """[3, S] on the CPU, as the model counts them on three axes; None for one that has a single axis."""
    of_pictures = getattr(model.base_model, "get_rope_index", None)  # transformers' name in all families that have it
    if of_pictures is None:
        return None
    if not reading.pictures:
        return torch.arange(len(reading.tokens)).expand(3, -1)
    counted_on: Tensor = of_pictures(input_ids=reading.tokens[None], **reading.pictures)[0][:, 0]
    return counted_on


def following(positions: Tensor, count: int) -> Tensor:
    """The positions of a prompt and of `count` tokens behind it: [..., S] -> [..., S + count]."""
    behind = positions.max() + 1 + torch.arange(count)
    return torch.cat([positions, behind.expand(*positions.shape[:-1], -1)], -1)


def pictures_of(trace: Trace, device: torch.device) -> list[dict[str, Tensor]]:
    """The pictures of each prompt in a trace, on a device."""
    names = [name for name in trace.per_group if name.startswith(_PREFIX) and f"{name}.shape" in trace.per_group]
    prompts: list[dict[str, Tensor]] = [{} for _ in next(iter(trace.per_group.values()))]
    for name in names:
        for prompt, x in zip(prompts, restored(name, trace.per_group), strict=True):
            if x.numel():
                prompt[name.removeprefix(_PREFIX)] = x.to(device)
    return prompts


def joined(rows: Sequence[Mapping[str, Tensor]], before: Sequence[int], width: int) -> dict[str, Tensor]:
    """The arguments of a model for a padded batch.

    Args:
        rows: of each row, its pictures; a row may have none.
        before: columns of padding on the left of each row.
        width: columns of the batch.
    """
    together: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        given = [row[name] for row in rows if name in row]
        if name.endswith("token_type_ids"):  # one number per token; 0 is text
            table = given[0].new_zeros(len(rows), width)
            for line, row, begin in zip(table, rows, before, strict=True):
                if name in row:
                    line[begin : begin + row[name].shape[1]] = row[name][0]
            together[name] = table
        else:
            sizes = [max(sizes) for sizes in zip(*(x.shape[1:] for x in given), strict=True)]
            together[name] = torch.cat([_filled(x, sizes) for x in given])
    return together


def _filled(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """x with zeros behind all axes but the first, up to these sizes."""
    missing = [size - own for size, own in zip(sizes, x.shape[1:], strict=True)]
    return torch.nn.functional.pad(x, [n for each in reversed(missing) for n in (0, each)]) if any(missing) else x


def placeholders(messages: Sequence[Mapping[str, Any]], text: str) -> int:
    """How many pictures messages ask for: their image parts, and the text that stands for one."""
    asked = 0
    for message in messages:
        parts = [message["content"]] if isinstance(message["content"], str) else message["content"] or []
        for part in parts:
            if isinstance(part, str):
                asked += part.count(text)
            elif isinstance(part, Mapping):
                asked += 1 if part.get("type") == "image" else str(part.get("text", "")).count(text)
    return asked
