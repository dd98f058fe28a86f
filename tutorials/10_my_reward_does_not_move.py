# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # My reward does not move
#
# Flat curves have many causes, and they all look alike. Here are four sick runs. You train each of them, look at its curve,
# and guess. Then `grpokit diagnose` measures where the signal is lost, and you heal the run with its advice. In the end you
# know which figure tells which cause.
#
# [![Open in Colab](open_in_colab.svg)](https://colab.research.google.com/github/grpokit/grpokit/blob/main/tutorials/10_my_reward_does_not_move.ipynb)
#
# **You need** `pip install 'grpokit[demo]'` and about three minutes on two cores of a CPU, at most a minute and a half for
# each patient. Nothing is downloaded. [01_grpo_by_hand](01_grpo_by_hand.ipynb) explains the terms: group, advantage, KL.

# %%
import importlib.util
import subprocess
import sys
import warnings

warnings.simplefilter("ignore")  # of libraries below, about bars and about what they will change one day
if any(
    importlib.util.find_spec(name) is None for name in ("grpokit_toy", "grpokit_diagnosis")
):  # on Colab, for example
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "grpokit[demo]"], check=True)

# %%
import codecs
import json
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from grpokit_diagnosis import diagnose
from grpokit_toy.data import glyph_prompts

from grpokit import create, draw
from grpokit.config import presets
from grpokit.runs import train

torch.set_num_threads(1)  # nets as small as these are faster so

# %% [markdown]
# Two presets are the patients. `toy-flow` is asked to land points on a ring, and its reward is the share of hits.
# `toy-glyph` draws a word, and `ssim` compares the picture with the target. Both are shortened, and both learn well as they
# are. One key of each is changed, which makes it sick. The changes are written in rot13 (each letter moves by 13 places),
# so that you don't read them by accident.

# %% nbmake={"mock": {"FLOW_STEPS": 3, "GLYPH_STEPS": 3}}
FLOW_STEPS, GLYPH_STEPS = 120, 30

# %%
PATIENTS = {
    "toy-flow": [
        f"trainer.steps={FLOW_STEPS}",
        "trainer.micro_batch_size=512",
        f"eval.every={FLOW_STEPS // 3}",
        f"run.save_every={FLOW_STEPS // 3}",
    ],
    "toy-glyph": [
        f"trainer.steps={GLYPH_STEPS}",
        "rewards=[{use: ssim}]",
        f"eval.every={GLYPH_STEPS // 3}",
        f"run.save_every={GLYPH_STEPS // 3}",
    ],
}


def run(source, name, overrides):
    """Train a preset, or a config file, with changes; returns the run's folder."""
    folder = Path("runs") / f"10_{name}"
    config, _ = presets.read_config(source, [*overrides, f"run.dir={folder}"])
    train.train(config, name=name, overwrite=True)
    return folder


def sick_run(preset, name, secret):
    """Train a patient."""
    return run(preset, name, [*PATIENTS[preset], codecs.decode(secret, "rot13")])


def treated_run(sick, name, overrides):
    """Train a run's config once more, with changes."""
    return run(sick / "config.yaml", name, overrides)


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def plot(score="reward", **folders):
    """Draw a score of runs: in training, and on held-out prompts with 95 % intervals."""
    _, (left, right) = plt.subplots(1, 2, figsize=(10, 2.6), sharey=True, layout="constrained")
    key = "reward" if score == "reward" else f"rewards/{score}/mean"
    for name, folder in folders.items():
        steps = [row for row in lines(folder / "metrics.jsonl") if key in row]
        left.plot([row["step"] for row in steps], [row[key] for row in steps])
        evaluations = lines(folder / "eval.jsonl")
        means = [row["means"][score] for row in evaluations]
        widths = [row["ci95"][score] for row in evaluations]
        right.errorbar(
            [row["step"] for row in evaluations], means, widths, marker="o", capsize=3, label=name.replace("_", " ")
        )
        print(f"{name:>14}: {means[0]:6.3f} before, {means[-1]:6.3f} ± {widths[-1]:.3f} after, on held-out prompts")
    worst = -1 if means[0] < 0 else 0  # the scale of the reward, on which a flat curve looks flat
    left.set(title="in training", xlabel="step", ylabel=score, ylim=(worst, worst + 1.03))
    right.set(title="on held-out prompts", xlabel="step")
    right.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


# %% [markdown]
# ## 1. The first patient
#
# `toy-flow`, with one key changed:

# %%
first = sick_run("toy-flow", "first", "genvare.yrneavat_engr=1r-4")
plot(sick=first)

# %% [markdown]
# Is the reward flat, or does it rise too slowly to see? Is it the reward, the gradient, the step, the KL? **Write down a
# guess** before you go on.
#
# `diagnose` first reads what every step has logged. That takes a second, and needs no policy:

