"""The page of a trial: one file that opens offline, without any program in it.

It is built as a tree of elements, so what came from data is only ever text or an attribute.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Sequence
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from PIL import Image

from grpokit.errors import on_one_line, plural
from grpokit_diagnosis.trial.heat_map import Cells, drawn, tried_cells
from grpokit_diagnosis.trial.measure import Tried
from grpokit_diagnosis.trial.parts import MOST_WORDS, Square, Words
from grpokit_diagnosis.trial.sentences import about_needs, about_parts, figure, in_order, name_of
from grpokit_diagnosis.trial.trial import Trial

_SIDE = 720  # pixels of a picture's longer side
_TINY = 96  # of one in the ranking
_ROWS = 40  # of a table of parts
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_PAPER = 0.5  # of a word's strongest colour, so that the word can be read

Element = ElementTree.Element


def page(trial: Trial, squares: int) -> bytes:
    """The page as one file.

    Args:
        trial: what it shows.
        squares: along the longer side of a picture.
    """
    title = f"{trial.reward} on {_title_of(trial.tried)}"
    head = _el(
        "head",
        _el("meta", charset="utf-8"),
        _el("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        _el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _el("title", f"{on_one_line(title)} · grpokit"),
        _el("link", rel="icon", href="data:,"),
        _el("style", _style()),
    )
    body = _el("main", *_header(trial), *_ranking(trial), *_samples(trial), *_notes(trial, squares))
    html = _el("html", head, _el("body", body), lang="en")
    text = ElementTree.tostring(html, encoding="unicode", method="html")
    return f"<!doctype html>\n{text}\n".encode(errors="backslashreplace")


def _style() -> str:
    return (resources.files("grpokit_diagnosis.trial") / "page.css").read_text(encoding="utf-8")


def _el(tag: str, *children: Element | str | None, **attributes: str) -> Element:
    """An element; `class_` and `http_equiv` stand for `class` and `http-equiv`."""
    element = Element(tag, {name.rstrip("_").replace("_", "-"): text for name, text in attributes.items()})
    last: Element | None = None
    for child in children:
        if isinstance(child, str):
            if last is None:
                element.text = (element.text or "") + child
            else:
                last.tail = (last.tail or "") + child
        elif child is not None:
            element.append(child)
            last = child
    return element


def _title_of(tried: Sequence[Tried]) -> str:
    return _short(tried[0]) if len(tried) == 1 else plural(len(tried), "sample")


def _header(trial: Trial) -> Iterator[Element]:
    """The score, what the reward needed, its parameters and the prompt."""
    best = trial.tried[0]
    yield _el("h1", f"grpokit try {trial.reward}")
    if len(trial.tried) == 1:
        yield _el("p", f"{trial.reward} gives ", _name(best), " ", _el("b", figure(best.score)), class_="verdict")
    else:
        scores = [tried.score for tried in trial.tried if not math.isnan(tried.score)]
        low, high = figure(min(scores)), figure(max(scores))
        spread = high if low == high else f"{low} to {high}"
        yield _el("p", f"{trial.reward} gives {plural(len(scores), 'sample')} ", _el("b", spread), class_="verdict")
    yield _el("p", about_needs(trial.apart[0], compares=trial.compares))
    facts = [(name, str(value)) for name, value in trial.settings.items()]
    facts.append(("scores in all", f"{trial.samples:,}"))
    yield _el("dl", *(_el("div", _el("dt", name), _el("dd", text)) for name, text in facts), class_="facts")
    if _one_prompt(trial):
        yield from _prompt(best)


def _one_prompt(trial: Trial) -> bool:
    """Whether all samples have the same prompt."""
    first = trial.tried[0].sample.prompt
    return all(tried.sample.prompt == first for tried in trial.tried)


def _prompt(tried: Tried) -> Iterator[Element]:
    """The prompt's text, target and source, as far as it has them."""
    prompt = tried.sample.prompt
    parts = []
    if prompt.text:
        parts.append(_el("div", _el("h3", "Prompt"), _el("code", prompt.text, dir="auto", tabindex="0")))
    for name, value in (("Target", prompt.target), *(("Source", image) for image in prompt.images)):
        if isinstance(value, Image.Image):
            parts.append(_el("div", _el("h3", name), _image(value.convert("RGB"), name.lower(), 240)))
        elif value is not None:
            parts.append(_el("div", _el("h3", name), _el("code", str(value), dir="auto", tabindex="0")))
    if parts:
        yield _el("section", *parts, class_="prompt")


