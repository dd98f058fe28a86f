"""ERNIE-Image: a layer of a language model is the text, which is read as it is, and FLUX.2's autoencoder paints."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpokit_diffusers.family import PipelineFamily, Text, Told, rows
from grpokit_hf.diffusion.family import Size


class ErnieImage(PipelineFamily):
    """`ErnieImagePipeline`, as with `use_pe=False`; a guidance of at most 1 leaves the second pass out."""

    eval_guidance = 4.0
    unused = ("pe", "pe_tokenizer")  # which write another prompt

    def __init__(self, pipeline: Any) -> None:
        super().__init__(pipeline)
        self.multiple = pipeline.vae_scale_factor
        self.longest_text = pipeline.tokenizer.model_max_length

    def encoded(self, text: str) -> Text:
        """Embeddings [1, L, D]."""
        (embeddings,) = self.pipeline.encode_prompt(text, self.device)
        return (embeddings[None],)

    def text_length(self, text: str) -> int:
        """See `PipelineFamily`."""
        return len(self.pipeline.tokenizer(text, verbose=False).input_ids)

    def velocity(self, latents: Tensor, time: Tensor, condition: Told, *, guidance: float) -> Tensor:
        """See `Family`."""
        guided = self._pass(latents, time, condition.text[0])
        if guidance <= 1:
            return guided
        unguided = self._pass(latents, time, condition.negative[0])
        return unguided + guidance * (guided - unguided)

    def decoded(self, latents: Tensor, size: Size) -> Tensor:
        """Pixels [n, 3, H, W]; the pipeline adds 1e-5 to the variances, whatever the autoencoder's settings say."""
        vae = self.pipeline.vae
        mean, variance = (x.to(latents)[:, None, None] for x in (vae.bn.running_mean, vae.bn.running_var))
        cells = self.pipeline._unpatchify_latents(latents * torch.sqrt(variance + 1e-5) + mean)
        pixels: Tensor = vae.decode(cells, return_dict=False)[0]
        return pixels

    def _pass(self, latents: Tensor, time: Tensor, embeddings: Tensor) -> Tensor:
        """Velocities [n, C, h, w] for one text."""
        count, device, dtype = len(latents), latents.device, self.transformer.dtype
        v: Tensor = self.transformer(
            hidden_states=latents.to(dtype),
            timestep=time.to(device, non_blocking=True).expand(count).to(dtype),
            text_bth=rows(embeddings, count).to(dtype),
            text_lens=torch.full((count,), embeddings.shape[1], device=device),
            return_dict=False,
        )[0]
        return v.float()
