# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # GRPO by hand
#
# Group Relative Policy Optimization fits in six ideas: draw a **group** of samples per prompt, **score** them, compare
# each score with its group (**advantage**), measure how much more likely the policy has become to do the same
# (**importance ratio**), **clip** that ratio, and stay near the policy you started from (**KL**). This notebook writes each
# idea as plain tensor code for `toy-lm`, a character-level model that adds two numbers. At the end `grpokit.Trainer` must
# give the same loss, to rounding, and then make the reward rise.
#
# [![Open in Colab](open_in_colab.svg)](https://colab.research.google.com/github/grpokit/grpokit/blob/main/tutorials/01_grpo_by_hand.ipynb)
#
# **You need** any computer and about a minute of its CPU. Nothing is downloaded.

# %%
import importlib.util
import subprocess
import sys
import warnings

warnings.simplefilter("ignore")  # of libraries below, about bars and about what they will change one day
if importlib.util.find_spec("grpokit_toy") is None:  # on Colab, for example
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "grpokit[toy,picture]"], check=True)

# %%
import matplotlib.pyplot as plt
import torch
from grpokit_toy.lm import sum_prompts

from grpokit import Trainer, create
from grpokit.notebook import watch
from grpokit.objectives import GRPO
from grpokit.sampling import derive_seeds, prompt_indices

torch.set_num_threads(1)  # a net as small as this one is faster so

# %% [markdown]
# ## 1. A policy and some prompts
#
# `toy-lm` was trained on a few solved sums, and the training was stopped early. It knows what an answer looks like, and
# about a third of its answers are right. Here are four of its tries at one problem.

# %%
policy = create("policy", "toy-lm")
prompts = sum_prompts("train")

P, G, SEED = 4, 8, 42  # prompts per step, samples per prompt, and where all randomness comes from
seeds = derive_seeds(SEED, stream="train", step=0, prompts=P, group_size=G)
chosen = [prompts[i] for i in prompt_indices(SEED, 0, per_step=P, total=len(prompts))]
rollout = policy.rollout(chosen, G, seeds=seeds)

for sample in rollout.samples[:4]:
    print(f"{sample.prompt.text} -> {sample.output}   (should be {sample.prompt.target})")

# %% [markdown]
# `rollout` holds the B = P·G samples, the group of each row, a mask of the characters that were sampled, and their
# log-probabilities when they were sampled, `old`. Every draw is a function of the seeds: the same seeds give the same
# samples, whatever the batch size.

# %%
B, T = rollout.mask.shape
print(f"{B} rows of up to {T} decisions; groups {rollout.groups.tolist()}")

# %% [markdown]
# ## 2. Rewards
#
# A reward is a function from samples to numbers. This one gives 1 for the right answer in the right format. A second
# one, which comes with grpokit, gives 0.2 for the format alone, so that a half-right sample is worth more than noise.

# %%
import re

FORM = re.compile(r"<think>[0-9+=;]+</think><answer>([0-9]+)</answer>")


def right(samples):
    matches = [FORM.fullmatch(s.output) for s in samples]
    return [float(m is not None and int(m[1]) == int(s.prompt.target)) for m, s in zip(matches, samples, strict=True)]


well_formed = create("reward", "format", {"pattern": FORM.pattern})

matrix = torch.tensor([right(rollout.samples), well_formed(rollout.samples)], dtype=torch.float64).T  # [B, R]
weights = torch.tensor([1.0, 0.2], dtype=torch.float64)
rewards = (matrix * weights).sum(-1)  # [B, R] -> [B]
print(rewards.reshape(P, G))  # in a table because this rollout's rows stand group by group

# %% [markdown]
# ## 3. Advantages: z-scores inside a group
#
# Was this sample better than the *other samples of the same problem*? Subtract the group's mean and divide by its
# standard deviation. No value network is needed, because the group is the baseline. A group whose samples all have the
# same reward (a zero-std group) teaches nothing, and its advantages are exactly 0.