def _ranking(trial: Trial) -> Iterator[Element]:
    """A table of all samples, if there are several."""
    if len(trial.tried) == 1:
        return
    rows: list[list[str | Element]] = []
    for place, tried in enumerate(trial.tried, 1):
        picture = [] if isinstance(tried.sample.output, str) else [_image(tried.sample.output, "", _TINY)]
        link = _el("span", *picture, _name(tried))
        if tried.divided is not None:
            link = _el("a", *link, href=f"#sample-{place}")
        score = tried.problem if math.isnan(tried.score) else figure(tried.score)
        rows.append([str(place), link, score])
    yield _el("section", _el("h2", "Ranking"), _table("Ranking", ["", "sample", trial.reward], rows))


def _samples(trial: Trial) -> Iterator[Element]:
    """A section for each sample that was taken apart."""
    most = trial.most
    several = len(trial.tried) > 1
    for place, tried in enumerate(trial.tried, 1):
        if tried.divided is None:
            continue
        title = _el("h2", f"{place}. ", _name(tried), ": ", _el("b", figure(tried.score))) if several else None
        lead = [] if _one_prompt(trial) else [*_prompt(tried)]
        lead += [_el("p", line) for line in about_parts(tried)]
        shown = _text(tried, most) if isinstance(tried.sample.output, str) else _pictures(tried, most)
        table = [_parts_table(tried)] if tried.divided.parts else []
        yield _el("section", title, *lead, *shown, *table, id=f"sample-{place}")


def _pictures(tried: Tried, most: float) -> Iterator[Element]:
    """The picture, and beside it the map over the picture with its scale."""
    picture: Image.Image = tried.sample.output
    cells = tried_cells(tried)
    heat = drawn(tried, most)
    map_image = _el("div", _image(heat, "the map over the picture", _SIDE), _hover(cells), class_="map")
    plain = picture.resize(heat.size, Image.Resampling.BICUBIC)
    yield _el(
        "div",
        _el("figure", _image(plain, "the picture", _SIDE), _el("figcaption", _name(tried))),
        _el("figure", map_image, _scale(most, "picture") if most else None),
        class_="pair",
    )


def _hover(cells: Cells) -> Element:
    """A grid that has each cell's number as its tooltip."""
    tracks = [_tracks(cells.columns), _tracks(cells.rows)]
    marks = [_el("i", title=figure(float(value), sign="+")) for value in cells.values.flat]
    style = f"grid-template-columns: {tracks[0]}; grid-template-rows: {tracks[1]}"
    return _el("div", *marks, style=style, aria_hidden="true")


def _tracks(edges: Sequence[int]) -> str:
    return " ".join(f"{after - before}fr" for before, after in pairwise(edges))


def _text(tried: Tried, most: float) -> Iterator[Element]:
    """The text, its words coloured."""
    text: str = tried.sample.output
    assert tried.divided is not None
    children: list[Element | str] = []
    end = 0
    for part, change, counted in zip(tried.divided.parts, tried.changes, tried.counted, strict=True):
        assert isinstance(part, Words)
        children.append(text[end : part.start])
        share = 0.0 if not most or math.isnan(counted) else abs(counted) / most * _PAPER
        kind = "raises" if counted > 0 else "lowers"
        word = text[part.start : part.end]
        colour = {"class_": kind, "style": f"--share: {share:.3f}"} if share else {}
        children.append(_el("span", word, title=figure(change, sign="+"), **colour))
        end = part.end
    children.append(text[end:])
    yield _el("p", *children, class_="words", dir="auto")
    if most:
        yield _scale(most, "words")


