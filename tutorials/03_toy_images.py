# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Pictures, and a reward that gets hacked
#
# `toy-glyph` is an image generator that is small enough for a laptop: it draws the word that a prompt quotes. Here you watch words
# appear, then train with a reward that only looks reasonable, see the damage in a monitor, and repair the reward. In the end
# a person is the reward.
#
# [![Open in Colab](open_in_colab.svg)](https://colab.research.google.com/github/grpokit/grpokit/blob/main/tutorials/03_toy_images.ipynb)
#
# **You need** a laptop and about three minutes on two cores of its CPU. Nothing is downloaded. The notebook writes `contrast_reward.py` and
# the runs `runs/03_...` beside itself.

# %%
import importlib.util
import subprocess
import sys
import warnings

warnings.simplefilter("ignore")  # of libraries below, about bars and about what they will change one day
if importlib.util.find_spec("grpokit_vote") is None:  # on Colab, for example
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "grpokit[demo,vote]"], check=True)

# %%
import json
import threading
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from grpokit_toy.data import glyph_prompts
from grpokit_vote.ballots import BallotBox
from PIL import Image, ImageStat

from grpokit import Prompt, Sample, create, draw
from grpokit.config import presets
from grpokit.images import to_rgb
from grpokit.runs import train

torch.set_num_threads(1)  # a net as small as this one is faster so

# %% [markdown]
# ## 1. One prompt, eight tries
#
# A transformer reads the prompt and writes visual tokens; a codebook turns them into pixels. It was trained a little, so most letters can be
# guessed and few words can be read.

# %%
policy = create("policy", "toy-glyph")
prompts = glyph_prompts("eval")
tries = draw(policy, prompts[:1], samples_per_prompt=8, seed=1)


def show(pictures, titles=(), title=""):
    figure, places = plt.subplots(1, len(pictures), figsize=(12, 1.2), layout="constrained")
    for number, (place, picture) in enumerate(zip(places, pictures)):
        place.imshow(picture)
        place.axis("off")
        place.set_title(titles[number] if number < len(titles) else "", fontsize=9)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")


ssim, ocr = create("reward", "ssim"), create("reward", "ocr")
scores = [f"ssim {a:.2f}\nocr {b:.2f}" for a, b in zip(ssim(tries), ocr(tries))]
show([sample.output for sample in tries], scores, prompts[0].text)

# %% [markdown]
# ## 2. Two rewards that see different things
#
# `ssim` (structural similarity) compares a picture, patch by patch, with the *target*: a clean picture of the word. `ocr` reads it,
# and compares what it reads with what the prompt quotes. Both give 1 to a perfect picture. Over many samples they agree, but not
# too well:

# %%
many = draw(policy, prompts[:24], samples_per_prompt=4, seed=2)
a, b = torch.tensor(ssim(many)), torch.tensor(ocr(many))
figure, place = plt.subplots(figsize=(4, 3))
place.scatter(a, b, s=12, alpha=0.6)
place.set(xlabel="ssim", ylabel="ocr", title=f"correlation {torch.corrcoef(torch.stack([a, b]))[0, 1]:.2f}")
unread = [s.output for s, x, y in zip(many, a, b) if x > a.median() and y < 0.3]
print(f"{len(unread)} of {len(many)} pictures are among the better half for ssim, and ocr reads little in them")

# %% [markdown]
# A picture can be near the target and have one wrong letter. So the preset `toy-glyph` takes half of each: `ssim` shows the way
# while nothing can be read yet, `ocr` says what we want in the end.
#
# ## 3. Watch words appear

# %% nbmake={"mock": {"STEPS": 3}}
STEPS = 24

