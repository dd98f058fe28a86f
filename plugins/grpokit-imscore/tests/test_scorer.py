"""The reward's own part: pictures, prompts and batches. A formula stands for imscore, which is not installed here."""

from __future__ import annotations

import math
import subprocess
import sys
import types
from typing import Any, ClassVar

import pytest
import torch
from PIL import Image

from grpokit import PluginError, Prompt, Sample, registry
from grpokit_imscore import scorer
from grpokit_imscore.scorer import Imscore, Model


class Formula(torch.nn.Module):
    """The mean of a picture and the length of its prompt; `shapes` has those of all batches."""

    shapes: ClassVar[list[tuple[int, ...]]] = []

    def __init__(self) -> None:
        super().__init__()
        self.dropout = torch.nn.Dropout(0.9)

    @classmethod
    def from_pretrained(cls, weights: str) -> Formula:
        assert weights == "me/weights"
        return cls()

    def score(self, pixels: torch.Tensor, prompts: list[str]) -> torch.Tensor:
        self.shapes.append(tuple(pixels.shape))
        lengths = torch.tensor([float(len(prompt)) for prompt in prompts])
        return (self.dropout(pixels).mean(dim=(1, 2, 3)) + lengths)[:, None]


class OneScore(Formula):
    def score(self, pixels: torch.Tensor, prompts: list[str]) -> torch.Tensor:
        return super().score(pixels, prompts).mean()


@pytest.fixture(autouse=True)
def formula(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("imscore.formula.model")
    module.Formula, module.OneScore = Formula, OneScore
    monkeypatch.setitem(sys.modules, "imscore", types.ModuleType("imscore"))
    monkeypatch.setitem(sys.modules, "imscore.formula", types.ModuleType("imscore.formula"))
    monkeypatch.setitem(sys.modules, "imscore.formula.model", module)
    monkeypatch.setitem(scorer.MODELS, "both", Model("formula:Formula", "me/weights"))
    monkeypatch.setitem(scorer.MODELS, "picture", Model("formula:Formula", "me/weights", reads_prompt=False))
    monkeypatch.setitem(scorer.MODELS, "one", Model("formula:OneScore", "me/weights", one_score=True))
    monkeypatch.setattr(Formula, "shapes", [])


def sample(output: Any, text: str = "four") -> Sample:
    return Sample(prompt=Prompt(text), output=output, group=0)


def gray(level: int, size: tuple[int, int] = (4, 2)) -> Image.Image:
    return Image.new("RGB", size, (level, level, level))


def test_pictures_of_one_prompt_and_size_are_scored_together() -> None:
    samples = [sample(gray(0)), sample(gray(51, (3, 3))), sample(gray(102)), sample(gray(153), "no"), sample(gray(255))]
    reward = Imscore("both", batch_size=2)
    assert reward(samples) == pytest.approx([4.0, 4.2, 4.4, 2.6, 5.0])
    assert Formula.shapes == [(2, 3, 2, 4), (2, 3, 2, 4), (2, 3, 3, 3), (2, 3, 2, 4)]


def test_a_model_with_one_score_for_a_batch_gets_one_picture_at_a_time() -> None:
    assert Imscore("one")([sample(gray(0)), sample(gray(255))]) == pytest.approx([4.0, 5.0])


def test_what_cannot_be_scored() -> None:
    samples = [sample(None), sample(gray(0), " "), sample(gray(0))]
    assert [math.isnan(score) for score in Imscore("both")(samples)] == [True, True, False]
    assert [math.isnan(score) for score in Imscore("picture")(samples)] == [True, False, False]
    assert Imscore("both")([]) == []


@pytest.mark.parametrize(
    ("picture", "mean"),
    [
        (Image.new("RGBA", (2, 2), (255, 0, 0, 0)), 1.0),
        (Image.new("RGBA", (2, 2), (0, 0, 0, 255)), 0.0),
        (Image.new("L", (2, 2), 51), 0.2),
        (Image.new("1", (2, 2), 1), 1.0),
    ],
)
def test_modes_of_pictures(picture: Image.Image, mean: float) -> None:
    assert Imscore("picture")([sample(picture, "")]) == pytest.approx([mean])


def test_an_unknown_model_is_refused_with_the_nearest_name() -> None:
    """The run's own environment stands for the capsule: the model's name is read before imscore is imported."""
    with pytest.raises(PluginError) as caught:
        registry.place("imscore", {"model": "pikscore"}, {"capsule": {"requires": [], "python": sys.executable}})
    assert "there is no model 'pikscore'; did you mean 'pickscore'?" in str(caught.value)


def test_the_scorer_needs_no_grpokit() -> None:
    code = "import sys; sys.modules['grpokit'] = None; import grpokit_imscore.scorer; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
