"""Recipes are configs of real runs: components take them, they fit on their cards, and tiny models train by them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import make_recipes
import numpy as np
import pytest
import torch
import yaml
from make_recipes import Recipe
from PIL import Image
from safetensors.torch import load_file

from grpokit import registry
from grpokit.config import schema
from grpokit.registry.specs import PolicySpec
from grpokit.runs import train as run
from grpokit_diffusers.known import FAMILIES
from grpokit_diffusers.tiny import tiny_pipeline

EVERY = make_recipes.recipes()
COUNTED = [recipe for recipe in EVERY if recipe.block.card]
TRIED = [recipe for recipe in EVERY if recipe.block.twin]
SMALL = {
    "trainer.device": "cpu",
    "trainer.prompts_per_step": 2,
    "trainer.group_size": 2,
    "eval.fraction": 0.25,
    "run.dir": "run",
    "run.threads": 1,
}


def by_name(recipe: Recipe) -> str:
    return Path(recipe.name).stem


def test_each_family_has_a_recipe() -> None:
    configs = {recipe.name: schema.parse(recipe.text, recipe.name) for recipe in EVERY}
    twins = [r.block.twin["policy.model"] for r in TRIED if configs[r.name].policy.use == "diffusers-flow"]
    assert {type(tiny_pipeline(twin)).__name__ for twin in twins} == set(FAMILIES)
    planned = {spec.name for _, spec in registry.installed("policy") if isinstance(spec, PolicySpec) and spec.plan}
    assert {config.policy.use for config in configs.values()} == planned


@pytest.mark.parametrize("recipe", EVERY, ids=by_name)
def test_its_components_have_the_parameters_that_it_sets(recipe: Recipe) -> None:
    config = schema.parse(recipe.text, recipe.name)
    registry.parameters("policy", config.policy.use, config.policy.params)
    for reward in config.rewards:
        registry.parameters("reward", reward.use, reward.params)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", COUNTED, ids=by_name)
def test_it_fits_on_its_card(recipe: Recipe) -> None:
    for _, estimate in recipe.estimates:
        assert estimate.fits


@pytest.mark.slow
def test_the_page_has_what_the_recipes_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_recipes.main(["--check"]) == 0, capsys.readouterr().err


def fill(folder: Path) -> None:
    """The data of a recipe, as it looks for them in the current folder."""
    (folder / "prompts.txt").write_text("".join(f'a door that says "{line}"\n' for line in range(4)))
    (folder / "source_images").mkdir()
    for line in range(1, 5):
        pixels = np.random.default_rng(line).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "source_images" / f"{line}.png")


def twin(recipe: Recipe) -> schema.RunConfig:
    """The recipe for its tiny model, in two steps; rewards with weights of their own become `brightness`."""
    data: dict[str, Any] = yaml.safe_load(recipe.text)
    for reward in data["rewards"]:
        if registry.spec_of("reward", reward["use"]).assets:
            reward |= {"use": "brightness", "name": reward["use"]}
    for phase in data.get("phases", []):
        phase["steps"] = 1
    steps = {"rounds": 1} if "phases" in data else {"trainer.steps": 2}
    changes = {**SMALL, **steps, **recipe.block.twin}
    words = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    return schema.parse(yaml.safe_dump(data), recipe.name, words)


@pytest.mark.slow
@pytest.mark.usefixtures("small_draft")
@pytest.mark.parametrize("recipe", TRIED, ids=by_name)
def test_a_tiny_model_trains_by_it(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path)
    result = run.train(twin(recipe))
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert result.steps == len(rows) == 2
    assert all(math.isfinite(row["loss"]) and row["grad_norm"] > 0 for row in rows)
    checkpoint = result.folder / "checkpoints/step_000002"
    weights = [*checkpoint.glob("policy.safetensors"), *checkpoint.glob("policy/*.safetensors")]
    assert weights
    for file in weights:
        adapters = [tensor for name, tensor in load_file(file).items() if "lora_B" in name]  # which begin as zeros
        assert adapters
        assert any(tensor.count_nonzero() == tensor.numel() for tensor in adapters)
        assert all(torch.isfinite(tensor).all() for tensor in adapters)
