"""Compares the text that a prompt quotes with the text that an engine read: texts in, one score out.

Pure and without pictures, so that every number can be checked by hand. The rule: divide what was read into
consecutive parts, one for each quoted text, in the way that scores best; each part counts as a whole, so that text
which belongs to no quoted text costs exactly what it adds to the edit distance, and nothing is charged twice.
"""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

from grpokit.builtin.quotes import quotations

MAX_WORDS = 64
"""Pieces that what was read is cut into at most; a longer text is cut into groups of words, not into words."""

MAX_FREE_ORDER = 6
"""Up to so many quoted texts may stand in any order in the picture; more must stand in the prompt's order."""

_ALIKE = dict.fromkeys(map(ord, "‘’‛ʼʹ′`´"), "'") | dict.fromkeys(map(ord, "“”„‟″"), '"') | {0x2212: "-", 0x131: "i"}
_UNSEEN = re.compile(
    "[\u034f\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"  # signs that join or vary letters
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"  # vowels of Hebrew
    "\u0640\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed]"  # and of Arabic, with its long strokes
    "|(?<=i)\u0307"  # the dot of a dotted capital I
)
_SPACELESS = (
    "[\u0e00-\u109f\u1780-\u17ff"  # Thai, Lao, Tibetan, Burmese, Khmer
    "\u3001-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"  # Chinese, Japanese
)
_WORD = re.compile(f"(?=\\w){_SPACELESS}|(?:(?!{_SPACELESS})\\w)+")
_NO_SPACE = re.compile(f"(?<={_SPACELESS})[ \n]|[ \n](?={_SPACELESS})")


def normalise(text: str) -> str:
    """Return `text` as it is compared: NFKC, case-folded, white space collapsed, without what a picture does not show.

    Format characters and variation selectors go, and the vowel marks of Hebrew and Arabic, which engines do not write.
    Kinds of dashes, of apostrophes and of quotes are alike, and so are all letters i. Beside a letter of a script
    without spaces, such as Chinese, Japanese or Thai, no space counts.

    >>> normalise("  Ｏｐｅｎ\\n9–5  Hours’ "), normalise("绿茶\\n五元")
    ("open 9-5 hours'", '绿茶五元')
    """
    return _NO_SPACE.sub("", " ".join(_folded(text).split()))


def _folded(text: str) -> str:
    alike = unicodedata.normalize("NFKC", text.translate(_ALIKE))
    folded = ""
    for letter in unicodedata.normalize("NFKC", alike.casefold()):
        kind = unicodedata.category(letter)
        if kind != "Cf":
            folded += "-" if kind == "Pd" else letter
    return _UNSEEN.sub("", folded)


def similarity(a: str, b: str) -> float:
    """Return 1 - Levenshtein distance / length of the longer text; 1 for two empty ones.

    >>> similarity("river", "rivet")
    0.8
    """
    longest = max(len(a), len(b), 1)
    return 1.0 - Levenshtein.distance(a, b) / longest


def score_text(prompt_text: str, lines: Sequence[str], *, extra_text_penalty: float = 1.0) -> float:
    """Score the lines that an engine read against the texts that the prompt quotes.

    The words that were read, in reading order, are cut into consecutive parts, one per target, in any order of the
    targets; a part may be empty and then scores 0. Over all such cuts into S_1..S_n for the targets t_1..t_n

        score = max mean_i  p * sim(t_i, S_i) + (1 - p) * max_R sim(t_i, R),    R: a run of words inside S_i,

    where sim is `similarity` and p is `extra_text_penalty`. The penalty is therefore p times what a part loses by the
    words around its best run: no letter is charged twice. With one target and p = 1 the score is sim(target, all that
    was read), which is 1 - the normalised edit distance.

    The end of a line is a space, or nothing where the target goes on: letters below each other are a word, and a word
    may be split. What stands side by side may be columns; the better of both orders counts.

    Args:
        prompt_text: the prompt; each quoted span is a target.
        lines: what was read, in reading order; between what stands side by side there is a tab.
        extra_text_penalty: p in [0, 1]. 1: text beyond the targets costs as much per letter as a wrong letter. 0: it is
            free ("contains the word is perfect", which a generator learns to exploit).

    Returns:
        A number in [0, 1], or NaN when the prompt quotes nothing.

    >>> score_text('the word "tea"', ["Tea"])
    1.0
    >>> score_text('the word "tea"', ["tea", "shop"])
    0.375
    >>> score_text('the word "tea"', ["tea", "shop"], extra_text_penalty=0)
    1.0
    """
    targets = [target for target in map(normalise, quotations(prompt_text)) if target]
    if not targets:
        return math.nan
    orders = {tuple(lines), tuple(_columns(lines))}
    return max(_score(targets, _words(order), extra_text_penalty) for order in orders)


def _score(targets: Sequence[str], words: Sequence[str], penalty: float) -> float:
    if not words:
        return 0.0
    if len(targets) == 1 and penalty == 1:
        return similarity(targets[0], _on_one_line(targets[0], words))
    gains = [_part_scores(target, words, penalty) for target in targets]
    return _best_cut(gains, len(words)) / len(targets)


