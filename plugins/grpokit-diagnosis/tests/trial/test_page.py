"""The page of `grpokit try` in headless Chromium, in light and dark, wide and narrow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from command_line import Call

LOOK = """() => {
  document.querySelectorAll("details").forEach(d => d.open = true);
  const rolls = e => ["overflowX", "overflowY"].some(name => getComputedStyle(e)[name] == "auto");
  const map = document.querySelector(".map > div")?.getBoundingClientRect();
  const image = document.querySelector(".map img")?.getBoundingClientRect();
  const pair = [...document.querySelectorAll(".pair figure")].map(e => e.getBoundingClientRect().top);
  return {
    needs: document.documentElement.scrollWidth,
    images: [...document.images].map(i => i.naturalWidth),
    unreachable: [...document.querySelectorAll("main *")].filter(e => rolls(e) && e.tabIndex < 0).length,
    apart: map ? Math.abs(map.width - image.width) + Math.abs(map.height - image.height) : 0,
    beside: pair[0] == pair[1],
    paper: getComputedStyle(document.body).backgroundColor,
  };
}"""

pytestmark = pytest.mark.slow


@pytest.fixture
def page_of_pictures(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, size in (("wide.png", (900, 300)), ("tiny.png", (5, 3)), (f"{'long' * 40}.png", (100, 400))):
        picture = Image.linear_gradient("L").resize(size)
        picture.save(name)
    done = call("try", "brightness", ".", "--prompt", "word" * 200, "--squares", 3)
    assert done.code == 0, done.err
    return tmp_path / "try-brightness.html"


@pytest.fixture
def page_of_texts(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [{"prompt": f"{i}", "output": f"{'very' * 60} it is 12 " * 30, "target": "12"} for i in range(2)]
    Path("records.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert call("try", "length", "records.jsonl", "maximum=20").code == 0
    return tmp_path / "try-length.html"


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["pictures", "texts"])
def test_the_page_fits_and_asks_for_nothing(
    browser: Any, request: pytest.FixtureRequest, kind: str, scheme: str, width: int
) -> None:
    file: Path = request.getfixturevalue(f"page_of_{kind}")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page = context.new_page()
    noise: list[str] = []
    page.on("console", lambda message: noise.append(message.text))
    page.on("request", lambda asked: asked.url.startswith(("data:", file.as_uri())) or noise.append(asked.url))
    page.goto(file.as_uri())
    look = page.evaluate(LOOK)
    context.close()
    assert not noise
    assert look["needs"] <= width
    assert all(look["images"])
    assert look["unreachable"] == 0
    assert look["apart"] < 1  # each number's place lies over its colour
    assert look["paper"] == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme]
    if kind == "pictures":
        assert len(look["images"]) == 3 * 3  # in the ranking, the picture and its map
        assert look["beside"] == (width > 500)