# %%
print(diagnose(first))

# %% [markdown]
# Nothing stands out. Read what is fine, too: it rules out some suspects. But a log cannot say what *would have* happened
# with a longer step. A probe can. It loads the last checkpoint, takes some of the run's next steps, each from the same
# weights, and tries steps of other lengths. The run itself stays as it is.


# %%
def tell(diagnosis, *topics):
    """Print the causes and, of what was looked at and is fine, some topics."""
    causes, _ = str(diagnosis).split("\nlooked at and fine")
    fine = [f"Fine: {look.topic}: {look.figures}" for look in diagnosis.fine if look.topic in topics]
    for line in [*causes.splitlines(), *fine]:
        print(textwrap.fill(line, 84, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False))


diagnosis = diagnose(first, probe=True)
tell(diagnosis, "KL against the rewards")

# %% [markdown]
# Two figures matter. The first is the **reach**. Even if all steps of the run pull the same way, they change log-probs by
# about a tenth of a nat (the unit of log-probs), and runs that learn go much further. Such a policy stays where it is.
#
# The second is the **paired line search**. It takes one update, stretches or shortens it, and evaluates each length on the
# same prompts with the same random numbers, so that even a small difference shows. A step that is too long would lower the
# reward. Here not even a hundred steps at once do: there is room above.
#
# We follow the advice. Its `overrides` are keys to change in the run's own config:


# %%
def advice(diagnosis):
    """The overrides of the first cause; none where no cause was found."""
    causes = diagnosis.as_json()["causes"]
    overrides = causes[0]["overrides"] if causes else []
    print("advice:", *overrides)
    return overrides


faster = treated_run(first, "first_faster", advice(diagnosis))
plot(sick=first, healed=faster)

# %% [markdown]
# The patient had a thirtieth of its learning rate. Nothing was wrong with the direction of its steps: they only led
# nowhere.
#
# ## 2. The second patient
#
# `toy-flow` again, with another key changed. The curve looks the same:

# %%
second = sick_run("toy-flow", "second", "genvare.xy_pbrs=20")
plot(sick=second)

# %% [markdown]
# **Your guess?** What is logged says as little as before, so we probe at once:

# %%
diagnosis = diagnose(second, probe=True)
tell(diagnosis, "length of a step")

# %% [markdown]
# Length is not the trouble here: the reach is larger, and the line search finds a limit. A hundred steps at once would
# lower the reward. But the gradient has two parts, and the KL's is longer than that of the rewards. A KL is a spring
# between the policy and the untrained one. It does not pull at the start, and pulls harder with the distance. The policy
# moves until both pulls are equal, and stops there.

# %%
weaker = treated_run(second, "second_weaker", advice(diagnosis))
plot(sick=second, weaker_spring=weaker)

# %% [markdown]
# How much weaker must the spring be? The ratio of the two pulls does not say it, since they are equal in the end with any
# spring. The distance does: the logged `kl` says how far the policy got, and the advice lets it go as far as a tenth of a nat.
#
# The patient had a hundred times its `kl_coef`. Should it be 0? Then nothing keeps the points from gathering on one spot of
# the ring. The reward would not mind. A KL is there for what the reward does not say, so make it weak enough to learn, and
# no weaker.
#
# ## 3. The third patient
#
# `toy-glyph` draws words. All evaluations here are at temperature 1, whatever is done in training.

# %%
secret = codecs.decode("cbyvpl.grzcrengher=0.1", "rot13")
third = run("toy-glyph", "third", [*PATIENTS["toy-glyph"], "policy.eval_temperature=1", secret])
plot(sick=third)

# %% [markdown]
# Look at the left side: the reward in training starts high and goes down. **Your guess?** First what was logged:

# %%
tell(diagnose(third))

# %% [markdown]
# Most groups have no spread: all their samples score the same, so there is nothing to prefer, and their advantages are 0.
# That is right. But the log only has scores, so it blames the reward. Can you refute it? (Look at the right side once more:
# at temperature 1 the same policy is far from a reward of 1.) A probe also sees the samples:

# %%
diagnosis = diagnose(third, probe=True)
tell(diagnosis)

# %% [markdown]
# The reward is innocent: the pictures themselves hardly differ. The figure to read is the **headroom**, which is how far the
# best sample of a group is above the mean. GRPO selects among what the policy draws, so this is all that a step can teach.
# Here is one group at both temperatures:

# %%
for temperature in (0.1, 1.0):
    policy = create("policy", "toy-glyph", {"temperature": temperature})
    group = draw(policy, glyph_prompts("train")[3:4], samples_per_prompt=8, seed=1)
    figure, places = plt.subplots(1, len(group), figsize=(12, 1), layout="constrained")
    figure.suptitle(f"temperature {temperature}", fontsize=10, x=0.01, ha="left")
    for place, sample in zip(places, group, strict=True):
        place.imshow(sample.output)
        place.axis("off")

