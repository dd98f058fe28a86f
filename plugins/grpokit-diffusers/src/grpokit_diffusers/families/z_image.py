"""Z-Image: its time runs from noise at 0 to data at 1, and its transformer predicts data minus noise."""

from __future__ import annotations

import torch
from torch import Tensor

from grpokit_diffusers.family import PipelineFamily, Text, Told


class ZImage(PipelineFamily):
    """`ZImagePipeline`; its guidance is what is added to a pass of weight 1, so 0 leaves the second pass out."""

    guidance = 0.0
    eval_guidance = 5.0
    longest_text = 512

    def encoded(self, text: str) -> Text:
        """Embeddings [L, D], without padding."""
        embeddings, _ = self.pipeline.encode_prompt(text, device=self.device, do_classifier_free_guidance=False)
        return (embeddings[0],)

    def text_length(self, text: str) -> int:
        """See `PipelineFamily`."""
        messages, tokenizer = [{"role": "user", "content": text}], self.pipeline.tokenizer
        whole = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=True
        )
        return len(tokenizer(whole, verbose=False).input_ids)

    def velocity(self, latents: Tensor, time: Tensor, condition: Told, *, guidance: float) -> Tensor:
        """See `Family`."""
        texts = [condition.text[0]] * len(latents)
        if guidance > 0:
            texts += [condition.negative[0]] * len(latents)
        frames = latents.to(self.transformer.dtype)[:, :, None].repeat(len(texts) // len(latents), 1, 1, 1, 1)
        times = (1000 - time.to(latents.device, non_blocking=True)).expand(len(texts)) / 1000
        parts = self.transformer(list(frames.unbind(0)), times, texts, return_dict=False)[0]
        v = -torch.stack([part.float() for part in parts])[:, :, 0]
        if guidance > 0:
            guided, unguided = v.chunk(2)
            v = guided + guidance * (guided - unguided)
        return v
