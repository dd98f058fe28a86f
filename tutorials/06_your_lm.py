# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Your language model
#
# The policy `hf-lm` trains a causal language model of Hugging Face transformers, with all of its weights or with a LoRA adapter.
# This notebook trains a tiny one that adds two numbers, and ends with a table of names for people who know TRL.
#
# [![Open in Colab](open_in_colab.svg)](https://colab.research.google.com/github/grpokit/grpokit/blob/main/tutorials/06_your_lm.ipynb)
#
# **You need** `pip install 'grpokit[lm]'` and about two minutes on two cores of a CPU. The model ships with grpokit-lm, so
# nothing is downloaded.

# %%
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("grpokit_lm") is None:  # on Colab, for example
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "grpokit[lm,picture]"], check=True)

# %%
import warnings

warnings.simplefilter("ignore")  # of the libraries below, about what they will change one day

# %%
import json
import re

import matplotlib.pyplot as plt
import torch
from grpokit_lm.tasks.arithmetic import prompts

import grpokit
from grpokit import Prompt, Sample, Trainer
from grpokit.config import presets
from grpokit.runs import train

torch.set_num_threads(1)  # a network as small as this one is faster so

# %% nbmake={"mock": {"STEPS": 2}}
STEPS = 40  # of training
# Or your own: a hub id such as "Qwen/Qwen3-0.6B", or a folder that save_pretrained wrote.
MODEL = "grpokit_lm:models/arithmetic"

# %% [markdown]
# ## 1. The policy
#
# `MODEL` is the only line to change for a model of your own. The first use of a hub id downloads it. With `lora`, the model's own
# weights are frozen, and a small adapter beside them learns. Here is what the tiny model says before any training:

# %%
lora = {"r": 16, "alpha": 32}
policy = grpokit.create("policy", "hf-lm", {"model": MODEL, "dtype": "float32", "max_new_tokens": 32, "lora": lora})
questions = ["What is 27 + 45?", "What is 8 + 64?"]
for sample in grpokit.draw(policy, questions, samples_per_prompt=3, seed=1):
    print(f"{sample.prompt.text}   {sample.output}")

# %% [markdown]
# Only the adapter's parameters will be trained:

# %%
parameters = [weight for module in policy.modules().values() for weight in module.parameters()]
trained = sum(weight.numel() for weight in parameters if weight.requires_grad)
print(f"{trained:,} of {sum(weight.numel() for weight in parameters):,} parameters train")

# %% [markdown]
# ## 2. Rewards
#
# A reward is a function of a list of samples. `sample.output` is the text, `sample.prompt.target` the right answer.
# This one wants the right sum, and a thought before it:

# %%
ANSWER = re.compile(r"<think>[^<]+</think><answer>([0-9]+)</answer>")


def right(samples):
    answers = [ANSWER.fullmatch(sample.output) for sample in samples]
    pairs = zip(answers, samples, strict=True)
    return [float(answer is not None and answer[1] == str(sample.prompt.target)) for answer, sample in pairs]


asked = Prompt(text="What is 27 + 45?", target="72")
tries = ["<think>7+5=12,2+4+1=7</think><answer>72</answer>", "<answer>72</answer>", "72"]
print(right([Sample(prompt=asked, output=text, group=0) for text in tries]))

# %% [markdown]
# A function is enough for `Trainer`. Two steps show that the parts fit:

# %%
trainer = Trainer(policy, [right], prompts(), prompts_per_step=4, group_size=8, micro_batch_size=8, learning_rate=2e-4)
for _ in range(2):
    report = trainer.step()
    print({name: round(report.metrics[name], 3) for name in ("reward", "loss")})

# %% [markdown]
# ## 3. A run
#
# The preset `lm-arithmetic` has the same parts, as a config. `numeric-answer` with a `pattern` is our function `right`, and
# `format` gives a little for the format alone, so that a group without a right answer has something to learn from.

