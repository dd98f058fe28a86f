"""FLUX.2 [klein]: FLUX.2 with a smaller language model, and guidance by a second pass with an empty text."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from grpokit_diffusers.families.flux2 import Flux2
from grpokit_diffusers.family import Told


class Flux2Klein(Flux2):
    """`Flux2KleinPipeline`; a guidance of at most 1 leaves the second pass out, and a distilled model has none."""

    guidance = 1.0
    sources = 4

    def __init__(self, pipeline: Any) -> None:
        super().__init__(pipeline)
        self.negative = None if pipeline.config.is_distilled else ""

    def text_length(self, text: str) -> int:
        """See `PipelineFamily`."""
        messages, tokenizer = [{"role": "user", "content": text}], self.pipeline.tokenizer
        whole = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        return len(tokenizer(whole, verbose=False).input_ids)

    def velocity(self, latents: Tensor, time: Tensor, condition: Told, *, guidance: float) -> Tensor:
        """See `Family`."""
        guided = self.predicted(latents, time, condition, condition.text[0])
        if guidance <= 1 or not condition.negative:
            return guided
        unguided = self.predicted(latents, time, condition, condition.negative[0])
        return unguided + guidance * (guided - unguided)
