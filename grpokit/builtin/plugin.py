"""The built-in plugin: rewards for text and pictures, advantage functions, objectives and modifiers.

It uses only what third parties can use, and is the shortest full example of a plugin module.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import AdvantageSpec, ModifierSpec, ObjectiveSpec, RewardSpec, hookimpl

_TEXT = frozenset({"text"})
_EXAMPLES = {
    "exact-match": (({"output": "12", "target": "12"}, {"output": "13", "target": "12"}),),
    "contains": (({"output": "the answer is 12", "target": "12"}, {"output": "the answer is 13", "target": "12"}),),
    "numeric-answer": (({"output": "7 + 5 = 12.0", "target": "12"}, {"output": "7 + 5 = 13", "target": "12"}),),
    "repetition-penalty": (({"output": "one two three four five six"}, {"output": "one two three one two three"}),),
}  # the others score nothing that their parameters do not ask for
_IN_A_CONFIG = {
    "format": "rewards:\n  - {use: format, weight: 0.2, pattern: '<think>.*</think><answer>.*</answer>'}",
    "soft-overlong": "rewards:\n  - {use: soft-overlong, weight: 0.2, maximum: 400, cache: 100}",
    "kl-gate": """
rewards:
  - {use: contains, weight: 1.0}
  - {use: repetition-penalty, weight: 0}  # a monitor
trainer:
  kl_coef: 0.04
  modifiers:
    - {use: kl-gate}
""",
    "diversity": """
rewards:
  - {use: pixel-diversity, weight: 0}  # a monitor, beside a reward that is trained on
trainer:
  modifiers:
    - {use: diversity, monitor: pixel-diversity}
