"""From a prompt to what GLM-Image's autoregressive half reads: token ids, with positions on three axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor

from grpokit import Prompt, UsageError
from grpokit.builtin.quotes import quotations
from grpokit.data import refuse_pictures
from grpokit.errors import brief, one_line
from grpokit_glm_image.grids import PIXELS, Grid, Target, prompt_positions
from grpokit_hf.tokens.reserved import OwnTokens, most_tokens

_GLYPHS = 2048  # tokens that the pipeline reads of a text in quotes: one for each byte, and one for its end


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A prompt as tokens.

    Attributes:
        tokens: [S] int64.
        positions: [3, S + T - 1] int64 on the CPU, of the prompt's tokens and of the visual tokens behind them. The
            last of those is read by nobody.
    """

    tokens: Tensor
    positions: Tensor

    def to(self, device: torch.device) -> Reading:
        """The same with its tokens on a device."""
        return replace(self, tokens=self.tokens.to(device, non_blocking=True))


class PromptEncoder:
    """Reads prompts with the model's own processor.

    Args:
        processor: of the model.
        config: of its autoregressive half.
        size: height and width of the pictures to write, in pixels.
        edits: whether each prompt brings pictures to edit.
        context: the most tokens of a prompt and its picture.

    Attributes:
        target: the grids of a picture.
    """

    def __init__(self, processor: Any, config: Any, *, size: tuple[int, int], edits: bool, context: int) -> None:
        self.processor, self.size, self.edits, self.context = processor, size, edits, context
        self._begin, self._picture = config.image_start_token_id, config.image_token_id
        own = {*range(config.text_config.vision_vocab_size), *processor.tokenizer.all_special_ids}
        self._own = OwnTokens(processor.tokenizer, own)
        # An edit of an empty picture has no draft; the rule for a draft's size is the processor's own.
        _, grids = self._processed("", [])
        large, *draft = (Grid(rows=rows, columns=columns) for _, rows, columns in grids.tolist())
        self.target = Target(draft=None if edits else draft[0], large=large)

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that cannot be read.

        Raises:
            UsageError: one is empty, too long, has a token of the model's in its text, or pictures where none can be.
        """
        for prompt in prompts:
            if not self._is_short(prompt):
                self._checked(prompt)

    def encode(self, prompt: Prompt, codes: Sequence[Tensor] = ()) -> Reading:
        """Read a prompt.

        Args:
            prompt: the prompt.
            codes: the visual tokens [h * w] of each picture to edit, as `source_pictures.source_codes` gives them.

        Raises:
            UsageError: as `check`.
        """
        tokens, sources = self._checked(prompt)
        if sources:
            tokens = tokens.masked_scatter(tokens == self._picture, torch.cat(list(codes)))
        before = prompt_positions(tokens.tolist(), sources, begin=self._begin)
        behind = self.target.positions(int(before[0, -1]) + 1)
        return Reading(tokens=tokens, positions=torch.cat([before, behind], 1)[:, :-1])

    def _is_short(self, prompt: Prompt) -> bool:
        """Whether a prompt needs no closer look: a text that fits even if each of its bytes is a token."""
        if self.edits or prompt.images:
            return False
        self._own.refuse(prompt.text)
        most = most_tokens(prompt.text)
        return most < _GLYPHS and most + self._around + self.target.count <= self.context

    @cached_property
    def _around(self) -> int:
        """The tokens around a text."""
        return len(self._processed("x", ())[0])

    def _checked(self, prompt: Prompt) -> tuple[Tensor, Sequence[Grid]]:
        """The tokens [S] of a prompt, with places for its pictures, and the grids of those."""
        if not prompt.text.strip():
            raise UsageError("The prompt is empty. Expected a text that says what the picture should show.")
        if self.edits and not prompt.images:
            raise UsageError(
                f"The prompt {brief(prompt.text)} has no picture to edit. Name a folder of pictures as data.images, "
                "one per line of the prompts, such as source_images/1.png; in JSON lines a picture stands under "
                '"image". For prompts without pictures set policy.edits=false.'
            )
        if not self.edits:
            refuse_pictures([prompt], "this policy", otherwise="For edits, set policy.edits=true.")
        for picture in prompt.images:
            width, height = picture.size
            if width % PIXELS or height % PIXELS:
                raise UsageError(
                    f"The prompt {brief(prompt.text)} has a picture of {width} x {height} pixels. The sides of a "
                    f"picture to edit must be multiples of {PIXELS}: crop or resize it to "
                    f"{max(PIXELS, width // PIXELS * PIXELS)} x {max(PIXELS, height // PIXELS * PIXELS)}."
                )
        self._own.refuse(prompt.text)
        for span in quotations(prompt.text):
            if len(span.encode()) >= _GLYPHS:
                raise UsageError(
                    f"The prompt {brief(prompt.text, most=60)} has a text of {len(span.encode()):,} bytes in quotes. "
                    f"The decoder reads at most {_GLYPHS - 1:,} of them to paint its letters. Shorten it."
                )
        try:
            tokens, grids = self._processed(prompt.text, prompt.images)
        except ValueError as error:
            if not prompt.images:
                raise
            raise UsageError(
                f"The prompt {brief(prompt.text)} has a picture that the model's processor refuses: {one_line(error)}. "
                "Crop or resize it."
            ) from error
        sources = [Grid(rows=rows, columns=columns) for _, rows, columns in grids[: len(prompt.images)].tolist()]
        for picture, grid in zip(prompt.images, sources, strict=True):
            width, height = picture.size
            if (grid.columns * PIXELS, grid.rows * PIXELS) != (width, height):
                raise UsageError(
                    f"The prompt {brief(prompt.text)} has a picture of {width} x {height} pixels, which the model's "
                    f"processor would scale to {grid.columns * PIXELS} x {grid.rows * PIXELS}. Resize it to that."
                )
        length = len(tokens) + self.target.count
        if length > self.context:
            raise UsageError(
                f"The prompt {brief(prompt.text)} has {len(tokens)} tokens and its picture {self.target.count}; "
                f"together the model reads {self.context}. Shorten the prompt."
            )
        return tokens, sources

    def _processed(self, text: str, pictures: Sequence[Image]) -> tuple[Tensor, Tensor]:
        """The processor's tokens [S] and grids [n, 3], those of the pictures first."""
        content: list[dict[str, Any]] = [{"type": "image"} for _ in pictures]
        messages = [{"role": "user", "content": [*content, {"type": "text", "text": text}]}]
        height, width = self.size
        whole = self.processor.apply_chat_template(messages, tokenize=False)
        made = self.processor(
            text=[whole],
            images=list(pictures) or None,
            target_h=height,
            target_w=width,
            return_tensors="pt",
            # as in `apply_chat_template(tokenize=True)`, which the stock pipeline calls
            add_special_tokens=not whole.startswith(self.processor.tokenizer.bos_token),
        )
        return made["input_ids"][0], made["image_grid_thw"]
