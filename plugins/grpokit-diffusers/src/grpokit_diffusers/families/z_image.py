"""Z-Image: its time runs from noise at 0 to data at 1, and its transformer predicts data minus noise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grpokit_diffusers.family import PipelineFamily, Text, Told, chat


class ZImage(PipelineFamily):
    """`ZImagePipeline`."""

    guidance = 0.0
    eval_guidance = 5.0
    longest_text = 512

    def encoded(self, text: str) -> Text:
        """Embeddings [1, L, D], without padding."""
        embeddings, _ = self.pipeline.encode_prompt(text, device=self.device, do_classifier_free_guidance=False)
        return (embeddings[0][None],)

    def whole_text(self, text: str) -> str:
        """See `PipelineFamily`."""
        return chat(self.pipeline.tokenizer, text, enable_thinking=True)

    def passes(self, latents: Tensor, times: Tensor, told: Told, texts: Sequence[Text]) -> Sequence[Tensor]:
        """See `PipelineFamily`; one call for both texts, in which each row is a film of one frame."""
        frames = [latent[:, None] for latent in latents] * len(texts)
        each = [text[0][0] for text in texts for _ in latents]
        times = (1000 - times.repeat(len(texts))) / 1000
        parts = self.transformer(frames, times, each, return_dict=False)[0]
        return (-torch.stack(parts)[:, :, 0]).chunk(len(texts))
