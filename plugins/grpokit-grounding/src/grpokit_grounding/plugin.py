"""Announces the rewards `box-iou`, `box-format` and `crop-match`, and the preset `grounding-scenes`, to grpokit.

A light module: it imports only grpokit. The rewards are imported when a run asks for one of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import PresetSpec, RewardSpec, hookimpl

_CUP = {"prompt": "Where is the cup?", "target": [10, 10, 50, 40]}
_PLATE = {"prompt": "Where is the plate?", "target": [0, 0, 20, 20]}
_INSTALL = "pip install 'grpokit[grounding]'"


@hookimpl
def grpokit_rewards() -> Iterator[RewardSpec]:
    """Yield `box-iou`, `box-format` and `crop-match`."""
    yield RewardSpec(
        api=1,
        name="box-iou",
        factory="grpokit_grounding.reward:BoxIoU",
        summary="overlap of the answer's box and the target box (1: the same box, 0: apart, or no box)",
        accepts={"text"},
        unscorable="grpokit_grounding.reward:unscorable",
        range=(0.0, 1.0),
        install=_INSTALL,
        examples=[
            (
                {"output": "<think>on the left</think><answer>[10, 10, 50, 40]</answer>"} | _CUP,
                {"output": "<think>on the right</think><answer>[60, 10, 99, 40]</answer>"} | _CUP,
            ),
            ({"output": "<answer>[0, 0, 20, 19]</answer>"} | _PLATE, {"output": "at [0, 0, 20, 19]"} | _PLATE),
        ],
    )
    yield RewardSpec(
        api=1,
        name="box-format",
        factory="grpokit_grounding.reward:BoxFormat",
        summary="1 where the text is thoughts and then one box, each in its tags, and nothing else",
        accepts={"text"},
        range=(0.0, 1.0),
        install=_INSTALL,
        examples=[
            (
                {"output": "<think>on the left</think><answer>[10, 10, 50, 40]</answer>"} | _CUP,
                {"output": "<answer>[10, 10, 50, 40]</answer>"} | _CUP,
            ),
            (
                {"output": "<think>above</think>\n<answer>[0, 0, 20, 19]</answer>"} | _PLATE,
                {"output": "<think> </think><answer>[0, 0, 20, 19]</answer>"} | _PLATE,
            ),
        ],
    )
    yield RewardSpec(
        api=1,
        name="crop-match",
        factory="grpokit_grounding.crop_match:CropMatch",
        example="rewards:\n  - {use: crop-match, weight: 0.5, match: clip-score}",
        summary="what another reward gives to the part of the picture that the answer's box encloses (0 without a box)",
        accepts={"text"},
        unscorable="grpokit.rewards.missing_inputs:source",
        install=_INSTALL,
    )


@hookimpl
def grpokit_presets() -> Iterator[PresetSpec]:
    """Yield `grounding-scenes`."""
    yield PresetSpec(
        api=1,
        name="grounding-scenes",
        factory="grpokit_grounding:presets/grounding-scenes.yaml",
        summary="a tiny vision-language model learns to find shapes in synthetic pictures, and to say where they end",
        install="pip install 'grpokit[scenes]'",
        takes="about a minute on one CPU core",
    )
