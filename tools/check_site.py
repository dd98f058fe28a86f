"""Opens the built documentation in Chromium: nothing comes from other hosts, no link is dead, all fits a phone, the
search finds.

`python tools/check_site.py [FOLDER]` exits with 1 and names what is wrong. `make docs` runs it.
"""

from __future__ import annotations

import shutil
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from playwright.sync_api import sync_playwright


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""


def problems(site: Path, browser_path: str) -> list[str]:
    """What is wrong with the site; each page is opened once at a phone's width."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home, found = f"http://127.0.0.1:{server.server_port}/", []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
        page.on("request", lambda r: r.url.startswith((home, "data:", "blob:")) or found.append(f"asks for {r.url}"))
        page.on("response", lambda r: r.status < 400 or found.append(f"{r.status}: {r.url}"))
        page.on("pageerror", lambda error: found.append(f"a script fails: {error}"))
        for file in sorted(site.rglob("index.html")):
            place = file.parent.relative_to(site).as_posix()
            page.goto(f"{home}{place}/")
            for link in sorted(set(page.eval_on_selector_all("a[href]", "all => all.map(a => a.href)"))):
                target = site / unquote(urlsplit(link).path.lstrip("/"))
                if link.startswith(home) and not (target.is_file() or (target / "index.html").is_file()):
                    found.append(f"{place} links to {urlsplit(link).path}, which is not there")
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > 390:
                found.append(f"{place} is {width} pixels wide on a phone of 390")
            if "formula-" in page.inner_text("body"):
                found.append(f"{place} shows the mark of a formula")
        page.set_viewport_size({"width": 1280, "height": 800})
        page.goto(home)
        page.fill("input[name=query]", "clip_range_high")
        page.wait_for_selector(".md-search-result__item", timeout=20_000)
        browser.close()
    server.shutdown()
    return found


def main(arguments: list[str]) -> int:
    """Print the problems; returns the exit code."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("The site was not opened: there is no Chromium here.")
        return 0
    found = problems(Path(arguments[0] if arguments else "site"), chromium)
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