# %%
advantages = torch.zeros(B, dtype=torch.float64)
for g in rollout.groups.unique():
    rows = rollout.groups == g
    r = rewards[rows]
    if r.max() > r.min():
        advantages[rows] = (r - r.mean()) / (r.std() + 1e-4)
print(advantages.reshape(P, G).numpy().round(2))

figure, places = plt.subplots(1, 2, figsize=(9, 2.2))
for place, values, title in zip(places, (rewards, advantages), ("rewards", "advantages")):
    picture = place.imshow(values.reshape(P, G), cmap="RdBu", vmin=-2, vmax=2)
    place.set(title=title, xlabel="sample of the group", ylabel="group", yticks=range(P))
_ = figure.colorbar(picture, ax=places, shrink=0.8)

# %% [markdown]
# ## 4. Importance ratios
#
# `logprobs` scores the stored characters again, now with gradients. Before the first update it must give exactly the
# log-probabilities of the rollout, so all ratios are 1. If they are not, everything after that is wrong. This is the first
# thing to check in any implementation.

# %%
new = policy.logprobs(rollout, slice(0, T)).logprobs  # [B, T], with gradient
ratio = (new - rollout.old.logprobs).exp()
difference = (new - rollout.old.logprobs)[rollout.mask].abs().max().item()
print(f"largest difference {difference:.1e}")
assert difference < 1e-4

# %% [markdown]
# ## 5. The clipped loss
#
# The loss of a character is -min(ratio·A, clip(ratio, 0.8, 1.2)·A). Good samples become more likely, but a character that
# is already 20 % more likely than before adds no further gain. Take the mean over the characters of each row, and then
# the mean over the rows.
#
# On the first pass all ratios are 1 and the advantages of a group sum to 0, so the loss is about 0. That is correct: the
# *gradient* is not 0.


# %%
def clipped_loss(new, old, advantages, low=0.2, high=0.2):
    ratio = (new - old).exp()
    a = advantages[:, None].to(new.dtype)  # [B] -> [B, 1]
    return -torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a)  # [B, T]


def mean_of_row_means(per_decision, mask):
    kept = torch.where(mask, per_decision, 0.0)
    return (kept.sum(-1) / mask.sum(-1)).mean()  # [B, T] -> [B] -> []


figure, place = plt.subplots(figsize=(5, 2.6))
ratios = torch.linspace(0.5, 1.5, 101)
for advantage in (1.0, -1.0):
    losses_there = clipped_loss(ratios.log()[None], torch.zeros(1, 101), torch.tensor([advantage]))[0]
    place.plot(ratios, losses_there, label=f"advantage {advantage:+.0f}")
place.set(xlabel="importance ratio", ylabel="loss of a character")
_ = place.legend()

first = mean_of_row_means(clipped_loss(new, rollout.old.logprobs, advantages), rollout.mask)
print(f"loss on the first pass: {first.item():+.6f}")

# %% [markdown]
# ## 6. KL: stay near the reference policy
#
# The reference policy is the policy before training. The estimator "k3", exp(d) - d - 1 with d = log p_ref - log p, is
# never negative and is right on average. Before training, the policy *is* the reference policy, so the KL is 0.

# %%
KL_COEF = 0.05
with torch.no_grad(), policy.reference():
    reference = policy.logprobs(rollout, slice(0, T)).logprobs


def k3(new, reference):
    d = reference - new
    return d.exp() - d - 1


print(f"KL before training: {mean_of_row_means(k3(new, reference), rollout.mask).item():.1e}")

# %% [markdown]
# ## 7. Two updates on one rollout
#
# With a single pass all ratios stay at 1. With two passes over the same rollout, the second one has ratios other than 1,
# some of them clipped, and a KL that is no longer 0.

