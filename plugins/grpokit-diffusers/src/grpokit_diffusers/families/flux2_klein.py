"""FLUX.2 [klein]: FLUX.2 with a smaller language model, and guidance by a second pass with an empty text."""

from __future__ import annotations

from typing import Any

from grpokit_diffusers.families.flux2 import Flux2
from grpokit_diffusers.family import chat


class Flux2Klein(Flux2):
    """`Flux2KleinPipeline`; a distilled model has no guidance."""

    guidance = 1.0
    sources = 4

    def __init__(self, pipeline: Any) -> None:
        super().__init__(pipeline)
        self.negative = None if pipeline.config.is_distilled else ""

    def text_length(self, text: str) -> int:
        """See `PipelineFamily`."""
        tokenizer = self.pipeline.tokenizer
        return len(tokenizer(chat(tokenizer, text, enable_thinking=False), verbose=False).input_ids)
