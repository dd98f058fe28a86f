"""FLUX.1: two text encoders, and a guidance that the transformer reads as a number."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from grpokit_diffusers.family import PackedFamily, Text, Told, rows
from grpokit_hf.diffusion.family import Size

# Such a block returns two slices of one tensor. FSDP2 warns of changes in place, and the transformer makes none.
warnings.filterwarnings("ignore", r"FSDP2-wrapped module \(FSDPFluxSingleTransformerBlock\) returned a view")


class Flux(PackedFamily):
    """`FluxPipeline`; FLUX.1 [schnell] reads no guidance."""

    guidance = 3.5
    eval_guidance = 3.5
    negative: str | None = None
    text_tokens = 512
    longest_text = 512  # of T5; CLIP reads the first 77, for a summary

    def encoded(self, text: str) -> Text:
        """Embeddings [1, L, D] and their summary [1, E]."""
        embeddings, pooled, _ = self.pipeline.encode_prompt(text, None, device=self.device)
        return embeddings, pooled

    def text_length(self, text: str) -> int:
        """See `PipelineFamily`."""
        return len(self.pipeline.tokenizer_2(text, verbose=False).input_ids)

    def velocity(self, latents: Tensor, time: Tensor, condition: Told, *, guidance: float) -> Tensor:
        """See `Family`; tokens of a picture to edit stand behind those of the latents."""
        count, device = len(latents), latents.device
        embeddings, pooled = condition.text
        told = torch.full((count,), guidance, device=device) if self.transformer.config.guidance_embeds else None
        v: Tensor = self.transformer(
            hidden_states=self.beside(latents, condition.sources),
            timestep=time.to(device, non_blocking=True).expand(count) / 1000,
            guidance=told,
            encoder_hidden_states=rows(embeddings, count),
            pooled_projections=rows(pooled, count),
            txt_ids=embeddings.new_zeros(embeddings.shape[1], 3),
            img_ids=torch.cat([self.places(grid, picture) for picture, grid in enumerate(self.grids(condition))]),
            return_dict=False,
        )[0]
        return v[:, : latents.shape[1]].float()

    def decoded(self, latents: Tensor, size: Size) -> Tensor:
        """Pixels [n, 3, H, W] of tokens."""
        return super().decoded(self.unpacked(latents, size), size)

    def places(self, grid: tuple[int, int], picture: int) -> Tensor:
        """Where the tokens of a picture are: [N, 3], with the number of the picture, row and column."""
        height, width = grid
        places: Tensor = torch.cartesian_prod(torch.tensor([picture]), torch.arange(height), torch.arange(width))
        return places.to(self.device, self.transformer.dtype)
