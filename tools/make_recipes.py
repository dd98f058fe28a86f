"""Writes the table of docs/recipes.md, which is counted and gathered from the recipes themselves.

A recipe is a config whose header holds a block of YAML under `recipe:`. `python tools/make_recipes.py` writes the
table, in a minute. With `--check` it exits with 1 where the table is out of date. To add a recipe, add its file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

from grpokit.config import schema
from grpokit.runs import build
from grpokit_plan import cards
from grpokit_plan.cards import GIB
from grpokit_plan.estimate import Estimate, needs_of

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/recipes.md"
FILES = ("recipes/*.yaml", "plugins/*/src/*/presets/*.yaml")
_BLOCK = re.compile(r"^# recipe:\n(?:#   .*\n)+", re.MULTILINE)
_TABLE = re.compile(r"(?<=<!-- table -->\n\n).*?(?=\n<!-- end -->)", re.DOTALL)


class Band(BaseModel):
    """What others saw: where a score began and ended, or its mean.

    Attributes:
        by: who published it.
        source: where.
        reward: the reward or benchmark.
        of: what it was measured on.
        start: its mean before training.
        end: its mean after training.
        mean: its mean over the whole run, where nothing else was published.
        steps: of that run.
        differs: how that run differs from the recipe.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    by: str
    source: str
    reward: str
    of: str
    start: float | None = None
    end: float | None = None
    mean: float | None = None
    steps: int | None = None
    differs: str = ""

    @model_validator(mode="after")
    def _two_numbers_or_one(self) -> Band:
        if (self.start is None) != (self.end is None) or (self.start is None) == (self.mean is None):
            raise ValueError("a band has start and end, or mean")
        return self


class Block(BaseModel):
    """What a recipe says beside its config.

    Attributes:
        card: the GPU that it is meant for; None where its model's sizes do not ship with grpokit.
        twin: what makes the config one of a tiny model; empty where the test of a preset does that.
        bands: published curves.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    card: str | None = None
    twin: Mapping[str, Any] = {}
    bands: list[Band]


@dataclass(frozen=True)
class Recipe:
    """A file with a block."""

    path: Path

    @property
    def name(self) -> str:
        """What a user types: a preset's name, or the path of a file."""
        inside = self.path.relative_to(ROOT)
        return str(inside) if inside.parts[0] == "recipes" else self.path.stem

    @cached_property
    def text(self) -> str:
        """The whole file."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def block(self) -> Block:
        """The block of its header."""
        (lines,) = _BLOCK.findall(self.text)
        return Block.model_validate(yaml.safe_load(re.sub(r"^# ", "", lines, flags=re.MULTILINE))["recipe"])

    @cached_property
    def estimates(self) -> list[tuple[int, Estimate]]:
        """Steps and plan of each phase, on the recipe's card."""
        assert self.block.card is not None
        card = cards.by_name(self.block.card)
        planned = []
        for phase, config in schema.parse(self.text, self.name).phased():
            objective = build.objective(config)
            _, needs = needs_of(
                config,
                reference=objective.needs_reference,
                whole_groups=objective.whole_groups,
                policy=phase.policy or "",
            )
            planned.append((config.trainer.steps, Estimate(card=card, needs=needs)))
        return planned


@cache
def recipes() -> Sequence[Recipe]:
    """All of this repository, those of the folder `recipes` first."""
    files = [path for pattern in FILES for path in sorted(ROOT.glob(pattern))]
    return [Recipe(path) for path in files if _BLOCK.search(path.read_text(encoding="utf-8"))]


def table() -> str:
    """A row for each recipe."""
    lines = ["| recipe | card | GiB | hours | curve on a GPU |", "|---|---|---:|---:|---|"]
    for recipe in recipes():
        cells = [f"`{recipe.name}`", *_counted(recipe), "<br>".join(_curves(recipe.block))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _counted(recipe: Recipe) -> tuple[str, str, str]:
    """Card, GiB at the peak, and hours of the whole run."""
    if recipe.block.card is None:
        return "any", "not counted", "not counted"
    peak = max(estimate.peak[1] for _, estimate in recipe.estimates)
    hours = sum(steps * sum(estimate.seconds().values()) for steps, estimate in recipe.estimates) / 3600
    return recipe.block.card, f"{peak / GIB:.0f}", f"{hours:.0f}"


def _curves(block: Block) -> Iterator[str]:
    if not block.bands:
        yield "not measured"
    for band in block.bands:
        steps = f" in {band.steps} steps" if band.steps else ""
        numbers = (
            f"{band.mean:g} on average{steps}" if band.mean is not None else f"{band.start:g} to {band.end:g}{steps}"
        )
        differs = f"; there: {band.differs}" if band.differs else ""
        yield f"{band.reward} {numbers}, on {band.of}, published by [{band.by}]({band.source}){differs}"


def main(arguments: list[str]) -> int:
    """Write the table, or with --check compare it; returns the exit code."""
    page = PAGE.read_text(encoding="utf-8")
    written = _TABLE.sub(lambda _: table(), page)
    if "--check" not in arguments:
        PAGE.write_text(written, encoding="utf-8")
    elif page != written:
        print("docs/recipes.md is out of date: run python tools/make_recipes.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
