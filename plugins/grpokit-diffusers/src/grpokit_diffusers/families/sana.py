"""Sana: few tokens for a picture, and a language model that reads the text behind instructions for it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import Tensor

from grpokit import Prompt
from grpokit_diffusers.family import PipelineFamily, Text, Told, rows
from grpokit_hf.diffusion.family import Schedule, Size


class Sana(PipelineFamily):
    """`SanaPipeline`; a guidance of at most 1 leaves the second pass out."""

    eval_guidance = 4.5
    schedulers = (*PipelineFamily.schedulers, "DPMSolverMultistepScheduler")
    text_tokens = 300
    longest_text = 300

    def __init__(self, pipeline: Any) -> None:
        super().__init__(pipeline)
        self.multiple = pipeline.vae_scale_factor * pipeline.transformer.config.patch_size
        usual = inspect.signature(type(pipeline).__call__).parameters["complex_human_instruction"]
        self.instructions: Sequence[str] = usual.default

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
        """Embeddings [1, L, D], and a mask [1, L] of those that are no padding; no instructions for an empty text."""
        embeddings, mask, _, _ = self.pipeline.encode_prompt(
            text,
            do_classifier_free_guidance=False,
            device=self.device,
            complex_human_instruction=self.instructions if text else None,
        )
        return embeddings, mask

    def text_length(self, text: str) -> int:
        """See `PipelineFamily`; of the tokens before the text only the first and the last are passed on."""
        instructions, tokenizer = "\n".join(self.instructions), self.pipeline.tokenizer
        before, whole = (tokenizer(x).input_ids for x in (instructions, instructions + text.lower().strip()))
        return len(whole) - len(before) + 2

    def velocity(self, latents: Tensor, time: Tensor, condition: Told, *, guidance: float) -> Tensor:
        """See `Family`; a transformer with twice the channels predicts a spread, too, which is not used."""
        count, channels = latents.shape[:2]
        config, dtype = self.transformer.config, self.transformer.dtype
        texts = [condition.negative, condition.text] if guidance > 1 else [condition.text]
        embeddings, mask = (torch.cat([rows(part, count) for part in parts]) for parts in zip(*texts, strict=True))
        v: Tensor = self.transformer(
            latents.to(dtype).repeat(len(texts), 1, 1, 1),
            encoder_hidden_states=embeddings.to(dtype),
            encoder_attention_mask=mask,
            timestep=time.to(latents.device, non_blocking=True).expand(len(texts) * count) * config.timestep_scale,
            return_dict=False,
        )[0][:, :channels].float()
        if guidance > 1:
            unguided, guided = v.chunk(2)
            v = unguided + guidance * (guided - unguided)
        return v
