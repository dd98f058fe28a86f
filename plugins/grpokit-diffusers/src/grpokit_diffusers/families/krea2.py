"""Krea 2: layers of a vision-language model are the text, and Qwen-Image's autoencoder makes the picture."""

from __future__ import annotations

import torch
from torch import Tensor

from grpokit_diffusers.families.qwen_image import QwenImage
from grpokit_diffusers.family import Text, Told, rows
from grpokit_hf.diffusion.family import Size


class Krea2(QwenImage):
    """`Krea2Pipeline`; its guidance is what is added to a pass of weight 1, so 0 leaves the second pass out."""

    guidance = 0.0
    eval_guidance = 4.5
    negative = ""
    text_tokens = 512
    longest_text = 512

    def shift(self, steps: int, size: Size) -> float:
        """See `PipelineFamily`; the distilled model has one for all sizes."""
        return 1.15 if self.pipeline.config.is_distilled else super().shift(steps, size)

    def encoded(self, text: str) -> Text:
        """Embeddings [1, L, layers, D], and a mask [1, L] of those that are no padding."""
        embeddings, mask = self.pipeline.encode_prompt(text, device=self.device)
        return embeddings, mask

    def text_length(self, text: str) -> int:
        """See `PipelineFamily`; the tokens before the text are not passed on."""
        pipeline = self.pipeline
        tokens = pipeline.tokenizer(pipeline.prompt_template_encode_prefix + text, verbose=False).input_ids
        before: int = pipeline.prompt_template_encode_start_idx
        behind: int = pipeline.prompt_template_encode_num_suffix_tokens
        return len(tokens) - before + behind

    def velocity(self, latents: Tensor, time: Tensor, condition: Told, *, guidance: float) -> Tensor:
        """See `Family`."""
        guided = self.predicted(latents, time, condition.text, condition.size)
        if guidance <= 0:
            return guided
        unguided = self.predicted(latents, time, condition.negative, condition.size)
        return guided + guidance * (guided - unguided)

    def predicted(self, latents: Tensor, time: Tensor, text: Text, size: Size) -> Tensor:
        """Velocities [n, N, 4 C] for one text."""
        count, (embeddings, mask), (height, width) = len(latents), text, self.grid(size)
        places = torch.cartesian_prod(torch.arange(1), torch.arange(height), torch.arange(width))
        v: Tensor = self.transformer(
            hidden_states=latents.to(self.transformer.dtype),
            encoder_hidden_states=rows(embeddings, count),
            timestep=time.to(latents.device, non_blocking=True).expand(count) / 1000,
            position_ids=torch.cat([torch.zeros(mask.shape[1], 3), places]).to(latents.device),
            encoder_attention_mask=rows(mask, count),
            return_dict=False,
        )[0]
        return v.float()
