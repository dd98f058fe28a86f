"""CogView4: noise levels are shifted and times are not, and the transformer is told the size of the picture."""

from __future__ import annotations

import numpy as np
import torch
from diffusers.pipelines.cogview4.pipeline_cogview4 import calculate_shift
from torch import Tensor

from grpokit_diffusers.family import PipelineFamily, Text, Told
from grpokit_hf.diffusion.family import Schedule, Size


class CogView4(PipelineFamily):
    """`CogView4Pipeline`."""

    eval_guidance = 5.0
    longest_text = 1024

    def schedule(self, steps: int, size: Size) -> Schedule:
        """See `Family`: whole times from 1000 to 1, and the noise levels that these would be, shifted."""
        all_times = self.pipeline.scheduler.config.num_train_timesteps
        times = np.linspace(all_times, 1.0, steps).astype(np.int64).astype(np.float32)
        return self.scheduled(steps, size, sigmas=times / all_times, times=times)

    def shift(self, steps: int, size: Size) -> float:
        """See `PipelineFamily`; it grows with the root of the number of tokens."""
        config = self.pipeline.scheduler.config
        shift: float = calculate_shift(
            self.tokens(size),
            config.get("base_image_seq_len", 256),
            config.get("base_shift", 0.25),
            config.get("max_shift", 0.75),
        )
        return shift

    def encoded(self, text: str) -> Text:
        """Embeddings [1, L, D], with padding in front to a multiple of 16 tokens."""
        embeddings, _ = self.pipeline.encode_prompt(text, do_classifier_free_guidance=False, device=self.device)
        return (embeddings,)

    def predicted(self, latents: Tensor, times: Tensor, told: Told) -> Tensor:
        """See `PipelineFamily`; the picture is a whole one of its size."""
        (embeddings,) = told.text
        size = embeddings.new_tensor(told.size).expand(len(latents), 2)
        return self.output(
            hidden_states=latents,
            encoder_hidden_states=embeddings,
            timestep=times,
            original_size=size,
            target_size=size,
            crop_coords=torch.zeros_like(size),
        )
