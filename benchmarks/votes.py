"""What votes teach: a simulated voter in a real browser, and a run of glm-image-tiny that waits for them.

    python benchmarks/votes.py --how best-worst                          # all groups are asked
    python benchmarks/votes.py --how best-worst --model pixels --ask 0.3
    python benchmarks/votes.py --taste random                            # must teach nothing, and the page must say so

The voter sees what the page shows, the pictures' pixels, and presses its keys. They like dark blue, which is the run's
monitor too: it is measured on held-out prompts before and after, with 95 % intervals. Needs playwright and a Chromium,
which CHROMIUM may name.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grpokit import Sample
from grpokit.images import to_rgb

JOB = ["eval.samples=16", "trainer.learning_rate=4e-3", "trainer.updates_per_rollout=2", "trainer.group_size=8"]
COLOURS = """() => {
  if (busy || !document.querySelector("#choices img")) return null;
  const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
  return [...document.querySelectorAll("#choices img")].map(image => {
    [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
    pen.drawImage(image, 0, 0);
    const {data} = pen.getImageData(0, 0, canvas.width, canvas.height), mean = [0, 0, 0];
    data.forEach((value, place) => { if (place % 4 < 3) mean[place % 4] += value / 255 / (data.length / 4); });
    return mean;
  });
}"""


def dark_blue(colour: Sequence[float]) -> float:
    """How dark and blue a mean colour is, its red, green and blue being 0 to 1."""
    red, green, blue = colour
    return 2 * blue - red - green - 0.5 * (red + green + blue) / 3


def blueness(samples: Sequence[Sample]) -> list[float]:
    """The monitor: what the voter likes, in the pictures that the run draws."""
    pictures = [to_rgb(sample.output, what="a sample") for sample in samples]
    return [dark_blue(np.asarray(picture, dtype=float).mean((0, 1)) / 255) for picture in pictures]


class Voter:
    """Presses the keys of the page.

    Args:
        page: of Playwright, with the page of votes.
        how: what an answer is, "best" or "best-worst".
        taste: "blue" or "random".
    """

    def __init__(self, page: Any, how: str, taste: str) -> None:
        self.page, self.how, self.taste = page, how, taste
        self.presses, self.votes, self.seconds = 0, 0, 0.0

    def vote(self) -> None:
        """Answer what is on the page, if anything is."""
        begin, counters = time.perf_counter(), self.counters()
        colours = self.page.evaluate(COLOURS)
        if colours is None:
            self.page.wait_for_timeout(50)
            return
        likes = [dark_blue(colour) if self.taste == "blue" else random.random() for colour in colours]
        chosen = [likes.index(max(likes)), likes.index(min(likes))]
        for place in chosen if self.how == "best-worst" else chosen[:1]:
            self.page.keyboard.press(str(place + 1))
            self.presses += 1
        given, _, _ = counters.partition(" · ")
        self.page.wait_for_function("given => !busy && !counters.textContent.startsWith(`${given} `)", arg=given)
        self.votes += 1
        self.seconds += time.perf_counter() - begin

    def counters(self) -> str:
        """What the page counts: votes, and how often the voter agreed with themselves."""
        return str(self.page.inner_text("#counters"))


def main() -> None:
    """Train on the votes of a simulated voter, and print what they taught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--how", choices=["best", "best-worst"], default="best")
    parser.add_argument("--taste", choices=["blue", "random"], default="blue")
    parser.add_argument("--model", help="of the voter, such as pixels")
    parser.add_argument("--ask", type=float, default=1.0, help="the share of groups that is asked (default: all)")
    parser.add_argument("--steps", type=int, default=37, help="of 4 groups (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=Path, help="the run folder (default: a temporary one)")
    parser.add_argument("--screenshot", type=Path, help="of the page, where the last vote was given")
    parser.add_argument("settings", nargs="*", help="further ones of the run, such as trainer.learning_rate=1e-3")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(given, given.run or Path(folder) / "run")


def measure(given: argparse.Namespace, run: Path) -> None:
    """One run with its voter."""
    from playwright.sync_api import sync_playwright

    random.seed(given.seed)
    votes = {"use": "human-vote", "how": given.how, "ask": given.ask, "model": given.model}
    rewards = json.dumps([votes, {"use": "votes:blueness", "weight": 0}])
    steps = [f"trainer.steps={given.steps}", f"eval.every={given.steps}", f"seed={given.seed}", f"run.dir={run}"]
    modules = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])  # for the monitor
    command = _command("train", "glm-image-tiny", f"rewards={rewards}", *steps, *JOB, *given.settings)
    train = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": modules})
    serve = subprocess.Popen(_command("vote", str(run), "--port", "0"), stdout=subprocess.PIPE, text=True)
    begin = time.perf_counter()
    try:
        assert serve.stdout
        address = next(re.findall(r"http://\S+", line)[0] for line in serve.stdout if "http://" in line)
        with sync_playwright() as playwright:
            chromium = os.environ.get("CHROMIUM")
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page()
            page.goto(address)
            voter = Voter(page, given.how, given.taste)
            while train.poll() is None:
                voter.vote()
            page.wait_for_timeout(1500)  # the page looks again each second
            counters, seconds = voter.counters(), time.perf_counter() - begin
            if given.screenshot:
                page.screenshot(path=given.screenshot)
    finally:
        for process in (train, serve):
            process.terminate()
            process.wait()
    rest = (seconds - voter.seconds) / given.steps
    print(f"{voter.presses} key presses for {voter.votes} votes, {voter.seconds / voter.votes:.2f} s each")
    print(f"{seconds:.0f} s in all; a step takes {rest:.2f} s beside its votes")
    print(f"the page: {counters}")


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "grpokit", *words]


if __name__ == "__main__":
    main()
