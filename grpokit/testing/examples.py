"""Samples to check a reward on when nobody brought any."""

from __future__ import annotations

from collections.abc import Collection

from grpokit.errors import UsageError
from grpokit.types import Prompt, Sample

_TEXTS = ("12", "the answer is 12", "<think>5+7=12</think><answer>12</answer>", "thirteen", "", "x" * 200)


def example_samples(accepts: Collection[str]) -> list[Sample]:
    """Six samples in three groups, each with a target.

    Args:
        accepts: the kinds of output that the reward can score (`RewardSpec.accepts`).

    Raises:
        UsageError: neither "text" nor "image" is among them.
    """
    if "text" in accepts and "image" not in accepts:
        prompt = Prompt(text='What is 5 + 7? Write "12".', target="12")
        return [Sample(prompt=prompt, output=text, group=i // 2) for i, text in enumerate(_TEXTS)]
    if "image" in accepts:
        return [sample for group, word in enumerate(("CAT", "DOG", "12")) for sample in _pictures(word, group)]
    raise UsageError(f"There are no example samples of {', '.join(accepts) or 'no kind'}: give samples of your own.")


def _pictures(word: str, group: int) -> list[Sample]:
    from PIL import Image, ImageDraw

    def sign(text: str, ink: str) -> Image.Image:
        picture = Image.new("RGB", (64, 32), "white")
        ImageDraw.Draw(picture).text((8, 8), text, fill=ink)
        return picture

    prompt = Prompt(text=f'a sign that says "{word}"', target=sign(word, "black"))
    return [Sample(prompt=prompt, output=sign(text, "navy"), group=group) for text in (word, word[::-1])]
