"""Announces the rewards `aesthetic` and `clip-score` to grpokit.

A light module: it imports only grpokit. The rewards' own module, which needs open_clip and torchvision, is imported
when a run asks for one of them; a missing dependency then ends in the command under `install`.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import RewardSpec, hookimpl

INSTALL = "pip install 'grpokit[clip]'"


@hookimpl
def grpokit_rewards() -> Iterator[RewardSpec]:
    """Yield `aesthetic` and `clip-score`; neither has a bound, since both take a `scale`."""
    yield RewardSpec(
        name="aesthetic",
        factory="grpokit_clip.reward:AestheticReward",
        summary="how well people like the picture, by CLIP and the LAION aesthetic predictor (about 4 to 7)",
        accepts={"image"},
        install=INSTALL,
    )
    yield RewardSpec(
        name="clip-score",
        factory="grpokit_clip.reward:ClipScoreReward",
        summary="how well the picture fits its prompt: cosine of the CLIP embeddings (about 0.1 to 0.4)",
        accepts={"image"},
        install=INSTALL,
    )