def word_accuracy(prompt_text: str, lines: Sequence[str]) -> float:
    """The share of the words that a prompt quotes which an engine read, each as often as it is quoted.

    A word is a run of letters and digits; of a script without spaces, such as Chinese, each character is one. Case does
    not count, nor do the places of words and what else was read.

    Returns:
        A number in [0, 1], or NaN when the prompt quotes no word.

    >>> word_accuracy('a sign "fresh fish, fresh bread"', ["FRESH BREAD", "fish soup"])
    0.75
    >>> word_accuracy("招牌“今日茶”", ["茶 日"])
    0.6666666666666666
    """
    targets = [_folded(target) for target in quotations(prompt_text)]
    wanted = Counter(_WORD.findall(" ".join(targets)))
    there = Counter(_WORD.findall(_folded(" ".join(lines))))
    for target in targets:
        there |= Counter(_WORD.findall(_on_one_line(target, _words(lines))))
    return (wanted & there).total() / wanted.total() if wanted else math.nan


def _columns(lines: Sequence[str]) -> list[str]:
    """Lines in another order: what stands side by side are columns.

    >>> _columns(["open\\tsale", "daily\\tnow"])
    ['open', 'daily', 'sale', 'now']
    """
    rows = [line.split("\t") for line in lines]
    columns = []
    for i in range(max(map(len, rows), default=0)):
        columns += [row[i] for row in rows if i < len(row)]
    return columns


def _words(lines: Sequence[str]) -> list[str]:
    """The words, each behind a space, or a line break where it begins a line; many are grouped."""
    text = "".join("\n" + " ".join(_folded(line).split()) for line in lines)
    words = re.findall(r"\s\S+", text)
    if not words:
        return []
    size = math.ceil(len(words) / MAX_WORDS)
    return ["".join(words[i : i + size]) for i in range(0, len(words), size)]


def _on_one_line(target: str, words: Sequence[str]) -> str:
    """Some words as one line: a break is nothing between letters that the target has side by side, else a space."""
    text = _NO_SPACE.sub("", "".join(words)[1:])
    plain = text.replace("\n", " ")
    letters = len("".join(text.split()))
    if "\n" not in text or letters > 3 * len(target):  # of which most is other text
        return plain
    places = _places(text, target)
    begins = set(itertools.accumulate(map(len, target.split())))
    line, count = "", 0  # what is joined so far, and its letters that are no spaces
    for part in text.split("\n"):
        hyphen = line.endswith("-") and count - 1 not in places
        here, before = places.get(count), places.get(count - 1 - hyphen)
        if here is not None and before == here - 1 and here not in begins:
            line = line[:-1] if hyphen else line
        elif line:
            line += " "
        line += part
        count += len("".join(part.split()))
    return max(plain, line, key=lambda read: similarity(target, read))


def _places(text: str, target: str) -> dict[int, int]:
    """Of a letter in a text, the place of the target's letter that it stands for; spaces and breaks are left out."""
    places: dict[int, int] = {}
    letters, wanted = "".join(text.split()), "".join(target.split())
    for part in Levenshtein.opcodes(letters, wanted):
        if part.tag in ("equal", "replace"):
            moved = part.dest_start - part.src_start
            places |= {i: i + moved for i in range(part.src_start, part.src_end)}
    return places


def _part_scores(target: str, words: Sequence[str], penalty: float) -> NDArray[np.float64]:
    """[W + 1, W + 1]: entry [a, b] is what words a..b-1 score as the target's part; 0 where a >= b."""
    count = len(words)
    spans = list(itertools.combinations(range(count + 1), 2))  # (a, b) with a < b
    texts = [_on_one_line(target, words[a:b]) for a, b in spans]
    distances = process.cdist([target], texts, scorer=Levenshtein.distance)[0]
    whole = np.zeros((count + 1, count + 1))
    for (a, b), text, distance in zip(spans, texts, distances, strict=True):
        whole[a, b] = 1.0 - distance / max(len(target), len(text))
    best = whole.copy()
    for a, b in sorted(spans, key=lambda span: span[1] - span[0]):
        best[a, b] = max(best[a, b], best[a + 1, b], best[a, b - 1])
    return penalty * whole + (1.0 - penalty) * best


def _best_cut(gains: Sequence[NDArray[np.float64]], count: int) -> float:
    """The largest sum over targets that a cut of `count` words into consecutive parts reaches.

    `reached[m][b]` is the best sum when the targets of the bit set m share the words before b. Every word falls into
    a part; a target without a word scores 0.
    """
    targets = range(len(gains))
    free = len(gains) <= MAX_FREE_ORDER
    is_part = np.tri(count + 1, dtype=bool).T  # [a, b]: a <= b
    reached = {0: np.full(count + 1, -np.inf)}
    reached[0][0] = 0.0
    everyone = (1 << len(gains)) - 1
    for members in range(1, everyone + 1) if free else [(2 << last) - 1 for last in targets]:
        last_ones = [i for i in targets if members >> i & 1] if free else [members.bit_length() - 1]
        sums = []
        for i in last_ones:
            before = reached[members ^ (1 << i)][:, None]  # [a, 1]
            gain = np.where(is_part, gains[i], -np.inf)  # [a, b]
            sums.append((before + gain).max(axis=0))  # [b]
        reached[members] = np.max(sums, axis=0)
    return float(reached[everyone][count])
