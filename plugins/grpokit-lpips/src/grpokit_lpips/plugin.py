"""Announces the reward `lpips` to grpokit.

A light module: it imports only grpokit. The reward's own module, which needs lpips and torchvision, is imported when a
run asks for the reward; a missing dependency then ends in the command under `install`.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import Asset, RewardSpec, hookimpl

_URL = "https://download.pytorch.org/models/alexnet-owt-7be5be79.pth"
TRUNK = Asset(
    name="AlexNet",
    paths=["${TORCH_HOME:-${XDG_CACHE_HOME:-~/.cache}/torch}/hub/checkpoints/alexnet-owt-7be5be79.pth"],
    fetch=f"python -c \"import torch; torch.hub.load_state_dict_from_url('{_URL}', check_hash=True)\"",
)


@hookimpl
def grpokit_rewards() -> Iterator[RewardSpec]:
    """Yield the reward `lpips`."""
    yield RewardSpec(
        api=1,
        name="lpips",
        factory="grpokit_lpips.reward:LPIPSReward",
        summary="perceptual similarity (1 - LPIPS) of the picture and its target picture (1: the same)",
        accepts={"image"},
        unscorable="grpokit.rewards.missing_inputs:picture_target",
        range=(None, 1.0),
        gpu_memory=1.1e9,  # 16 pairs of 512 x 512, of which the network has 10 MB
        install="pip install 'grpokit[lpips]'",
        assets=[TRUNK],
    )
