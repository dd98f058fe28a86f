"""What a reward changes in place, or in torch's global state, reaches neither the next reward nor the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from grpokit import Pending, Portion, Prompt, RewardTerm, Sample
from grpokit.rewards.isolation import own_copies
from grpokit.rewards.scoring import score_samples
from grpokit_check.reward.calls import content


class Box(NamedTuple):
    corner: list[int]
    label: str


@dataclass(frozen=True)
class Drawing:
    picture: Image.Image
    strokes: np.ndarray


def full_samples() -> list[Sample]:
    """Samples of one prompt, with something to change in every place."""
    prompt = Prompt(
        text="p",
        image=Image.new("P", (4, 4), 3),
        target=Image.new("RGB", (4, 4), "red"),
        meta={"boxes": [Box([1, 2], "sign")], "scores": {"a": torch.ones(2)}},
    )
    drawings = [Drawing(Image.new("RGB", (4, 4), colour), np.arange(3)) for colour in ("blue", "green")]
    return [Sample(prompt=prompt, output=drawing, group=0, info={"seen": set()}) for drawing in drawings]


def vandal(samples: Sequence[Sample]) -> list[float]:
    for sample in samples:
        for picture in (sample.prompt.image, sample.prompt.target, sample.output.picture):
            picture.thumbnail((2, 2))
        ImageDraw.Draw(sample.output.picture).rectangle((0, 0, 1, 1), "white")
        sample.output.strokes[:] = 9
        sample.prompt.meta["boxes"][0].corner.append(3)
        sample.prompt.meta["scores"]["a"].zero_()
        sample.prompt.meta["new"] = 1  # type: ignore[index]
        sample.info["seen"].add(1)
        object.__setattr__(sample, "group", 5)
    return [0.0] * len(samples)


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_each_reward_gets_what_the_policy_drew(on_error: Any) -> None:
    def fails_after(samples: Sequence[Sample]) -> list[float]:
        vandal(samples)
        if on_error == "skip" and samples[0].prompt.text:
            object.__setattr__(samples[0].prompt, "text", "")
            raise ValueError
        return [0.0] * len(samples)

    seen: list[Any] = []

    def looks(samples: Sequence[Sample]) -> list[float]:
        seen.extend(_content(samples))
        return [0.0] * len(samples)

    samples = full_samples()
    before = _content(samples)
    terms = [
        RewardTerm(name="vandal", reward=fails_after, on_error=on_error, skip_limit=1.0),
        RewardTerm(name="looks", reward=looks),
    ]
    score_samples(terms, samples)
    assert seen == before
    assert _content(samples) == before


def test_a_reward_that_scores_elsewhere_gets_its_own_too() -> None:
    class Elsewhere:
        def submit(self, samples: Sequence[Sample]) -> Pending:
            future: Future[Portion] = Future()
            future.set_result(Portion(rows=range(len(samples)), values=vandal(samples)))
            return Pending([future])

        def close(self) -> None: ...

    samples = full_samples()
    before = _content(samples)
    score_samples([RewardTerm(name="r", reward=Elsewhere())], samples)
    assert _content(samples) == before


def _content(samples: Sequence[Sample]) -> list[Any]:
    parts = [{"picture": s.output.picture, "strokes": s.output.strokes} for s in samples]
    return [content(replace(s, output=part)) for s, part in zip(samples, parts, strict=True)]


def test_what_samples_share_their_copies_share() -> None:
    """Rewards prepare a group's target once, and know it by its identity."""
    first, second = own_copies(full_samples())
    assert first.prompt is second.prompt
    assert isinstance(first.prompt.meta["boxes"][0], Box)


def test_what_cannot_be_copied_is_passed_on(tmp_path: Any) -> None:
    Image.effect_noise((64, 64), 50).save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:500])
    with Image.open(tmp_path / "cut.png") as picture:
        (copy,) = own_copies([Sample(prompt=Prompt(text="p"), output=picture, group=0)])
        assert copy.output is picture


@pytest.mark.parametrize(
    ("change", "read"),
    [
        (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
        (lambda: torch.set_default_device("meta"), torch.get_default_device),
        (lambda: torch.set_num_threads(3), torch.get_num_threads),
        (
            lambda: torch.use_deterministic_algorithms(True, warn_only=True),
            torch.is_deterministic_algorithms_warn_only_enabled,
        ),
        (
            lambda: setattr(torch.backends.mkldnn, "enabled", False),
            lambda: torch.backends.mkldnn.enabled,
        ),
        (lambda: torch.set_float32_matmul_precision("medium"), torch.get_float32_matmul_precision),
    ],
)
@pytest.mark.parametrize("raises", [False, True])
def test_torchs_state_is_set_back(change: Callable[[], None], read: Callable[[], Any], raises: bool) -> None:
    def careless(samples: Sequence[Sample]) -> list[float]:
        change()
        if raises:
            raise ValueError
        return [0.0] * len(samples)

    before = read()
    term = RewardTerm(name="r", reward=careless, on_error="skip", skip_limit=1.0)
    score_samples([term], full_samples())
    assert read() == before


@pytest.mark.parametrize("enabled", [False, True])
def test_a_reward_works_without_gradients_and_the_run_with_its_own_mode(enabled: bool) -> None:
    def careless(samples: Sequence[Sample]) -> list[float]:
        assert not torch.is_grad_enabled()
        torch.set_grad_enabled(not enabled)
        return [0.0] * len(samples)

    with torch.set_grad_enabled(enabled):
        score_samples([RewardTerm(name="r", reward=careless)], full_samples())
        assert torch.is_grad_enabled() == enabled
