"""What someone else writes to train a pipeline that grpokit-diffusers does not know: this file."""

from __future__ import annotations

from torch import Tensor

from grpokit_diffusers.family import PipelineFamily, Schedule, Size, Text, Told


class AuraFlow(PipelineFamily):
    eval_guidance = 3.5

    def schedule(self, steps: int, size: Size) -> Schedule:
        return self.scheduled(steps, size)

    def encoded(self, text: str) -> Text:
        return (self.pipeline.encode_prompt(text, do_classifier_free_guidance=False, device=self.device)[0],)

    def predicted(self, latents: Tensor, times: Tensor, told: Told) -> Tensor:
        return self.output(hidden_states=latents, encoder_hidden_states=told.text[0], timestep=times / 1000)
