"""Sana: few tokens for a picture, and a language model that reads the text behind instructions for it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from diffusers import FlowMatchEulerDiscreteScheduler, SanaPipeline
from torch import Tensor

from grpokit import Prompt
from grpokit_diffusers.family import PipelineFamily, Text, Told
from grpokit_hf.diffusion.family import Schedule, Size

_INSTRUCTIONS: list[str] = inspect.signature(SanaPipeline.__call__).parameters["complex_human_instruction"].default


class Sana(PipelineFamily):
    """`SanaPipeline`."""

    eval_guidance = 4.5
    schedulers = (*PipelineFamily.schedulers, "DPMSolverMultistepScheduler")
    patch = 1
    text_tokens = 300
    longest_text = 300

    def check(self, prompts: Sequence[Prompt]) -> None:
        """See `PipelineFamily`; the pipeline reads texts in lower case."""
        super().check([replace(prompt, text=prompt.text.lower()) for prompt in prompts])

    def schedule(self, steps: int, size: Size) -> Schedule:
        """See `Family`; in place of a solver of a higher order, Euler's steps with its shift, from 1 to 1 / steps."""
        scheduler = self.pipeline.scheduler
        if isinstance(scheduler, FlowMatchEulerDiscreteScheduler):
            return self.scheduled(steps, size)
        euler = FlowMatchEulerDiscreteScheduler(shift=scheduler.config.flow_shift)
        euler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps))
        return Schedule(sigmas=euler.sigmas.double(), times=euler.timesteps.float())

    def encoded(self, text: str) -> Text:
        """Embeddings [1, L, D] of a text behind instructions, and a mask [1, L] of those that are no padding."""
        return self._encoded(text, _INSTRUCTIONS)

    def read_negative(self, text: str, prompt: Prompt, size: Size) -> Text:
        """See `PipelineFamily`."""
        return self.kept(self.encoded_alone, text)

    def encoded_alone(self, text: str) -> Text:
        """Embeddings [1, L, D] of a text without instructions, and their mask [1, L]."""
        return self._encoded(text, None)

    def _encoded(self, text: str, instructions: Sequence[str] | None) -> Text:
        given = {"device": self.device, "do_classifier_free_guidance": False}
        embeddings, mask, _, _ = self.pipeline.encode_prompt(text, complex_human_instruction=instructions, **given)
        return embeddings, mask

    def whole_text(self, text: str) -> str:
        """See `PipelineFamily`."""
        return "\n".join(_INSTRUCTIONS) + text.lower().strip()

    def text_length(self, text: str) -> int:
        """See `PipelineFamily`; of the tokens before the text only the first and the last are passed on."""
        return super().text_length(text) - super().text_length("") + 2

    def predicted(self, latents: Tensor, times: Tensor, told: Told) -> Tensor:
        """See `PipelineFamily`; with twice the channels, those of a spread are behind."""
        embeddings, mask = told.text
        return self.output(
            hidden_states=latents,
            encoder_hidden_states=embeddings.to(latents.dtype),
            encoder_attention_mask=mask,
            timestep=times * self.transformer.config.timestep_scale,
        )
