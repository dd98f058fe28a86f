"""ERNIE-Image: a layer of a language model is the text, which is read as it is, and FLUX.2's autoencoder paints."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpokit_diffusers.family import PipelineFamily, Text, Told
from grpokit_hf.diffusion.family import Size


class ErnieImage(PipelineFamily):
    """`ErnieImagePipeline`, as with `use_pe=False`."""

    eval_guidance = 4.0
    unused = ("pe", "pe_tokenizer")  # which write another prompt
    patch = 1

    def __init__(self, pipeline: Any) -> None:
        super().__init__(pipeline)
        self.longest_text = pipeline.tokenizer.model_max_length

    def encoded(self, text: str) -> Text:
        """Embeddings [1, L, D]."""
        (embeddings,) = self.pipeline.encode_prompt(text, self.device)
        return (embeddings[None],)

    def predicted(self, latents: Tensor, times: Tensor, told: Told) -> Tensor:
        """See `PipelineFamily`."""
        (embeddings,) = told.text
        return self.output(
            hidden_states=latents,
            timestep=times.to(latents.dtype),
            text_bth=embeddings.to(latents.dtype),
            text_lens=torch.full_like(times, embeddings.shape[1], dtype=torch.long),
        )

    def decoded(self, latents: Tensor, size: Size) -> Tensor:
        """Pixels [n, 3, H, W]; the pipeline adds 1e-5 to the variances, whatever the autoencoder's settings say."""
        vae = self.pipeline.vae
        mean, variance = (x.to(latents)[:, None, None] for x in (vae.bn.running_mean, vae.bn.running_var))
        cells = self.pipeline._unpatchify_latents(latents * torch.sqrt(variance + 1e-5) + mean)
        pixels: Tensor = vae.decode(cells, return_dict=False)[0]
        return pixels
