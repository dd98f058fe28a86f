"""Stable Diffusion 3 and 3.5: three text encoders, and guidance by a second pass with an empty text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpokit import UsageError
from grpokit_diffusers.family import PipelineFamily, Text, Told, rows
from grpokit_hf.diffusion.family import Schedule, Size


class SD3(PipelineFamily):
    """`StableDiffusion3Pipeline`."""

    eval_guidance = 7.0
    text_tokens = 77 + 256  # of CLIP, and of T5
    max_shift = 1.16
    longest_text = 256
    tokenizer = "tokenizer_3"
    optional = ("text_encoder_3", "tokenizer_3")  # the largest of the three; its place in the text is then empty

    def __init__(self, pipeline: Any) -> None:
        super().__init__(pipeline)
        if pipeline.tokenizer_3 is None:
            self.tokenizer, self.longest_text = "tokenizer", 77  # of CLIP, which else reads the beginning

    def schedule(self, steps: int, size: Size) -> Schedule:
        """See `Family`: the scheduler's own steps."""
        limit = self.multiple * self.transformer.config.pos_embed_max_size
        if max(size) > limit:
            raise UsageError(f"size: this model has places for at most {limit} pixels a side, got {list(size)}.")
        return self.scheduled(steps, size)

    def encoded(self, text: str) -> Text:
        """Embeddings [1, L, D] and their summary [1, E]."""
        embeddings, _, pooled, _ = self.pipeline.encode_prompt(
            text, None, None, device=self.device, do_classifier_free_guidance=False
        )
        return embeddings, pooled

    def passes(self, latents: Tensor, times: Tensor, told: Told, texts: Sequence[Text]) -> Sequence[Tensor]:
        """See `PipelineFamily`; one call for both texts, the negative one first."""
        every = []
        for parts in zip(*reversed(texts), strict=True):
            every.append(torch.cat([rows(part, len(latents)) for part in parts]))
        embeddings, pooled = every
        v = self.output(
            hidden_states=latents.repeat(len(texts), 1, 1, 1),
            timestep=times.repeat(len(texts)),
            encoder_hidden_states=embeddings,
            pooled_projections=pooled,
        )
        return v.chunk(len(texts))[::-1]
