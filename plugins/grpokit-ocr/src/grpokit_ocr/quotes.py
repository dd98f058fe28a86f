"""Finds the text that a picture should show: what stands in double quotes in its prompt."""

from __future__ import annotations

import re

from grpokit import Prompt

_QUOTED = re.compile(r'"([^"]*)"|“([^”]*)”')


def quoted(text: str) -> list[str]:
    """Return the spans of `text` between straight or typographic double quotes, in order, blank ones left out.

    >>> quoted('a cup with "Tea" and a sign “it\\'s hot”')
    ['Tea', "it's hot"]
    """
    spans = [straight or curly for straight, curly in _QUOTED.findall(text)]
    return [span for span in spans if span.strip()]


def unscorable(prompt: Prompt) -> str:
    """Why no picture of a prompt can be scored; empty if they can be."""
    return "" if quoted(prompt.text) else "it has no text in double quotes"
