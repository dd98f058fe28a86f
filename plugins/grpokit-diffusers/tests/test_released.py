"""The sizes that ship with this package are those of the released models."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest
from torch import nn

from grpokit import UsageError
from grpokit_diffusers.plan import plan
from grpokit_diffusers.policy import DiffusersFlow
from grpokit_diffusers.released import RELEASED, released_pipeline
from grpokit_plan import Job, Needs

TEXT_ENCODERS = {  # billions of weights, as public model cards and logs say
    "Qwen/Qwen-Image": 8.29,
    "Qwen/Qwen-Image-Edit": 8.29,
    "Qwen/Qwen-Image-Edit-2511": 8.29,
    "Tongyi-MAI/Z-Image": 4.02,
    "black-forest-labs/FLUX.1-Kontext-dev": 0.12 + 4.76,
    "black-forest-labs/FLUX.1-dev": 0.12 + 4.76,
    "black-forest-labs/FLUX.2-dev": 24.0,
    "black-forest-labs/FLUX.2-klein-base-4B": 4.02,
    "krea/Krea-2-Raw": 4.44,
    "lodestones/Chroma1-HD": 4.76,
    "stabilityai/stable-diffusion-3.5-medium": 0.12 + 0.69 + 4.76,
}
TRANSFORMERS = {
    "Qwen/Qwen-Image": 20.43,
    "Qwen/Qwen-Image-Edit": 20.43,
    "Qwen/Qwen-Image-Edit-2511": 20.43,
    "Tongyi-MAI/Z-Image": 6.15,
    "black-forest-labs/FLUX.1-Kontext-dev": 11.9,
    "black-forest-labs/FLUX.1-dev": 11.9,
    "black-forest-labs/FLUX.2-dev": 32.2,
    "black-forest-labs/FLUX.2-klein-base-4B": 3.88,
    "krea/Krea-2-Raw": 12.9,
    "lodestones/Chroma1-HD": 8.9,
    "stabilityai/stable-diffusion-3.5-medium": 2.24,
}


def billions(part: Any) -> float:
    return sum(p.numel() for p in part.parameters()) / 1e9 if isinstance(part, nn.Module) else 0.0


@pytest.mark.parametrize("model", RELEASED)
def test_a_released_model_has_as_many_weights_as_published(model: str) -> None:
    pipeline = released_pipeline(model)
    encoders = [part for name, part in pipeline.components.items() if name.startswith("text_encoder")]
    assert billions(pipeline.transformer) == pytest.approx(TRANSFORMERS[model], rel=0.01)
    assert sum(map(billions, encoders)) == pytest.approx(TEXT_ENCODERS[model], rel=0.01)
    assert pipeline.vae_scale_factor == 8
    assert all(part.device.type == "meta" for part in (pipeline.transformer, pipeline.vae, *encoders) if part)


def needs(model: str) -> Needs:
    defaults = {p.name: p.default for p in signature(DiffusersFlow).parameters.values()}
    job = Job(prompts=8, group_size=8, micro_batch_size=8, rollout_rows=64)
    return plan({**defaults, "model": model, "window": {"width": 2}}, job)


def test_a_model_that_is_not_here_is_planned_if_its_sizes_are() -> None:
    assert "sizes of Tongyi-MAI/Z-Image are those that ship" in needs("Tongyi-MAI/Z-Image").assumptions[0]
    with pytest.raises(UsageError, match="somebody/else"):
        needs("somebody/else")
    assert not any("ship" in words for words in needs("tiny-z-image").assumptions)
