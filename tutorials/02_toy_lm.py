# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Rewards, groups and curves
#
# What to reward, how many samples to draw, and how to read the curves: this notebook goes through these questions with `toy-lm`, a
# tiny language model that learns to add.
#
# [![Open in Colab](open_in_colab.svg)](https://colab.research.google.com/github/grpokit/grpokit/blob/main/tutorials/02_toy_lm.ipynb)
#
# **You need** any computer and about two minutes of its CPU. Nothing is downloaded. [01_grpo_by_hand](01_grpo_by_hand.ipynb)
# explains the terms: group, advantage, importance ratio.

# %%
import importlib.util
import subprocess
import sys
import warnings

warnings.simplefilter("ignore")  # of libraries below, about bars and about what they will change one day
if importlib.util.find_spec("grpokit_toy") is None:  # on Colab, for example
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "grpokit[toy,picture]"], check=True)

# %%
import re

import matplotlib.pyplot as plt
import torch
from grpokit_toy.lm import sum_prompts

from grpokit import RewardTerm, Trainer, create, evaluate
from grpokit.notebook import watch
from grpokit.sampling import derive_seeds

torch.set_num_threads(1)  # a net as small as this one is faster so

# %% [markdown]
# ## 1. Look at samples first
#
# Before any reward, read what the model writes. Here are eight tries at one problem. Each letter is a decision of the model.

# %%
policy = create("policy", "toy-lm")
P, G = 24, 32
problems = sum_prompts("train")[:P]
with torch.no_grad():
    rollout = policy.rollout(problems, G, seeds=derive_seeds(7, stream="train", step=0, prompts=P, group_size=G))
for sample in rollout.samples[:8]:
    print(f"{sample.prompt.text} -> {sample.output}   (should be {sample.prompt.target})")

# %% [markdown]
# ## 2. A reward is a function from samples to numbers
#
# Three rewards for the same task:
#
# - `right` pays 1 for the right answer in the right form, else nothing. It is exactly what we want, and it is coarse.
# - `near` pays for an answer that is almost right: 1 for the right one, less the farther away it is.
# - `shows_target` pays 1 if the right number stands anywhere in the text. It is easy to write, and wrong: a model that lists many
#   numbers is paid, too.

# %%
FORM = re.compile(r"<think>[0-9+=;]+</think><answer>([0-9]+)</answer>")


def right(samples):
    matches = [FORM.fullmatch(s.output) for s in samples]
    return [float(m is not None and int(m[1]) == int(s.prompt.target)) for m, s in zip(matches, samples)]


def near(samples):
    matches = [FORM.fullmatch(s.output) for s in samples]
    return [0.0 if m is None else 1 / (1 + abs(int(m[1]) - int(s.prompt.target))) for m, s in zip(matches, samples)]


def shows_target(samples):
    return [float(str(s.prompt.target) in re.findall("[0-9]+", s.output)) for s in samples]


for reward in (right, near, shows_target):
    print(f"{reward.__name__:13} mean {sum(reward(rollout.samples)) / len(rollout.samples):.3f}")
listing = [
    s.output
    for s, pays, good in zip(rollout.samples, shows_target(rollout.samples), right(rollout.samples))
    if pays > good
]
print(f"\n{len(listing)} samples are paid by `shows_target` without being right, such as\n  {listing[0]}")

# %% [markdown]
# Read samples like these to find rewards that pay for the wrong thing, before training finds them for you.
#
# ## 3. How large should a group be?
#
# A group whose samples all get the same reward teaches nothing: its advantages are 0. With a coarse reward that happens often in
# small groups. We have 32 samples for each problem, so we can count: what share of groups of size G would teach nothing?

# %%
sizes = (2, 4, 8, 16, 32)
figure, place = plt.subplots(figsize=(6, 3))
silent = {}
for reward in (right, near):
    scores = torch.tensor(reward(rollout.samples)).reshape(P, G)
    silent[reward.__name__] = []
    for size in sizes:
        groups = scores.reshape(-1, size)  # each problem's samples in groups of this size
        silent[reward.__name__].append((groups.max(1).values == groups.min(1).values).float().mean().item())
    place.plot(sizes, silent[reward.__name__], marker="o", label=reward.__name__)
place.set(xlabel="group size G", ylabel="share of groups that teach nothing", xscale="log", ylim=(0, 1))
place.set_xticks(sizes, sizes)
_ = place.legend()

