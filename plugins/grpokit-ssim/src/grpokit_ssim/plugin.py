"""Announces the rewards `ssim`, `structure` and `mse` to grpokit.

A light module: it imports only grpokit. The rewards' own module, which needs scikit-image, is imported when a run
asks for one of them; a missing dependency then ends in the command under `install`.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import RewardSpec, hookimpl

_INSTALL = "pip install 'grpokit[ssim]'"


@hookimpl
def grpokit_rewards() -> Iterator[RewardSpec]:
    """Yield `ssim`, `structure` and `mse`."""
    yield RewardSpec(
        api=1,
        name="ssim",
        factory="grpokit_ssim.reward:ssim",
        summary="structural similarity of the picture and its target picture (1: the same)",
        accepts={"image"},
        unscorable="grpokit.rewards.missing_inputs:picture_target",
        range=(-1.0, 1.0),
        install=_INSTALL,
        examples="grpokit_ssim.examples:targets",
    )
    yield RewardSpec(
        api=1,
        name="structure",
        factory="grpokit_ssim.reward:structure",
        summary="structural similarity of the picture and the source picture that it edits (1: nothing changed)",
        accepts={"image"},
        unscorable="grpokit.rewards.missing_inputs:source",
        range=(-1.0, 1.0),
        install=_INSTALL,
        examples="grpokit_ssim.examples:sources",
    )
    yield RewardSpec(
        api=1,
        name="mse",
        factory="grpokit_ssim.reward:mse",
        summary="minus the mean squared difference of the picture and its target picture (0: the same)",
        accepts={"image"},
        unscorable="grpokit.rewards.missing_inputs:picture_target",
        range=(-1.0, 0.0),
        install=_INSTALL,
        examples="grpokit_ssim.examples:targets",
    )
