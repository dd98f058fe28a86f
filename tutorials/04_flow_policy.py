# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A flow policy: decisions that are numbers
#
# Diffusion and flow models do not choose tokens. They move noise towards a picture, step by step. This notebook turns these steps into
# decisions with exact log-probs, and trains `toy-flow`, a flow model of points in the plane, to land on the ring that a prompt names.
#
# [![Open in Colab](open_in_colab.svg)](https://colab.research.google.com/github/grpokit/grpokit/blob/main/tutorials/04_flow_policy.ipynb)
#
# **You need** any computer and less than a minute of its CPU. What you see here is what `glm-image-dit` and `diffusers-flow` do with
# latents of a picture in place of points.

# %%
import importlib.util
import subprocess
import sys
import warnings

warnings.simplefilter("ignore")  # of libraries below, about bars and about what they will change one day
if any(importlib.util.find_spec(name) is None for name in ("grpokit_toy", "grpokit_hf")):  # on Colab, for example
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "grpokit[toy,picture]", "grpokit-hf"], check=True)

# %%
import math

import matplotlib.pyplot as plt
import torch
from grpokit_hf.diffusion.windows import Window
from grpokit_toy.flow import ring_prompts

from grpokit import Trainer, create, draw, evaluate, flow
from grpokit.notebook import watch
from grpokit.sampling import derive_seeds

torch.set_num_threads(1)  # a net as small as this one is faster so

# %% [markdown]
# ## 1. From noise to a point
#
# The network gives a velocity `v(x, t)` for each point `x` and time `t`. Time runs from 1, where all is noise, to 0. Following the
# velocity is an ordinary differential equation (ODE): the same noise always ends in the same point.


# %%
def paths(policy, *, evaluate=False, rows=128, text="a ring of radius 1.00"):
    seeds = derive_seeds(0, stream="train", step=0, prompts=1, group_size=rows)
    prompt = [p for p in ring_prompts("train") if p.text == text] or ring_prompts("train")[:1]
    with torch.no_grad():
        return policy.rollout(prompt, rows, seeds=seeds, evaluate=evaluate)


def plot_paths(place, rollout, title, lines=24):
    latents = rollout.trace.per_row["latents"]  # [B, K + 1, 2], from noise to the output
    for path in latents[:lines]:
        place.plot(*path.T, color="gray", linewidth=0.6, alpha=0.6)
    place.scatter(*latents[:, 0].T, s=4, color="C1", label="noise")
    place.scatter(*latents[:, -1].T, s=6, color="C0", label="point")
    place.set(title=title, xlim=(-3, 3), ylim=(-3, 3), aspect="equal")


policy = create("policy", "toy-flow")
figure, places = plt.subplots(1, 3, figsize=(11, 3.6))
plot_paths(places[0], paths(policy, evaluate=True), "ODE")
plot_paths(places[1], paths(policy), "Flow-SDE, noise 0.7")
plot_paths(places[2], paths(create("policy", "toy-flow", {"noise": 1.5})), "Flow-SDE, noise 1.5")
_ = places[0].legend(loc="lower left")

# %% [markdown]
# GRPO needs samples that differ and a probability for each. The ODE has neither. A *stochastic* differential equation (SDE) adds
# noise at each step, and corrects the velocity so that the points still end in the same cloud. Each step is then a Gaussian: a
# decision with a mean and a standard deviation. With more noise the paths wander more.
#
# ## 2. The same cloud
#
# The untrained flow ends in a broad blob. Its spread should not depend on the sampler, apart from the error of ten finite steps.

# %%
for name, settings in (
    ("ODE", None),
    ("Flow-SDE 0.7", {}),
    ("Dance-SDE 0.3", {"sampler": "dance-sde"}),
    ("CPS 0.8", {"sampler": "cps"}),
):
    drawn = paths(create("policy", "toy-flow", settings or {}), evaluate=settings is None, rows=4096)
    points = drawn.trace.per_row["latents"][:, -1]
    print(f"{name:14} std of the points {points.std(0).mean():.3f}, decisions per sample {drawn.mask.shape[1]}")

# %% [markdown]
# In evaluation nothing is decided, and the ODE takes 20 steps. Flow-SDE and Dance-SDE come near its spread. CPS keeps the share of
# noise right at each step, and not the cloud: its points lie closer together.
#
# ## 3. The log-prob of a step, by hand
#
# A step goes from `x` to a Gaussian around `x_coef * x + v_coef * v`. Its log-prob is the log-density at the point where the step
# really ended. grpokit takes the *mean* over the dimensions and not the sum: a latent has 65,536 dimensions, and clip ranges of
# published runs are meant per dimension.

# %%
rollout = paths(policy, rows=8)
k = 4  # any step
x, x_next = rollout.trace.per_row["latents"][:, k], rollout.trace.per_row["latents"][:, k + 1]
ring = rollout.trace.per_group["radius"][rollout.group_index].to(x)
with torch.no_grad():
    velocity = policy.net(x, policy.sigmas[k].to(x).expand(len(x)), ring)
