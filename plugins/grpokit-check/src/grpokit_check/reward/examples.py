"""Samples to check a reward on when the caller has none: the examples of its spec, or built-in ones.

A spec's examples are pairs (better, worse); they are also a check of their own. Built-in samples are signs with a word
for rewards of pictures, and answers to a sum for rewards of texts. Prompts that the caller has bring what else a reward
reads: the columns of its data.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from PIL import Image, ImageDraw

from grpokit import registry
from grpokit.errors import UsageError, brief, error_line
from grpokit.registry.columns import ColumnReward
from grpokit.registry.specs import RewardSpec
from grpokit.rewards.terms import Reward
from grpokit.types import Prompt, Sample
from grpokit_check.check import NotChecked, attempt, expect

_STAND_IN = "text"
_TEXTS = ("12", "the answer is 12", "<think>5+7=12</think><answer>12</answer>", "thirteen", "", "x" * 200)


def example_samples(accepts: Collection[str]) -> list[Sample]:
    """Six samples in three groups, each with a target.

    Args:
        accepts: the kinds of output that the reward can score (`RewardSpec.accepts`).

    Raises:
        UsageError: neither "text" nor "image" is among them.
    """
    if "image" in accepts:
        return [sample for group, word in enumerate(("CAT", "DOG", "12")) for sample in _pictures(word, group)]
    if "text" in accepts:
        prompt = Prompt(text='What is 5 + 7? Write "12".', target="12")
        return [Sample(prompt=prompt, output=text, group=i // 2) for i, text in enumerate(_TEXTS)]
    raise UsageError(f"There are no example samples of {', '.join(accepts) or 'no kind'}: give samples of your own.")


def _pictures(word: str, group: int) -> list[Sample]:
    def sign(text: str, ink: str) -> Image.Image:
        picture = Image.new("RGB", (64, 32), "white")
        ImageDraw.Draw(picture).text((8, 8), text, fill=ink)
        return picture

    right = sign(word, "black")  # the target, and the source of a reward for editing
    prompt = Prompt(text=f'a sign that says "{word}"', target=right, image=right)
    return [Sample(prompt=prompt, output=sign(text, "navy"), group=group) for text in (word, word[::-1])]


def samples_of(prompts: Sequence[Prompt], accepts: Collection[str]) -> list[Sample]:
    """Two samples for each of the first three prompts: its target, where that is an output, and a built-in output."""
    samples = []
    for row, sample in enumerate(example_samples(accepts)[: 2 * len(prompts)]):
        prompt = prompts[row // 2]
        is_target = row % 2 == 0 and isinstance(prompt.target, type(sample.output))
        samples.append(replace(sample, prompt=prompt, output=prompt.target if is_target else sample.output))
    return samples


def with_stand_ins(reward: ColumnReward, columns: Mapping[str, Any]) -> Reward:
    """The reward, which finds tokens and its columns in any sample.

    Args:
        reward: one of columns.
        columns: name -> what it finds where a sample has none; a text where this has none either.
    """
    missing = [name for name in reward.columns if name not in columns]
    if missing:
        warnings.warn(
            f"The built-in samples have no column {' and no '.join(missing)}: {_STAND_IN!r} stands in. Check it with "
            "prompts that have one: --prompts FILE.",
            stacklevel=2,
        )
    stand_ins = {**dict.fromkeys(reward.columns, _STAND_IN), **columns}

    def score(samples: Sequence[Sample]) -> Any:
        return reward([_filled(sample, stand_ins) for sample in samples])

    return score


def _filled(sample: Sample, columns: Mapping[str, Any]) -> Sample:
    prompt = replace(sample.prompt, meta={**columns, **sample.prompt.meta})
    tokens = list(sample.output.encode()) if isinstance(sample.output, str) else []
    return replace(sample, prompt=prompt, info={"token_ids": tokens, **sample.info})


def accepted(reward: Reward) -> frozenset[str]:
    """The kinds of output of which a reward without a spec scores a built-in sample.

    If it scores none, those for which it raises nothing: its answer is wrong. If it raises for all, "text".
    """

    def scores(values: Any) -> bool:
        return any(math.isfinite(float(x)) for x in values)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the kind may be none that the reward scores
        answers = {kind: attempt(reward, example_samples({kind})) for kind in ("text", "image")}
        scored = {kind for kind, values in answers.items() if attempt(scores, values) is True}
    answered = {kind for kind, values in answers.items() if not isinstance(values, BaseException)}
    return frozenset(scored or answered or {"text"})


def samples_for(accepts: Collection[str], spec: RewardSpec | None) -> list[Sample]:
    """A spec's examples as samples, a group per pair; built-in ones where it has none."""
    pairs = spec_examples(spec) if spec is not None else []
    if not pairs:
        return example_samples(accepts)
    if len(pairs) == 1:  # checks compare groups
        pairs = [*pairs, (pairs[0][1], pairs[0][0])]
    return [replace(sample, group=group) for group, pair in enumerate(pairs) for sample in pair]


def spec_examples(spec: RewardSpec) -> list[tuple[Sample, Sample]]:
    """The pairs (better, worse) of a spec as samples; a function that it names is called.

    Raises:
        UsageError: what it announces cannot be read as such pairs.
    """
    title = f"examples of the reward '{spec.name}'"
    pairs: Any = registry.call(spec.examples, {}, what=title) if isinstance(spec.examples, str) else spec.examples
    try:
        return [(_sample(**better), _sample(**worse)) for better, worse in pairs]
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"The {title} must be pairs (better, worse) of mappings with 'output' and possibly 'prompt', 'target', "
            f"'image', 'meta' and 'info': {error_line(error)}."
        ) from error


def _sample(*, output: Any, prompt: str = "", info: Mapping[str, Any] | None = None, **parts: Any) -> Sample:
    return Sample(prompt=Prompt(text=prompt, **parts), output=output, group=0, info=info or {})


def examples(reward: Reward, spec: RewardSpec, params: Mapping[str, Any]) -> None:
    """The better side of each pair scores more than the worse one."""
    for number, pair in enumerate(spec_examples(spec)):
        better, worse = (float(reward([sample])[0]) for sample in pair)
        holds = math.isfinite(better) and math.isfinite(worse) and better > worse
        if not holds and params:  # examples are written for the defaults
            raise NotChecked(f"pair {number} of the spec's examples ({better} and {worse}) may need other parameters")
        expect(holds, f"a higher score for the better side of pair {number} of the spec's examples",
               f"{better} for {brief(pair[0].output, most=60)} and {worse} for {brief(pair[1].output, most=60)}",
               "a sign that is the wrong way round, or examples that lack what the reward reads")  # fmt: skip
