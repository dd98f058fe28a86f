# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # GLM-Image in full
#
# This is a real run from end to end: from your prompts and pictures to an adapter that other programs load. Every cell runs on a CPU with a
# random 1 MB GLM-Image; one line at the top chooses the released model instead.
#
# [![Open in Colab](open_in_colab.svg)](https://colab.research.google.com/github/grpokit/grpokit/blob/main/tutorials/08_glm_image_full.ipynb)
#
# **You need**, for the tiny form, a laptop and a minute of its CPU. For the full run: a GPU of 80 GB, 33 GB of disk for the
# model, and according to `grpokit plan` about three and a half minutes a step at 1024 x 1024, most of it painting. The full form has not
# been run yet; all of its parts are tested on small models of the same classes.

# %%
import importlib.util
import subprocess
import sys
import warnings

warnings.simplefilter("ignore")  # of libraries below, about bars and about what they will change one day
if importlib.util.find_spec("grpokit_glm_image") is None:  # on Colab, for example
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "grpokit[glm-image-rewards,picture]"], check=True)

# %% nbmake={"mock": {"STEPS": 2}}
MODEL, SIZE, STEPS = "tiny", (64, 96), 8
# MODEL, SIZE, STEPS = "zai-org/GLM-Image", (1024, 1024), 200  # the full run

# %% [markdown]
# ## 1. Does it fit, and how long does it take?
#
# `grpokit plan` answers before anything is fetched. It counts bytes and operations, says what it assumed, and names remedies where a run
# does not fit. This is the preset of the full run on an H100:

# %%
import os
import shutil
import tempfile
from pathlib import Path

grpokit = [sys.executable, "-m", "grpokit"]
folder = Path(tempfile.mkdtemp())
os.environ.pop("FORCE_COLOR", None)  # plain text in the outputs below


def command(*words):
    """Run a grpokit command in the folder of this run, and show what it prints."""
    done = subprocess.run([*grpokit, *words], cwd=folder, capture_output=True, text=True)
    print(done.stdout.replace(str(folder), "..."))
    assert done.returncode == 0, done.stderr


command("plan", "glm-image-t2i", "--gpu", "80 GB")

# %% [markdown]
# Painting takes nine tenths of a step. The first remedy is a cheaper `decode` in training: fewer denoising steps, no guidance, or a
# smaller picture. GRPO only needs the *order* of rewards inside a group, and
# `python -m grpokit_glm_image.decodes` measures whether a cheap decode keeps it.

# %%
command("plan", "glm-image-t2i", "policy.decode={steps: 8, guidance: 1.0}", "--gpu", "80 GB")

# %% [markdown]
# ## 2. Your data
#
# One prompt per line in `prompts.txt`, and for each a picture `target_images/<line number>.png`. Text that a picture should show is
# in double quotes. Here we draw a few; for the full run put your own files there.

# %%
import matplotlib.pyplot as plt
from PIL import Image, ImageDraw

