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
from grpokit_diffusers.families.flux import Flux
from grpokit_diffusers.family import Text, Told, rows


class Chroma(Flux):
    """`ChromaPipeline`; a guidance of at most 1 leaves the second pass out."""

    guidance = 1.0
    eval_guidance = 5.0
    negative = ""

    def encoded(self, text: str) -> Text:
        """Embeddings [1, L, D], and a mask [1, L] of those that are no padding."""
        given = {"device": self.device, "do_classifier_free_guidance": False}
        embeddings, _, mask, *_ = self.pipeline.encode_prompt(text, **given)
        return embeddings, mask

    def text_length(self, text: str) -> int:
        """See `PipelineFamily`."""
        return len(self.pipeline.tokenizer(text, verbose=False).input_ids)

    def velocity(self, latents: Tensor, time: Tensor, condition: Told, *, guidance: float) -> Tensor:
        """See `Family`."""
        guided = self._pass(latents, time, condition, condition.text)
        if guidance <= 1:
            return guided
        unguided = self._pass(latents, time, condition, condition.negative)
        return unguided + guidance * (guided - unguided)

    def _pass(self, latents: Tensor, time: Tensor, condition: Told, text: Text) -> Tensor:
        """Velocities [n, N, 4 C] for one text."""
        count, (embeddings, mask) = len(latents), text
        seen = torch.cat([mask, mask.new_ones(1, latents.shape[1])], dim=1).to(self.transformer.dtype)
        with self._masked(rows(seen, count)) as mask:
            v: Tensor = self.transformer(
                hidden_states=latents.to(self.transformer.dtype),
                timestep=time.to(latents.device, non_blocking=True).expand(count) / 1000,
                encoder_hidden_states=rows(embeddings, count),
                txt_ids=embeddings.new_zeros(embeddings.shape[1], 3),
                img_ids=self.places(self.grid(condition.size), 0),
                attention_mask=mask,
                return_dict=False,
            )[0]
        return v.float()

    @contextmanager
    def _masked(self, mask: Tensor) -> Iterator[Tensor]:
        """Inside, checkpointed single blocks get the mask, too; diffusers 0.42 leaves it out."""
        if not self.transformer.gradient_checkpointing:
            yield mask
            return
        checkpoint: Any = self.transformer._gradient_checkpointing_func

        def masked(block: Any, *given: Any) -> Any:
            single = isinstance(block, ChromaSingleTransformerBlock)
            return checkpoint(partial(block, attention_mask=mask) if single else block, *given)

        with swapped(self.transformer, "_gradient_checkpointing_func", masked):
            yield mask