""",
    "entropy-target": "trainer:\n  modifiers:\n    - {use: entropy-target, target: 0.2}",
}  # where the name alone is not enough
_UNSCORABLE = {
    "exact-match": "grpokit.rewards.missing_inputs:text_target",
    "contains": "grpokit.rewards.missing_inputs:any_target",
    "numeric-answer": "grpokit.builtin.text_rewards:without_number",
}
_EXPECTED_FAILURES = {
    "contains": {"ladder-extra-text": "the target anywhere in a long text is right; mix it with length or format"},
    "numeric-answer": {
        "ladder-extra-text": "by default the last number counts, whatever is before it; set a stricter pattern"
    },
}


@hookimpl
def grpokit_rewards() -> Iterator[RewardSpec]:
    """Rewards for text, and three for pictures."""
    for name, factory, low, high, summary in (
        ("exact-match", "ExactMatch", 0, 1, "1 where the text is the target"),
        ("contains", "contains", 0, 1, "1 where the text contains the target"),
        ("format", "TextFormat", 0, 1, "1 where the whole text matches a regular expression"),
        ("numeric-answer", "NumericAnswer", 0, 1, "1 where the number in the answer equals the target"),
        ("length", "Length", None, 0, "minus the distance of the text's length from a wanted range"),
        ("soft-overlong", "SoftOverlong", -1, 0, "0 up to a length, from there evenly down to -1 (DAPO)"),
        ("repetition-penalty", "RepetitionPenalty", None, 0, "minus the share of n-grams that repeat"),
    ):
        yield RewardSpec(
            api=1,
            name=name,
            factory=f"grpokit.builtin.text_rewards:{factory}",
            accepts=_TEXT,
            examples=_EXAMPLES.get(name, ()),
            range=(low, high),
            summary=summary,
            unscorable=_UNSCORABLE.get(name, ""),
            expected_failures=_EXPECTED_FAILURES.get(name, {}),
            example=_IN_A_CONFIG.get(name, ""),
        )
    yield RewardSpec(
        api=1,
        name="jpeg-size",
        factory="grpokit.builtin.image_rewards:jpeg_size",
        accepts={"image"},
        range=(None, 0),
        summary="minus the picture's bytes / 100,000 as a JPEG of quality 95, for trials: a flat colour is best",
        statistic=("larger files", "smaller files"),
    )
    yield RewardSpec(
        api=1,
        name="brightness",
        factory="grpokit.builtin.image_rewards:brightness",
        accepts={"image"},
        range=(0, 1),
        summary="the picture's mean brightness from black to white, for trials",
        statistic=("darker", "brighter"),
    )
    yield RewardSpec(
        api=1,
        name="pixel-diversity",
        factory="grpokit.builtin.image_rewards:pixel_diversity",
        accepts={"image"},
        range=(0, 1),
        per_sample=False,
        summary="how unlike the nearest other picture of its group it is, a monitor for the modifier `diversity`",
        statistic=("less varied", "more varied"),
    )
    yield RewardSpec(
        api=1,
        name="episode-return",
        factory="grpokit.builtin.episodes:episode_return",
        accepts={"episode", "text"},
        examples=[({"output": "won", "info": {"return": 1.0}}, {"output": "lost", "info": {"return": 0.0}})],
        expected_failures={"wrong-type": "it reads what the policy tells of a sample, whatever its output is"},
        summary="what an environment or a world gave in the whole episode",
    )


@hookimpl
def grpokit_advantages() -> Iterator[AdvantageSpec]:
    """Advantage functions."""
    for name, summary in (
        ("group", "z-score inside the group (GRPO)"),
        ("centred", "reward minus the group's mean (Dr. GRPO)"),
        ("rloo", "reward minus the mean of the others (RLOO)"),
        ("gdpo", "z-score per reward, then their weighted sum over the batch (GDPO)"),
        ("returns_to_go", "for each decision what is earned from it on, compared inside the group; environments"),
    ):
        yield AdvantageSpec(api=1, name=name, factory=f"grpokit.advantages:{name}", summary=summary)


@hookimpl
def grpokit_objectives() -> Iterator[ObjectiveSpec]:
    """Objectives."""
    more = "builtin.more_objectives"
    for name, home, summary in (
        ("grpo", "objectives:GRPO", "clipped ratios, mean of sequence means"),
        ("dapo", "objectives:DAPO", "clip-higher, mean over all tokens"),
        ("dr_grpo", "objectives:DrGRPO", "clipped ratios, divided by a fixed length"),
        ("bnpo", f"{more}:BNPO", "clipped ratios, mean over all tokens"),
        ("gspo", "objectives:GSPO", "one clipped ratio per sequence"),
        ("luspo", f"{more}:LUSPO", "one clipped ratio per sequence, sum over its tokens"),
        ("cispo", f"{more}:CISPO", "capped, detached ratio as a weight"),
        ("sapo", f"{more}:SAPO", "a smooth gate in place of the clip"),
        ("dppo", f"{more}:DPPO", "no clip; decisions where old and new policy are far apart are dropped"),
        ("vespo", f"{more}:VESPO", "a smooth, detached weight of the whole sequence"),
        ("nft", f"{more}:NFT", "good samples attract predictions, bad ones repel them; flows with matching"),
    ):
        yield ObjectiveSpec(api=1, name=name, factory=f"grpokit.{home}", summary=summary)


@hookimpl
def grpokit_modifiers() -> Iterator[ModifierSpec]:
    """Modifiers."""
    for name, home, summary in (
        ("kl-gate", "kl_gate:KLGate", "the KL acts only on samples whose trained reward outranks the monitors"),
        ("diversity", "diversity:Diversity", "good samples that differ from the others of their group count more"),
        ("entropy-target", "entropy_target:EntropyTarget", "the entropy bonus adapts to a target"),
        ("entropy-filter", "entropy_filter:EntropyFilter", "decisions of low entropy get no policy gradient"),
    ):
        factory, example = f"grpokit.builtin.{home}", _IN_A_CONFIG.get(name, "")
        yield ModifierSpec(api=1, name=name, factory=factory, summary=summary, example=example)
