"""Each model of imscore: random weights of its real class score in the capsule as in that environment by hand."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from grpokit import Prompt, Sample, create, registry
from grpokit_capsule import environments
from grpokit_capsule.environments import Needs
from grpokit_imscore.scorer import MODELS

RANDOM_MODELS = Path(__file__).parent / "random_models.py"
TEXT = "a cat"

pytestmark = [pytest.mark.very_slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def capsule(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The interpreter of the reward's capsule, which the package registry brings: 5 GB."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPOKIT_CAPSULES", str(tmp_path_factory.mktemp("capsules")))
        _, options = registry.placement_of("imscore", {})
        needs = Needs.of(options["requires"], options["python"])
        yield environments.environment(needs, what="'imscore'", offline=False).python


@pytest.mark.parametrize("model", MODELS)
def test_it_scores_as_by_hand(capsule: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 64, 48, 3), dtype=np.uint8)
    np.save(tmp_path / "pictures.npy", pixels)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    command = [capsule, "-I", RANDOM_MODELS, model, MODELS[model].scorer, tmp_path, TEXT]
    done = subprocess.run([*map(str, command)], env=_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    by_hand = json.loads((tmp_path / "scores.json").read_text())
    assert len({*by_hand}) == 3

    samples = [Sample(prompt=Prompt(TEXT), output=Image.fromarray(picture), group=0) for picture in pixels]
    parameters = {"model": model, "weights": str(tmp_path / "weights"), "device": "cpu", "batch_size": 3}
    reward = create("reward", "imscore", parameters)
    assert reward(samples) == by_hand
    assert reward(samples[:1]) == by_hand[:1]
    reward.close()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
