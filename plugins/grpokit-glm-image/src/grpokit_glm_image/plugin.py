"""What this package brings to grpokit: the light module behind its entry point.

It imports only grpokit, so that `grpokit plugins` can list the policy without importing torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from grpokit import Asset, CommandSpec, PolicySpec, PresetSpec, hookimpl

_INSTALL = "pip install 'grpokit[glm-image]'"
_WEIGHTS = Asset(
    name="GLM-Image (33 GB)",
    repository="zai-org/GLM-Image",
    files=[
        "model_index.json",
        *(f"{part}/*.safetensors" for part in ("vision_language_encoder", "transformer", "vae")),
    ],
)


@hookimpl
def grpokit_policies() -> Iterable[PolicySpec]:
    """The two halves of GLM-Image, each by itself, and both together."""
    yield PolicySpec(
        api=1,
        name="glm-image-ar",
        factory="grpokit_glm_image.policy:GlmImageAR",
        summary="GLM-Image's autoregressive half: writes visual tokens, which its diffusion decoder makes pictures of",
        install=_INSTALL,
        plan="grpokit_glm_image.plan:plan",
        reader="grpokit_glm_image.policy:reader",
        row_draws="visual tokens",
        group_draws="the decoder's noise",
    )
    yield PolicySpec(
        api=1,
        name="glm-image-dit",
        factory="grpokit_glm_image.dit:GlmImageDiT",
        summary="GLM-Image's diffusion transformer: paints what visual tokens say; its denoising steps are decisions",
        install=_INSTALL,
        plan="grpokit_glm_image.dit_plan:plan",
        reader="grpokit_glm_image.dit:reader",
        row_draws="noise",
        group_draws="visual tokens",
    )
    yield PolicySpec(
        api=1,
        name="glm-image",
        factory="grpokit_glm_image.halves:halves",
        summary="both halves of one GLM-Image, the policies `ar` and `dit`, for runs in phases",
        install=_INSTALL,
        plan="grpokit_glm_image.halves_plan:plan",
        reader="grpokit_glm_image.halves:reader",
        row_draws="visual tokens",
        group_draws="the decoder's noise",
    )


@hookimpl
def grpokit_commands() -> Iterator[CommandSpec]:
    """Yield `attribute`."""
    yield CommandSpec(
        api=1,
        name="attribute",
        factory="grpokit_glm_image.command:attribute",
        summary="Show which source of randomness moves each reward.",
        install=_INSTALL,
        config=True,
    )


@hookimpl
def grpokit_presets() -> Iterable[PresetSpec]:
    """Ready runs."""
    yield from _tiny()
    yield from _glyph()
    yield from _released()


def _tiny() -> Iterator[PresetSpec]:
    """Of a random model, whose pictures show nothing."""
    yield PresetSpec(
        api=1,
        name="glm-image-tiny",
        factory="grpokit_glm_image:presets/glm-image-tiny.yaml",
        summary="a random 1 MB GLM-Image learns to make bright pictures",
        install=_INSTALL,
        takes="less than a minute on two CPU cores",
    )
    yield PresetSpec(
        api=1,
        name="glm-image-dit-tiny",
        factory="grpokit_glm_image:presets/glm-image-dit-tiny.yaml",
        summary="the diffusion half of a random 1 MB GLM-Image learns to paint brightly",
        install=_INSTALL,
        takes="less than a minute on two CPU cores",
    )
    yield PresetSpec(
        api=1,
        name="glm-image-halves-tiny",
        factory="grpokit_glm_image:presets/glm-image-halves-tiny.yaml",
        summary="both halves of a random 1 MB GLM-Image learn in turn",
        install=_INSTALL,
        takes="about a minute on two CPU cores",
    )


def _glyph() -> Iterator[PresetSpec]:
    """Of the small model that ships with this package."""
    yield PresetSpec(
        api=1,
        name="glm-glyph",
        factory="grpokit_glm_image:presets/glm-glyph.yaml",
        summary="a GLM-Image small enough for a CPU learns to spell from SSIM and OCR",
        install="pip install 'grpokit[demo,glm-image]'",
        takes="two to three minutes on one CPU core",
    )
    yield PresetSpec(
        api=1,
        name="glm-glyph-dit",
        factory="grpokit_glm_image:presets/glm-glyph-dit.yaml",
        summary="the diffusion half of glm-glyph, taught on blurred pictures, learns to paint sharply",
        install="pip install 'grpokit[demo,glm-image]'",
        takes="less than four minutes on one CPU core",
    )
    yield PresetSpec(
        api=1,
        name="glm-glyph-halves",
        factory="grpokit_glm_image:presets/glm-glyph-halves.yaml",
        summary="both halves of glm-glyph learn in turn to spell and to paint sharply",
        install="pip install 'grpokit[demo,glm-image]'",
        takes="four to five minutes on one CPU core",
    )


def _released() -> Iterator[PresetSpec]:
    """Of the released model."""
    for name, summary, files in (
        (
            "glm-image-t2i",
            "GLM-Image learns from prompts.txt and target_images/ of the current folder, on a GPU",
            "prompts.txt, target_images/",
        ),
        (
            "glm-image-i2i",
            "GLM-Image learns to edit from prompts.txt, source_images/ and target_images/, on a GPU",
            "prompts.txt, source_images/, target_images/",
        ),
    ):
        yield PresetSpec(
            api=1,
            name=name,
            factory=f"grpokit_glm_image:presets/{name}.yaml",
            summary=summary,
            install="pip install 'grpokit[glm-image-rewards]'",
            assets=[_WEIGHTS],
            fetches=True,
            needs=f"{files}; a GPU of 80 GB; fetches zai-org/GLM-Image (33 GB) and the rewards' weights",
        )
