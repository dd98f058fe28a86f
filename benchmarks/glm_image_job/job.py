"""What is measured: sizes and counts, the same for all parts. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

PROMPTS = (
    'a red neon sign above a small bookshop that says "OPEN ALL NIGHT", in the rain',
    'a wooden board on a green meadow with the words "TO THE LAKE" painted in white',
    'an old enamel mug on a kitchen table, its side has the blue letters "COFFEE"',
    'a night train at a platform, the yellow display above its door says "VIENNA"',
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """The sizes of a measurement.

    Attributes:
        tiny: a random model of a megabyte on a CPU, instead of one of the released size on a GPU.
        size: height and width of a picture, in pixels.
        group: G, samples per prompt.
        prompts: P, in the largest step.
        steps: of denoising, where the time of pictures is measured.
        guidance: where it is measured with guidance.
        micro: the most rows in one forward and backward pass.
        rank: of the adapter.
        rounds: counted repetitions, after one that is not counted.
        loop_samples: of the loop over the stock pipeline, whose time is scaled to P * G.
        mixed_precision: of training.
        offload: of the half that is not at work.
    """

    tiny: bool = False
    size: int = 1024
    group: int = 8
    prompts: int = 4
    steps: int = 20
    guidance: float = 1.5
    micro: int = 4
    rank: int = 64
    rounds: int = 2
    loop_samples: int = 2
    mixed_precision: Literal["no", "bf16"] = "bf16"
    offload: Literal["none", "idle"] = "none"

    def __post_init__(self) -> None:
        least = {"group": 2, "prompts": 1, "steps": 1, "micro": 1, "rank": 1, "rounds": 1, "loop_samples": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                option = "--" + name.replace("_", "-")
                raise ValueError(f"{option} must be at least {bound}, got {getattr(self, name)}")
        if not self.guidance > 1:
            raise ValueError(f"--guidance must be above 1, got {self.guidance:g}")
        if self.size < 32 or self.size % 32:
            raise ValueError(f"--size must be a positive multiple of 32, got {self.size}")

    @property
    def device(self) -> str:
        """Where it runs."""
        return "cpu" if self.tiny else "cuda"

    @property
    def rows(self) -> int:
        """B = P * G."""
        return self.prompts * self.group

    @property
    def pixels(self) -> tuple[int, int]:
        """Height and width."""
        return self.size, self.size

    @property
    def prompt_counts(self) -> Sequence[int]:
        """The numbers of prompts where several are compared: one, and all."""
        return sorted({1, self.prompts})

    def texts(self, count: int) -> list[str]:
        """Prompts."""
        return [PROMPTS[i % len(PROMPTS)] for i in range(count)]


TINY = Job(tiny=True, size=64, group=2, prompts=2, steps=2, micro=2, rank=4, rounds=1, loop_samples=1)
"""The job of `--tiny`: every part, on a CPU."""
