"""The jobs that the contenders do: sizes and prompts. Nothing here imports torch."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import ClassVar, Literal

Part = Literal["tokens", "flow"]

CONTENDERS: dict[Part, tuple[str, ...]] = {
    "tokens": ("grpokit", "batch", "loop"),
    "flow": ("grpokit", "loop, all steps", "loop, window", "grpokit, all steps"),
}
"""Part -> who does its job; the first one's times are the unit."""

PHASES = ("draw", "pictures", "score", "train", "other")
"""Of a step; "other" is what belongs to none of the others."""

TEXTS = ("a red sign in the rain", "two cats on a sofa", "an old train at night", "a blue cup on a table")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One GRPO step, over and over: one update per rollout, LoRA, KL to the base, gradients clipped at 1.0.

    Attributes:
        part: "tokens": GLM-Image's autoregressive half; "flow": a Stable Diffusion 3.
        tiny: models of a megabyte, and small pictures.
        prompts: P per step.
        pixels: height and width of a picture.
        threads: of torch.
        group: G samples per prompt.
        micro: rows per forward and backward pass.
        rank: of the adapter.
        steps: of denoising, in "flow".
        window: steps of these that are noisy and train, in "flow".
        beta: weight of the KL.
        learning_rate: of AdamW.
    """

    part: Part
    tiny: bool = False
    prompts: int
    pixels: int
    threads: int
    group: int = 8
    micro: int = 8
    rank: int = 32
    steps: int = 10
    window: int = 2
    beta: float = 0.04
    learning_rate: float = 1e-4
    device: ClassVar[str] = "cpu"

    @property
    def rows(self) -> int:
        """B = P * G."""
        return self.prompts * self.group

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.pixels, self.pixels

    @property
    def texts(self) -> tuple[str, ...]:
        """P prompts."""
        return TEXTS[: self.prompts]

    def decisions(self, name: str) -> int:
        """What a contender draws and trains in a step: visual tokens, or noisy steps of denoising."""
        if self.part == "tokens":
            return self.rows * (16 * 16 + (self.pixels // 32) ** 2)
        return self.rows * (self.steps if name.endswith("all steps") else self.window)

    def dumps(self) -> str:
        """One line for `loads`."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def loads(cls, line: str) -> Job:
        """The job of a line of `dumps`."""
        return cls(**json.loads(line))


def job_of(part: Part, *, tiny: bool, threads: int) -> Job:
    """The job of a part."""
    small = {"prompts": 2, "group": 2, "micro": 2, "rank": 4} if tiny else {}
    pixels = {"tokens": 64, "flow": 32} if tiny else {"tokens": 128, "flow": 256}
    sizes = {"prompts": 4 if part == "tokens" else 1, "pixels": pixels[part]} | small
    return Job(part=part, tiny=tiny, threads=threads, **sizes)
