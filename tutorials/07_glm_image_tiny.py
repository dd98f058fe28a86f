# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # GLM-Image on a CPU
#
# GLM-Image draws a picture in two halves: a language model writes visual tokens, and a diffusion transformer paints what they say.
# This notebook follows one prompt through both halves, asks which half earns the reward, and then trains both in turn.
#
# [![Open in Colab](open_in_colab.svg)](https://colab.research.google.com/github/grpokit/grpokit/blob/main/tutorials/07_glm_image_tiny.ipynb)
#
# **You need** a laptop and about four minutes of its CPU. The model is `glm-glyph`: the real classes of
# GLM-Image, with 1.65 million parameters instead of 16 billion. It draws words of three to five capitals. What you do here with it,
# `08_glm_image_full` does with the released model.

# %%
import importlib.util
import subprocess
import sys
import warnings

warnings.simplefilter("ignore")  # of libraries below, about bars and about what they will change one day
if importlib.util.find_spec("grpokit_glm_image") is None:  # on Colab, for example
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "grpokit[glm-image-rewards,picture]"], check=True)

# %%
import json
from dataclasses import replace

import matplotlib.pyplot as plt
import torch
from grpokit_glm_image.attribution import attribute
from grpokit_glm_image.glyph import prompts

from grpokit import Ask, create, draw, load
from grpokit.config import presets
from grpokit.runs import train
from grpokit.sampling import derive_seeds

torch.set_num_threads(1)  # networks as small as these are faster so

# %% [markdown]
# ## 1. From a prompt to visual tokens
#
# The policy `glm-image-ar` is the half that writes. Its *decisions* are the visual tokens, and its *outputs* are the pictures that
# the other half paints of exactly these tokens. `decode` says how they are painted: here in four denoising steps, without
# guidance.

# %%
quick = {"steps": 4, "guidance": 1.0}
glyph = {"model": "grpokit_glm_image:models/glyph", "size": [64, 160], "eval_decode": quick}
writer = create("policy", "glm-image-ar", {**glyph, "decode": quick})
words = prompts("eval")
group = 6
seeds = derive_seeds(0, stream="train", step=0, prompts=1, group_size=group)
with torch.no_grad():
    rollout = writer.rollout(words[:1], group, seeds=seeds)

print("prompt:", words[0].text)
figure, places = plt.subplots(1, group, figsize=(12, 1.2))
for place, sample in zip(places, rollout.samples):
    place.imshow(sample.output)
    place.axis("off")

# %% [markdown]
# This is a *group*: six samples of one prompt, which differ because their tokens were drawn by chance. Some have a typo. The model
# was taught with typos on purpose, so that there is something to learn.
#
# A picture of 64 x 160 pixels is a large grid of 2 x 5 tokens, one for 32 x 32 pixels. Before it, the model writes a *draft*
# of about 256 tokens which shows the whole picture. Only the large grid is painted, but the model reads its own draft while it
# writes it. Each colour below is one entry of the codebook.

# %%
draft, large = writer.target.draft, writer.target.large
tokens = rollout.trace.per_row["tokens"][0]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3), width_ratios=[2.4, 1])
left.imshow(tokens[: draft.count].reshape(draft.rows, draft.columns), cmap="nipy_spectral", interpolation="nearest")
left.set_title(f"draft: {draft.rows} x {draft.columns} tokens")
right.imshow(tokens[draft.count :].reshape(large.rows, large.columns), cmap="nipy_spectral", interpolation="nearest")
right.set_title(f"large grid: {large.rows} x {large.columns}")
for place in (left, right):
    place.axis("off")

# %% [markdown]
# ## 2. Every token has a place on three axes
#
# A text's tokens have positions 0, 1, 2, ... A visual token has three: time, height and width. A grid stands still in
# time and counts its rows and columns. The next grid begins after the longer side of the one before.

# %%
positions = writer.target.positions(0)  # [3, T]
figure, place = plt.subplots(figsize=(10, 2.4))
for name, axis in zip(("time", "height", "width"), positions):
    place.plot(axis, label=name, linewidth=1)
place.axvline(draft.count, color="gray", linestyle="--")
place.set(xlabel="visual token", ylabel="position", title="the draft, then the large grid")
_ = place.legend()

# %% [markdown]
# Why this matters: GRPO multiplies advantages with log-probs. Scoring these tokens with the positions of a text gives
# log-probs of another distribution, without any error. Let us do both. The first line must be about 0: a token's log-prob is the
# same while it is drawn and while it is scored.


# %%
def logprobs(of_rollout):
    with torch.no_grad():
        return writer.logprobs(of_rollout, slice(0, rollout.mask.shape[1]), ask=Ask()).logprobs


of_group = rollout.trace.per_group
as_text = torch.arange(of_group["positions"].shape[1])[None, :, None].expand_as(of_group["positions"])
wrong = replace(rollout, trace=replace(rollout.trace, per_group=of_group | {"positions": as_text}))

drawn = rollout.old.logprobs
right_gap, wrong_gap = ((logprobs(it) - drawn).abs().mean().item() for it in (rollout, wrong))
print(f"with its own positions: {right_gap:.7f} nats per token between drawing and scoring")
print(f"with those of a text:   {wrong_gap:.2f}")
assert right_gap < 1e-4 < wrong_gap