# %%
config, name = presets.read_config(
    "lm-arithmetic",
    [f"policy.model={MODEL}", f"trainer.steps={STEPS}", f"eval.every={STEPS}", "run.dir=runs/06_your_lm"],
)
result = train.train(config, name=name, overwrite=True)
for key in ("right", "format"):
    print(f"{key:6} {result.before.means[key]:.3f} -> {result.after.means[key]:.3f} on held-out sums")
assert result.steps == STEPS

# %%
rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
rewards = [row["reward"] for row in rows if "reward" in row]
figure, place = plt.subplots(figsize=(8, 3))
place.plot(range(1, len(rewards) + 1), rewards)
_ = place.set(xlabel="step", ylabel="reward", title="mean reward of a step's samples")

# %% [markdown]
# The same questions once more, answered by the trained model. Six draws say little; the held-out scores above are
# what counts. The model has mostly learnt to think before it answers.

# %%
learnt = grpokit.load(result.folder)
for sample in grpokit.draw(learnt, questions, samples_per_prompt=3, seed=1):
    print(f"{sample.prompt.text}   {sample.output}")

# %% [markdown]
# `grpokit export` writes the adapter in peft's format. It loads into the model by
# `PeftModel.from_pretrained(model, "exported")`.

# %%
exported = result.folder / "exported"
command = [sys.executable, "-m", "grpokit", "export", str(result.folder), "--to", str(exported)]
finished = subprocess.run(command, capture_output=True, text=True)
assert finished.returncode == 0, finished.stderr
print(*sorted(file.name for file in exported.iterdir()), sep="\n")

# %% [markdown]
# ## 4. If you know TRL
#
# | `GRPOConfig`, `GRPOTrainer` | grpokit | note |
# |---|---|---|
# | `model`, `peft_config` | `policy.model`, `policy.lora` | |
# | `max_completion_length` (512) | `policy.max_new_tokens` (256) | |
# | `temperature`, `top_p`, `top_k`, `min_p` | the same, in `policy` | log-probs know all four |
# | `train_dataset`, `eval_dataset` | `data` | |
# | `reward_funcs`, `reward_weights` | `rewards`, each with its `weight` | functions stay as they are; weight 0 is a monitor |
# | `num_generations` (8) | `trainer.group_size` (8) | |
# | `generation_batch_size` | `trainer.prompts_per_step` x `trainer.group_size` | rows of a step |
# | `per_device_train_batch_size` | `trainer.micro_batch_size` | rows in one pass |
# | `steps_per_generation`, `gradient_accumulation_steps` | `trainer.minibatches` | ours counts the optimizer steps of one pass over a rollout |
# | `num_iterations` | `trainer.updates_per_rollout` | |
# | `max_steps` | `trainer.steps` | one step is one rollout |
# | `loss_type` (`dapo`) | `trainer.objective` (`grpo`) | |
# | `beta`, `epsilon` | `trainer.kl_coef`, `trainer.clip_range` | |
# | `scale_rewards`: `group`, `none` | `trainer.advantage`: `group`, `centred` | |
# | `report_to`, `output_dir` | `trackers.use`, `run.dir` | |
#
# The page *Language models* of the documentation has every field, and those without a counterpart.
#
# ## Exercise
#
# A `GRPOConfig` has `generation_batch_size=64`, `num_generations=8`, `steps_per_generation=4` and
# `gradient_accumulation_steps=1`. Which three keys of `trainer` say the same? Change `answer`. The check fails
# until yours is right. The last cell holds one answer, folded up in Jupyter: look at it later.

# %%
answer = {"group_size": 4}  # two keys are missing, and this number is not right


# %% tags=["raises-exception"]
def check(keys):
    config, _ = presets.read_config("lm-arithmetic", [f"trainer.{key}={value}" for key, value in keys.items()])
    assert config.trainer.prompts_per_step * config.trainer.group_size == 64, "64 rows are drawn in a step"
    assert config.trainer.group_size == 8
    assert config.trainer.minibatches == 4
    print("right")


check(answer)

# %% jupyter={"source_hidden": true} tags=["solution"]
# One answer. Try first.
one_answer = {"group_size": 8, "prompts_per_step": 8, "minibatches": 4}
check(one_answer)
