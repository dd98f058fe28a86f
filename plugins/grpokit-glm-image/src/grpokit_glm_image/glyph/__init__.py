"""glm-glyph: a GLM-Image of the real classes that is small enough to learn to write on a laptop's CPU.

`words` are its words, `letters` their pictures and visual tokens; the pipeline lies in `models/glyph`, made by
`tools/make_glm_glyph.py`. Its autoregressive half was taught on words with typos, so it spells badly. Its decoder draws
what the tokens say. `models/glyph-blurred` has another decoder, taught on blurred pictures, which draws soft words.
"""

from __future__ import annotations

from grpokit import Prompt
from grpokit_glm_image.glyph.letters import target_picture
from grpokit_glm_image.glyph.words import words

__all__ = ["prompts"]

TEMPLATES = ('A sign that says "{}"', 'The word "{}" on a card', 'Write "{}" in ink', 'A label: "{}"')


def prompts(split: str = "train", limit: int | None = None) -> list[Prompt]:
    """The prompts of a split, each with the picture that a perfect model would draw.

    Args:
        split: "train", "eval" or "pretrain".
        limit: only the first so many; None for all.
    """
    return [
        Prompt(text=TEMPLATES[i % len(TEMPLATES)].format(word), target=target_picture(word), meta={"word": word})
        for i, word in enumerate(words(split)[:limit])
    ]
