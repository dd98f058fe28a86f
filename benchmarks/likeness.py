"""What `reference-likeness` teaches, and when it cheats: runs with drawn references, and the table of docs/likeness.md.

    python benchmarks/likeness.py FOLDER                # all runs that the folder lacks, then the table
    python benchmarks/likeness.py FOLDER night-pixels   # of one case

FOLDER gets `likeness.png` too: references, and what the policy drew for the same held-out prompts before and after.
Each case has three seeds. A night is a sky above water in dark blue; glm-image-tiny can learn its colours alone. A sign
shows a word, as a perfect toy-glyph would draw it. Before and after are of held-out prompts, with 95 % intervals of the
difference. `lpips` needs the packages of requirements-weights.txt.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from grpokit.config.presets import read_config
from grpokit.report.verdict import headline
from grpokit.run_folder.reader import RunHistory, read_run
from grpokit.runs.train import train
from grpokit_toy.data import glyph_prompts

SEEDS = (0, 1, 2)
TINY = [
    "policy={use: glm-image-ar, model: tiny, size: [64, 96], train_tokens: large, lora: {r: 8, alpha: 16}, "
    "decode: {steps: 2, guidance: 1.0}, eval_decode: {steps: 4, guidance: 1.5}}",
    "data={use: 'grpokit_glm_image.tiny_prompts:prompts'}",
    *("trainer.steps=40", "trainer.prompts_per_step=4", "trainer.group_size=8", "trainer.micro_batch_size=32"),
    *("trainer.learning_rate=4e-3", "trainer.updates_per_rollout=2", "eval.every=40", "eval.samples=16"),
]
GLYPH = ["trainer.steps=40", "trainer.prompts_per_step=4", "trainer.minibatches=2", "eval.every=40"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Runs that differ by their seeds.

    Attributes:
        draws: which references: "night", "sign", or "one sign" in many copies with noise.
        monitor: a reward that nobody trains on.
        count: of references.
        reward: further parameters of the reward.
        also: rewards that are trained on, too.
    """

    draws: str
    monitor: str
    count: int = 20
    reward: Mapping[str, Any] = field(default_factory=dict)
    also: Sequence[str] = ()


CASES = {
    "night-pixels": Case(draws="night", monitor="brightness"),
    "sign-pixels": Case(draws="sign", monitor="ssim"),
    "sign-lpips": Case(draws="sign", monitor="ssim", reward={"features": "lpips"}),
    "sign-pixels-5": Case(draws="sign", monitor="ssim", count=5),
    "one-sign-pixels": Case(draws="one sign", monitor="ssim"),
    "sign-pixels-ocr": Case(draws="sign", monitor="ssim", also=["ocr"]),
}

SHOWN = {
    "night-pixels": "night",
    "sign-pixels": "signs, pixels",
    "sign-lpips": "signs, lpips",
    "one-sign-pixels": "one sign",
}


def night(seed: int) -> Image.Image:
    """A dark blue sky above water."""
    rng = np.random.default_rng(seed)
    horizon = rng.uniform(0.35, 0.65)
    sky = np.array([10, 20, 70]) + rng.normal(0, 8, 3)
    light = np.array([40, 70, 150]) + rng.normal(0, 12, 3)
    height = np.linspace(0, 1, 64)[:, None, None]
    above = sky + (light - sky) * height / horizon
    below = 0.6 * light + (sky - 0.6 * light) * (height - horizon) / (1 - horizon)
    pixels = np.where(height < horizon, above, below).repeat(96, axis=1) + rng.normal(0, 6, (64, 96, 1))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def noisy(picture: Image.Image, seed: int) -> Image.Image:
    """A copy with a little noise."""
    noise = np.random.default_rng(seed).normal(0, 4, (picture.height, picture.width, 3))
    return Image.fromarray((np.asarray(picture.convert("RGB")) + noise).clip(0, 255).astype(np.uint8))


def draw(case: Case, folder: Path) -> None:
    """Write the references of a case."""
    folder.mkdir(parents=True, exist_ok=True)
    signs = [prompt.target for prompt in glyph_prompts("pretrain", case.count)]  # of words that no run has
    for i in range(case.count):
        if case.draws == "night":
            picture = night(i)
        elif case.draws == "sign":
            picture = signs[i]
        else:
            picture = noisy(signs[0], i)
        picture.save(folder / f"{i}.png")


