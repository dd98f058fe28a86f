"""Krea 2: layers of a vision-language model are the text, and Qwen-Image's autoencoder makes the picture."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

from grpokit_diffusers.family import Text, Told
from grpokit_diffusers.packed import FilmFamily
from grpokit_hf.diffusion.family import Size


class Krea2(FilmFamily):
    """`Krea2Pipeline`."""

    guidance = 0.0
    eval_guidance = 4.5
    text_tokens = 512
    longest_text = 512

    def shift(self, steps: int, size: Size) -> float:
        """See `PipelineFamily`; the distilled model has one for all sizes."""
        return 1.15 if self.pipeline.config.is_distilled else super().shift(steps, size)

    def encoded(self, text: str) -> Text:
        """Embeddings [1, L, layers, D], and a mask [1, L] of those that are no padding."""
        embeddings, mask = self.pipeline.encode_prompt(text, device=self.device)
        return embeddings, mask

    def whole_text(self, text: str) -> str:
        """See `PipelineFamily`."""
        before: str = self.pipeline.prompt_template_encode_prefix
        return before + text

    def text_length(self, text: str) -> int:
        """See `PipelineFamily`; the tokens before the text are not passed on."""
        before: int = self.pipeline.prompt_template_encode_start_idx
        behind: int = self.pipeline.prompt_template_encode_num_suffix_tokens
        return super().text_length(text) - before + behind

    def predicted(self, latents: Tensor, times: Tensor, told: Told) -> Tensor:
        """See `PipelineFamily`."""
        embeddings, mask = told.text
        return self.output(
            hidden_states=latents,
            encoder_hidden_states=embeddings,
            timestep=times / 1000,
            position_ids=pad(self.places(told).float(), (0, 0, mask.shape[1], 0)),  # those of the text are 0
            encoder_attention_mask=mask,
        )
