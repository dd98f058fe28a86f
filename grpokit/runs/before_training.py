"""What a run looks at before its first step: scores that no evaluation has, prompts without a score, repeated ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from PIL import Image

from grpokit import registry
from grpokit.config.schema import RunConfig
from grpokit.data import PromptSequence
from grpokit.errors import ConfigError, DataError, UsageError, counted, nearest, reworded, shown
from grpokit.rewards.terms import RewardTerm, as_terms
from grpokit.runs import build, build_rewards
from grpokit.runs.resuming import Digests
from grpokit.trainer import Trainer
from grpokit.types import Prompt


def check_scores(config: RunConfig, terms: Sequence[RewardTerm], held_out: Sequence[Prompt] | None) -> None:
    """Refuse a `run.best` or `run.stop` whose score no evaluation will have.

    Raises:
        ConfigError: there are no held-out prompts, or no such score.
    """
    stop = config.run.stop
    names = ["reward", *(term.name for term in as_terms(terms))]
    for key, name in (("best", config.run.best), ("stop", stop.reward if stop else None)):
        if name is None:
            continue
        if held_out is None:
            raise ConfigError(
                f"run.{key} looks at '{name}', a held-out score, but the config names no held-out prompts: give "
                "eval.prompts, eval.split or eval.fraction."
            )
        if name not in names:
            raise ConfigError(
                f"{config.place('run', key)}there is no held-out score '{name}'{nearest(name, names)}. The scores are "
                f"{', '.join(names)}."
            )
    if stop and not config.eval.every:
        raise ConfigError(f"{config.place('run', 'stop')}it looks at evaluations during the run: set eval.every.")


def unscorable_prompts(config: RunConfig, prompts: PromptSequence, held_out: PromptSequence | None) -> list[str]:
    """A warning for each reward of a run and of its phases that cannot score some prompts.

    Raises:
        UsageError: a reward with a weight can score no training prompt of its phase, or a prompt is wrong for it.
    """
    return list(dict.fromkeys(line for _, own in config.phased() for line in _unscorable(own, prompts, held_out)))


def _unscorable(config: RunConfig, prompts: PromptSequence, held_out: PromptSequence | None) -> list[str]:
    """A warning for each reward that cannot score some prompts, where its plugin knows that from the prompt alone.

    Raises:
        UsageError: a reward with a weight can score no training prompt, or a prompt is wrong for it.
    """
    warnings: list[str] = []
    sequences = {"training prompt": prompts} | ({} if held_out is None else {"held-out prompt": held_out})
    whys = {place: why for place in range(len(config.rewards)) if (why := build_rewards.unscorable(config, place))}
    names = [build_rewards.name_of(reward) for reward in config.rewards]
    trained = {name for name, reward in zip(names, config.rewards, strict=True) if reward.weight}
    size = build.picture_size(config)
    for what, sequence in sequences.items():
        reasons: dict[int | None, dict[int, str]] = defaultdict(dict)  # reward, None for the target's shape -> prompt
        for index in range(len(sequence) if whys else 0):
            prompt = sequence.unopened(index)
            for place, why in whys.items():
                try:
                    with registry.explained(f"The reward '{names[place]}' cannot say which prompts it can score"):
                        reason = why(prompt)
                except DataError as error:
                    at = f"{sequence.where(index)} ({shown(prompt.text)})"
                    raise reworded(error, f"The reward '{names[place]}' cannot take {at}: {error}") from error
                if reason:
                    reasons[place][index] = reason
            if size and (reason := _other_shape(prompt.target, size)):
                reasons[None][index] = reason
        for asked, found in reasons.items():
            index, reason = next(iter(found.items()))
            share = f"{len(found):,} of {counted(len(sequence), what)}"
            where = f"{sequence.where(index)} ({shown(sequence.parts(index)[0][0])}): {reason}"
            if asked is None:
                warnings.append(
                    f"the targets of {share} have another shape than the policy's pictures, first {where}. Rewards "
                    "stretch each picture to the size of its target; crop the targets, or change policy.size"
                )
                continue
            text = f"the reward '{names[asked]}' cannot score {share}, first {where}"
            if sequence is prompts and names[asked] in trained:
                if len(found) == len(prompts):
                    raise UsageError(
                        f"The reward '{names[asked]}' can score no training prompt, first {where}. Change the prompts, "
                        "or take the reward out (weight: 0 only measures it).",
                        page="guards#before-the-first-step",
                    )
                left = "Only the other rewards tell" if trained - {names[asked]} else "No reward tells"
                text += f". {left} samples of such a prompt apart"
            warnings.append(text)
    return warnings


def _other_shape(target: Any, size: tuple[int, int]) -> str:
    """Why a target has not the shape of a policy's pictures; empty if it has, to a percent, or is no picture."""
    if not isinstance(target, Image.Image) or abs(target.width * size[0] / (target.height * size[1]) - 1) < 0.01:
        return ""
    return f"{target.width} x {target.height} pixels instead of {size[1]} x {size[0]}"


def repeated_prompts(trainer: Trainer) -> list[str]:
    """A warning where a step draws a prompt more than once."""
    total, per_step = len(trainer.train_prompts), trainer.prompts_per_step
    if per_step <= total:
        return []
    return [
        f"a step draws {counted(per_step, 'prompt')}, but there {'is' if total == 1 else 'are'} only {total:,}: "
        f"each is drawn up to {-(-per_step // total):,} times in a step, in a group of its own each time, and a step "
        f"has {per_step * trainer.group_size:,} rows"
    ]


def trained_held_out_prompts(prompts: PromptSequence, held_out: PromptSequence | None, digests: Digests) -> list[str]:
    """A warning where a held-out prompt is trained on as well: the same text with the same source picture.

    Args:
        prompts: the training prompts.
        held_out: the held-out ones, if there are any.
        digests: of both.
    """
    if held_out is None:
        return []
    training = set(_texts_and_pictures(prompts, digests["train"]))
    shared = [i for i, pair in enumerate(_texts_and_pictures(held_out, digests["held_out"])) if pair in training]
    if not shared:
        return []
    first = f"{held_out.where(shared[0])} ({shown(held_out.parts(shared[0])[0][0])})"
    return [
        f"{len(shared):,} of {counted(len(held_out), 'held-out prompt')} {'is' if len(shared) == 1 else 'are'} trained "
        f"on as well (same text, same source picture), first {first}. Their scores say little about new prompts: take "
        "them out of the training prompts, or hold out others"
    ]


def _texts_and_pictures(
    prompts: PromptSequence, digests: Mapping[str, Sequence[str]] | None
) -> Iterator[tuple[str, str]]:
    """The text of each prompt, with the digest of its source picture."""
    return ((prompts.parts(i)[0][0], image) for i, image in enumerate(digests["images"] if digests else ()))
