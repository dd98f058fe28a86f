"""What this package brings to grpokit: the light module behind its entry point.

It imports only grpokit, so that `grpokit plugins` can list the policy without importing torch.
"""

from __future__ import annotations

from collections.abc import Iterable

from grpokit import PolicySpec, hookimpl


@hookimpl
def grpokit_policies() -> Iterable[PolicySpec]:
    """The one policy for all language models."""
    yield PolicySpec(
        name="hf-lm",
        factory="grpokit_lm.policy:CausalLMPolicy",
        summary="a Hugging Face language model that answers prompts, with or without an adapter",
        install="pip install 'grpokit[lm]'",
        makes="text",
    )
