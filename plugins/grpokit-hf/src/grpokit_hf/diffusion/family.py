"""What a policy must know of a diffusion pipeline: a family of models that are called alike.

A family wraps one loaded pipeline. It says how long a schedule is shifted, what shape latents have, what the
transformer is told of a prompt, and how latents become pictures. All of that is the pipeline's own way, so that
without noise the policy draws the pipeline's pictures. The sampler, log-probs and training are the policy's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from PIL.Image import Image
from torch import Tensor, nn

from grpokit.types import Prompt, Seeds
from grpokit_hf.diffusion.trained_lora import LoraFile, read_lora

Size = tuple[int, int]
"""Height and width of a picture, in pixels."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The steps from noise to a picture.

    Attributes:
        sigmas: [K + 1] fp64 on the CPU, falling from 1 to 0, as the scheduler has shifted them.
        times: [K] fp32 on the CPU, what the transformer is told at each step's start.
    """

    sigmas: Tensor
    times: Tensor


class Family(ABC):
    """A loaded pipeline of a kind that a policy can train.

    Attributes:
        transformer: the network that predicts velocities. It trains, so nothing else may keep a reference to it.
        lora_targets: the names of its layers that an adapter changes if a config names none.
        multiple: sides of pictures are multiples of this many pixels.
        guidance: of training samples, if a config names none.
        eval_guidance: of evaluation, likewise; None: as in training.
    """

    transformer: nn.Module
    lora_targets: ClassVar[Sequence[str]] = ("to_q", "to_k", "to_v", "to_out.0")
    multiple: int = 16
    guidance: ClassVar[float] = 1.0
    eval_guidance: ClassVar[float | None] = None

    def check(self, prompts: Sequence[Prompt]) -> None:  # noqa: B027  # most pipelines read any text
        """Refuse prompts that the pipeline cannot read.

        Raises:
            UsageError: naming the prompt.
        """

    def shared(self, prompts: Sequence[Prompt], seeds: Seeds, *, evaluate: bool) -> Mapping[str, Tensor]:
        """What the samples of a group share beyond their noise, drawn from `seeds.group`: name -> [P, ...].

        Args:
            prompts: P.
            seeds: of all randomness.
            evaluate: whether the samples are an evaluation's.
        """
        return {}

    def lora_of(self, file: Path) -> LoraFile:
        """What a file of safetensors with a trained LoRA holds; here one in the names of diffusers.

        Raises:
            OSError, ValueError, SafetensorError: it cannot be read.
        """
        return read_lora(file)

    @abstractmethod
    def schedule(self, steps: int, size: Size) -> Schedule:
        """The pipeline's own schedule for pictures of a size (height, width)."""

    @abstractmethod
    def latent_shape(self, size: Size) -> tuple[int, ...]:
        """The shape of one picture's latent, without the batch."""

    @abstractmethod
    def condition(self, prompt: Prompt, size: Size, shared: Mapping[str, Tensor]) -> Any:
        """What `velocity` needs to know of a prompt, called once for a group and pass.

        Args:
            prompt: the text, and pictures to edit.
            size: height and width of the picture in pixels.
            shared: this group's part of `shared`: name -> [...].
        """

    @abstractmethod
    def velocity(self, latents: Tensor, time: Tensor, condition: Any, *, guidance: float) -> Tensor:
        """The guided velocity, noise minus data: [n, ...] in fp32.

        Args:
            latents: [n, ...] of one prompt, in fp32.
            time: a scalar of `Schedule.times`.
            condition: of `condition`.
            guidance: as the pipeline counts it.
        """

    @abstractmethod
    def pictures(self, latents: Tensor, size: Size) -> Sequence[Image | None]:
        """Decode latents [n, ...] at sigma 0; None for a picture whose pixels are not finite."""
