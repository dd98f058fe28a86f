"""Announces the reward `imscore` to grpokit, which runs in a capsule: imscore is not installed beside the run."""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import Asset, RewardSpec, hookimpl

REQUIRES = [
    "imscore==0.0.10",  # 0.0.11 asks for a transformers in which its MPS fails
    "transformers>=4.48,<4.51",
    "protobuf",
    "sentencepiece",
]


@hookimpl
def grpokit_rewards() -> Iterator[RewardSpec]:
    """Yield `imscore`; its models have no bounds in common."""
    yield RewardSpec(
        api=1,
        name="imscore",
        factory="grpokit_imscore.scorer:Imscore",
        summary="preferences and aesthetics by a model of imscore: CycleReward, MPS, HPSv3, VQAScore and eleven others",
        accepts={"image"},
        gpu_memory=1.9e9,  # of CycleReward: 446 million weights in float32 and 8 pictures
        install="pip install 'grpokit[imscore]'",
        assets=[
            Asset(
                name="CycleReward",
                repository="NagaSaiAbhinay/CycleReward-Combo",
                files=["model.safetensors|pytorch_model.bin"],
            ),
            Asset(
                name="tokenizer of CycleReward",
                repository="bert-base-uncased",
                files=["tokenizer_config.json", "vocab.txt"],
            ),
        ],
        placement={"capsule": {"requires": REQUIRES, "python": ">=3.11,<3.14"}},
    )