step = flow.kernel("flow-sde", policy.sigmas[k], policy.sigmas[k + 1], noise=0.7)
mean = step.x_coef * x + step.v_coef * velocity
density = -(((x_next - mean) / step.std) ** 2) / 2 - math.log(step.std) - math.log(2 * math.pi) / 2
by_hand = density.mean(-1)

with torch.no_grad():
    scored = policy.logprobs(rollout, slice(k, k + 1)).logprobs[:, 0]
print("by hand       ", by_hand.numpy().round(3))
print("policy        ", scored.numpy().round(3))
print("while drawing ", rollout.old.logprobs[:, k].numpy().round(3))
assert torch.allclose(by_hand.float(), scored, atol=1e-4)
assert torch.allclose(scored, rollout.old.logprobs[:, k], atol=1e-4)

# %% [markdown]
# The three lines must agree. If the second and the third differ, importance ratios are not 1 before the first update, and everything after that
# is wrong.
#
# ## 4. Windows: not every step has to be a decision
#
# With a large denoiser each decision costs a forward and a backward pass. So large runs decide only inside a *window* of a few steps,
# and follow the ODE elsewhere. `random` puts each group's window anywhere in the first part of the schedule; `sliding` moves one window from
# noise to data while training goes on.

# %%
figure, places = plt.subplots(1, 2, figsize=(9, 2.4), sharey=True)
for place, window, title in (
    (places[0], Window(width=2, share=0.6), "random: a group in each row"),
    (places[1], Window(width=2, start="sliding", every=3), "sliding: a training step in each row"),
):
    steps = torch.zeros(20, 10)
    for row in range(20):
        group_seed = int(derive_seeds(0, stream="train", step=row, prompts=1, group_size=1).group[0])
        first = window.first(group_seed, step=row, decisions=10)
        steps[row, first : first + window.width] = 1
    place.imshow(steps, cmap="Blues", aspect="auto")
    place.set(title=title, xlabel="step of the schedule, from noise")

# %% [markdown]
# ## 5. Train
#
# The reward is hit or miss: 1 if a point lies anywhere on the ring.

# %% nbmake={"mock": {"STEPS": 6}}
STEPS = 60

# %%
trained = create("policy", "toy-flow")
ring_reward = {"ring": create("reward", "ring")}
trainer = Trainer(
    trained,
    ring_reward,
    ring_prompts("train"),
    steps=STEPS,
    prompts_per_step=8,
    group_size=16,
    micro_batch_size=128,
    minibatches=4,
    learning_rate=1e-2,
    device="cpu",
    progress=False,
)
curve = [report.metrics["reward"] for report in watch(trainer)]
figure, places = plt.subplots(1, 3, figsize=(11, 3.4))
places[0].plot(curve)
places[0].set(title="share of hits in training", xlabel="step", ylim=(0, 1))
plot_paths(places[1], paths(policy, evaluate=True), "ODE before")
plot_paths(places[2], paths(trained, evaluate=True), "ODE after")
for place in places[1:]:
    place.add_patch(plt.Circle((0, 0), float(ring[0]), fill=False, color="C3"))

# %%
for name, it in (("before", policy), ("after", trained)):
    score = evaluate(it, ring_reward, ring_prompts("eval"), samples_per_prompt=32).summary
    print(
        f"{name:6} {score.means['ring']:.3f} ± {score.ci95['ring']:.3f} of the points on rings that were never trained on"
    )

# %% [markdown]
# It was trained with the SDE and is used with the ODE: what was learnt carries over. But look where the points are. One
# spot on the ring scores as well as the whole ring, so all points went there. `draw` shows the same:

# %%
for sample in draw(trained, ["a ring of radius 0.85"], samples_per_prompt=3):
    print("x = {:.2f}, y = {:.2f}".format(*sample.output))

# %% [markdown]
# The preset `toy-flow` adds an exact KL to the start (`kl: gaussian`), which keeps the points spread: `grpokit train toy-flow`.
#
# ## Exercise: how much noise?
#
# `std` of a step is the noise that GRPO explores with. Find the noise level of Flow-SDE with which the fifth step has a std of
# 0.5, to within 0.01. Change `level`. The check fails
# until yours is right. The last cell holds one answer, folded up in Jupyter: look at it later.

# %%
level = 0.7  # your number


# %% tags=["raises-exception"]
def check(noise):
    std = float(flow.kernel("flow-sde", policy.sigmas[4], policy.sigmas[5], noise=noise).std)
    print(f"noise {noise}: std {std:.3f}")
    assert abs(std - 0.5) < 0.01, "more noise makes it larger"


check(level)

# %% jupyter={"source_hidden": true} tags=["solution"]
# One answer. Try first.
one_answer = 1.29
check(one_answer)
