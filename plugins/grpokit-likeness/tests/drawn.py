"""Drawn pictures, and what tests do with a reward that learns from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from grpokit import Prompt, Sample
from grpokit.config.presets import read_config
from grpokit.runs.train import train
from grpokit_likeness.reward import ReferenceLikeness
from grpokit_toy.data import glyph_prompts


def picture(seed: int, blue: float) -> Image.Image:
    """Noise around a colour, of which `blue` is from 0 to 1."""
    rng = np.random.default_rng(seed)
    colour = np.array([0.5, 0.5, blue]) + rng.normal(0, 0.03, 3)
    pixels = 255 * colour + rng.normal(0, 20, (24, 32, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def write_references(folder: Path, count: int = 20, blue: float = 0.8) -> str:
    """A folder of pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(count):
        picture(seed, blue).save(folder / f"{seed}.png")
    return str(folder)


def write_signs(folder: Path, count: int = 20) -> str:
    """A folder of signs as a perfect toy-glyph would draw them."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, prompt in enumerate(glyph_prompts("pretrain", count)):
        prompt.target.save(folder / f"{i}.png")
    return str(folder)


def samples(step: int | None, groups: Sequence[int] = (0, 1), blue: float = 0.2, size: int = 4) -> list[Sample]:
    """Groups of a step's pictures; `blue` grows inside a group."""
    info = {} if step is None else {"training_step": step}
    return [
        Sample(
            prompt=Prompt(text=f"a picture {group}"),
            output=picture(1000 * (step or 0) + 10 * group + i, blue + 0.05 * i),
            group=group,
            info=info,
        )
        for group in groups
        for i in range(size)
    ]


def begun(references: str, **options: object) -> ReferenceLikeness:
    """A reward whose run has begun."""
    reward = ReferenceLikeness(references=references, **options)  # type: ignore[arg-type]
    reward.begin(Path("run"), lambda words: None)
    return reward


def trains(folder: Path, references: str, *overrides: str, **options: object) -> None:
    """Train toy-glyph for six steps."""
    config, _ = read_config(
        "toy-glyph",
        [
            f"rewards=[{{use: reference-likeness, references: '{references}', past: 2}}]",
            f"run.dir={folder}",
            "run.threads=1",
            "run.record=true",
            "eval.every=0",
            "trainer.steps=6",
            "trainer.prompts_per_step=4",
            "trainer.group_size=4",
            "trainer.minibatches=1",
            *overrides,
        ],
    )
    train(config, **options)  # type: ignore[arg-type]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Of a run's last checkpoint."""
    return load_file(folder / "checkpoints" / "step_000006" / "policy.safetensors")