def _scale(most: float, of: str) -> Element:
    """The colours of a picture's map, or of words, with their numbers."""
    ends = [figure(-most, sign="+"), "0", figure(most, sign="+")]
    words = ["lowers the score", "", "raises it"]
    numbers = [_el("span", number, _el("small", word)) for number, word in zip(ends, words, strict=True)]
    return _el("div", _el("div", class_=f"bar of-{of}"), _el("div", *numbers), class_="scale")


def _parts_table(tried: Tried) -> Element:
    """The parts that count most, with their numbers."""
    divided = tried.divided
    assert divided is not None
    kind = "words" if isinstance(divided.whole, str) else "squares"
    unscored = [i for i, change in enumerate(tried.changes) if math.isnan(change)]
    places = [*unscored, *in_order(tried)][:_ROWS]
    if not places:
        return _el("p", f"All {len(tried.changes)} {kind} are worth 0.", class_="note")
    rows = []
    for i in places:
        worth = tried.changes[i]
        rows.append(
            [name_of(divided, i), _pixels(divided.parts[i]), figure(worth, sign="+"), figure(tried.score - worth)]
        )
    head = ["left out" if kind == "words" else "square", "pixels", "worth", "score without"]
    if kind == "words":
        head, *rows = ([line[0], *line[2:]] for line in (head, *rows))
    caption = f"The numbers of {len(rows)} of {len(tried.changes)} {kind}"
    return _el("details", _el("summary", caption), _table(caption, head, rows))


def _pixels(part: Square | Words) -> str:
    """Where a square lies; empty for words."""
    return f"{part.left}, {part.top} to {part.right}, {part.bottom}" if isinstance(part, Square) else ""


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str | Element]]) -> Element:
    titles = _el("tr", *(_el("th", name, scope="col") for name in head))
    lines = [_el("tr", *(_el("td", cell) for cell in row)) for row in rows]
    table = _el("table", _el("caption", caption, class_="unseen"), _el("thead", titles), _el("tbody", *lines))
    return _el("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _notes(trial: Trial, squares: int) -> Iterator[Element]:
    """How the numbers were made."""
    kinds = {isinstance(tried.sample.output, str) for tried in trial.tried}
    worth = "What a part is worth is the score minus the score without it, so the numbers need not add up to the score."
    lines = [worth]
    if False in kinds:
        lines.append(
            f"Squares, {squares} along the longer side, are covered one at a time with the middle colour of the "
            "picture, the median of each channel: it hides shape, colour and brightness, where a blur would keep "
            "brightness. There are two such grids, half a square apart, and each place shows the mean of the squares "
            "that cover it. Frames show the two squares that "
            "the sentence names."
        )
    if True in kinds:
        lines.append(
            f"Words are left out one at a time; of a text with more than {MOST_WORDS}, several neighbours at once."
        )
    yield _el("section", _el("h2", "How to read this"), *(_el("p", line, class_="note") for line in lines))


def _name(tried: Tried) -> Element:
    return _el("bdi", _short(tried), title=tried.where)


def _short(tried: Tried) -> str:
    """The end of a file's path, or the beginning of a text."""
    return tried.where if tried.where.startswith('"') else "/".join(Path(tried.where).parts[-2:])


def _image(picture: Image.Image, alt: str, side: int) -> Element:
    """A picture of at most `side` pixels, inside the page."""
    small = picture.copy()
    small.thumbnail((side, side))
    out = io.BytesIO()
    small.save(out, format="JPEG", quality=88)
    data = base64.b64encode(out.getvalue()).decode()
    size: dict[str, Any] = {"width": str(small.width), "height": str(small.height)}
    return _el("img", src=f"data:image/jpeg;base64,{data}", alt=alt, **size)
