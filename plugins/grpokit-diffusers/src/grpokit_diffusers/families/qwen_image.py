"""Qwen-Image: a vision-language model reads the text, and guidance keeps the length of each token's velocity."""

from __future__ import annotations

from torch import Tensor

from grpokit_diffusers.family import Text, Told, as_long
from grpokit_diffusers.packed import FilmFamily


class QwenImage(FilmFamily):
    """`QwenImagePipeline`; guidance is its `true_cfg_scale`."""

    eval_guidance = 4.0
    negative = " "  # what the model's authors take
    longest_text: int | None = 512

    def encoded(self, text: str) -> Text:
        """Embeddings [1, L, D]; a text alone has no padding, and needs no mask."""
        longest = self.longest_text
        embeddings, _ = self.pipeline.encode_prompt(text, device=self.device, max_sequence_length=longest)
        return (embeddings,)

    def whole_text(self, text: str) -> str:
        """See `PipelineFamily`."""
        template: str = self.pipeline.prompt_template_encode
        return template.format(text)

    def text_length(self, text: str) -> int:
        """See `PipelineFamily`; the tokens before the text are not passed on."""
        before: int = self.pipeline.prompt_template_encode_start_idx
        return super().text_length(text) - before

    def guided(self, v: Tensor, away: Tensor, guidance: float) -> Tensor:
        """See `PipelineFamily`."""
        return as_long(super().guided(v, away, guidance), v)

    def predicted(self, latents: Tensor, times: Tensor, told: Told) -> Tensor:
        """See `PipelineFamily`."""
        return self.output(
            hidden_states=latents,
            timestep=times / 1000,
            encoder_hidden_states=told.text[0],
            encoder_hidden_states_mask=None,
            img_shapes=[[(1, *grid) for grid in self.grids(told)]] * len(latents),
        )
