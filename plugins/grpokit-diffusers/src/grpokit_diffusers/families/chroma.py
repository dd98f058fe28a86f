"""Chroma: FLUX.1 without CLIP and its summary of a text; guidance is a second pass with an empty text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from diffusers.models.transformers.transformer_chroma import ChromaSingleTransformerBlock
from torch import Tensor

from grpokit import swapped
from grpokit_diffusers.family import Text, Told
from grpokit_diffusers.packed import PackedFamily


class Chroma(PackedFamily):
    """`ChromaPipeline`."""

    eval_guidance = 5.0
    text_tokens = 512
    longest_text = 512

    def encoded(self, text: str) -> Text:
        """Embeddings [1, L, D], and a mask [1, L] of those that are no padding."""
        given = {"device": self.device, "do_classifier_free_guidance": False}
        embeddings, _, mask, *_ = self.pipeline.encode_prompt(text, **given)
        return embeddings, mask

    def predicted(self, latents: Tensor, times: Tensor, told: Told) -> Tensor:
        """See `PipelineFamily`."""
        embeddings, mask = told.text
        seen = torch.cat([mask, mask.new_ones(latents.shape[:2])], dim=1).to(latents.dtype)
        with self._masked(seen):
            return self.output(
                hidden_states=latents,
                timestep=times / 1000,
                encoder_hidden_states=embeddings,
                txt_ids=embeddings.new_zeros(embeddings.shape[1], 3),
                img_ids=self.places(told).to(latents.dtype),
                attention_mask=seen,
            )

    @contextmanager
    def _masked(self, mask: Tensor) -> Iterator[None]:
        """Inside, checkpointed single blocks get the mask, too; diffusers 0.42 leaves it out."""
        if not self.transformer.gradient_checkpointing:
            yield
            return
        checkpoint: Any = self.transformer._gradient_checkpointing_func

        def masked(block: Any, *given: Any) -> Any:
            single = isinstance(block, ChromaSingleTransformerBlock)
            return checkpoint(partial(block, attention_mask=mask) if single else block, *given)

        with swapped(self.transformer, "_gradient_checkpointing_func", masked):
            yield
