# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Write a reward
#
# A reward begins as a function and may end as a package that others install with pip. This notebook takes a small
# idea from end to end: pictures whose letters keep off the border.
#
# [![Open in Colab](open_in_colab.svg)](https://colab.research.google.com/github/grpokit/grpokit/blob/main/tutorials/05_write_a_reward.ipynb)
#
# **You need** a laptop and about two minutes on two cores of its CPU. Nothing is downloaded. The package is written into a temporary folder.

# %%
import importlib.util
import subprocess
import sys
import warnings

warnings.simplefilter("ignore")  # of libraries below, about bars and about what they will change one day
if importlib.util.find_spec("grpokit_toy") is None:  # on Colab, for example
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "grpokit[demo,check]", "pytest"], check=True)

# %%
import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from grpokit_toy.data import glyph_prompts
from PIL import Image

from grpokit import Prompt, Sample, create, draw
from grpokit.images import to_rgb

torch.set_num_threads(1)  # a net as small as this one is faster so

# %% [markdown]
# ## 1. A function
#
# It gets samples and returns one number for each; NaN would mean "cannot score this one". A sample has a `prompt` and an `output`.
# `to_rgb` takes pictures in any form, and says what is wrong if it gets something else.


# %%
def clear_border(samples, width=3):
    """The share of the border's pixels that are as bright as the paper, in [0, 1]."""
    shares = []
    for sample in samples:
        gray = np.asarray(to_rgb(sample.output, what="what `clear-border` scores").convert("L"), dtype=float)
        border = np.ones(gray.shape, dtype=bool)
        border[width:-width, width:-width] = False
        shares.append(float((gray[border] > np.median(gray) - 30).mean()))
    return shares


policy = create("policy", "toy-glyph")
samples = draw(policy, glyph_prompts("eval")[:16], samples_per_prompt=4, seed=3)
scores = clear_border(samples)
order = sorted(range(len(samples)), key=scores.__getitem__)
figure, places = plt.subplots(1, 8, figsize=(12, 1.2), layout="constrained")
for place, row in zip(places, order[:4] + order[-4:]):
    place.imshow(samples[row].output)
    place.set_title(f"{scores[row]:.2f}", fontsize=9)
    place.axis("off")

# %% [markdown]
# Always look at the best and the worst pictures of a new reward. On the left letters run into the border, on the right they do not: the
# reward sees what it should.
#
# The function is a reward already. With the file `my_rewards.py` beside you, a config may say
# `{use: "my_rewards:clear_border", weight: 0.2}`. A package gives it a name, checks, and users.
#
# ## 2. A package
#
# `grpokit new` writes a package that works, with an example reward in it: contrast. We put our function in its place, pairs of a
# better and a worse picture in the place of its examples, and numbers computed by hand in the place of those of its test. Then come
# the line that `grpokit plugins` shows and, in `pyproject.toml`, the package that our function imports.

# %%
folder = Path(tempfile.mkdtemp())
path = os.pathsep.join([str(folder / "installed"), os.environ.get("PYTHONPATH", "")])
environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "160"}
environment.pop("FORCE_COLOR", None)  # plain text in the outputs below
grpokit = [sys.executable, "-m", "grpokit"]


def command(*words, folder=folder, keep=None):
    """Run a command and show the last lines of what it prints."""
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    lines = done.stdout.strip().replace(str(folder), "...").splitlines()
    print("\n".join(lines if keep is None else lines[-keep:]))
    assert done.returncode == 0, done.stderr


command(*grpokit, "new", "reward", "clear-border")
package = folder / "grpokit-clear-border"
source = package / "src" / "grpokit_clear_border"
print(*sorted(str(file.relative_to(package)) for file in package.rglob("*") if file.is_file()), sep="\n")

