r"""What a model writes around an answer: code fences, LaTeX, quotes, emphasis, a full stop.

All rewards that read answers share this.

>>> list(unwrap("```\n**Paris.**\n```")), boxed_answer(r"so \boxed{\frac{1}{2}}, which is right")
(['```\n**Paris.**\n```', '**Paris.**', 'Paris.', 'Paris'], '\\frac{1}{2}')
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MOST_WRAPPINGS = 8
"""So many are taken off at most, which bounds the cost."""

_WRAPPED = re.compile(
    r"""```[\w+-]*\n(.*)``` | `([^`]*)` | <answer>(.*)</answer>
    | \*\*(.*)\*\* | __(.*)__ | \*(.*)\* | _(.*)_
    | "([^"]*)" | '(.*)' | “([^“”]*)” | ‘(.*)’ | «([^«»]*)» | 「([^「」]*)」
    | \$\$(.*)\$\$ | \$([^$]*)\$ | \\\((.*)\\\) | \\\[(.*)\\\] | \\(?:boxed|text|math|mbox)[a-z]*\ *\{(.*)\}
    | (.*[^.])[.。]""",
    re.VERBOSE | re.DOTALL,
)
_LAST_BOX = re.compile(r".*\\boxed *\{", re.DOTALL)


def unwrap(answer: str) -> Iterator[str]:
    """An answer, and what is left of it as each of its wrappings is taken off, from the outside in.

    A wrapping holds the whole answer: of words beside it nothing is taken off.
    """
    text = answer.strip()
    for _ in range(MOST_WRAPPINGS):
        yield text
        match = _WRAPPED.fullmatch(text)
        if match is None:
            return
        text = next(inside for inside in match.groups() if inside is not None).strip()
    yield text


def boxed_answer(text: str) -> str | None:
    r"""What the last \boxed{...} of a text holds; None where there is none, or it is not closed."""
    last = _LAST_BOX.match(text)
    rest = text[last.end() :] if last else ""
    depth = 1
    for position, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if not depth:
            return rest[:position].strip()
    return None
