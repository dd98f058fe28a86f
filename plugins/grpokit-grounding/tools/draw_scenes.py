"""Draws held-out scenes with the boxes of a run, before and after: the picture on the page about grounding.

    python tools/draw_scenes.py runs/scenes docs/images/grounding-scenes.png

The target is dark, the answer magenta. The upper row is the start, the lower one the last checkpoint, both
at the most likely tokens.
"""

from __future__ import annotations

import io
import sys

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot
from matplotlib.patches import Rectangle
from PIL import Image

import grpokit
from grpokit import Sample
from grpokit.sampling import derive_seeds
from grpokit_grounding.reward import BoxIoU, answer_box
from grpokit_grounding.scenes import prompts

COUNT = 6


def draw(axes: pyplot.Axes, sample: Sample, *, title: str) -> None:
    """A scene with its target and the answer's box."""
    axes.imshow(sample.prompt.image, extent=(0, 64, 64, 0))
    x1, y1, x2, y2 = sample.prompt.target
    axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor="#222222", linewidth=1.5))
    box = answer_box(sample.output, "exclusive")
    if box is not None:
        width, height = box.x2 - box.x1, box.y2 - box.y1
        axes.add_patch(Rectangle((box.x1, box.y1), width, height, fill=False, edgecolor="#d100d1", linewidth=2))
    axes.set(xticks=[], yticks=[], xlabel=f"IoU {BoxIoU()([sample])[0]:.2f}")
    axes.set_title(title, fontsize=8)


def main(run: str, to: str) -> None:
    shown = prompts("eval")[:COUNT]
    settings = {"model": "grpokit_grounding:models/scenes", "max_new_tokens": 20, "eval_temperature": 0}
    policies = {"before": grpokit.create("policy", "hf-lm", settings), "after": grpokit.load(run)}
    seeds = derive_seeds(0, stream="sample", step=0, prompts=COUNT, group_size=1)
    figure, rows = pyplot.subplots(2, COUNT, figsize=(1.7 * COUNT, 4.2), layout="constrained")
    for (name, policy), row in zip(policies.items(), rows, strict=True):
        answers = policy.rollout(shown, 1, seeds=seeds, evaluate=True).samples
        for axes, sample in zip(row, answers, strict=True):
            draw(axes, sample, title=sample.prompt.text.replace(" of the", "\nof the") if name == "before" else "")
        row[0].set_ylabel(name)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=80)
    Image.open(picture).convert("RGB").quantize(64).save(to, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
