# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A world that answers
#
# So far a sample was one picture or one text, and a reward looked at it when it was done. Here a world answers while the sample is being
# made: an environment moves, a game says "higher", a picture is looked at. What the policy decides still has log-probs, what the world
# does has none, and GRPO stays as it is.
#
# [![Open in Colab](open_in_colab.svg)](https://colab.research.google.com/github/grpokit/grpokit/blob/main/tutorials/09_a_world.ipynb)
#
# **You need** `pip install 'grpokit[gym,lm,grounding]'` and about six minutes on two cores of a CPU, two for each of the three parts.
# Nothing is downloaded.

# %%
import importlib.util
import subprocess
import sys
import warnings

warnings.simplefilter("ignore")  # of libraries below, about what they will change one day
needed = ("grpokit_gym", "grpokit_lm", "grpokit_grounding")
if any(importlib.util.find_spec(name) is None for name in needed):  # on Colab, for example
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "grpokit[gym,lm,grounding,picture]"], check=True)

# %%
import matplotlib.pyplot as plt
import torch
from grpokit_gym.starts import starts

from grpokit import Trainer, create, draw, evaluate
from grpokit.advantages import group, returns_to_go
from grpokit.config import presets
from grpokit.notebook import watch
from grpokit.runs import train

torch.set_num_threads(1)  # networks as small as these are faster so

# %% [markdown]
# ## 1. A pole on a cart
#
# In CartPole a cart carries a pole. Each step the policy pushes it to the left or to the right and gets 1 for it, until the pole falls
# or 500 steps are over. A step is a decision. A group is some episodes from one start, so what differs is what the policy decided.

# %%
pole = create("policy", "gym", {"env": "CartPole-v1", "pictures": 6})
rewards = {"return": create("reward", "episode-return")}
(sample,) = draw(pole, starts(limit=1))
print(sample.info)
sample.output

# %% [markdown]
# The plain GRPO gives all decisions of an episode the same advantage, by its return. But what came before a decision is not due to it.
# `returns_to_go` looks at what is earned from a decision on, and compares it with the group at the same step.

# %%
settings = {"prompts_per_step": 1, "group_size": 16, "micro_batch_size": 16, "learning_rate": 3e-3, "device": "cpu"}
figure, places = plt.subplots(1, 2, figsize=(9, 2.6), sharey=True)
for place, advantage in zip(places, (group, returns_to_go), strict=True):
    untrained = create("policy", "gym", {"env": "CartPole-v1"})
    report = Trainer(untrained, rewards, starts(), advantage=advantage, progress=False, **settings).step()
    advantages = report.advantages.reshape(16, -1).expand(report.rollout.mask.shape)
    for row, length in zip(advantages, report.rollout.lengths.tolist(), strict=True):
        place.plot(row[:length])
    place.set(title=advantage.__name__, xlabel="decision")
places[0].set_ylabel("advantage")

# %% [markdown]
# Each line is an episode. On the right, an episode loses credit near its end, where the others were still standing: the pushes shortly
# before the fall are those that learn most.

# %% nbmake={"mock": {"STEPS": 2}}
STEPS = 25

# %%
balancing = create("policy", "gym", {"env": "CartPole-v1", "pictures": 6})
trainer = Trainer(
    balancing,
    rewards,
    starts(),
    steps=STEPS,
    updates_per_rollout=10,
    advantage=returns_to_go,
    progress=False,
    **settings,
)
curve = [report.metrics["reward"] for report in watch(trainer)]

# %%
before, after = (evaluate(policy, rewards, starts("eval")) for policy in (pole, balancing))
figure, places = plt.subplots(1, 3, figsize=(12, 2.6))
places[0].plot(curve)
places[0].set(title="steps until the pole falls, in training", xlabel="step of training")
for place, title, evaluation in ((places[1], "before", before), (places[2], "after", after)):
    place.imshow(evaluation.samples[0].output)
    place.set(title=f"{title}: {evaluation.summary()['return']:.0f} of 500")
    place.axis("off")
