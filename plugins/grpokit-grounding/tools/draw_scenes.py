"""Draws held-out scenes with the boxes of a run, before and after: the picture on the page about grounding.

    python tools/draw_scenes.py runs/scenes docs/images/grounding-scenes.png

The target is dark, the answer magenta. The upper row is the start, the lower one the last checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot
from matplotlib.patches import Rectangle

import grpokit
from grpokit import Sample
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
    start = grpokit.create("policy", "hf-lm", {"model": "grpokit_grounding:models/scenes", "max_new_tokens": 20})
    figure, rows = pyplot.subplots(2, COUNT, figsize=(1.7 * COUNT, 4.4), layout="constrained")
    for policy, row, name in zip((start, grpokit.load(run)), rows, ("before", "after"), strict=True):
        drawn = list(grpokit.draw(policy, shown, samples_per_prompt=1, seed=7))
        for axes, sample in zip(row, drawn, strict=True):
            draw(axes, sample, title=sample.prompt.text)
        row[0].set_ylabel(name)
    figure.savefig(Path(to), dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
