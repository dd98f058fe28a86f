"""Announces the rewards `aesthetic` and `clip-score` to grpokit.

A light module: it imports only grpokit. The rewards' own module, which needs open_clip and torchvision, is imported
when a run asks for one of them; a missing dependency then ends in the command under `install`.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import Asset, RewardSpec, hookimpl

INSTALL = "pip install 'grpokit[clip]'"

CLIP = Asset(
    name="CLIP ViT-L/14",
    repository="timm/vit_large_patch14_clip_224.openai",
    files=["open_clip_model.safetensors|open_clip_pytorch_model.bin"],
)
HEAD = Asset(
    name="LAION aesthetic predictor",
    paths=["${TORCH_HOME:-${XDG_CACHE_HOME:-~/.cache}/torch}/hub/checkpoints/sac+logos+ava1-l14-linearMSE.pth"],
    fetch='python -c "from grpokit_clip import weights; weights.head_file(None)"',
)


@hookimpl
def grpokit_rewards() -> Iterator[RewardSpec]:
    """Yield `aesthetic` and `clip-score`; neither has a bound, since both take a `scale`."""
    yield RewardSpec(
        api=1,
        name="aesthetic",
        factory="grpokit_clip.reward:AestheticReward",
        summary="how well people like the picture, by CLIP and the LAION aesthetic predictor (about 4 to 7)",
        accepts={"image"},
        gpu_memory=1.9e9,  # ViT-L/14 in float32 and 16 pictures
        install=INSTALL,
        assets=[CLIP, HEAD],
    )
    yield RewardSpec(
        api=1,
        name="clip-score",
        factory="grpokit_clip.reward:ClipScoreReward",
        summary="how well the picture fits its prompt: cosine of the CLIP embeddings (about 0.1 to 0.4)",
        accepts={"image"},
        gpu_memory=1.9e9,
        install=INSTALL,
        assets=[CLIP],
    )
