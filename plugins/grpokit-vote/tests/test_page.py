"""The page in headless Chromium: what a person presses becomes the vote that they meant, once."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from booths import ask, ask_pictures, leave, picture, serving

from grpokit.run_folder.lock import locked
from grpokit_vote.ballots import BallotBox, Vote

pytestmark = pytest.mark.slow

NAMES = "[...document.querySelectorAll('#choices img')].map(image => image.src.split('/').pop())"
LOOK = """() => {
  const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const numbers = c => c.match(/[\\d.]+/g).map(Number);
  const behind = e => { for (; e; e = e.parentElement) { const c = numbers(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
  const ratio = e => { const [x, y] = [light(numbers(getComputedStyle(e).color).slice(0, 3)), light(behind(e))]
    .sort((p, q) => q - p); return (x + .05) / (y + .05); };
  const all = [...document.querySelectorAll("body *:not(script, style, noscript)")].filter(e => e.checkVisibility());
  const words = all.filter(e => [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()));
  const images = [...document.querySelectorAll("#choices img")];
  return {
    width: document.documentElement.scrollWidth, contrast: Math.min(...words.map(ratio)),
    unnamed: [...document.querySelectorAll("button, [role=group]")].filter(e => !e.ariaLabel && !e.textContent.trim()),
    sizes: images.map(i => [i.clientWidth, i.clientHeight]), alts: images.map(i => i.alt),
    pixelated: images.map(i => getComputedStyle(i).imageRendering == "pixelated"),
    elements: document.querySelectorAll("pre b").length,
    bottom: Math.max(...images.map(i => i.getBoundingClientRect().bottom)),
  };
}"""


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens the page of a service as a person of their own; an error or a refused program fails the test."""
    contexts, errors = [], []

    def open_page(port: int, *, width: int = 1280, height: int = 800, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if "Security Policy" in line.text else None)
        page.goto(f"http://127.0.0.1:{port}/")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def votes(run: Path) -> list[Vote]:
    return BallotBox(run).votes()


def wait_for(page: Any, *, given: int, waiting: int) -> None:
    """The page shows the next question, or that there is none."""
    text = f"votes given: {given} · waiting: {waiting}"
    page.wait_for_function("text => at.counters.textContent.startsWith(text) && !busy", arg=text)


def wait_for_words(page: Any, part: str, words: str) -> None:
    page.wait_for_function("([part, words]) => at[part].textContent.includes(words)", arg=[part, words])


def test_keys_vote_for_what_is_shown(run: Path, visit: Callable[..., Any]) -> None:
    ask_pictures(run, groups=12, size=9)
    expected: list[str | None] = []
    with serving(run) as client:
        page = visit(client.port)
        for number, key in enumerate([*"123456789", " ", "3"]):
            wait_for(page, given=number, waiting=12 - number)
            shown = page.evaluate(NAMES)
            page.keyboard.press(key)
            expected.append(None if key == " " else shown[int(key) - 1])
        wait_for(page, given=11, waiting=1)
        assert [vote.answer for vote in votes(run)] == expected
        page.keyboard.press("u")
        wait_for(page, given=10, waiting=2)
        assert page.evaluate(NAMES) == shown  # the same question again
        page.keyboard.press("Backspace")
        wait_for(page, given=9, waiting=3)
        assert [vote.answer for vote in votes(run)] == expected[:9]
        assert "taken back" in page.inner_text("#said")


def test_keys_that_come_at_once_or_are_held_count_once(run: Path, visit: Callable[..., Any]) -> None:
    ask_pictures(run, groups=6)
    twice = "() => { for (const key of '1 23') dispatchEvent(new KeyboardEvent('keydown', {key, repeat: key == '3'})) }"
    with serving(run) as client:
        page = visit(client.port)
        wait_for(page, given=0, waiting=6)
        page.evaluate(
            twice.replace("dispatchEvent", "document.body.dispatchEvent").replace("{key,", "{key, bubbles: true,")
        )
        wait_for(page, given=1, waiting=5)
        page.keyboard.down("2")
        for _ in range(20):
            page.keyboard.down("2")  # repeats
        wait_for(page, given=2, waiting=4)
        page.wait_for_timeout(1500)
        assert len(votes(run)) == 2


def test_best_and_worst(run: Path, visit: Callable[..., Any]) -> None:
    ask_pictures(run, groups=1, how="best-worst")
    with serving(run) as client:
        page = visit(client.port)
        wait_for(page, given=0, waiting=1)
        shown = page.evaluate(NAMES)
        page.keyboard.press("4")
        page.keyboard.press("u")  # of the first half
        wait_for(page, given=0, waiting=1)
        for key in "2233":
            page.keyboard.press(key)
        wait_for(page, given=1, waiting=0)
    assert [vote.answer for vote in votes(run)] == [[shown[1], shown[2]]]


def test_stars_by_keys_and_by_mouse(run: Path, visit: Callable[..., Any]) -> None:
    ask_pictures(run, groups=2, size=3, how="stars")
    with serving(run) as client:
        page = visit(client.port)
        wait_for(page, given=0, waiting=2)
        first = page.evaluate(NAMES)
        for key in "514":
            page.keyboard.press(key)
        wait_for(page, given=1, waiting=1)
        second = page.evaluate(NAMES)
        for choice, stars in ((3, 2), (1, 5), (3, 3), (2, 1)):
            page.get_by_label(f"Choice {choice}: {stars} of 5 stars").click()
        wait_for(page, given=2, waiting=0)
    one, two = (vote.answer for vote in votes(run))
    assert one == dict(zip(first, (5, 1, 4), strict=True))
    assert two == dict(zip(second, (5, 1, 3), strict=True))


def test_the_mouse_and_the_tab_key_do_as_keys_do(run: Path, visit: Callable[..., Any]) -> None:
    ask_pictures(run, groups=4, how="pairs", size=2)
    with serving(run) as client:
        page = visit(client.port)
        wait_for(page, given=0, waiting=4)
        expected = [page.evaluate(NAMES)[1]]
        page.get_by_role("button", name="Choice 2").click()
        wait_for(page, given=1, waiting=3)
        expected.append(page.evaluate(NAMES)[1])
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        wait_for(page, given=2, waiting=2)
        page.get_by_role("button", name="No difference").click()
        wait_for(page, given=3, waiting=1)
        page.get_by_role("button", name="Undo").click()
        wait_for(page, given=2, waiting=2)
        page.keyboard.press("Tab")  # from the question on
        expected.append(page.evaluate(NAMES)[0])
        page.keyboard.press("Space")  # presses what has the focus
        wait_for(page, given=3, waiting=1)
    assert [vote.answer for vote in votes(run)] == expected


def test_a_vote_outlives_the_service_and_the_page(run: Path, visit: Callable[..., Any]) -> None:
    ask_pictures(run, groups=3)
    with serving(run) as client:
        page = visit(client.port)
        wait_for(page, given=0, waiting=3)
        shown = page.evaluate(NAMES)
    page.keyboard.press("1")
    wait_for_words(page, "said", "kept and sent again")
    page.keyboard.press("2")
    assert not votes(run)
    with serving(run, client.port):
        page.get_by_role("button", name="Try again").click()
        wait_for(page, given=1, waiting=2)
        assert not page.get_by_role("button", name="Try again").is_visible()
    page.keyboard.press("Space")
    wait_for_words(page, "said", "kept and sent again")
    with serving(run, client.port):
        page.reload()
        wait_for(page, given=2, waiting=1)
    assert [vote.answer for vote in votes(run)] == [shown[0], None]


def test_a_vote_that_a_full_disk_refused_is_sent_again(run: Path, visit: Callable[..., Any]) -> None:
    ask_pictures(run, groups=2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with serving(run) as client:
        page = visit(client.port)
        wait_for(page, given=0, waiting=2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            page.keyboard.press("2")
            wait_for_words(page, "said", "cannot be written")
            assert not votes(run)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        page.get_by_role("button", name="Try again").click()
        wait_for(page, given=1, waiting=1)
    assert len(votes(run)) == 1


def test_the_page_follows_the_run(run: Path, visit: Callable[..., Any]) -> None:
    with serving(run) as client:
        page = visit(client.port)
        wait_for_words(page, "question", "not asked anything")
        with locked(run):
            wait_for_words(page, "question", "drawing")
            page.keyboard.type("1 5")  # nothing is asked
            ballot = ask(run, [picture(i) for i in range(3)], seconds=90)
            wait_for(page, given=0, waiting=1)
            assert page.evaluate("document.activeElement.id") == "question"
            assert page.inner_text("#counters").split("time left: ")[1] in ("1:29", "1:28", "1:27")
            assert page.inner_text("#hint") == "Choose the best."
            leave(run, ballot)
            page.evaluate("clearTimeout(timer)")  # the page has not heard of it
            page.keyboard.press("1")
            wait_for_words(page, "said", "had gone on")
            page.keyboard.press("u")
            wait_for_words(page, "said", "already learned")
        wait_for_words(page, "question", "No run is at work")
        ask(run, [picture(i) for i in range(2)])
        wait_for(page, given=1, waiting=1)
        assert "not at work" in page.inner_text("#hint")
    assert len(votes(run)) == 1


@pytest.mark.parametrize("faithful", [True, False])
def test_the_page_says_how_often_a_person_agreed_with_themselves(
    run: Path, visit: Callable[..., Any], faithful: bool
) -> None:
    """Whoever has a favourite agrees with themselves; whoever always presses 1 does not."""
    ask_pictures(run, groups=160)

    def best(shown: list[str]) -> int:
        return shown.index(min(shown)) if faithful else 0

    with serving(run) as client:
        page = visit(client.port)
        wait_for(page, given=0, waiting=160)
        voter = page.evaluate("voter")
        for number in range(139):
            asked = client.next(voter)
            client.vote(asked, asked["samples"][best(asked["samples"])], id=str(number), voter=voter)
        wait_for(page, given=139, waiting=27)
        page.keyboard.press(str(1 + best(page.evaluate(NAMES))))
        wait_for(page, given=140, waiting=27)  # the 140th came again
        words = page.inner_text("#counters")
    assert ("in 7 of 7 repeats" in words) == faithful
    assert ("no better than chance" in words) != faithful


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (375, 740)])
@pytest.mark.parametrize("how", ["best", "stars"])
def test_how_it_looks(run: Path, visit: Callable[..., Any], scheme: str, width: int, height: int, how: str) -> None:
    cases: list[list[Any]] = [[picture(i) for i in range(count)] for count in (2, 4, 8, 16)]
    cases += [[picture(50 + i, shape) for i in range(4)] for shape in ((256, 96), (96, 256), (20, 20))]
    cases += [["<b>bold</b>\n" * 200, "short", "x" * 500]]
    for place, outputs in enumerate(cases):
        ask(run, outputs, place=place, how=how, prompt=f"{place} " + "a long prompt " * 40, sources=[picture(place)])
    with serving(run) as client:
        page = visit(client.port, width=width, height=height, scheme=scheme)
        for number, outputs in enumerate(cases):
            wait_for(page, given=number, waiting=len(cases) - number)
            look = page.evaluate(LOOK)
            assert (look["width"], look["unnamed"], look["elements"]) == (width, [], 0)
            assert look["contrast"] >= 4.5
            assert page.locator("#choices li").count() == len(outputs)
            if not isinstance(outputs[0], str):
                assert look["alts"] == [f"Choice {i + 1}" for i in range(len(outputs))]
                assert all(min(size) >= 50 for size in look["sizes"])
                assert look["pixelated"] == [max(outputs[0].size) < 128] * len(outputs)
                assert width < 400 or look["bottom"] < height  # a desktop shows all without scrolling
            page.keyboard.press("Space")
        wait_for(page, given=len(cases), waiting=0)
