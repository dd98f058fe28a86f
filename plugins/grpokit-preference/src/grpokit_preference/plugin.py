"""Announces the rewards `pickscore`, `hpsv2` and `imagereward`, and the evaluation `preference`, to grpokit.

A light module: it imports only grpokit. A reward's own module, which needs transformers or open_clip, is imported when
a run asks for it; a missing dependency then ends in the command under `install`.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import Asset, EvaluationSpec, RewardSpec, hookimpl

INSTALL = "pip install 'grpokit[preference]'"


@hookimpl
def grpokit_rewards() -> Iterator[RewardSpec]:
    """Yield the three rewards; the logit scale of `pickscore` and the head of `imagereward` have no bound."""
    yield RewardSpec(
        api=1,
        name="pickscore",
        factory="grpokit_preference.pickscore:PickScoreReward",
        summary="which picture people would pick for the prompt, by PickScore (about 16 to 26)",
        accepts={"image"},
        gpu_memory=4.1e9,  # ViT-H/14 in float32 and 8 pictures
        install=INSTALL,
        assets=[
            Asset(
                name="PickScore", repository="yuvalkirstain/PickScore_v1", files=["config.json", "*.safetensors|*.bin"]
            ),
            Asset(
                name="tokenizer of PickScore",
                repository="laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
                files=["tokenizer_config.json", "vocab.json", "merges.txt"],
            ),
        ],
    )
    yield RewardSpec(
        api=1,
        name="hpsv2",
        factory="grpokit_preference.hpsv2:HPSv2Reward",
        summary="which picture people prefer for the prompt, by HPS v2 or v2.1 (about 0.2 to 0.35)",
        accepts={"image"},
        gpu_memory=4.1e9,  # the same
        range=(-1.0, 1.0),
        install=INSTALL,
        assets=[
            Asset(name="HPS v2.1", repository="xswu/HPSv2", files=["HPS_v2.1_compressed.pt"]),
        ],
    )
    yield RewardSpec(
        api=1,
        name="imagereward",
        factory="grpokit_preference.imagereward:ImageRewardReward",
        summary="how experts rate picture and prompt, by ImageReward (about -2 to 2)",
        accepts={"image"},
        gpu_memory=1.9e9,  # 446 million weights in float32 and 8 pictures
        install=INSTALL,
        assets=[
            Asset(name="ImageReward", repository="THUDM/ImageReward", files=["ImageReward.pt"]),
            Asset(
                name="tokenizer of ImageReward",
                repository="google-bert/bert-base-uncased",
                files=["tokenizer_config.json", "vocab.txt"],
            ),
        ],
    )


@hookimpl
def grpokit_evaluations() -> Iterator[EvaluationSpec]:
    """Yield `preference`."""
    yield EvaluationSpec(
        api=1,
        name="preference",
        factory="grpokit_preference:evaluations/preference.yaml",
        summary="which pictures people would prefer for 20 prompts, by PickScore and HPS v2.1",
        install=INSTALL,
        needs="their weights, 6 GB",
    )
