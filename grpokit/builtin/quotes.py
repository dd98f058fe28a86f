"""Text that a picture should show: what is in quotation marks in its prompt. Painters and readers share this."""

from __future__ import annotations

import re

_LETTER = r"[0-9A-Za-z\u00aa-\u024f\u0370-\u052f]"  # of scripts that have apostrophes and inch marks
_INSIDE = f"(?<={_LETTER}){{}}(?={_LETTER})"
# Atomic groups, since Python before 3.11.5 matches possessive repeats of groups wrongly (python/cpython#106052).
_QUOTED = re.compile(
    rf"""(?<![0-9])"((?>(?:[^"“”]|“[^“”]*”)*))["”]      # "..." around “...”, and closed by another kind
    | “((?>(?:[^"“”]|(?<=[\s“])"[^"“”]*")*))["”]
    | ”([^“”]*+)”
    | „([^"„“”]*+)["“”]
    | «([^«»]*+)» | »([^«»]*+)[«»]
    | ‹([^‹›]*+)› | ›([^‹›]*+)[‹›]
    | 「([^「」]*+)」 | 『([^『』]*+)』
    | (?<!{_LETTER})'((?>(?:[^'"“”]|{_INSIDE.format("'")})*))(?<=\S)'(?!{_LETTER})
    | ‘((?>(?:[^‘’"“”]|{_INSIDE.format("’")})*))’""",
    re.VERBOSE,
)


def quotations(text: str) -> list[str]:
    """The spans of a text in quotation marks, in order, blank ones left out; of nested ones the outermost.

    Marks are those of GLM-Image's pipeline ("...", “...”, '...' and 「...」) and of other languages («...», »...«,
    „...“, ”...”, ‹...› and 『...』). An apostrophe inside or after a word does not count, nor does an inch mark after a
    digit.

    >>> quotations('a cup with "Tea", a sign “it\\'s hot” and one dog\\'s „Wau“')
    ['Tea', "it's hot", 'Wau']
    """
    spans = [next((span for span in match.groups() if span), "") for match in _QUOTED.finditer(text)]
    return [span for span in spans if span.strip()]