words = ("CAFE", "OPEN", "SALE", "TAXI", "HOTEL", "BAKERY", "MUSIC", "BOOKS", "CINEMA", "GARDEN")
(folder / "target_images").mkdir()
lines = []
for number, word in enumerate(words, 1):
    picture = Image.new("RGB", SIZE[::-1], ("#f4e7c5", "#d9ead3", "#cfe2f3")[number % 3])
    ImageDraw.Draw(picture).text((SIZE[1] / 2, SIZE[0] / 2), word, fill="#222255", anchor="mm", font_size=SIZE[1] // 6)
    picture.save(folder / "target_images" / f"{number}.png")
    lines.append(f'A sign that says "{word}"')
(folder / "prompts.txt").write_text("\n".join(lines) + "\n")

figure, places = plt.subplots(1, 4, figsize=(9, 1.8), layout="constrained")
for number, place in enumerate(places, 1):
    place.imshow(Image.open(folder / "target_images" / f"{number}.png"))
    place.set_title(lines[number - 1], fontsize=8)
    place.axis("off")

# %% [markdown]
# ## 3. The config
#
# Both halves learn in turn: first the half that writes (what is in the picture, and which letters), then the half that paints. Each phase
# has its own rates. `ssim` compares with your pictures, `ocr` reads them. A random model cannot learn to draw, so in its tiny form
# we add `brightness`, which it can raise.

# %%
rewards = "  - {use: ssim, weight: 0.5}\n  - {use: ocr, weight: 0.5}\n"
if MODEL == "tiny":
    rewards = "  - {use: brightness, weight: 0.8}\n  - {use: ssim, weight: 0.2}\n"
config = f"""
seed: 0
policy:
  use: glm-image
  model: {MODEL}
  size: {list(SIZE)}
  ar: {{lora: {{r: 8}}, decode: {{steps: 8, guidance: 1.0}}, train_tokens: large}}
  dit: {{lora: {{r: 8}}, steps: 8, window: {{width: 2}}, eval_steps: 20}}
data: {{prompts: prompts.txt, targets: target_images}}
eval: {{fraction: 0.2, every: {STEPS}, samples: 4}}
rewards:
{rewards}
trainer: {{prompts_per_step: 4, group_size: 8, micro_batch_size: 8, advantage: gdpo, kl_coef: 0}}
phases:
  - {{name: writing, policy: ar, steps: {STEPS}, trainer: {{learning_rate: 2.0e-3}}}}
  - {{name: painting, policy: dit, steps: {STEPS}, trainer: {{learning_rate: 2.0e-3}}}}
rounds: 1
run: {{dir: run, threads: 1}}
"""
if MODEL != "tiny":
    config = config.replace("2.0e-3", "2.0e-5").replace(
        "lora: {r: 8}", "lora: {r: 32, alpha: 64}, gradient_checkpointing: true"
    )
(folder / "glm.yaml").write_text(config)

# %% [markdown]
# ## 4. Look before you train
#
# `--dry-run` builds everything, draws one group, scores it, and writes nothing. Read the output: are the prompts yours, do the
# scores make sense?

# %%
command("train", "glm.yaml", "--dry-run")

# %% [markdown]
# ## 5. Train
#
# In a terminal you would type `grpokit train glm.yaml`, and `grpokit watch run` beside it to follow it in a browser. Ctrl-C finishes
# the step and saves; `--resume` continues bit for bit.

# %%
command("train", "glm.yaml")

# %% [markdown]
# The report, `run/report.html`, opens with a verdict, then shows pictures before and after, curves with the phases shaded, and
# the best and worst groups. In it, look for these: do the held-out rewards rise by more than their interval? Does any picture look worse
# although its score rose? Is `logprob_diff` small? The headline as a picture:

# %%
Image.open(folder / "run" / "report.png")

# %% [markdown]
# ## 6. The adapters elsewhere
#
# `export` writes an adapter for each half, with a model card. They load into the stock pipeline of diffusers, in a program that knows nothing
# of grpokit.

# %%
command("export", "run", "--to", "adapters")
print(*sorted(str(path.relative_to(folder)) for path in (folder / "adapters").rglob("*") if path.is_file()), sep="\n")

# %%
import diffusers
import transformers
from diffusers import GlmImagePipeline
from peft import PeftModel

for library in (diffusers, transformers):  # no bars and no hints in this notebook
    library.utils.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()

if MODEL == "tiny":  # a folder that stands for the released model
    from grpokit_glm_image.tiny import tiny_pipeline

    tiny_pipeline().save_pretrained(folder / "base")
pipe = GlmImagePipeline.from_pretrained(folder / "base" if MODEL == "tiny" else MODEL)
PeftModel.from_pretrained(pipe.vision_language_encoder, folder / "adapters" / "ar")  # changes the pipeline's own layers
pipe.transformer.load_lora_adapter(folder / "adapters" / "dit", use_safetensors=True)
pipe.set_progress_bar_config(disable=True)
pipe(lines[0], height=SIZE[0], width=SIZE[1], num_inference_steps=4).images[0]

# %% [markdown]
# **ComfyUI.** Its LoRA loader does not know GLM-Image. It does know SD3, FLUX.1, Qwen-Image and Z-Image, which the policy
# `diffusers-flow` trains, and reads the file `pytorch_lora_weights.safetensors` that `grpokit export` writes for them. `grpokit export
# --merge` writes a whole pipeline, for programs that load no adapters.
#
# ## Exercise: make a step cheaper
#
# By how much does a smaller picture help? Choose a size, and see by `grpokit plan` how long a step of the full run takes with it. The check
# wants less than a minute. Change `overrides`. The check fails
# until yours is right. The last cell holds one answer, folded up in Jupyter: look at it later.

# %%
overrides = []  # your settings, such as "policy.size=[768, 768]"


# %% tags=["raises-exception"]
def check(settings):
    question = [*grpokit, "plan", "glm-image-t2i", *settings, "--gpu", "80 GB"]
    answer = subprocess.run(question, cwd=folder, capture_output=True, text=True).stdout.splitlines()
    times = next(answer[place + 1] for place, line in enumerate(answer) if line.startswith("time, s"))
    seconds = float(times.split()[-1])  # the sum
    print(f"{seconds:.0f} seconds a step")
    assert seconds < 60


check(overrides)

# %% jupyter={"source_hidden": true} tags=["solution"]
# One answer. Try first.
one_answer = ["policy.size=[512, 512]", "policy.decode={steps: 10, guidance: 1.0}"]
check(one_answer)
shutil.rmtree(folder)
