"""What a run looks at before its first step: scores that no evaluation has, and prompts without a score."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from grpokit import registry
from grpokit.config.schema import RunConfig
from grpokit.data import PromptSequence
from grpokit.errors import ConfigError, DataError, UsageError, counted, nearest, reworded, shown
from grpokit.rewards.terms import RewardTerm, as_terms
from grpokit.runs import build, build_rewards
from grpokit.runs.resuming import Digests
from grpokit.types import Prompt


def check_scores(config: RunConfig, terms: Sequence[RewardTerm], held_out: Sequence[Prompt] | None) -> None:
    """Refuse a `run.best` or `run.stop` whose score no evaluation will have.

    Raises:
        ConfigError: there are no held-out prompts, or no such score.
    """
    stop = config.run.stop
    names = ["reward", *(term.name for term in as_terms(terms))]
    for key, name in (("best", config.run.best), ("stop", stop.reward if stop else None)):
        if name is not None and held_out is None:
            raise ConfigError(
                f"{config.place('run', key)}'{name}' is a held-out score, but the config names no held-out prompts. "
                "Give eval.prompts, eval.split or eval.fraction."
            )
        if name is not None and name not in names:
            raise ConfigError(
                f"{config.place('run', key)}there is no held-out score '{name}'{nearest(name, names)}. The scores are "
                f"{', '.join(names)}."
            )
    if stop and not config.eval.every:
        raise ConfigError(f"{config.place('run', 'stop')}it needs evaluations during the run: set eval.every.")


def unscorable_prompts(config: RunConfig, prompts: PromptSequence, held_out: PromptSequence | None) -> list[str]:
    """A warning for each reward of a run and of its phases that cannot score some prompts, as its plugin knows.

    Raises:
        UsageError: a reward with a weight can score no training prompt of its phase, or a prompt is wrong for it.
    """
    warnings: dict[str, None] = {}
    for _, own in config.phased():
        for place, reward in enumerate(own.rewards):
            for what, sequence in (("training prompt", prompts), ("held-out prompt", held_out)):
                reasons = {} if sequence is None else _reasons(own, place, sequence)
                if sequence is None or not reasons:
                    continue
                index, reason = next(iter(reasons.items()))
                where = f"first {sequence.where(index)} ({shown(sequence.parts(index)[0][0])}): {reason}"
                name = build_rewards.name_of(reward)
                if reward.weight and sequence is prompts and len(reasons) == len(prompts):
                    raise UsageError(
                        f"The reward '{name}' can score no training prompt, {where}. Change the prompts, or remove "
                        "the reward (weight: 0 only measures it).",
                        page="guards#before-the-first-step",
                    )
                some = f"{len(reasons):,} of {counted(len(sequence), what)}"
                warnings[f"the reward '{name}' cannot score {some}, {where}"] = None
    for what, sequence in (("training", prompts), ("held-out", held_out)):
        warnings |= dict.fromkeys(_stretched(config, what, sequence) if sequence else ())
    return list(warnings)


def _stretched(config: RunConfig, what: str, prompts: PromptSequence) -> list[str]:
    """A warning where targets have another shape than the policy's pictures: rewards stretch these to them."""
    size = build.picture_size(config)
    if size is None:
        return []
    targets = ((index, prompts.unopened(index).target) for index in range(len(prompts)))
    pictures = [(index, target) for index, target in targets if isinstance(target, Image.Image)]
    others = [(i, t) for i, t in pictures if abs(t.width * size[0] / (t.height * size[1]) - 1) >= 0.01]
    if not others:
        return []
    index, first = others[0]
    return [
        f"the targets of {len(others):,} of {len(prompts):,} {what} prompts have another shape than the policy's "
        f"pictures, first {prompts.where(index)}: {first.width} x {first.height} pixels instead of {size[1]} x "
        f"{size[0]}. Rewards stretch a picture to the size of its target: crop the targets, or change policy.size"
    ]


def _reasons(config: RunConfig, place: int, prompts: PromptSequence) -> dict[int, str]:
    """Why a reward cannot score prompts, by their places."""
    why = build_rewards.unscorable(config, place)
    name = build_rewards.name_of(config.rewards[place])
    reasons = {}
    for index in range(len(prompts) if why else 0):
        prompt = prompts.unopened(index)
        try:
            with registry.explained(f"The reward '{name}' cannot say which prompts it can score"):
                reason = why(prompt) if why else ""
        except DataError as error:
            at = f"{prompts.where(index)} ({shown(prompt.text)})"
            raise reworded(error, f"The reward '{name}' cannot take {at}: {error}") from error
        if reason:
            reasons[index] = reason
    return reasons


def trained_held_out_prompts(prompts: PromptSequence, held_out: PromptSequence | None, digests: Digests) -> list[str]:
    """A warning where a held-out prompt is trained on as well: the same text with the same source picture.

    Args:
        prompts: the training prompts.
        held_out: the held-out ones, if there are any.
        digests: of both.
    """
    if held_out is None:
        return []
    pairs = {
        kind: [(some.parts(i)[0][0], image) for i, image in enumerate((digests[kind] or {}).get("images", ()))]
        for kind, some in (("train", prompts), ("held_out", held_out))
    }
    training = set(pairs["train"])
    shared = [i for i, pair in enumerate(pairs["held_out"]) if pair in training]
    if not shared:
        return []
    first = f"{held_out.where(shared[0])} ({shown(held_out.parts(shared[0])[0][0])})"
    return [
        f"{len(shared):,} of {counted(len(held_out), 'held-out prompt')} {'is' if len(shared) == 1 else 'are'} trained "
        f"on as well (same text, same source picture), first {first}. Their scores say little about new prompts: take "
        "them out of the training prompts, or hold out others"
    ]
