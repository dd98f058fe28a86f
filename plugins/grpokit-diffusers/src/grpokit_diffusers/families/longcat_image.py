"""LongCat-Image: letters in quotes are tokens of their own, and guidance makes no token's velocity longer."""

from __future__ import annotations

import inspect
import re
from typing import Any

from diffusers.pipelines.longcat_image.pipeline_longcat_image import prepare_pos_ids, split_quotation
from torch import Tensor

from grpokit import swapped
from grpokit_diffusers.family import Text, Told
from grpokit_diffusers.packed import PackedFamily

_APOSTROPHE = "\ue000"  # stands for one inside a word, which is no quotation mark


class LongCatImage(PackedFamily):
    """`LongCatImagePipeline`, as with `enable_prompt_rewrite=False`."""

    eval_guidance = 4.5
    text_tokens = 512
    longest_text = 512

    def encoded(self, text: str) -> Text:
        """Embeddings [1, L, D]."""
        return self.embedded(text)

    def embedded(self, *given: Any) -> Text:
        """Embeddings [1, L, D] of what the pipeline's `encode_prompt` takes."""
        module = inspect.getmodule(self.pipeline.encode_prompt)
        with swapped(module, "split_quotation", parts_of):
            embeddings, _ = self.pipeline.encode_prompt(*given)
        return (embeddings,)

    def text_length(self, text: str) -> int:
        """See `PipelineFamily`; the tokens around the text are not passed on."""
        pieces: list[str] = []
        for part, quoted in parts_of(text):
            pieces += part if quoted else [part]
        tokenizer = self.pipeline.tokenizer
        return sum(len(tokenizer(piece, add_special_tokens=False, verbose=False).input_ids) for piece in pieces)

    def guided(self, v: Tensor, away: Tensor, guidance: float) -> Tensor:
        """See `PipelineFamily`."""
        longer = super().guided(v, away, guidance)
        ratio: Tensor = v.norm(dim=-1, keepdim=True) / (longer.norm(dim=-1, keepdim=True) + 1e-8)
        return longer * ratio.clamp(max=1.0)

    def predicted(self, latents: Tensor, times: Tensor, told: Told) -> Tensor:
        """See `PipelineFamily`; places of pictures begin behind the last one of the text."""
        embeddings = told.text[0]
        text = prepare_pos_ids(num_token=embeddings.shape[1]).to(latents.device)
        return self.output(
            hidden_states=latents,
            timestep=times / 1000,
            encoder_hidden_states=embeddings,
            txt_ids=text,
            img_ids=self.places(told) + text[-1] + 1,
        )


def parts_of(text: str) -> list[tuple[str, bool]]:
    """The parts of a text, and which are in quotes.

    Where several words have an apostrophe, such as "don't" and "it's", diffusers 0.42 takes them for each other, and
    not in each process for the same one.
    """
    told_apart = re.sub(r"[a-zA-Z]+'[a-zA-Z]+", lambda word: word[0].replace("'", _APOSTROPHE), text)
    return [(part.replace(_APOSTROPHE, "'"), quoted) for part, quoted in split_quotation(told_apart)]
