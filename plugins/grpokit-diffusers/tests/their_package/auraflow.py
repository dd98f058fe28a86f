"""What someone else writes to train a pipeline that grpokit-diffusers does not know: this file."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpokit_diffusers.family import PipelineFamily, Schedule, Size, Text, Told, rows


class AuraFlow(PipelineFamily):
    eval_guidance = 3.5

    def schedule(self, steps: int, size: Size) -> Schedule:
        return self.scheduled(steps, size)

    def encoded(self, text: str) -> Text:
        return (self.pipeline.encode_prompt(text, do_classifier_free_guidance=False, device=self.device)[0],)

    def velocity(self, latents: Tensor, time: Tensor, condition: Told, *, guidance: float) -> Tensor:
        guided = self._pass(latents, time, *condition.text)
        if guidance <= 1:
            return guided
        unguided = self._pass(latents, time, *condition.negative)
        return unguided + guidance * (guided - unguided)

    def _pass(self, latents: Tensor, time: Tensor, embeddings: Tensor) -> Tensor:
        count = len(latents)
        v: Any = self.transformer(
            latents.to(self.transformer.dtype),
            encoder_hidden_states=rows(embeddings, count),
            timestep=torch.full((count,), float(time) / 1000, device=latents.device),
            return_dict=False,
        )
        return v[0].float()
