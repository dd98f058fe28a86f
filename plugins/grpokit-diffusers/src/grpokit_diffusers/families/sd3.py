"""Stable Diffusion 3 and 3.5: three text encoders, and guidance by a second pass with an empty text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpokit import UsageError
from grpokit_diffusers.family import PipelineFamily, Text, Told, rows
from grpokit_hf.diffusion.family import Schedule, Size


class SD3(PipelineFamily):
    """`StableDiffusion3Pipeline`; a guidance of at most 1 leaves the second pass out."""

    eval_guidance = 7.0
    text_tokens = 77 + 256  # of CLIP, and of T5
    max_shift = 1.16
    optional = ("text_encoder_3", "tokenizer_3")  # the largest of the three; its place in the text is then empty

    def __init__(self, pipeline: Any) -> None:
        super().__init__(pipeline)
        self.longest_text = 77 if pipeline.tokenizer_3 is None else 256  # of CLIP alone, which else reads the beginning

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

    def text_length(self, text: str) -> int:
        """See `PipelineFamily`."""
        tokenizer = self.pipeline.tokenizer_3 or self.pipeline.tokenizer
        return len(tokenizer(text, verbose=False).input_ids)

    def velocity(self, latents: Tensor, time: Tensor, condition: Told, *, guidance: float) -> Tensor:
        """See `Family`."""
        count = len(latents)
        texts = [condition.negative, condition.text] if guidance > 1 else [condition.text]
        embeddings, pooled = (torch.cat([rows(part, count) for part in parts]) for parts in zip(*texts, strict=True))
        v: Tensor = self.transformer(
            hidden_states=latents.to(self.transformer.dtype).repeat(len(texts), 1, 1, 1),
            timestep=time.to(latents.device, non_blocking=True).expand(len(texts) * count),
            encoder_hidden_states=embeddings,
            pooled_projections=pooled,
            return_dict=False,
        )[0].float()
        if guidance > 1:
            unguided, guided = v.chunk(2)
            v = unguided + guidance * (guided - unguided)
        return v
