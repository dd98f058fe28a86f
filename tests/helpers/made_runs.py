"""Run folders as training writes them, made without training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from grpokit.evaluation.intervals import half_width

EVIL = "<script>alert(\"x\")</script> & \u2028 '$x$' {{ 7*7 }} </svg></style>"


def picture(shade: int, size: int = 8) -> Image.Image:
    """Stripes with some grain, so that a large one is not a small file."""
    grain = np.random.default_rng(shade).integers(0, 24, (size, size, 3))
    return Image.fromarray((grain + shade + np.arange(size)[:, None, None] * 96 // size).clip(0, 255).astype(np.uint8))


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def make_run(
    folder: Path,
    *,
    steps: int = 4,
    every: int = 2,
    name: str = "nice",
    prompt: str = "a prompt",
    side: int = 8,
    gain: float = 0.1,
    text: str | None = None,
    weight: float = 0.5,
    spread: float = 0.3,
    reward: Mapping[str, Any] | None = None,
) -> Path:
    """A run folder as training writes it, of 20 held-out prompts; each evaluation adds `gain` to every score."""
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0)
    rewards = [{"use": "x", "name": name, "weight": weight, **(reward or {})}, {"use": "length", "weight": 1.0}]
    settings = {"rewards": rewards, "trainer": {"steps": steps}, "run": {"dir": str(folder)}}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, allow_unicode=True), encoding="utf-8")
    (folder / "versions.json").write_text(json.dumps({"grpokit": "0.1.0", "plugins": {"x": name}}))
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            level, noisy = step / steps, float(noise.normal(0, 0.1))
            row: dict[str, Any] = {"step": step, "reward": level + noisy, f"rewards/{name}/mean": level - noisy}
            row |= {"rewards/length/mean": 0.5 + noisy, "reward_std": 0.1, "frac_reward_zero_std": 0.25, "kl": level}
            row |= {"entropy": 2 - level, "clip_ratio/low_mean": 0.1, "clip_ratio/high_mean": abs(noisy)}
            row |= {"grad_norm": 1 + noisy, "step_time": 1.5, "time/rollout": 1.0, "time/reward": 0.5}
            file.write(json.dumps({**row, "memory/peak_mb": 500 + step}) + "\n")
    (folder / "end.json").write_text(json.dumps({"state": "finished", "planned": steps, "message": ""}))
    noise = np.random.default_rng(1)
    first = noise.uniform(0, spread, 20)
    evaluations = []
    for i, step in enumerate(range(0, steps + 1, every)):
        scores = first + gain * i + noise.normal(0, 0.001, 20)
        both = {"reward": weight * scores + 0.5, name: scores, "length": np.full(20, 0.5)}
        means = {key: float(column.mean()) for key, column in both.items()}
        widths = {key: half_width(column.tolist(), range(20)) for key, column in both.items()}
        evaluations.append({"step": step, "means": means, "ci95": widths})
        place = folder / "samples" / f"step_{step:06d}"
        place.mkdir(parents=True)
        columns = {key: column.tolist() for key, column in both.items()}
        texts = [f"{prompt} {n}"[:3000] for n in range(20)]
        kept = {
            "prompts": [f"{n:016x}" for n in range(20)],
            "prompt": list(range(20)),
            "texts": texts,
            "scores": columns,
        }
        (place / "scores.json").write_text(json.dumps(kept))
        rows = []
        for n in range(16):
            mine: dict[str, Any] = {"prompt": f"{prompt} {n}", "turn": 0, "target_text": prompt}
            if text is None:
                mine["file"] = f"{n:04d}.png"
                picture(8 * n, side).save(place / mine["file"])
            else:
                mine["output"] = text
            scored = {name: float(scores[n]), "length": 0.5}
            rows.append({**mine, "scores": scored, "reward": float(both["reward"][n])})
        write_rows(place / "samples.jsonl", rows)
    write_rows(folder / "eval.jsonl", evaluations)
    for step in sorted({1, *range(every, steps + 1, every)}):
        place = folder / "groups" / f"step_{step:06d}"
        place.mkdir(parents=True)
        rows = []
        for n in range(8):
            picture(10 * n, side).save(place / f"{n:04d}.png")
            mine = {"place": "best" if n < 4 else "worst", "group": n // 4, "prompt": prompt, "file": f"{n:04d}.png"}
            scored = {name: 1 - n / 8, "length": None}
            rows.append({**mine, "scores": scored, "reward": 1 - n / 8, "advantage": 1.5 - n % 4})
        write_rows(place / "samples.jsonl", rows)
    return folder


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
