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

PUBLISHED = {  # billions of weights of the transformer and of all text encoders, as makers and public logs round them
    "Alpha-VLLM/Lumina-Image-2.0": (2.6, 2.6),
    "Efficient-Large-Model/Sana_600M_512px_diffusers": (0.6, 2.6),
    "Qwen/Qwen-Image": (20.4, 8.3),
    "Qwen/Qwen-Image-2.1": (7, 9),
    "Qwen/Qwen-Image-Edit": (20.4, 8.3),
    "Qwen/Qwen-Image-Edit-2511": (20.4, 8.3),
    "THUDM/CogView4-6B": (6, 9),
    "Tongyi-MAI/Z-Image": (6.15, 4.0),
    "baidu/ERNIE-Image": (8, 3.8),
    "black-forest-labs/FLUX.1-Kontext-dev": (12, 0.12 + 4.7),
    "black-forest-labs/FLUX.1-dev": (12, 0.12 + 4.7),
    "black-forest-labs/FLUX.2-dev": (32, 24),
    "black-forest-labs/FLUX.2-klein-base-4B": (3.88, 4.0),
    "krea/Krea-2-Raw": (12.9, 4.4),
    "lodestones/Chroma1-HD": (8.9, 4.7),
    "meituan-longcat/LongCat-Image": (6, 8.3),
    "meituan-longcat/LongCat-Image-Edit": (6, 8.3),
    "stabilityai/stable-diffusion-3.5-medium": (2.24, 0.12 + 0.69 + 4.7),
}


def billions(part: Any) -> float:
    return sum(p.numel() for p in part.parameters()) / 1e9 if isinstance(part, nn.Module) else 0.0


@pytest.mark.parametrize("model", RELEASED)
def test_a_released_model_has_as_many_weights_as_published(model: str) -> None:
    pipeline, (transformer, texts) = released_pipeline(model), PUBLISHED[model]
    encoders = [part for name, part in pipeline.components.items() if name.startswith("text_encoder")]
    assert billions(pipeline.transformer) == pytest.approx(transformer, rel=0.07)
    assert sum(map(billions, encoders)) == pytest.approx(texts, rel=0.03)
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
