"""What this package brings to grpokit: the light module behind its entry point.

It imports only grpokit, so that `grpokit plugins` can list the policies without importing torch.
"""

from __future__ import annotations

from collections.abc import Iterable

from grpokit import PolicySpec, PresetSpec, RewardSpec, hookimpl


@hookimpl
def grpokit_policies() -> Iterable[PolicySpec]:
    """The toy policies."""
    yield PolicySpec(
        api=1,
        name="toy-glyph",
        factory="grpokit_toy.glyph:ToyGlyph",
        summary="draws the quoted word of a prompt as a sign, one visual token after the other",
        install="pip install grpokit-toy",
        makes="image",
    )
    yield PolicySpec(
        api=1,
        name="toy-lm",
        factory="grpokit_toy.lm:ToyLM",
        summary="adds two numbers, thinking aloud one character at a time",
        install="pip install grpokit-toy",
        makes="text",
    )
    yield PolicySpec(
        api=1,
        name="toy-flow",
        factory="grpokit_toy.flow:ToyFlow",
        summary="moves points of the plane from noise onto a ring, one step of a flow after the other",
        install="pip install grpokit-toy",
        makes="toy:points",
    )


@hookimpl
def grpokit_rewards() -> Iterable[RewardSpec]:
    """What toy-flow is asked for; the other toys use rewards of other plugins."""
    yield RewardSpec(
        api=1,
        name="ring",
        factory="grpokit_toy.flow:on_ring",
        summary="1 for a point on the ring whose radius the prompt names, else 0",
        accepts={"toy:points"},
        range=(0.0, 1.0),
        examples=[
            ({"output": (1.0, 0.0), "prompt": text}, {"output": (0.2, 0.0), "prompt": text})
            for text in ("a ring of radius 1.0", "a ring of radius 1.1")
        ],
        install="pip install grpokit-toy",
    )


@hookimpl
def grpokit_presets() -> Iterable[PresetSpec]:
    """Ready runs of the toy policies."""
    yield PresetSpec(
        api=1,
        name="toy-glyph",
        factory="grpokit_toy:presets/toy-glyph.yaml",
        summary="toy-glyph learns to write legible words from SSIM and OCR",
        takes="about a minute on two CPU cores",
        install="pip install 'grpokit[demo]'",
    )
    yield PresetSpec(
        api=1,
        name="toy-lm",
        factory="grpokit_toy:presets/toy-lm.yaml",
        summary="toy-lm learns to add two numbers from format and answer rewards",
        takes="about three minutes on one CPU core",
        install="pip install grpokit-toy",
    )
    yield PresetSpec(
        api=1,
        name="toy-flow",
        factory="grpokit_toy:presets/toy-flow.yaml",
        summary="toy-flow learns to land on the ring that it is asked for, held to its start by the exact Gaussian KL",
        takes="less than a minute on one CPU core",
        install="pip install grpokit-toy",
    )
