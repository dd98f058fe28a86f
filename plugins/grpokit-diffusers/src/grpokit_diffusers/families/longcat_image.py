"""LongCat-Image: letters in quotes are tokens of their own, and guidance makes no token's velocity longer."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
from diffusers.pipelines.longcat_image.pipeline_longcat_image import prepare_pos_ids, split_quotation
from torch import Tensor

from grpokit import swapped
from grpokit_diffusers.family import PackedFamily, Text, Told, rows
from grpokit_hf.diffusion.family import Size

_APOSTROPHE = "\ue000"  # stands for one inside a word, which is no quotation mark


class LongCatImage(PackedFamily):
    """`LongCatImagePipeline`, as with `enable_prompt_rewrite=False`; a guidance of at most 1 leaves one pass out."""

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

    def velocity(self, latents: Tensor, time: Tensor, condition: Told, *, guidance: float) -> Tensor:
        """See `Family`."""
        guided = self._pass(latents, time, condition, condition.text[0])
        if guidance <= 1:
            return guided
        unguided = self._pass(latents, time, condition, condition.negative[0])
        return self.shortened(unguided + guidance * (guided - unguided), guided)

    def shortened(self, v: Tensor, guided: Tensor) -> Tensor:
        """Velocities [n, N, 4 C] of which no token's is longer than in the pass with the prompt."""
        ratio: Tensor = guided.norm(dim=-1, keepdim=True) / (v.norm(dim=-1, keepdim=True) + 1e-8)
        return v * ratio.clamp(max=1.0)

    def decoded(self, latents: Tensor, size: Size) -> Tensor:
        """Pixels [n, 3, H, W] of tokens."""
        return super().decoded(self.unpacked(latents, size), size)

    def _pass(self, latents: Tensor, time: Tensor, condition: Told, embeddings: Tensor) -> Tensor:
        """Velocities [n, N, 4 C] for one text."""
        count, length, device = len(latents), embeddings.shape[1], latents.device
        places = [
            prepare_pos_ids(1 + picture, "image", start=(length, length), height=height, width=width)
            for picture, (height, width) in enumerate(self.grids(condition))
        ]
        v: Tensor = self.transformer(
            hidden_states=self.beside(latents, condition.sources),
            timestep=time.to(device, non_blocking=True).expand(count) / 1000,
            encoder_hidden_states=rows(embeddings, count),
            txt_ids=prepare_pos_ids(num_token=length).to(device),
            img_ids=torch.cat(places).to(device),
            return_dict=False,
        )[0]
        return v[:, : latents.shape[1]].float()


def parts_of(text: str) -> list[tuple[str, bool]]:
    """The parts of a text, and which are in quotes.

    Where several words have an apostrophe, such as "don't" and "it's", diffusers 0.42 takes them for each other, and
    not in each process for the same one.
    """
    told_apart = re.sub(r"[a-zA-Z]+'[a-zA-Z]+", lambda word: word[0].replace("'", _APOSTROPHE), text)
    return [(part.replace(_APOSTROPHE, "'"), quoted) for part, quoted in split_quotation(told_apart)]
