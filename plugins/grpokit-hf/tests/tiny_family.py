"""A family of diffusion pipelines without a pipeline: a small network over pictures of 4 x 4 latents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from grpokit import Prompt
from grpokit.flow import linear_sigmas
from grpokit_hf.diffusion.family import Family, Schedule, Size


class Painter(nn.Module):
    """Velocities of latents [n, 2, h, w], told a time and a brightness; padding leaves rows apart."""

    def __init__(self) -> None:
        super().__init__()
        self.config: dict[str, Any] = {}
        self.to_q = nn.Linear(4, 16)
        self.to_out = nn.ModuleList([nn.Linear(16, 2)])

    def forward(self, x: Tensor, time: Tensor, brightness: Tensor) -> Tensor:
        facts = torch.stack([time.expand(x.shape[2:]), brightness.expand(x.shape[2:])]).expand(len(x), -1, -1, -1)
        inputs = torch.cat([x, facts], dim=1).movedim(1, -1)  # [n, 2, h, w] -> [n, h, w, 4]
        velocity: Tensor = self.to_out[0](self.to_q(inputs).tanh()).movedim(-1, 1)
        return velocity


class TinyFamily(Family):
    """Prompts are numbers, and pictures are latents squashed to bytes."""

    lora_targets = ("to_q", "to_out.0")
    multiple = 8

    def __init__(self, seed: int = 0) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.transformer = Painter()

    def schedule(self, steps: int, size: Size) -> Schedule:
        sigmas = linear_sigmas(steps)
        return Schedule(sigmas=sigmas, times=sigmas[:-1].float())

    def latent_shape(self, size: Size) -> tuple[int, ...]:
        return 2, size[0] // 8, size[1] // 8

    def condition(self, prompt: Prompt, size: Size, shared: Mapping[str, Tensor]) -> Tensor:
        return torch.tensor(float(prompt.text))

    def velocity(self, latents: Tensor, time: Tensor, condition: Tensor, *, guidance: float) -> Tensor:
        guided: Tensor = self.transformer(latents, time, condition).float()
        if guidance != 1:
            unguided = self.transformer(latents, time, torch.zeros(())).float()
            guided = unguided + guidance * (guided - unguided)
        return guided

    def pictures(self, latents: Tensor, size: Size) -> list[Image.Image]:
        values = (latents[:, 0].sigmoid() * 255).round().to(torch.uint8).numpy()
        return [Image.fromarray(value) for value in values]
