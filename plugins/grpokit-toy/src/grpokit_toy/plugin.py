"""What this package brings to grpokit: the light module behind its entry point.

It imports only grpokit, so that `grpokit plugins` can list the policies without importing torch.
"""

from __future__ import annotations

from collections.abc import Iterable

from grpokit import PolicySpec, PresetSpec, hookimpl


@hookimpl
def grpokit_policies() -> Iterable[PolicySpec]:
    """The toy policies."""
    yield PolicySpec(
        name="toy-glyph",
        factory="grpokit_toy.glyph:ToyGlyph",
        summary="draws the quoted word of a prompt as a sign, one visual token after the other",
        install="pip install grpokit-toy",
        makes="image",
    )
    yield PolicySpec(
        name="toy-lm",
        factory="grpokit_toy.lm:ToyLM",
        summary="adds two numbers, thinking aloud one character at a time",
        install="pip install grpokit-toy",
        makes="text",
    )


@hookimpl
def grpokit_presets() -> Iterable[PresetSpec]:
    """Ready runs of the toy policies."""
    yield PresetSpec(
        name="toy-glyph",
        factory="grpokit_toy:presets/toy-glyph.yaml",
        summary="toy-glyph learns to write legible words from SSIM and OCR, in about a minute on two cores",
        install="pip install 'grpokit[demo]'",
    )
    yield PresetSpec(
        name="toy-lm",
        factory="grpokit_toy:presets/toy-lm.yaml",
        summary="toy-lm learns to add two numbers from format and answer rewards",
        install="pip install grpokit-toy",
    )