# %%
(source / "reward.py").write_text('''"""The reward `clear-border`: letters keep off the border."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from grpokit import Sample
from grpokit.images import to_rgb


def score(samples: Sequence[Sample], *, width: int = 3) -> list[float]:
    """The share of the border's pixels that are as bright as the paper, in [0, 1].

    Args:
        samples: B samples whose outputs are pictures.
        width: of the border, in pixels.
    """
    shares = []
    for row, sample in enumerate(samples):
        picture = to_rgb(sample.output, what=f"the output of row {row} (reward 'clear-border')")
        gray = np.asarray(picture.convert("L"), dtype=float)
        border = np.ones(gray.shape, dtype=bool)
        border[width:-width, width:-width] = False
        shares.append(float((gray[border] > np.median(gray) - 30).mean()))
    return shares
''')
(
    source / "examples.py"
).write_text('''"""Pairs of pictures, the better one first. `grpokit check` scores them, and expects that order."""

from __future__ import annotations

from typing import Any

from PIL import Image


def pairs() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """A block of ink in the middle is better than one that touches the border, and that better than a dark border."""
    inside, touching, framed = _ink((20, 10, 40, 30)), _ink((20, 0, 40, 30)), _ink((0, 0, 64, 3))
    return [({"output": inside}, {"output": touching}), ({"output": touching}, {"output": framed})]


def _ink(box: tuple[int, int, int, int]) -> Image.Image:
    picture = Image.new("L", (64, 40), 240)
    picture.paste(20, box)
    return picture
''')
test = package / "tests" / "test_clear_border.py"
test.write_text(
    test.read_text().partition("def test_by_hand")[0]
    + """def test_by_hand() -> None:
    blank, edge = Image.new("L", (10, 10), 255), Image.new("L", (10, 10), 255)
    edge.paste(0, (0, 0, 1, 10))  # 10 dark pixels; a border of 3 pixels has 84, one of a pixel has 36
    samples = [Sample(prompt=Prompt(text="a picture"), output=picture, group=0) for picture in (blank, edge)]
    assert score(samples) == pytest.approx([1, 74 / 84])
    assert score(samples, width=1) == pytest.approx([1, 26 / 36])
"""
)
plugin = source / "plugin.py"
plugin.write_text(
    plugin.read_text().replace(
        "contrast of the picture (0: one flat colour, 1: half black and half white)",
        "share of the border without ink (1: letters keep off the border)",
    )
)
project = package / "pyproject.toml"
_ = project.write_text(project.read_text().replace('"pillow', '"numpy",\n  "pillow'))

# %% [markdown]
# ## 3. Install it
#
# Usually `pip install -e .` is enough. Here it goes into a folder of its own, so that the notebook leaves your environment as it was.
# The package's entry point, a line in `pyproject.toml`, names the light module `plugin.py`; through it grpokit finds the reward in
# any environment that has the package.

# %%
pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
command(*pip, "--target", str(folder / "installed"), ".", folder=package)
found = subprocess.run([*grpokit, "plugins"], cwd=folder, env=environment, capture_output=True, text=True).stdout
print(*(line for line in found.splitlines() if "clear" in line), sep="\n")

# %% [markdown]
# ## 4. Check it
#
# `grpokit check` tries what goes wrong in practice: other batch sizes, another order, wrong types, empty lists, flat pictures. Then
# it shows a *ladder*: the scores of photographs that are damaged, and of tricks that fool many rewards.

# %%
command(*grpokit, "check", "clear-border")

# %% [markdown]
# A row that says "not checked" tells why that check does not apply to this reward. Now read the ladder. Each row is the mean score
# of the same photographs after one change. A reward that compares with a target has to score less as the damage gets worse; ours
# compares with nothing, so its rows are only shown. `flat mean colour` and `in a white frame` get full marks, so a page that shows
# nothing scores best with this reward. That is not a bug, but it says how to use the reward: never alone.
#
# The package's own tests make the same checks, and one more with our numbers:

# %%
command(sys.executable, "-m", "pytest", "-q", folder=package, keep=1)

# %% [markdown]
# ## 5. Train with it, by name

# %% nbmake={"mock": {"STEPS": 2}}
STEPS = 16

# %%
command(
    *grpokit,
    "train",
    "toy-glyph",
    "rewards=[{use: clear-border, weight: 0.2}, {use: ssim, weight: 0.4}, {use: ocr, weight: 0.4}]",
    f"trainer.steps={STEPS}",
    f"eval.every={STEPS}",
    keep=6,
)

# %% [markdown]
# The reward is now like any other: a name in a config, a column in the report, a curve in the trackers. The package has tests and
# a workflow for GitHub. Before you share it, rewrite its README: it still describes contrast, and lists all places to change.
#
# ## Exercise: no points for a blank page
#
# Change `guarded` so that a page without any ink gets 0, while a word keeps its score. The check fails
# until yours is right. The last cell holds one answer, folded up in Jupyter: look at it later.


# %%
def guarded(samples):
    return clear_border(samples)  # your code


# %% tags=["raises-exception"]
blank = Sample(prompt=Prompt(text="a page"), output=Image.new("RGB", samples[0].output.size, "white"), group=0)
assert clear_border([blank]) == [1.0]


def check(reward):
    assert reward([blank]) == [0.0], "a blank page has no ink"
    assert reward(samples) == clear_border(samples), "a word has ink"


check(guarded)


# %% jupyter={"source_hidden": true} tags=["solution"]
# One answer. Try first.
def one_answer(samples):
    has_ink = []
    for sample in samples:
        gray = np.asarray(to_rgb(sample.output, what="a sample").convert("L"), dtype=float)
        has_ink.append((gray < np.median(gray) - 60).mean() > 0.02)
    return [share if ink else 0.0 for share, ink in zip(clear_border(samples), has_ink)]


check(one_answer)
