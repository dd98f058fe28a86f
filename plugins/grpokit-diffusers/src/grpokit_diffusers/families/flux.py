"""FLUX.1: two text encoders, and a guidance that the transformer reads as a number."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from grpokit_diffusers.family import Text, Told
from grpokit_diffusers.packed import PackedFamily

# Such a block returns two slices of one tensor. FSDP2 warns of changes in place, and the transformer makes none.
warnings.filterwarnings("ignore", r"FSDP2-wrapped module \(FSDPFluxSingleTransformerBlock\) returned a view")


class Flux(PackedFamily):
    """`FluxPipeline`; FLUX.1 [schnell] reads no guidance."""

    guidance = 3.5
    eval_guidance = 3.5
    negative: str | None = None
    text_tokens = 512
    longest_text = 512  # of T5; CLIP reads the first 77, for a summary
    tokenizer = "tokenizer_2"

    def encoded(self, text: str) -> Text:
        """Embeddings [1, L, D] and their summary [1, E]."""
        embeddings, pooled, _ = self.pipeline.encode_prompt(text, None, device=self.device)
        return embeddings, pooled

    def predicted(self, latents: Tensor, times: Tensor, told: Told) -> Tensor:
        """See `PipelineFamily`."""
        embeddings, pooled = told.text
        guidance = torch.full_like(times, told.guidance) if self.transformer.config.guidance_embeds else None
        return self.output(
            hidden_states=latents,
            timestep=times / 1000,
            guidance=guidance,
            encoder_hidden_states=embeddings,
            pooled_projections=pooled,
            txt_ids=embeddings.new_zeros(embeddings.shape[1], 3),
            img_ids=self.places(told).to(latents.dtype),
        )
