"""FLUX.2: layers of one language model are the text, and pictures to edit have places behind the result's, in time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu, format_input
from PIL.Image import Image, Resampling
from torch import Tensor
from torch.nn.functional import pad

from grpokit import Prompt, UsageError
from grpokit.errors import brief
from grpokit_diffusers.family import Text, Told
from grpokit_diffusers.packed import EditFamily, source_area
from grpokit_hf.diffusion.family import Size


class Flux2(EditFamily):
    """`Flux2Pipeline`, FLUX.2 [dev]: a guidance that the transformer reads as a number."""

    guidance = 4.0
    eval_guidance = 4.0
    negative: str | None = None
    sources = 6  # what its authors recommend at most
    text_tokens = 512
    longest_text = 512
    lora_targets = ("to_q", "to_k", "to_v", "to_out.0", "to_qkv_mlp_proj", "to_out")

    def check(self, prompts: Sequence[Prompt]) -> None:
        """See `PipelineFamily`; the pipeline refuses pictures with less than 64 pixels a side, and narrow ones."""
        super().check(prompts)
        for prompt in prompts:
            for picture in prompt.images:
                try:
                    self.pipeline.image_processor.check_image_input(picture)
                except ValueError as error:
                    raise UsageError(f"The source picture of {brief(prompt.text)} cannot be used: {error}.") from error

    def shift(self, steps: int, size: Size) -> float:
        """See `PipelineFamily`; it follows from the number of steps, too."""
        return compute_empirical_mu(self.tokens(size), steps)

    def encoded(self, text: str) -> Text:
        """Embeddings [1, L, D]."""
        embeddings, _ = self.pipeline.encode_prompt(text, device=self.device)
        return (embeddings,)

    def text_length(self, text: str) -> int:
        """See `PipelineFamily`."""
        messages = format_input([text], self.pipeline.system_message)
        return len(self.pipeline.tokenizer.apply_chat_template(messages, tokenize=True)[0])

    def prepared(self, picture: Image, size: Size) -> Image:
        """See `EditFamily`.

        A picture with more than 1024 x 1024 pixels is made smaller, and its edges are cut to whole tokens. A smaller
        result has smaller sources.
        """
        share = source_area(size) / (picture.width * picture.height)
        if share < 1:
            width, height = (int(side * math.sqrt(share)) for side in picture.size)
            picture = picture.resize((width, height), Resampling.LANCZOS)
        width, height = (max(1, side // self.multiple) * self.multiple for side in picture.size)
        cut: Image = self.pipeline.image_processor.resize(picture, height, width, resize_mode="crop")
        return cut

    def looked_at(self, pixels: Tensor) -> Tensor:
        """See `EditFamily`."""
        tokens = self.packed(self.pipeline.vae.encode(pixels).latent_dist.mode())
        mean, std = self.scale(tokens)
        return (tokens - mean) / std

    def decoded(self, latents: Tensor, size: Size) -> Tensor:
        """Pixels [n, 3, H, W] of tokens."""
        mean, std = self.scale(latents)
        pixels: Tensor = self.pipeline.vae.decode(self.unpacked(latents * std + mean, size), return_dict=False)[0]
        return pixels

    def predicted(self, latents: Tensor, times: Tensor, told: Told) -> Tensor:
        """See `PipelineFamily`; a place is picture, row, column, and number of a token of the text."""
        (embeddings,), zero = told.text, torch.arange(1)
        guidance = torch.full_like(times, told.guidance) if self.transformer.config.guidance_embeds else None
        return self.output(
            hidden_states=latents,
            timestep=times / 1000,
            guidance=guidance,
            encoder_hidden_states=embeddings,
            txt_ids=torch.cartesian_prod(zero, zero, zero, torch.arange(embeddings.shape[1])).to(latents.device),
            img_ids=pad(self.places(told, apart=10), (0, 1)),
        )

    def scale(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation [4 C] of the autoencoder's latents, as tokens have them."""
        vae = self.pipeline.vae
        return vae.bn.running_mean.to(tokens), torch.sqrt(vae.bn.running_var + vae.config.batch_norm_eps).to(tokens)