# %%
parameters = list(policy.model.parameters())
optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.0)
losses = []
for update in range(2):
    new = policy.logprobs(rollout, slice(0, T)).logprobs
    per_decision = clipped_loss(new, rollout.old.logprobs, advantages) + KL_COEF * k3(new, reference)
    loss = mean_of_row_means(per_decision, rollout.mask)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad()

    ratio = (new - rollout.old.logprobs).exp()[rollout.mask]
    outside = ((ratio < 0.8) | (ratio > 1.2)).float().mean().item()
    print(
        f"pass {update + 1}: loss {loss.item():+.6f}, ratios {ratio.min().item():.2f} to {ratio.max().item():.2f}, "
        f"{outside:.0%} of them outside the clip range"
    )
    losses.append(loss.item())
assert outside > 0  # the second pass clips

# %% [markdown]
# ## 8. The same with the Trainer
#
# A fresh policy, the same seed and the same numbers, but with micro-batches of 3 rows. The trainer fixes the normalisers
# before it divides the batch, so the micro-batches add up. Its loss is the mean over the two passes.

# %%
trained = create("policy", "toy-lm")
trainer = Trainer(
    trained,
    {"answer": lambda samples: [a + 0.2 * f for a, f in zip(right(samples), well_formed(samples), strict=True)]},
    prompts,
    seed=SEED,
    prompts_per_step=P,
    group_size=G,
    micro_batch_size=3,
    updates_per_rollout=2,
    learning_rate=1e-3,
    objective=GRPO(clip_range=0.2, kl="k3", kl_coef=KL_COEF),
    device="cpu",
    progress=False,
)
print(trainer.describe())
report = trainer.step()

by_hand = sum(losses) / 2
print(f"by hand {by_hand:+.8f}   Trainer.step {report.metrics['loss']:+.8f}")
assert abs(by_hand - report.metrics["loss"]) < 1e-6

# %% [markdown]
# ## 9. Let the reward rise
#
# That is all of GRPO. Now repeat it: 16 problems with 8 tries each, one update a step. The curve is the reward of each
# step's samples, with a running mean.

# %% nbmake={"mock": {"STEPS": 4}}
STEPS = 50

# %%
learner = create("policy", "toy-lm")
sizes = {"prompts_per_step": 16, "group_size": 8, "micro_batch_size": 64}
settings = {"learning_rate": 5e-4, "warmup_steps": 5, "seed": SEED, "device": "cpu", "progress": False}
course = [
    report.metrics["reward"]
    for report in watch(Trainer(learner, {"right": right}, prompts, steps=STEPS, **sizes, **settings))
]
values, window = torch.tensor(course), max(1, STEPS // 10)
figure, place = plt.subplots(figsize=(6, 2.6))
place.plot(values, alpha=0.3)
place.plot(range(window - 1, STEPS), values.unfold(0, window, 1).mean(1), color="C0")
_ = place.set(xlabel="step", ylabel="share of right answers")

# %% [markdown]
# `grpokit train toy-lm` runs longer. On problems that the model has never seen, the share of right answers rises from a third
# to above four fifths.
#
# ## Exercise: advantages without dividing
#
# Dr. GRPO (Liu et al., 2025) subtracts the group's mean and does *not* divide by its standard deviation, so that hard and easy problems
# do not count more. Write it: change the body of `centred`. The check below yours compares it with grpokit's own. The check fails
# until yours is right. The last cell holds one answer, folded up in Jupyter: look at it later.


# %%
def centred(rewards, groups):
    return rewards  # your code


# %% tags=["raises-exception"]
library = create("advantage", "centred")
expected = library(matrix, weights, rollout.groups)


def check(function):
    assert torch.allclose(function(rewards, rollout.groups), expected), "each group's advantages sum to 0"


check(centred)


# %% jupyter={"source_hidden": true} tags=["solution"]
# One answer. Try first.
def one_answer(rewards, groups):
    result = torch.empty_like(rewards)
    for g in groups.unique():
        result[groups == g] = rewards[groups == g] - rewards[groups == g].mean()
    return result


check(one_answer)
