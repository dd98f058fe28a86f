"""Qwen-Image: a vision-language model reads the text, and guidance keeps the length of each token's velocity."""

from __future__ import annotations

import torch
from torch import Tensor

from grpokit_diffusers.family import PackedFamily, Text, Told, rows
from grpokit_hf.diffusion.family import Size


class QwenImage(PackedFamily):
    """`QwenImagePipeline`; guidance is its `true_cfg_scale`, and at most 1 leaves the second pass out."""

    eval_guidance = 4.0
    negative = " "  # what the model's authors take
    longest_text: int | None = 512

    def encoded(self, text: str) -> Text:
        """Embeddings [1, L, D]; a text alone has no padding, and needs no mask."""
        longest = self.longest_text
        embeddings, _ = self.pipeline.encode_prompt(text, device=self.device, max_sequence_length=longest)
        return (embeddings,)

    def text_length(self, text: str) -> int:
        """See `PipelineFamily`; the tokens before the text are not passed on."""
        pipeline = self.pipeline
        tokens = pipeline.tokenizer(pipeline.prompt_template_encode.format(text), verbose=False).input_ids
        before: int = pipeline.prompt_template_encode_start_idx
        return len(tokens) - before

    def velocity(self, latents: Tensor, time: Tensor, condition: Told, *, guidance: float) -> Tensor:
        """See `Family`."""
        guided = self._pass(latents, time, condition, condition.text[0])
        if guidance <= 1:
            return guided
        unguided = self._pass(latents, time, condition, condition.negative[0])
        v = unguided + guidance * (guided - unguided)
        shortening: Tensor = guided.norm(dim=-1, keepdim=True) / v.norm(dim=-1, keepdim=True)
        return v * shortening

    def decoded(self, latents: Tensor, size: Size) -> Tensor:
        """Pixels [n, 3, H, W] of tokens: the first and only frame of a film."""
        mean, std = self.scale(latents)
        frames = (self.unpacked(latents, size) * std + mean)[:, :, None]
        pixels: Tensor = self.pipeline.vae.decode(frames, return_dict=False)[0][:, :, 0]
        return pixels

    def scale(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation [1, C, 1, 1] of the autoencoder's latents."""
        config = self.pipeline.vae.config
        mean, std = (
            torch.tensor(x).to(latents)[None, :, None, None] for x in (config.latents_mean, config.latents_std)
        )
        return mean, std

    def _pass(self, latents: Tensor, time: Tensor, condition: Told, embeddings: Tensor) -> Tensor:
        """Velocities [n, N, 4 C] for one text."""
        count = len(latents)
        v: Tensor = self.transformer(
            hidden_states=self.beside(latents, condition.sources),
            timestep=time.to(latents.device, non_blocking=True).expand(count) / 1000,
            encoder_hidden_states=rows(embeddings, count),
            encoder_hidden_states_mask=None,
            img_shapes=[[(1, *grid) for grid in self.grids(condition)]] * count,
            return_dict=False,
        )[0]
        return v[:, : latents.shape[1]].float()
