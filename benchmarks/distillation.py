"""Two skills into one adapter: on-policy distillation from two teachers, and the same by mixing rewards.

    python benchmarks/distillation.py --runs FOLDER --seeds 0 1 2   # goes on where it was stopped
    python benchmarks/distillation.py --runs FOLDER --table         # prints what is there

On glm-glyph, the half of GLM-Image that writes tokens reads the whole prompt. Where it asks for a sign or a card, the
word is to be spelt right; where it asks for ink or a label, the picture is to be bright. Each teacher learns one of
these skills from all prompts, that of brightness in fewer steps: it would end with white pictures. `opd` is distilled
from both, each prompt from the teacher of its skill, and sees no reward. `mixed` learns from the reward of each
prompt's skill. Both have adapters of twice the teachers' rank, and draw as many samples as the teacher of words.
Held-out words, with 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from grpokit import Prompt, Sample, create
from grpokit_glm_image import glyph

WORDS, BRIGHT = "words", "bright"
MONITORS = [
    {"use": "distillation:readable", "weight": 0, "every": 10},
    {"use": "distillation:bright", "weight": 0, "every": 10},
]
PRESET = [{"use": "ssim", "weight": 0.5}, {"use": "ocr", "weight": 0.5}]
JOB = ["data.use=distillation:prompts", "eval.every=0", "trainer.steps=90", "trainer.learning_rate=1.0e-3"]
TEACHER = "policy.lora={r: 16, alpha: 32}"
STUDENT = "policy.lora={r: 32, alpha: 64}"
WITH_WORDS = ("sign", "card")


def prompts(split: str) -> list[Prompt]:
    """glm-glyph's, each with the skill that it is for."""
    named = []
    for prompt in glyph.prompts(split):
        skill = WORDS if any(word in prompt.text for word in WITH_WORDS) else BRIGHT
        named.append(replace(prompt, meta={**prompt.meta, "teacher": skill}))
    return named


def readable(samples: Sequence[Sample]) -> list[float]:
    """The OCR reward where the word is to be right, NaN elsewhere."""
    return _of_skill(samples, WORDS)


def bright(samples: Sequence[Sample]) -> list[float]:
    """The mean brightness where the picture is to be bright, NaN elsewhere."""
    return _of_skill(samples, BRIGHT)


def skill(samples: Sequence[Sample]) -> list[float]:
    """What `mixed` learns from: the rewards of the words' teacher for its prompts, brightness for the others."""
    scores = _of_skill(samples, BRIGHT)
    own = [place for place, sample in enumerate(samples) if sample.prompt.meta["teacher"] == WORDS]
    asked = [samples[place] for place in own]
    for place, ssim, ocr in zip(own, _reward("ssim")(asked), _reward("ocr")(asked), strict=True):
        scores[place] = (ssim + ocr) / 2
    return scores


def _of_skill(samples: Sequence[Sample], asked: str) -> list[float]:
    scores = [math.nan] * len(samples)
    own = [place for place, sample in enumerate(samples) if sample.prompt.meta["teacher"] == asked]
    reward = _reward("ocr" if asked == WORDS else "brightness")
    for place, score in zip(own, reward([samples[place] for place in own]), strict=True):
        scores[place] = score
    return scores


@cache
def _reward(name: str) -> Any:
    return create("reward", name)


def jobs(folder: Path, seed: int) -> dict[str, list[str]]:
    """The runs of a seed by name, in the order in which they need each other, with their settings."""
    teachers = {name: str(folder / f"{name}-{seed}" / "exported") for name in (WORDS, BRIGHT)}
    return {
        WORDS: [TEACHER, f"rewards={json.dumps([*PRESET, *MONITORS])}"],
        BRIGHT: [
            TEACHER,
            f"rewards={json.dumps([{'use': 'brightness'}, *MONITORS])}",
            "trainer.advantage=group",
            "trainer.steps=40",
        ],
        "opd": [
            STUDENT,
            f"policy.teachers={json.dumps(teachers)}",
            "trainer.objective={use: opd, all_tokens: true}",
            "trainer.advantage=group",
            f"rewards={json.dumps(MONITORS)}",
        ],
        "mixed": [
            STUDENT,
            f"rewards={json.dumps([{'use': 'distillation:skill'}, *MONITORS])}",
            "trainer.advantage=group",
        ],
    }


def run(folder: Path, seed: int, settings: Sequence[str]) -> None:
    """Make the runs of a seed that are not there yet."""
    for name, own in jobs(folder, seed).items():
        target = folder / f"{name}-{seed}"
        if not (target / "end.json").is_file():
            words = [*JOB, *own, *settings, f"seed={seed}", f"run.dir={target}", "--overwrite"]
            _grpokit("train", "glm-glyph", *words)
        if name in (WORDS, BRIGHT) and not (target / "exported").is_dir():
            _grpokit("export", str(target), "--to", str(target / "exported"))


def _grpokit(*words: str) -> None:
    modules = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, "-m", "grpokit", *words], env={**os.environ, "PYTHONPATH": modules}, check=True)


def table(folder: Path, seeds: Sequence[int]) -> None:
    """Print the held-out scores of all seeds."""
    columns = [f"{name} {seed}" for seed in seeds for name in ("readable", "bright")]
    print(f"| run | {' | '.join(columns)} |")
    print(f"|---|{'---|' * len(columns)}")
    rows = {"before": ("opd", 0), **{name: (name, -1) for name in jobs(folder, 0)}}
    for label, (name, place) in rows.items():
        cells = [cell for seed in seeds for cell in _cells(folder / f"{name}-{seed}" / "eval.jsonl", place)]
        print(f"| {label} | {' | '.join(cells)} |")


def _cells(file: Path, place: int) -> list[str]:
    if not file.is_file():
        return ["", ""]
    line = json.loads(file.read_text().splitlines()[place])
    return [f"{line['means'][name]:.3f} ± {line['ci95'][name]:.3f}" for name in ("readable", "bright")]


def main() -> None:
    """Run, or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="the folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--table", action="store_true", help="print what is there, and run nothing")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further settings of all runs")
    given = parser.parse_args()
    if not given.table:
        for seed in given.seeds:
            run(given.runs.resolve(), seed, given.set)
    table(given.runs.resolve(), given.seeds)


if __name__ == "__main__":
    main()
