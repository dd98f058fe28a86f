"""What a run looks at before anything is built: trackers, kinds of output, scores of evaluations, prompts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from grpokit import registry
from grpokit.config.schema import RunConfig
from grpokit.data import PromptSequence
from grpokit.errors import ConfigError, DataError, UsageError, brief, nearest, plural, reword
from grpokit.runs import build, build_rewards
from grpokit.runs.resuming import Digests
from grpokit.settings import numbered_names
from grpokit.tracking import trackers
from grpokit.types import Prompt


def check_run(config: RunConfig) -> tuple[PromptSequence, PromptSequence | None, list[str]]:
    """Refuse what is wrong with a config and its prompts, as far as it shows before rewards and policies are built.

    Names and parameters are checked when the components are built, or before by `build.check_components`.

    Returns:
        The training prompts and the held-out ones, with warnings about those that a reward cannot score.

    Raises:
        UsageError: a score that no evaluation has, a tracker that is not installed, a reward that cannot score what the
            policy makes, or prompts that the policy or a reward cannot take.
    """
    trackers.require_trackers(config.trackers.use)
    prompts, held_out = build.prompts(config)
    for _, own in config.phased():
        for place in range(len(own.rewards)):
            build_rewards.check_output(own, place)
    _check_scores(config, held_out)
    warnings = unscorable_prompts(config, prompts, held_out)
    build.check_readable(config, prompts, held_out)
    return prompts, held_out, warnings


def _check_scores(config: RunConfig, held_out: Sequence[Prompt] | None) -> None:
    """Refuse a `run.best` or `run.stop` whose score no evaluation will have.

    Raises:
        ConfigError: there are no held-out prompts, or no such score.
    """
    stop = config.run.stop
    names = numbered_names(map(build_rewards.name_of, config.rewards))
    if any(reward.weight for reward in config.rewards):
        names = ["reward", *names]
    asked = {"best": config.run.best, "stop": stop.reward if stop else None}
    for key, name in asked.items():
        if name is not None and held_out is None:
            raise ConfigError(
                f"{config.place('run', key)}'{name}' is a held-out score, but the config names no held-out prompts. "
                "Give eval.prompts, eval.split or eval.fraction."
            )
        if name is not None and name not in names:
            known = f"The scores are {', '.join(names)}." if names else "The config has no reward."
            raise ConfigError(
                f"{config.place('run', key)}there is no held-out score '{name}'{nearest(name, names)}. {known}"
            )
    if stop and not config.eval.every:
        raise ConfigError(f"{config.place('run', 'stop')}it needs evaluations during the run: set eval.every.")


def keep_prompts(config: RunConfig, folder: Path) -> None:
    """Refuse a folder that a new run empties where the prompts lie in it.

    Raises:
        UsageError: names them.
    """
    for prompts in (config.data.prompts, config.eval.prompts):
        if prompts is not None and Path(prompts).resolve().is_relative_to(folder.resolve()):
            raise UsageError(
                f"The prompts {prompts} lie in {folder}, which a new run empties. Move them, or choose another folder "
                "with run.dir=..."
            )


def unscorable_prompts(config: RunConfig, prompts: PromptSequence, held_out: PromptSequence | None) -> list[str]:
    """A warning for each reward of a run and of its phases that cannot score some prompts, as its plugin knows.

    Raises:
        UsageError: a reward with a weight can score no training prompt of its phase, or a prompt is wrong for it.
    """
    asked = {}  # each reward of a phase -> its function
    for _, own in config.phased():
        for place, reward in enumerate(own.rewards):
            why = build_rewards.unscorable(own, place)
            name = build_rewards.name_of(reward)
            if why is not None:
                asked[name, bool(reward.weight), reward.use, repr(reward.params)] = why
    size = build.picture_size(config)
    warnings = []
    for what, sequence in (("training prompt", prompts), ("held-out prompt", held_out)):
        if sequence is None or not (asked or size):
            continue
        reasons: dict[Any, dict[int, str]] = defaultdict(dict)  # reward, None for the target's shape -> prompt
        for index in range(len(sequence)):
            prompt = sequence.unopened(index)  # once for all, since it reads the headers of pictures
            for key, why in asked.items():
                if reason := _reason(key[0], why, prompt, sequence, index):
                    reasons[key][index] = reason
            if size and (reason := _other_shape(prompt.target, size)):
                reasons[None][index] = reason
        for key, found in reasons.items():
            index, reason = next(iter(found.items()))
            row = sequence.row(index)
            where = f"first {row.where} ({brief(row.prompt.text)}): {reason}"
            some = f"{len(found):,} of {plural(len(sequence), what)}"
            if key is None:
                warnings.append(
                    f"the targets of {some} have another shape than the policy's pictures, first "
                    f"{row.where}: {reason}. Rewards stretch a picture to the size of its target: crop the "
                    "targets, or change policy.size"
                )
                continue
            if key[1] and sequence is prompts and len(found) == len(prompts):
                raise UsageError(
                    f"The reward '{key[0]}' can score no training prompt, {where}. Change the prompts, or remove the "
                    "reward (weight: 0 only measures it).",
                    page="guards#before-the-first-step",
                )
            warnings.append(f"the reward '{key[0]}' cannot score {some}, {where}")
    return list(dict.fromkeys(warnings))


def _reason(name: str, why: Callable[[Prompt], str], prompt: Prompt, sequence: PromptSequence, index: int) -> str:
    """Why a reward cannot score a prompt; empty if it can."""
    try:
        with registry.explained(f"The reward '{name}' cannot say which prompts it can score"):
            return why(prompt)
    except DataError as error:
        at = f"{sequence.row(index).where} ({brief(prompt.text)})"
        raise reword(error, f"The reward '{name}' cannot take {at}: {error}") from error


def _other_shape(target: Any, size: tuple[int, int]) -> str:
    """Why a target has not the shape of a policy's pictures; empty if it has, to a percent, or is not a picture."""
    if not isinstance(target, Image.Image):
        return ""
    height, width = size
    stretch = target.width * height / (target.height * width)
    if abs(stretch - 1) < 0.01:
        return ""
    return f"{target.width} x {target.height} pixels instead of {width} x {height}"


def _texts_with_images(prompts: PromptSequence, digests: Mapping[str, Sequence[str]] | None) -> list[tuple[str, str]]:
    images = (digests or {}).get("images", ())
    return [(prompts.row(i).prompt.text, image) for i, image in enumerate(images)]


def trained_held_out_prompts(prompts: PromptSequence, held_out: PromptSequence | None, digests: Digests) -> list[str]:
    """A warning where a held-out prompt is trained on as well: the same text with the same source picture.

    Args:
        prompts: the training prompts.
        held_out: the held-out ones, if there are any.
        digests: of both.
    """
    if held_out is None:
        return []
    training = set(_texts_with_images(prompts, digests["train"]))
    pairs = _texts_with_images(held_out, digests["held_out"])
    shared = [i for i, pair in enumerate(pairs) if pair in training]
    if not shared:
        return []
    row = held_out.row(shared[0])
    first = f"{row.where} ({brief(row.prompt.text)})"
    return [
        f"{len(shared):,} of {plural(len(held_out), 'held-out prompt')} {'is' if len(shared) == 1 else 'are'} trained "
        f"on as well (same text, same source picture), first {first}. Their scores say little about new prompts: take "
        "them out of the training prompts, or hold out others"
    ]