# %%
halfway = max(1, STEPS // 2)


def run(name, *overrides):
    """Train toy-glyph, with its report in runs/03_<name>."""
    steps = [f"trainer.steps={STEPS}", f"eval.every={halfway}", f"run.dir=runs/03_{name}"]
    config, _ = presets.read_config("toy-glyph", [*steps, *overrides])
    return train.train(config, name=name, overwrite=True)


def held_out(result):
    """The evaluations of a run, and the first pictures of each."""
    rows = [json.loads(line) for line in (result.folder / "eval.jsonl").read_text().splitlines()]
    for row in rows:
        folder = result.folder / "samples" / f"step_{row['step']:06d}"
        samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
        row["pictures"] = [plt.imread(folder / sample["file"]) for sample in samples[:6]]
    return rows


def show_evaluations(result, *rewards):
    """Show the pictures of each evaluation under its mean rewards."""
    for row in held_out(result):
        means = ", ".join(f"{name} {row['means'][name]:.2f}" for name in rewards)
        show(row["pictures"], title=f"after step {row['step']}: {means}")


good = run("good")
show_evaluations(good, "ssim", "ocr")

# %% [markdown]
# None of these words is in a training prompt: the policy has learnt to write. `make demo` trains 70 steps, and ends where nearly every word
# can be read.
#
# ## 4. A reward that looks reasonable
#
# Suppose that there are no targets and no reader. What makes writing legible? Contrast: dark letters on bright paper. So we pay for
# the spread of the grey values. A reward is a function from samples to numbers, and a config names it by its place
# (`module:function`); here it stands in this notebook, so we write it to a file first.

# %%
SOURCE = '''
from PIL import ImageStat
from grpokit.images import to_rgb

def contrast(samples):
    """The spread of the grey values, from 0 to about 1."""
    return [ImageStat.Stat(to_rgb(s.output, what="a sample").convert("L")).stddev[0] / 128 for s in samples]
'''
with open("contrast_reward.py", "w") as file:
    file.write(SOURCE)

# %% [markdown]
# We keep `ocr` as a *monitor*: weight 0 means that it is measured and not trained on.

# %%
hacked = run("hacked", "rewards=[{use: 'contrast_reward:contrast'}, {use: ocr, weight: 0}]")
show_evaluations(hacked, "contrast", "ocr")

# %% [markdown]
# The trained reward rises, and the words are gone. The policy has found what has the most contrast: letters with much ink. Nothing
# crashed and every curve that one usually looks at went up. Only the monitor shows it, and grpokit says so at the end of the run and
# at the top of its report:

# %%
from grpokit.report import alarm

print(alarm(hacked.folder) or "no alarm")

# %% [markdown]
# ## 5. Repair it
#
# Three remedies, in this order: pay for what you want (`ocr`), keep what shows the way at a smaller weight, and divide each reward by its
# own spread (`advantage: gdpo`), so that weights mean what they say.

# %%
repaired = run(
    "repaired",
    "rewards=[{use: 'contrast_reward:contrast', weight: 0.3}, {use: ocr, weight: 0.7}]",
    "trainer.advantage=gdpo",
)
show_evaluations(repaired, "contrast", "ocr")

# %%
figure, place = plt.subplots(figsize=(7, 3), layout="constrained")
for name, result in (("ssim and ocr", good), ("contrast alone", hacked), ("contrast and ocr", repaired)):
    rows = held_out(result)
    place.plot([row["step"] for row in rows], [row["means"]["ocr"] for row in rows], marker="o", label=name)
place.set(xlabel="step", ylabel="ocr on held-out words", ylim=(0, 1))
_ = place.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)

# %% [markdown]
# Contrast still rises in the last run, and no longer at the price of the words. But look closely: there are letters below and behind
# the words that no prompt asked for, more of them than in the first run. A weight of 0.3 still pays for ink.
#
# ## 6. Or ask a person
#
# What can be read is hard to put into a formula, and easy to see. The reward `human-vote` puts each group before people, on a page that
# `grpokit vote runs/03_voted` serves, and the run waits for them. Here a thread is the person, so that the notebook runs by itself. They
# choose the word that they read best, and the one that they read worst.

# %% nbmake={"mock": {"VOTED": 1}}
VOTED = 6  # steps of eight groups


# %%
def vote(folder, over):
    """Answer each question of a run, until it is over."""
    box, answered = BallotBox(folder), set()
    while not over.wait(0.1):
        for ballot in box.waiting():
            if ballot.key not in answered:
                words = [Image.open(box.samples / name) for name in ballot.samples]
                samples = [Sample(prompt=Prompt(text=ballot.prompt), output=word, group=0) for word in words]
                (_, worst), *_, (_, best) = sorted(zip(ocr(samples), ballot.samples))
                box.vote(ballot, [best, worst], voter="me")
                answered.add(ballot.key)


over = threading.Event()
threading.Thread(target=vote, args=(Path("runs/03_voted"), over), daemon=True).start()
question = "question: 'Which word is easiest to read?'"
voted = run(
    "voted",
    f"rewards=[{{use: human-vote, {question}, how: best-worst}}, {{use: ocr, weight: 0, every: {VOTED}}}]",
    f"trainer.steps={VOTED}",
    f"eval.every={VOTED}",
)
over.set()
print(len(BallotBox(voted.folder).votes()), "votes")
show_evaluations(voted, "ocr")

# %% [markdown]
# Words are easier to read, and nobody wrote a formula. A person gives that many votes in a few minutes. You can be this person: leave the
# thread out, and open the page. [Train on your taste](https://grpokit.readthedocs.io/en/latest/votes/) tells more.
#
# ## Exercise: find a weak spot before the training does
#
# Which picture gets the highest contrast of all? Make one without a letter in it that beats every sample above. Change `cheat`. The check fails
# until yours is right. The last cell holds one answer, folded up in Jupyter: look at it later.


# %%
def cheat():
    return Image.new("RGB", tries[0].output.size, "white")  # your code


# %% tags=["raises-exception"]
def contrast_of(picture):
    return ImageStat.Stat(to_rgb(picture, what="a picture").convert("L")).stddev[0] / 128


def check(picture):
    best = max(contrast_of(sample.output) for sample in many)
    print(f"best sample {best:.2f}, cheat {contrast_of(picture):.2f}")
    assert contrast_of(picture) > best, "some sample has more contrast"


check(cheat())


# %% jupyter={"source_hidden": true} tags=["solution"]
# One answer. Try first.
def one_answer():
    picture = Image.new("RGB", tries[0].output.size, "white")
    picture.paste("black", (0, 0, picture.width // 2, picture.height))
    return picture


check(one_answer())

# %% [markdown]
# `grpokit check` tries such pictures on your rewards by itself: [05_write_a_reward](05_write_a_reward.ipynb).
