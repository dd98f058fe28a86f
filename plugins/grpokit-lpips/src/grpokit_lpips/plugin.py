"""Announces the reward `lpips` to grpokit.

A light module: it imports only grpokit. The reward's own module, which needs lpips and torchvision, is imported when a
run asks for the reward; a missing dependency then ends in the command under `install`.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import RewardSpec, hookimpl


@hookimpl
def grpokit_rewards() -> Iterator[RewardSpec]:
    """Yield the reward `lpips`."""
    yield RewardSpec(
        name="lpips",
        factory="grpokit_lpips.reward:LPIPSReward",
        summary="perceptual similarity (1 - LPIPS) of the picture and its target picture (1: the same)",
        accepts={"image"},
        range=(None, 1.0),
        install="pip install 'grpokit[lpips]'",
    )
