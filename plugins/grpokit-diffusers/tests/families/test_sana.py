"""Sana: its schedules, what its transformer may predict besides, and texts in lower case."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SanaTransformer2DModel

from grpokit import Prompt, UsageError
from grpokit.sampling import derive_seeds, normals
from grpokit_diffusers.policy import DiffusersFlow
from grpokit_diffusers.tiny import tiny_pipeline

SIZE = (64, 96)


def build(model: Any = "tiny-sana", **options: Any) -> DiffusersFlow:
    return DiffusersFlow(model, **{"size": SIZE, "steps": 2, "eval_steps": 3, "lora": {"r": 2}} | options)


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # the solver gives numpy a tensor
@pytest.mark.parametrize("steps", [1, 3, 20])
def test_the_levels_of_noise_are_those_of_the_solver(steps: int) -> None:
    """To 0.0005: it begins at 0.9997, and Flow-SDE has a pole there."""
    policy = build(steps=steps)
    solver, ours = policy.pipeline.scheduler, policy.family.schedule(steps, SIZE)
    solver.set_timesteps(steps)
    assert ours.sigmas[0] == 1
    torch.testing.assert_close(ours.sigmas.float(), solver.sigmas, rtol=0, atol=5e-4)
    torch.testing.assert_close(ours.times, 1000 * ours.sigmas[:-1].float())


def test_a_scheduler_of_eulers_steps_is_followed_as_it_is() -> None:
    """The stock pipeline's pictures; the transformer predicts a spread, too, and is told a share of the time."""
    pipeline = tiny_pipeline("tiny-sana")
    config = {**pipeline.transformer.config, "out_channels": 8, "timestep_scale": 0.001}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        pipeline.transformer = SanaTransformer2DModel.from_config(config).eval()
    pipeline.register_modules(scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0))
    pipeline.set_progress_bar_config(disable=True)
    seeds = derive_seeds(1, stream="train", step=0, prompts=1, group_size=1)
    noise = normals(seeds.row, 4 * 16 * 24, start=2**40).float().view(1, 4, 16, 24)
    given = {"latents": noise, "height": SIZE[0], "width": SIZE[1], "use_resolution_binning": False}
    stock = pipeline("a cat", num_inference_steps=3, **given).images[0]
    rollout = build(pipeline).rollout([Prompt(text="a cat")], 1, seeds=seeds, evaluate=True)
    ours = rollout.samples[0].output
    assert np.abs(np.asarray(ours, dtype=int) - np.asarray(stock, dtype=int)).max() <= 1


def test_the_pipelines_tokens_are_refused_in_capitals_too() -> None:
    """Which the pipeline would make small."""
    with pytest.raises(UsageError, match="has '<eos>' in its text"):
        build().check([Prompt(text="a CAT <EOS> a dog")])