def run(name: str, case: Case, seed: int, folder: Path) -> None:
    """Train once."""
    references = folder / "references" / name
    draw(case, references)
    common = {"references": str(references), "features": "pixels", **case.reward}
    if common["features"] == "lpips":
        common["feature_options"] = {"weights_path": str(trunk(folder)), "device": "cpu"}
    rewards = [
        {"use": "reference-likeness", **common},
        {"use": "reference-nearness", "weight": 0, "every": 40, **common},
        {"use": case.monitor, "weight": 0, "every": 40},
        *({"use": other} for other in case.also),
    ]
    changes = TINY if case.draws == "night" else GLYPH
    place = folder / f"{name}-{seed}"
    own = [f"rewards={rewards}", f"seed={seed}", f"run.dir={place}", "run.threads=1"]
    config, _ = read_config("toy-glyph", [*changes, *own])
    train(config, overwrite=True)


def trunk(folder: Path) -> Path:
    """The file of AlexNet's real weights."""
    sys.path.append(str(Path(__file__).parent.parent / "tools"))
    import lpips_trunks

    weights = lpips_trunks.package()
    if weights is None:
        raise SystemExit("Install the packages of requirements-weights.txt.")
    file = folder / "hub" / "checkpoints" / lpips_trunks.CHECKPOINTS["alex"]
    if not file.exists():
        lpips_trunks.write(weights, folder)
    return file


def table(folder: Path) -> Iterator[str]:
    """The rows of all runs that are there."""
    changes = "nearness before → after | change | monitor before → after | change"
    yield f"| case | seed | {changes} | held-out told | training told | copies |"
    yield "|---|---:|---|---|---|---|---|---|---|"
    for name in CASES:
        for seed in SEEDS:
            if (folder / f"{name}-{seed}" / "report.html").exists():
                yield _row(name, seed, read_run(folder / f"{name}-{seed}"))


def _row(name: str, seed: int, history: RunHistory) -> str:
    cells = [name, str(seed)]
    monitors = ("reference-nearness", CASES[name].monitor)
    for change in headline(history):
        if change.name in monitors and change.change is not None:
            cells += [f"{change.before:.3f} → {change.after:.3f}", f"{change.change:+.3f} ± {change.width:.3f}"]
    for key in ("told_held_out", "told_training", "copies"):
        values = [row[f"rewards/reference-likeness/{key}"] for row in history.metrics[1:]]
        first, *_, last = (float(part.mean()) for part in np.array_split(values, 3))
        cells.append(f"{first:.2f} → {last:.2f}")
    return f"| {' | '.join(cells)} |"


def picture(folder: Path) -> None:
    """Draw `likeness.png` from the first seeds of four cases."""
    rows = []
    for name, label in SHOWN.items():
        run = folder / f"{name}-{SEEDS[0]}"
        references = sorted((folder / "references" / name).iterdir())
        rows.append((label, references))
        for label, step in (("before", 0), ("after", 40)):
            rows.append((label, sorted((run / "samples" / f"step_{step:06d}").glob("????.png"))))
    width, height = 144, 48
    sheet = Image.new("RGB", (180 + 6 * (width + 6), len(rows) * (height + 6)), "white")
    pen = ImageDraw.Draw(sheet)
    for line, (label, files) in enumerate(rows):
        top = line * (height + 6)
        pen.text((6, top + 14), label, fill="black", font=ImageFont.load_default(16))
        for column, file in enumerate(files[:6]):
            small = Image.open(file).convert("RGB").resize((width, height), Image.Resampling.NEAREST)
            sheet.paste(small, (180 + column * (width + 6), top))
    sheet.quantize(64).save(folder / "likeness.png", optimize=True)


def main(folder: str, *names: str) -> None:
    """Train what is missing, and print the table."""
    place = Path(folder).resolve()
    for name in names or CASES:
        for seed in SEEDS:
            if not (place / f"{name}-{seed}" / "report.html").exists():
                run(name, CASES[name], seed, place)
    print("\n".join(table(place)))
    picture(place)


if __name__ == "__main__":
    main(*sys.argv[1:])