# %% [markdown]
# A low temperature is for showing pictures, a high one is for learning. Why did the reward fall, and not just stay? The
# next cause in the list tells: steps are too long. Dividing by a temperature of 0.1 makes each change of the network ten
# times as large in the log-probs. That is a consequence, and goes away with the first cause. Causes are listed in the order
# in which the signal goes, from the reward to the weights. Treat the first one first.

# %%
varied = treated_run(third, "third_varied", advice(diagnosis))
plot(sick=third, healed=varied)

# %% [markdown]
# The curves in training start at different heights, since a temperature of 0.1 already draws the likeliest pictures. Only
# the right side compares like with like.
#
# ## 4. The fourth patient
#
# The last one is not flat at all:

# %%
fourth = sick_run("toy-glyph", "fourth", "erjneqf.0.jrvtug=-1")
plot(total=fourth)
tell(diagnose(fourth))

# %% [markdown]
# A lovely curve, and nothing to complain about in the log. Now look at what it draws:


# %%
def show_pictures(folder, step):
    """Show the first pictures of an evaluation."""
    place = folder / "samples" / f"step_{step:06d}"
    samples = lines(place / "samples.jsonl")[:6]
    figure, places = plt.subplots(1, len(samples), figsize=(12, 1.2), layout="constrained")
    figure.suptitle(f"after {step} steps", fontsize=10, x=0.01, ha="left")
    for axes, sample in zip(places, samples, strict=True):
        axes.imshow(plt.imread(place / sample["file"]))
        axes.axis("off")


show_pictures(fourth, 0)
show_pictures(fourth, GLYPH_STEPS)

# %%
diagnosis = diagnose(fourth, probe=True)
tell(diagnosis, "length of a step", "direction of the gradient")

# %% [markdown]
# The probe has a witness: the **target** pictures themselves. It lets the reward score them as if the policy had drawn
# them. A reward that prefers nearly every sample to its target has the wrong sign.
#
# No curve can show this, and no gradient either. See what is fine: the line search rises, and the gradient is as good as
# any. Here is how to read its **noise scale** ([McCandlish et al., 2018](https://arxiv.org/abs/1812.06162)). Every group of
# samples gives a gradient of its own. What they have in common is signal, the rest is noise, and the mean over more groups
# has less of it. A step here has 8 groups, and it would take four times as many until signal equals noise. So two steps
# agree little. That is usual, and good enough: over many steps the noise averages out. These figures tell how well a run
# climbs. Only the targets tell whether it is the right hill.

# %%
turned = treated_run(fourth, "fourth_turned", advice(diagnosis))
plot("ssim", sick=fourth, healed=turned)
show_pictures(turned, GLYPH_STEPS)

# %% [markdown]
# ## What to remember
#
# | you see | it may be | the figure that tells |
# |---|---|---|
# | flat | the step is too short | reach; a line search that does no harm at any length |
# | flat | the KL is too strong | the KL's gradient against that of the rewards |
# | flat or falling, groups without spread | samples are alike | headroom, and whether the outputs are the same |
# | rising, and the samples get worse | the reward's sign | the scores of the targets |
#
# In a shell it is `grpokit diagnose runs/10_first --probe`, and the run's report then has a panel "Why".
# `docs/diagnosis.md` lists all causes.
#
# ## Exercise: a fifth patient
#
# Its curve is as flat as the first one's, and its steps are as short. Yet the cause is another one. Diagnose the run
# `fifth`, and return the cause's id and the key that heals it. The check fails until yours are right. The last cell holds
# one answer, folded up in Jupyter: look at it later.

# %%
fifth = sick_run("toy-glyph", "fifth", "genvare.nqnz_rcfvyba=1")
plot(sick=fifth)


# %%
def treatment():
    return "step-too-short", "trainer.learning_rate=3e-2"  # your cause, and your key=value


# %% tags=["raises-exception"]
def causes_of(folder):
    return [cause["id"] for cause in diagnose(folder).as_json()["causes"]]


def check(answer):
    cause, override = answer
    assert cause in causes_of(fifth), f"the log does not show {cause}"
    healed = treated_run(fifth, "fifth_healed", [override])
    plot(sick=fifth, yours=healed)
    assert cause not in causes_of(healed), f"{cause} is still there"


check(treatment())


# %% jupyter={"source_hidden": true} tags=["solution"]
# One answer. Try first.
def one_answer():
    return "epsilon-swallows", "trainer.adam_epsilon=1e-8"


check(one_answer())

# %% [markdown]
# Adam divides the mean of the gradient by its size plus epsilon, which is there to guard against a division by zero. An
# epsilon that is larger than the gradients makes every update tiny. A probe of this run also measures a tiny reach.
# But what never arrives comes before how long it is.
