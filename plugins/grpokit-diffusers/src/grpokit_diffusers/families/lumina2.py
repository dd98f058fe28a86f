"""Lumina-Image 2.0: its time runs from noise at 0 to data at 1, and the text has an instruction in front."""

from __future__ import annotations

from torch import Tensor

from grpokit import Prompt
from grpokit_diffusers.family import PipelineFamily, Text, Told, as_long
from grpokit_hf.diffusion.family import Size


class Lumina2(PipelineFamily):
    """`Lumina2Pipeline`; guidance keeps the length of the velocity in each line of each channel."""

    eval_guidance = 4.0
    longest_text = 256

    def encoded(self, text: str) -> Text:
        """Embeddings [1, L, D], and a mask [1, L] of ones: without the padding, which no other token sees."""
        embeddings, mask, *_ = self.pipeline.encode_prompt(text, do_classifier_free_guidance=False, device=self.device)
        return _unpadded(embeddings, mask)

    def encoded_negative(self, text: str) -> Text:
        """The same without the instruction."""
        _, _, embeddings, mask = self.pipeline.encode_prompt("", negative_prompt=text, device=self.device)
        return _unpadded(embeddings, mask)

    def read_negative(self, text: str, prompt: Prompt, size: Size) -> Text:
        """See `PipelineFamily`."""
        return self.kept(self.encoded_negative, text)

    def whole_text(self, text: str) -> str:
        """See `PipelineFamily`."""
        return f"{self.pipeline.system_prompt} <Prompt Start> {text}"

    def predicted(self, latents: Tensor, times: Tensor, told: Told) -> Tensor:
        """See `PipelineFamily`; the transformer predicts data minus noise."""
        embeddings, mask = told.text
        return -self.output(
            hidden_states=latents,
            timestep=1 - times / 1000,
            encoder_hidden_states=embeddings,
            encoder_attention_mask=mask,
        )

    def guided(self, v: Tensor, away: Tensor, guidance: float) -> Tensor:
        """See `PipelineFamily`."""
        return as_long(super().guided(v, away, guidance), v)


def _unpadded(embeddings: Tensor, mask: Tensor) -> Text:
    length = int(mask.sum())
    return embeddings[:, :length], mask[:, :length]