# %% [markdown]
# The picture gives two answers. Larger groups are less often silent. So are finer rewards, with no more samples. But a step has
# only so many samples: 128 are 64 problems in pairs, or 4 problems with 32 tries each. Groups of 8 to 16 are a usual
# starting point.
#
# ## 4. Train, and read the curves
#
# A step draws 16 problems with 8 samples each, and the reward is `right` with a little for the form, so that a slip in the thinking
# is told apart from a text that cannot be read.


# %%
def well_formed(samples):
    return [float(FORM.fullmatch(s.output) is not None) for s in samples]


# %% nbmake={"mock": {"STEPS": 8}}
STEPS = 80

# %%
trained = create("policy", "toy-lm")
trainer = Trainer(
    trained,
    [RewardTerm(name="right", reward=right), RewardTerm(name="form", reward=well_formed, weight=0.2)],
    sum_prompts("train"),
    steps=STEPS,
    seed=0,
    prompts_per_step=16,
    group_size=8,
    micro_batch_size=64,
    learning_rate=5e-4,
    warmup_steps=5,
    device="cpu",
    progress=False,
)
rows = [report.metrics for report in watch(trainer)]
print(f"policy loss of the first step: {rows[0]['loss']:+.7f}")
assert abs(rows[0]["loss"]) < 1e-5

# %% [markdown]
# **Why the first loss is 0.** Before the first update all importance ratios are 1, and the advantages of a group sum to 0, so the
# loss is 0. Its *gradient* is not: it pushes up what was better than its group. A GRPO loss does not fall like that of
# supervised training. Watch the rewards instead.

# %%
curves = {
    "rewards/right/mean": "share of right answers",
    "frac_reward_zero_std": "groups that teach nothing",
    "entropy": "entropy per letter, nats",
    "grad_norm": "norm of the gradient",
}
figure, places = plt.subplots(1, 4, figsize=(13, 2.6), layout="constrained")
for place, (key, title) in zip(places, curves.items()):
    values = torch.tensor([row[key] for row in rows])
    window = max(1, STEPS // 10)
    place.plot(values, alpha=0.3)
    place.plot(range(window - 1, STEPS), values.unfold(0, window, 1).mean(1), color="C0")
    place.set(title=title, xlabel="step")

# %% [markdown]
# - **Share of right answers**, per step, on problems of the training set: noisy, since each step has other problems. The bold
#   line is a running mean.
# - **Groups that teach nothing** come from problems that always or never succeed. If nearly all groups are silent, choose other problems,
#   larger groups, or a finer reward.
# - **Entropy** says how undecided the model is at each letter. It falls while it learns; if it falls to 0 early, nothing new is tried
#   any more.
# - **The norm of the gradient** should not explode. It is clipped at 1.
#
# What counts is the score on problems that were never trained on, with an interval:

# %%
held_out = sum_prompts("eval")[:80]
for name, it in (("before", policy), ("after", trained)):
    score = evaluate(it, {"right": right}, held_out, samples_per_prompt=2).summary
    print(f"{name:6} {score.means['right']:.3f} ± {score.ci95['right']:.3f}")

# %% [markdown]
# `grpokit train toy-lm` runs 260 such steps, and writes a report with all curves. There the share rises from a third to above
# four fifths.
#
# ## Exercise: a finer reward
#
# Write a reward that tells the samples of a group apart more often than `right` does, and that still likes a right answer
# best. Change the body of `mine`. The check below yours counts its silent groups, and its favourites. The check fails
# until yours is right. The last cell holds one answer, folded up in Jupyter: look at it later.


# %%
def mine(samples):
    return right(samples)  # your code


# %% tags=["raises-exception"]
def check(reward):
    scores = torch.tensor(reward(rollout.samples)).reshape(-1, 8)
    quiet = (scores.max(1).values == scores.min(1).values).float().mean().item()
    print(f"silent groups of 8: {quiet:.0%} instead of {silent['right'][sizes.index(8)]:.0%}")
    assert quiet < silent["right"][sizes.index(8)], "it tells apart what `right` does, and no more"
    good = torch.tensor(right(rollout.samples)) == 1
    assert scores.flatten()[good].min() > scores.flatten()[~good].max(), "a wrong answer is paid like a right one"


check(mine)


# %% jupyter={"source_hidden": true} tags=["solution"]
# One answer. Try first.
def one_answer(samples):
    by_thinking = [float(f"={s.prompt.target}" in s.output) for s in samples]  # the sum stands in the thinking
    return [0.7 * r + 0.2 * t + 0.1 * f for r, t, f in zip(right(samples), by_thinking, well_formed(samples))]


check(one_answer)
