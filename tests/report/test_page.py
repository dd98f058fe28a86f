"""The page in headless Chromium: what a person sees and presses, in light and dark, wide and narrow."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from grpokit import report
from grpokit.report.watch import serving
from made_plugins import install_only
from made_runs import EVIL, make_run, picture, read_rows, write_rows

CONTRAST = """
  const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const numbers = c => c.match(/[\\d.]+/g).map(Number);
  const behind = e => { for (; e; e = e.parentElement) { const c = numbers(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
  const ratio = (a, e) => { const [x, y] = [light(numbers(a).slice(0, 3)), light(behind(e))].sort((p, q) => q - p);
    return (x + .05) / (y + .05); };"""
LOOK = (
    f"""() => {{{CONTRAST}"""
    + """
  document.querySelectorAll("details").forEach(d => d.open = true);
  const all = [...document.querySelectorAll("main *")];
  const words = all.filter(e => [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()));
  const prose = words.filter(e => !e.closest("pre, code"));
  const lines = (node, number) => { const range = document.createRange(); range.setStart(node, number.index);
    range.setEnd(node, number.index + number[0].length);
    return new Set([...range.getClientRects()].map(place => Math.round(place.top))).size; };
  const broken = node => [...node.data.matchAll(/[+−]?\\d[\\d.]*/g)].filter(number => lines(node, number) > 1);
  const strokes = all.filter(e => e.matches("path.js-line") && parseFloat(getComputedStyle(e).strokeWidth) >= 2);
  const rolls = e => [getComputedStyle(e).overflowX, getComputedStyle(e).overflowY].includes("auto");
  const controls = [...document.querySelectorAll("main :is(button, input, select, a, summary, .plot)")];
  return {
    needs: document.documentElement.scrollWidth,
    images: [...document.images].map(i => [i.naturalWidth, i.alt]),
    contrast: Math.min(...words.map(e => ratio(e.closest("svg") ? getComputedStyle(e).fill
      : getComputedStyle(e).color, e))),
    lines: Math.min(...strokes.map(e => ratio(getComputedStyle(e).stroke, e))), strokes: strokes.length,
    unreachable: all.filter(e => rolls(e) && e.tabIndex < 0 && !e.closest(".plot")).map(e => e.outerHTML.slice(0, 80)),
    unnamed: controls.filter(e => !(e.ariaLabel || e.textContent.trim() || e.labels?.length)).map(e => e.outerHTML),
    broken: prose.flatMap(e => [...e.childNodes]).filter(n => n.nodeType == 3).flatMap(broken).map(n => n.input),
    hyphens: prose.map(e => e.textContent).filter(text => /(^|[\\s(])-\\d/.test(text)),
    uncaptioned: document.querySelectorAll("table:not(:has(caption))").length,
    bad: [...document.querySelectorAll("main script, main b b")].length + Number("hacked" in window),
  };
}"""
)

# For each control the least contrast of what shows where it is with what is inside and outside of it. That is its edge,
# that of the picture or text in it, or a slider's track.
EDGES = (
    f"""() => {{{CONTRAST}"""
    + """
  const parts = control => {
    const track = getComputedStyle(control).backgroundImage.match(/rgb[^)]*\\)/);
    if (track) return [[track[0], control.parentElement]];
    const bordered = [control, ...control.querySelectorAll("img, code")].filter(e => {
      const style = getComputedStyle(e);
      return style.borderTopStyle != "none" && parseFloat(style.borderTopWidth) > 0;
    });
    return bordered.flatMap(e => [e, e.parentElement].map(place => [getComputedStyle(e).borderTopColor, place]));
  };
  const controls = [...document.querySelectorAll(":is(main, dialog) :is(button, input, select)")];
  const named = controls.map(control => [control.dataset.key ?? control.className ?? control.type,
    parts(control).map(([colour, place]) => ratio(colour, place))]);
  return named.filter(([, ratios]) => ratios.length).map(([name, ratios]) => [name, Math.min(...ratios)]);
}"""
)

PANELS = """
from grpokit import Panel, PanelTable, hookimpl

@hookimpl
def grpokit_panels(run):
    table = PanelTable(caption="Rewards", head=["reward", "weight", "change", "count"],
        rows=[[name, weight, f"-{weight:.2f} ± 0.12", 1234] for name, weight in run.weights.items()])
    sentences = [f"{name} went by -0.25 ± 0.12, " * 4 + "and no further." for name in run.weights]
    yield Panel(title="What plugins say", text=sentences, tables=[table])
    yield Panel(title=f"A panel of {run.title}", text=["It is alone."])
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page; at its end there was no message in the console and no request to another place."""
    contexts, noise = [], []

    def go(
        target: Path | str,
        *,
        width: int = 1280,
        dark: bool = False,
        sections: str = ".part-details section",
        address: str = "",
    ) -> Any:
        address = address or (target.resolve().as_uri() if isinstance(target, Path) else target)
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", has_touch=width < 500
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: noise.append(message.text))
        page.on("pageerror", lambda error: noise.append(str(error)))
        folder = address.partition("#")[0].rpartition("/")[0]
        own = ("data:", "blob:", f"{folder}/")
        page.on("request", lambda request: request.url.startswith(own) or noise.append(request.url))
        page.goto(address)
        page.wait_for_selector(sections)
        return page

    yield go
    for context in contexts:
        context.close()
    assert noise == []


def drawn(page: Any, name: str = "reward-on-held-out-prompts") -> Any:
    """A chart, once it is drawn."""
    page.locator(f"#chart-{name}").scroll_into_view_if_needed()
    page.wait_for_selector(f"#plot-{name} .main-svg .xtick", state="attached")
    return page.locator(f"#plot-{name}")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind; with pictures, with texts, with markup in the data, and of three runs."""
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        install_only(folder, patch, words=PANELS, broken=PANELS.replace("yield", "len(1); yield", 1))
        return pages_in(folder)


def pages_in(folder: Path) -> dict[str, Path]:
    pictures = make_run(folder / "pictures", side=96, steps=200, every=50)
    write_rows(pictures / "warnings.jsonl", [{"step": s, "message": f"Step {s} was odd."} for s in range(8)])
    texts = make_run(
        folder / "texts", gain=-0.2, text="<think>" + "1+2" * 80, name="a-name-that-is-" + "very-" * 9 + "long"
    )
    markup = f"<b><img src=x onerror=window.hacked=1>{EVIL}"
    evil = make_run(folder / "evil", name=markup, prompt=markup, text=markup)
    write_rows(evil / "warnings.jsonl", [{"step": 1, "message": markup}])
    other = make_run(folder / "other", gain=0.2, steps=100, every=50)
    return {
        "pictures": report.write(pictures),
        "texts": report.write(texts),
        "evil": report.write(evil),
        "three": report.compare(pictures, other, shutil.copytree(other, folder / "third")),
    }


@pytest.mark.parametrize(
    ("name", "width", "dark"),
    [("pictures", 1280, False), ("texts", 390, False), ("evil", 1280, True), ("three", 390, True)],
)
def test_it_reads_well(visit: Callable[..., Any], pages: dict[str, Path], name: str, width: int, dark: bool) -> None:
    page = visit(pages[name], width=width, dark=dark)
    drawn(page)
    drawn(page, "reward-in-training")
    found = page.evaluate(LOOK)
    assert found["needs"] <= width  # nothing makes the page scroll sideways
    assert all(pixels > 0 and alt.strip() for pixels, alt in found["images"])
    assert len(found["images"]) >= 6
    assert found["contrast"] >= 4.5
    assert found["strokes"] >= 3
    assert found["lines"] >= 3
    assert found["unreachable"] == found["unnamed"] == []  # whatever scrolls takes the keyboard's focus
    assert (found["uncaptioned"], found["bad"]) == (0, 0)
    assert found["broken"] == found["hyphens"] == []  # no figure is on two lines, and there is one minus sign


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["pictures", "texts"])
def test_edges_of_controls_stand_out(visit: Callable[..., Any], pages: dict[str, Path], name: str, dark: bool) -> None:
    """WCAG 2.2, 1.4.11: three to one."""
    page = visit(pages[name], dark=dark)
    slider = Image.open(io.BytesIO(page.get_by_role("slider").screenshot())).convert("RGB")
    knob = slider.getpixel((slider.width - 8, slider.height // 2))
    assert contrast(knob, slider.getpixel((0, 0))) >= 3
    page.locator(f".part-samples button.{name.removesuffix('s')}").first.click()
    edges = page.evaluate(EDGES)
    names = {control for control, _ in edges}
    assert {"filter", "reward", "sort", "slider", "all", "close", name.removesuffix("s")} <= names
    assert [(control, ratio) for control, ratio in edges if ratio < 3] == []


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """Of two colours, as WCAG 2.2 computes it."""

    def light(colour: tuple[int, ...]) -> float:
        shares = [value / 255 for value in colour]
        linear = [share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([light(one), light(other)])
    return (high + 0.05) / (low + 0.05)


HEADINGS = "() => [...document.querySelectorAll('main :is(h1, h2, h3, h4, h5, h6)')].map(e => Number(e.tagName[1]))"


@pytest.mark.parametrize("name", ["pictures", "three"])
def test_headings_are_an_outline(visit: Callable[..., Any], pages: dict[str, Path], name: str) -> None:
    """One title, no level left out, and every section and chart begins with a heading."""
    page = visit(pages[name])
    levels = page.evaluate(HEADINGS)
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(level <= before + 1 for before, level in pairwise(levels))
    assert page.locator("main :is(section, figure, article):not(:has(h2, h3))").count() == 0
    group = page.locator(".sides h4").first
    assert group.evaluate("e => e.closest('section').querySelector('h3:not(article h3)').textContent") == (
        "Best and worst groups in training"
    )


def test_panels_of_plugins(visit: Callable[..., Any], pages: dict[str, Path]) -> None:
    page = visit(pages["three"])
    titles = page.locator(".part-panels h2").all_text_contents()
    assert titles == ["What plugins say", "A panel of pictures", "A panel of other", "A panel of third"]
    assert page.locator("nav a").all_text_contents()[:4] == titles
    first = page.locator(".part-panels section").first
    assert first.locator("h3").all_text_contents() == ["pictures", "other", "third"]
    row = first.locator("tbody tr").first
    assert row.locator("th, td").all_text_contents() == ["reward", "1.000", "−1.00 ± 0.12", "1,234"]
    assert first.locator(".answer").first.text_content().startswith("reward went by −0.25 ± 0.12, ")
    missing = page.locator(".part-panels > .note").all_text_contents()
    assert missing[1].startswith("other: A panel is missing, since plugin 'broken' failed in grpokit_panels: TypeError")
    parts = page.locator("#page > div").evaluate_all("parts => parts.map(part => part.className)")
    assert parts[:5] == ["part-head", "part-contents", "part-panels", "part-toolbar", "part-samples"]


def test_a_chart_is_a_picture_with_a_sentence(visit: Callable[..., Any], pages: dict[str, Path]) -> None:
    page = visit(pages["pictures"])
    assert page.locator(".plot:not([role=img][aria-label])").count() == 0
    chart = page.get_by_role("img", name="Groups with equal rewards")
    assert chart.get_attribute("aria-label") == (
        "Groups with equal rewards, lines over steps 1 to 200: share from 0.250 to 0.250."
    )
    page.locator("#more-curves > summary").click()
    for name, what in (("Histogram of advantages", "shades for"), ("Reward against KL", "points for 200 steps")):
        assert what in page.get_by_role("img", name=name).get_attribute("aria-label")
    held_out = page.locator("#plot-reward-on-held-out-prompts")
    assert "; length from" in held_out.get_attribute("aria-label")
    page.locator("#chart-reward-on-held-out-prompts .legend button", has_text="length").click()
    assert "; length from" not in held_out.get_attribute("aria-label")


def test_markup_is_shown_as_text(visit: Callable[..., Any], pages: dict[str, Path]) -> None:
    page = visit(pages["evil"])
    assert page.locator(".pairs h3").first.inner_text().startswith("<b><img src=x onerror=window.hacked=1><script>")
    drawn(page).hover(position={"x": 200, "y": 100})
    page.wait_for_selector(".hoverlayer text", state="attached")
    assert "<img src=x" in page.locator(".hoverlayer").first.text_content()


def test_zoom_and_values_of_a_chart(visit: Callable[..., Any], pages: dict[str, Path]) -> None:
    page = visit(pages["pictures"])
    plot = drawn(page)
    page.evaluate("window.plotted = () => document.querySelector('#plot-reward-on-held-out-prompts')")
    ends = "() => plotted().layout.xaxis.range"
    whole = page.evaluate(ends)
    plot.hover(position={"x": 300, "y": 100})
    page.wait_for_selector("#plot-reward-on-held-out-prompts .hoverlayer text", state="attached")
    assert "±" in plot.locator(".hoverlayer").text_content()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 150, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 160, steps=4)
    page.mouse.up()
    show_all = page.locator("#chart-reward-on-held-out-prompts .reset")
    show_all.wait_for(state="visible")
    low, high = page.evaluate(ends)
    assert whole[0] < low < high < whole[1]
    show_all.click()
    page.wait_for_function(f"([low]) => Math.abs(({ends})()[0] - low) < 1e-6", arg=whole)
    plot.focus()  # and without a mouse
    page.keyboard.press("+")
    page.wait_for_function(
        f"([low, high]) => {{ const [a, b] = ({ends})(); return b - a < (high - low) * .6; }}", arg=whole
    )
    page.keyboard.press("0")
    page.wait_for_function(f"([low]) => Math.abs(({ends})()[0] - low) < 1e-6", arg=whole)
    legend = page.locator("#chart-reward-on-held-out-prompts .legend button", has_text="nice")
    plot.focus()
    page.keyboard.press("+")
    page.wait_for_function(f"([low]) => ({ends})()[0] > low", arg=whole)
    zoomed = page.evaluate(ends)
    legend.click()
    assert legend.get_attribute("aria-pressed") == "false"
    page.wait_for_function("() => plotted().data.some(line => line.name == 'nice' && line.visible === false)")
    assert page.evaluate(ends) == zoomed
    show_all.click()  # a button that was drawn after the chart
    page.wait_for_function(f"([low]) => Math.abs(({ends})()[0] - low) < 1e-6", arg=whole)
    assert show_all.is_hidden()
    page.locator("[data-key=reward]").select_option("length")
    page.wait_for_function("() => plotted().data.every(line => line.name != 'reward' || line.visible === false)")
    ink = page.evaluate("plotted().layout.font.color")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("ink => plotted().layout.font.color != ink", arg=ink)


def test_filter_sort_and_slider(visit: Callable[..., Any], pages: dict[str, Path]) -> None:
    page = visit(pages["pictures"])
    cards = page.locator(".part-samples article")
    assert cards.count() == 6
    page.get_by_role("button", name="Show all 16").click()
    assert cards.count() == 16
    page.get_by_label("Prompts with", exact=True).press_sequentially("prompt 1")  # 1 and 10 to 15
    assert cards.count() == 7
    assert page.evaluate("document.activeElement.type") == "search"
    page.get_by_label("Prompts with", exact=True).fill("no such words")
    assert page.get_by_text("No prompt has these words.").count() == 1
    page.get_by_label("Prompts with", exact=True).fill("")
    gains = page.locator(".pairs .scores li:first-child")
    page.locator("[data-key=sort]").select_option("loss")
    found = [float(text.split("(+")[1].rstrip(")")) for text in gains.all_inner_texts()]
    assert found == sorted(found)
    page.locator("[data-key=reward]").select_option("length")
    assert gains.first.inner_text() == "length 0.50 → 0.50 (+0.00)"
    page.locator("[data-key=reward]").select_option("")
    page.locator("[data-key=sort-3]").click()
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("change")
    slider = page.get_by_role("slider")
    assert slider.get_attribute("aria-valuetext") == "Evaluation: step 200, the newest"
    slider.focus()
    for shown in (["step 0", "step 150"], ["step 0", "step 100"], ["step 0", "step 50"], ["step 0"]):
        page.keyboard.press("ArrowLeft")
        assert page.locator("article").first.locator(".label").all_inner_texts() == [*shown, "target"]
    assert page.locator(".slider output").inner_text() == "Evaluation: step 0"


def test_an_axis_of_logarithms(visit: Callable[..., Any], pages: dict[str, Path]) -> None:
    page = visit(pages["pictures"])
    name = "reward-on-held-out-prompts"
    axis = f"() => document.querySelector('#plot-{name}').layout.yaxis"
    drawn(page).focus()
    page.keyboard.press("+")
    whole = page.evaluate(f"({axis})().range")
    button = page.get_by_role("button", name="Log axis of Reward on held-out prompts")
    button.click()
    page.wait_for_function(f"() => ({axis})().type == 'log'")
    assert button.get_attribute("aria-pressed") == "true"
    assert button.evaluate("e => e == document.activeElement")
    low, high = page.evaluate(f"({axis})().range")
    data = page.evaluate(f"document.querySelector('#plot-{name}').data.flatMap(line => line.y)")
    assert 10**low <= min(data) < 1.3 * 10**low
    assert max(data) <= 10**high
    button.click()
    page.wait_for_function(f"() => ({axis})().type == 'linear'")
    assert page.evaluate(f"({axis})().range") == whole
    assert page.get_by_role("button", name="Log axis of Samples not scored").count() == 0


def test_a_line_of_zeros_hides_the_axis_of_logarithms_until_it_is_hidden(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    folder = make_run(tmp_path / "run")
    rows = read_rows(folder / "metrics.jsonl")
    write_rows(
        folder / "metrics.jsonl", [{**row, "rewards/nice/mean": 0.0, "rewards/length/mean": 0.5} for row in rows]
    )
    page = visit(report.write(folder))
    button = page.get_by_role("button", name="Log axis of Reward in training")
    assert button.count() == 0
    for name in ("reward", "nice"):
        page.locator("#chart-reward-in-training .legend").get_by_role("button", name=name).click()
    button.click()
    assert button.get_attribute("aria-pressed") == "true"


def saved(page: Any, table: str) -> tuple[str, list[list[str]]]:
    """The name and the rows of a table's file."""
    with page.expect_download() as download:
        page.get_by_role("button", name=f"Download CSV: {table}", exact=True).click()
    content = Path(download.value.path()).read_bytes()
    assert content.startswith(b"\xef\xbb\xbf")  # without it, a spreadsheet takes UTF-8 for something else
    text = content.decode("utf-8-sig")
    assert text.endswith("\r\n")
    return download.value.suggested_filename, list(csv.reader(io.StringIO(text, newline=""), strict=True))


def test_tables_as_csv(visit: Callable[..., Any], tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", prompt='=1+1, "é"\n猫', gain=-0.2)
    page = visit(report.write(folder))
    assert page.locator("table").count() == page.locator(".csv").count()
    name, rows = saved(page, "Scores of each held-out prompt")
    assert name == "run-scores-of-each-held-out-prompt.csv"
    assert rows[0] == ["prompt", "step 0", "step 4", "change"]
    assert rows[1][0] == '\'=1+1, "é"\n猫 0'  # as text, not as a formula
    scores = json.loads((folder / "samples/step_000004/scores.json").read_text())["scores"]["reward"]
    assert float(rows[1][2]) == pytest.approx(scores[0], rel=1e-12)  # all digits, where the page has three
    assert float(rows[1][3]) < 0  # a number keeps its sign
    assert len(rows) == 21
    page.get_by_label("Prompts with", exact=True).fill("猫 1")
    assert len(saved(page, "Scores of each held-out prompt")[1]) == 12
    page.locator(".part-details summary").first.click()
    _, last = saved(page, "The last step in numbers")
    assert ["metric", "value"] in last
    assert last[1] == ["step", "4"]


def test_texts_like_formulas_get_a_quote(visit: Callable[..., Any], tmp_path: Path) -> None:
    first, second = (make_run(tmp_path / name) for name in ("a", "@b"))
    values = ["=A1", "+x", "-x", "a=b", None]
    for folder, own in ((first, [*values]), (second, ["x"] * len(values))):
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["policy"] = {f"key{i}": value for i, value in enumerate(own)}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    page = visit(report.compare(first, second))
    _, rows = saved(page, "Differences of the configs")
    assert rows[0] == ["key", "a", "'@b"]
    texts = {key: text for key, text, _ in rows}
    assert [texts[f"policy.key{i}"] for i in range(5)] == ["'=A1", "'+x", "'-x", "a=b", "–"]


def test_a_link_to_a_sample(visit: Callable[..., Any], pages: dict[str, Path]) -> None:
    page = visit(pages["pictures"])
    page.locator("[data-key=all]").click()
    slider = page.get_by_role("slider")
    slider.fill("2")
    card = page.locator("article", has_text="a prompt 13")
    card.get_by_role("link").click()
    page.wait_for_selector("article.linked:has-text('a prompt 13')")
    address = page.url
    page.locator(".sides").first.get_by_role("link").nth(5).click()
    page.wait_for_selector("li.linked")
    assert page.locator("article.linked").count() == 0

    other = visit(pages["pictures"], address=address)
    linked = other.locator(".linked")
    assert linked.locator("h3").inner_text() == "a prompt 13"
    assert linked.locator(".label").all_inner_texts() == ["step 0", "step 100", "target"]
    assert other.evaluate("e => e == document.activeElement", linked.element_handle())
    other.wait_for_function(
        "() => { const b = document.querySelector('.linked').getBoundingClientRect();"
        " return b.top > 0 && b.bottom < innerHeight; }"
    )
    other.get_by_label("Prompts with", exact=True).fill("no such")
    other.evaluate("hash => { location.hash = hash; }", page.url.split("#")[1])
    other.wait_for_selector("li.linked")
    other.evaluate("hash => { location.hash = hash; }", address.split("#")[1])
    other.wait_for_selector("article.linked")  # what was chosen before gives way
    assert other.get_by_label("Prompts with", exact=True).input_value() == ""
    other.evaluate("location.hash = 'sample=evaluation-100-nothing-1'")
    other.wait_for_selector("text=does not have the sample")
    other.evaluate("location.hash = 'curves'")
    other.wait_for_function("() => !document.querySelector('.linked')")
    assert other.locator("#status").is_hidden()


def test_links_of_all_samples_differ_and_open_what_is_folded(visit: Callable[..., Any], pages: dict[str, Path]) -> None:
    page = visit(pages["three"])
    page.locator("[data-key=all]").click()
    addresses = page.locator(".link").evaluate_all("links => links.map(link => link.hash.slice(1))")
    assert len(addresses) == len(set(addresses))
    assert page.evaluate("names => names.filter(name => !document.getElementById(name))", addresses) == []
    last = addresses[-1]
    assert "run-3" in last
    other = visit(pages["three"], address=f"{pages['three'].as_uri()}#{last}")
    assert other.locator(".linked .picture").is_visible()


def test_a_print_out_has_all_charts_in_light_colours(visit: Callable[..., Any], pages: dict[str, Path]) -> None:
    page = visit(pages["pictures"], dark=True)
    assert page.evaluate("'Plotly' in window")  # at the end of loading, when a browser without a window prints
    plots = "[...document.querySelectorAll('.plot')]"
    widths = f"{plots}.map(p => p.querySelector('.main-svg:has(.xtick)')?.getBoundingClientRect().width)"
    inks = f"new Set({plots}.map(p => p.layout?.font.color))"
    assert None in page.evaluate(widths)
    on_paper = page.evaluate(f"(dispatchEvent(new Event('beforeprint')), [{widths}, [...{inks}]])")  # without a wait
    assert on_paper == [[330] * 12, ["#565e69"]]
    assert len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4"))) <= 5
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.wait_for_function(f"() => {widths}.every(width => width > 330)")
    assert page.evaluate(f"[...{inks}]") == ["#a5adb8"]


def test_a_long_prompt_leaves_room_for_the_samples(visit: Callable[..., Any], tmp_path: Path) -> None:
    page = visit(report.write(make_run(tmp_path / "run", side=32, prompt="many words " * 200)), width=390)
    for words in (".part-samples h3", ".sides h4", ".part-prompts tbody th"):
        assert page.locator(words).first.bounding_box()["height"] < 150
    page.locator(".part-samples button.picture").first.click()
    assert page.get_by_role("dialog").locator("img").first.bounding_box()["y"] < 600


def test_a_run_that_has_just_begun(visit: Callable[..., Any], tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", every=5)
    page = visit(report.write(folder))
    assert "slider" not in page.locator("#samples").inner_text()
    ticks = drawn(page, "reward-in-training").locator(".xtick text").all_text_contents()
    assert ticks == ["1", "2", "3", "4"]


def test_samples_are_compared_by_their_prompts(visit: Callable[..., Any], tmp_path: Path) -> None:
    """After a resume with other eval settings, rows of two evaluations need not stand in the same place."""
    folder = make_run(tmp_path / "run")
    path = folder / "samples/step_000004/samples.jsonl"
    rows = read_rows(path)
    for n, change in ((3, -5.0), (7, -2.0), (11, 9.0)):
        rows[n]["reward"] += change
    rows[5] = {**rows[5], "scores": {"nice": None, "length": None}, "reward": None}
    write_rows(path, rows[::-1])
    page = visit(report.write(folder))
    assert "13 gained, 2 lost and 0 did not change" in page.locator("#samples .note").first.inner_text()
    page.locator("[data-key=all]").click()
    prompts = [text.split()[-1] for text in page.locator("article h3").all_inner_texts()]
    assert (prompts[0], prompts[-3:]) == ("11", ["7", "3", "5"])
    for order in ("gain", "loss", "high", "low"):
        page.locator("[data-key=sort]").select_option(order)
        assert page.locator("article h3").last.inner_text() == "a prompt 5"  # which has no score


def test_a_sample_large(visit: Callable[..., Any], pages: dict[str, Path]) -> None:
    page = visit(pages["pictures"], width=390)
    first = page.locator(".part-samples button.picture").first
    small = first.bounding_box()["width"]
    first.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    prompt = dialog.get_by_role("heading").inner_text()
    assert dialog.locator("img").first.bounding_box()["width"] > 1.4 * small
    page.keyboard.press("ArrowRight")
    assert dialog.get_by_role("heading").inner_text() != prompt
    page.keyboard.press("ArrowLeft")
    assert dialog.get_by_role("heading").inner_text() == prompt
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    assert page.evaluate("document.activeElement.className") == "picture"


def test_runs_at_equal_steps(visit: Callable[..., Any], pages: dict[str, Path]) -> None:
    page = visit(pages["three"])
    tile = page.locator("section[aria-label='other against pictures'] .tile", has_text="nice")
    assert "no clear difference" in tile.inner_text()  # 2 x 0.2 against 4 x 0.1
    assert page.locator("nav a[href='#samples']").inner_text() == page.locator("#samples h2").inner_text()
    labels = page.locator(".pairs .label")
    assert labels.all_inner_texts()[:3] == ["pictures, step 200", "other, step 100", "third, step 100"]
    page.locator("[data-key=mode]").select_option("equal")
    assert labels.first.inner_text() == "pictures, step 100"
    assert "▲ +0.2" in tile.inner_text()
    assert page.locator("#prompts th").nth(4).inner_text().startswith("third, step 100 minus pictures, step 200")
    assert "after step 100 of pictures" in page.locator("header .note").last.inner_text()
    drawn(page)
    colours = "e => new Set(e.data.filter(t => t.name).map(t => t.line.color)).size"
    assert page.locator("#plot-reward-on-held-out-prompts").evaluate(colours) == 3


def test_what_differs_most_between_runs_comes_first(visit: Callable[..., Any], tmp_path: Path) -> None:
    first, second = (make_run(tmp_path / name, side=8, weight=0) for name in "ab")
    place = second / "samples/step_000004"
    rows, kept = read_rows(place / "samples.jsonl"), json.loads((place / "scores.json").read_text())
    for n, change in ((3, -5.0), (7, -2.0), (11, 3.0)):
        rows[n]["scores"]["length"] += change
        rows[n]["reward"] += change
        kept["scores"]["length"][n] += change
    write_rows(place / "samples.jsonl", rows)
    (place / "scores.json").write_text(json.dumps(kept))
    page = visit(report.compare(first, second, out=tmp_path / "new" / "page.html"))
    assert page.locator("[data-key=sort]").input_value() == "difference"
    cards = page.locator(".part-samples h3").all_inner_texts()
    assert [text.split()[2] for text in cards[:3]] == ["3", "11", "7"]
    page.locator(".part-toolbar [data-key=reward]").select_option("length")
    table = page.locator("#prompts tbody th").all_inner_texts()
    assert table[:3] == ["a prompt 3", "a prompt 11", "a prompt 7"]


def test_the_policy_would_stop_and_name_a_request(browser: Any, pages: dict[str, Path]) -> None:
    """So the silence of the other tests means something."""
    spoilt = pages["texts"].with_name("spoilt.html")
    extra = '<img src="http://127.0.0.1:9/x.png" alt="x"><script>window.hacked = 1</script></main>'
    spoilt.write_text(pages["texts"].read_text(encoding="utf-8").replace("</main>", extra, 1), encoding="utf-8")
    page = browser.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(spoilt.as_uri())
    page.wait_for_selector(".part-details section")
    assert "127.0.0.1:9/x.png" in " ".join(said)
    assert "inline script" in " ".join(said)
    assert page.evaluate("'hacked' in window") is False
    page.close()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_index_of_a_folder_of_runs(visit: Callable[..., Any], tmp_path: Path, width: int, dark: bool) -> None:
    for name, gain in (("ten", 0.2), ("nine", 0.1), ("worse", -0.3)):
        make_run(tmp_path / "runs" / name, gain=gain, side=8)
    (make_run(tmp_path / "runs" / "damaged") / "eval.jsonl").write_text("{\n")
    page = visit(report.write_index(tmp_path / "runs"), width=width, dark=dark, sections="#runs table")
    look = page.evaluate(LOOK)
    assert look["needs"] <= width
    assert look["contrast"] >= 4.5
    assert look["unreachable"] == look["unnamed"] == look["broken"] == look["hyphens"] == []
    assert [edge for edge in page.evaluate(EDGES) if edge[1] < 3] == []
    assert page.evaluate(HEADINGS) == [1, 2]
    names = page.locator("tbody th")
    assert names.all_inner_texts() == ["damaged", "nine", "ten", "worse"]
    assert "is damaged" in page.locator("tbody tr").first.inner_text()
    assert page.locator("em.worse").inner_text() == "▼ worse"
    page.locator("[data-key=sort-8]").click()
    assert names.all_inner_texts() == ["ten", "nine", "worse", "damaged"]
    assert page.evaluate("document.activeElement.dataset.key") == "sort-8"
    name, rows = saved(page, "Runs")
    assert name == "runs-runs.csv"
    assert [row[0] for row in rows] == ["run", "ten", "nine", "worse", "damaged"]
    assert float(rows[1][8]) == pytest.approx(0.2, abs=0.01)
    with page.expect_event("framenavigated"):
        page.get_by_role("link", name="ten").click()
    page.wait_for_selector("h1:text('ten')")


def test_a_watched_folder_of_runs(visit: Callable[..., Any], tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a b", side=8)
    with serving([tmp_path / "runs"]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            page = visit(server.address, sections="#runs table")
            make_run(tmp_path / "runs" / "new", side=8)
            page.wait_for_selector("a:text('new')", timeout=3000)
            page.get_by_role("link", name="a b").click()
            page.wait_for_selector(".part-samples img")
            assert page.locator("h1").inner_text() == "a b"
            assert page.locator(".part-samples img").first.evaluate("i => i.decode().then(() => i.naturalWidth)") == 8
        finally:
            server.shutdown()
            thread.join()


def test_a_watched_run_grows_on_the_page(visit: Callable[..., Any], tmp_path: Path) -> None:
    """A new evaluation is there within 3 s; the zoom, the filter and the slider stay as they were set."""
    folder = make_run(tmp_path / "run", side=32)
    with serving([folder]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            page = visit(server.address)
            drawn(page)
            page.get_by_label("Prompts with", exact=True).fill("prompt 3")
            page.locator(".part-samples button.picture").first.focus()
            new = folder / "samples/step_000006"
            shutil.copytree(folder / "samples/step_000004", new)
            picture(200, 32).save(new / "0003.png")
            rows = read_rows(folder / "eval.jsonl")
            with (folder / "eval.jsonl").open("a") as file:
                file.write(json.dumps({**rows[-1], "step": 6, "nice": 3.0}) + "\n")
            page.wait_for_selector("text=Evaluation: step 6, the newest", timeout=3000)
            assert page.locator(".part-samples article").count() == 1
            steps = "document.querySelector('#plot-reward-on-held-out-prompts').data.find(line => line.name).x.at(-1)"
            page.wait_for_function(f"() => {steps} == 6", timeout=3000)
            assert page.locator(".part-samples button:focus").count() == 1
            assert page.locator(".part-samples img").first.evaluate("i => i.decode().then(() => i.naturalWidth)") == 32
            shutil.rmtree(folder)
            page.wait_for_selector("text=is not a run folder", timeout=3000)
        finally:
            server.shutdown()
            thread.join()


def test_the_slider_stays_at_its_step(visit: Callable[..., Any], tmp_path: Path) -> None:
    """A long run shows some of its evaluations, and others as it grows."""
    folder = make_run(tmp_path / "run", side=8, steps=22, every=1)
    with serving([folder]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            page = visit(server.address)
            page.get_by_role("slider").fill("10")
            before = page.locator(".slider output").inner_text()
            for step in range(23, 45):
                shutil.copytree(folder / "samples/step_000022", folder / f"samples/step_{step:06d}")
            page.wait_for_function("() => document.querySelector('[data-key=slider]').value != 10", timeout=3000)
            assert page.locator(".slider output").inner_text() == before
        finally:
            server.shutdown()
            thread.join()
