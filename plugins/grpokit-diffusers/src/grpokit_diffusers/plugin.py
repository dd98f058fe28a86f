"""What this package brings to grpokit: the light module behind its entry point.

It imports only grpokit, so that `grpokit plugins` can list the policy without importing torch.
"""

from __future__ import annotations

from collections.abc import Iterable

from grpokit import PolicySpec, hookimpl


@hookimpl
def grpokit_policies() -> Iterable[PolicySpec]:
    """One policy for all families."""
    yield PolicySpec(
        name="diffusers-flow",
        factory="grpokit_diffusers.policy:DiffusersFlow",
        summary="SD3, FLUX.1, FLUX Kontext, Qwen-Image, Z-Image and others: their denoising steps are decisions",
        install="pip install 'grpokit[diffusers]'",
    )
