"""Announces the rewards `pickscore`, `hpsv2` and `imagereward` to grpokit.

A light module: it imports only grpokit. A reward's own module, which needs transformers or open_clip, is imported when
a run asks for it; a missing dependency then ends in the command under `install`.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import RewardSpec, hookimpl

INSTALL = "pip install 'grpokit[preference]'"


@hookimpl
def grpokit_rewards() -> Iterator[RewardSpec]:
    """Yield the three rewards; the logit scale of `pickscore` and the head of `imagereward` have no bound."""
    yield RewardSpec(
        name="pickscore",
        factory="grpokit_preference.pickscore:PickScoreReward",
        summary="which picture people would pick for the prompt, by PickScore (about 16 to 26)",
        accepts={"image"},
        install=INSTALL,
    )
    yield RewardSpec(
        name="hpsv2",
        factory="grpokit_preference.hpsv2:HPSv2Reward",
        summary="which picture people prefer for the prompt, by HPS v2 or v2.1 (about 0.2 to 0.35)",
        accepts={"image"},
        range=(-1.0, 1.0),
        install=INSTALL,
    )
    yield RewardSpec(
        name="imagereward",
        factory="grpokit_preference.imagereward:ImageRewardReward",
        summary="how experts rate picture and prompt, by ImageReward (about -2 to 2)",
        accepts={"image"},
        install=INSTALL,
    )