# %% [markdown]
# ## 3. From tokens to pixels
#
# The half that paints begins with noise and removes it step by step, as the tokens tell it. The same tokens with
# different noise give nearly the same picture. More steps give a cleaner one, at a price: painting is most of the work of
# a real run, which is why `decode` may be cheaper in training than `eval_decode` in evaluation.

# %%
figure, places = plt.subplots(2, 4, figsize=(11, 2.6))
for row, steps in zip(places, (1, 4)):
    painter = create("policy", "glm-image-ar", {**glyph, "decode": {**quick, "steps": steps, "noise": "row"}})
    same_tokens = replace(rollout.trace, per_row=rollout.trace.per_row | {"tokens": tokens.expand(group, -1)})
    for place, sample in zip(row, painter.decoded(replace(rollout, trace=same_tokens))):
        place.imshow(sample.output)
        place.axis("off")
    row[0].set_title(f"{steps} step{'s' * (steps > 1)}; four noises, the same tokens", loc="left", fontsize=9)

# %% [markdown]
# ## 4. Which half earns the reward?
#
# A reward judges the picture, and both halves have a hand in it. `attribute` draws, for each prompt, a small grid: every one of four
# token sequences, painted from every one of four noises. A two-way analysis of variance then shares out the reward's
# variance. We ask with two rewards: `ocr` reads the word, and `ssim` compares pixels with the target picture.

# %%
rewards = {"ssim": create("reward", "ssim"), "ocr": create("reward", "ocr")}
shares = attribute(writer, rewards, words[:8], row_seeds=4, group_seeds=4)
for name in ("ssim", "ocr"):
    share = shares[name]
    print(f"{name:5} tokens {share.row:4.0%}   noise {share.group:4.0%}   both together {share.both:4.0%}")

# %% [markdown]
# Spelling is the tokens' business: nearly all that makes one picture better than another was decided when the tokens were
# written. So the half that writes should learn first.
#
# ## 5. Both halves in turn
#
# A decoder that paints blurred letters gives the other half something to do. The preset `glm-glyph-halves` begins with such a
# decoder and trains both halves in turn: a *phase* for the tokens, a phase for the painting, and both once more. What one
# half has learnt, the other sees. Each phase is shorter here than in the preset.

# %% nbmake={"mock": {"STEPS": 1}}
STEPS = 4  # of each of the four phases

# %%
overrides = [
    *(f"phases.{phase}.steps={STEPS}" for phase in (0, 1)),
    f"eval.every={4 * STEPS}",  # before the first step and after the last
    "run.dir=runs/07_glm_image_tiny",
]
config, name = presets.read_config("glm-glyph-halves", overrides)
result = train.train(config, name=name, overwrite=True)
for key in ("ocr", "ssim"):
    print(f"{key:5} {result.before.means[key]:.3f} -> {result.after.means[key]:.3f} on held-out words")
assert result.steps == 4 * STEPS

# %% [markdown]
# How do they look? A run folder keeps samples of each of its evaluations, drawn for the same words with the same random
# numbers.

# %%
evaluations = sorted((result.folder / "samples").iterdir())
figure, places = plt.subplots(2, 6, figsize=(12, 2.4))
for row, folder, title in zip(places, (evaluations[0], evaluations[-1]), ("before", "after")):
    for place, line in zip(row, (folder / "samples.jsonl").read_text().splitlines()):
        place.imshow(plt.imread(folder / json.loads(line)["file"]))
        place.axis("off")
    row[0].set_title(title, loc="left")

# %% [markdown]
# `load` gives the policy with the weights of a run, ready to draw something new:

# %%
trained = load(result.folder)
figure, places = plt.subplots(1, 4, figsize=(9, 1.2))
for place, sample in zip(places, draw(trained, ['A sign that says "GRPO"'], seed=1, samples_per_prompt=4)):
    place.imshow(sample.output)
    place.axis("off")

# %% [markdown]
# The report, `runs/07_glm_image_tiny/report.html`, has a curve for each reward with the phases shaded. `grpokit export` writes
# what was trained for the stock pipeline of diffusers: [08_glm_image_full](08_glm_image_full.ipynb) does it.
#
# ## Exercise
#
# Section 2 says what positions visual tokens have. Write that as a function: positions `[3, rows * columns]` of a grid
# that begins at `start`. Change the body below, and see whether the check notices each of your mistakes. The check fails
# until yours is right. The last cell holds one answer, folded up in Jupyter: look at it later.


# %%
def grid_positions(rows, columns, start):
    return torch.arange(start, start + rows * columns).expand(3, -1)  # your code; this is right for text


# %% tags=["raises-exception"]
def check(function):
    begin = max(draft.rows, draft.columns)  # where the large grid begins, behind the longer side of the draft
    both = [function(draft.rows, draft.columns, 0), function(large.rows, large.columns, begin)]
    assert torch.equal(torch.cat(both, 1), positions), "a token stands in another place"


check(grid_positions)


# %% jupyter={"source_hidden": true} tags=["solution"]
# One answer. Try first.
def one_answer(rows, columns, start):
    time = torch.full((rows * columns,), start)
    height = start + torch.arange(rows).repeat_interleave(columns)
    width = start + torch.arange(columns).repeat(rows)
    return torch.stack([time, height, width])


check(one_answer)
