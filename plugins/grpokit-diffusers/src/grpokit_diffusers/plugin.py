"""What this package brings to grpokit: the light module behind its entry point.

It imports only grpokit, so that `grpokit plugins` can list the policy without importing torch.
"""

from __future__ import annotations

from collections.abc import Iterable

from grpokit import PolicySpec, PresetSpec, hookimpl

_INSTALL = "pip install 'grpokit[diffusers]'"


@hookimpl
def grpokit_policies() -> Iterable[PolicySpec]:
    """One policy for all families."""
    yield PolicySpec(
        api=1,
        name="diffusers-flow",
        factory="grpokit_diffusers.policy:DiffusersFlow",
        example="policy: {use: diffusers-flow, model: stabilityai/stable-diffusion-3.5-medium, lora: {r: 32}}",
        summary="SD3, FLUX, Qwen-Image, Z-Image, edits and others: their denoising steps are decisions",
        install=_INSTALL,
        plan="grpokit_diffusers.plan:plan",
        reader="grpokit_diffusers.policy:reader",
    )


@hookimpl
def grpokit_presets() -> Iterable[PresetSpec]:
    """A ready run."""
    yield PresetSpec(
        api=1,
        name="diffusers-tiny",
        factory="grpokit_diffusers:presets/diffusers-tiny.yaml",
        summary="a random 1 MB SD3 learns to paint brightly",
        install=_INSTALL,
        takes="about a minute on one CPU core",
    )
