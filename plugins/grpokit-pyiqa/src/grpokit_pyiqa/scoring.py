"""A metric of pyiqa as a score of which more is better.

It needs pyiqa, torch, numpy and Pillow, and not grpokit: of a sample it reads `output`, `prompt.text` and
`prompt.target`. Pictures are scored one at a time, so that no score depends on the others in its batch.
"""

from __future__ import annotations

import difflib
import logging
import math
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import numpy as np
import pyiqa
import torch
from PIL import Image

NO_SCORES = {
    "fid": "compares sets of pictures",
    "fid_dinov2": "compares sets of pictures",
    "inception_score": "compares sets of pictures",
    "sfid": "compares sets of pictures",
    "fgresq_pair": "says which of two outputs is better",
}
"""Metrics that do not score a picture -> what they do."""

UNMARKED_DISTANCES = ("dmm",)
"""Metrics that are lower for better pictures although pyiqa does not say so."""

PACKAGES = {"clip": "openai-clip", "cv2": "opencv-python-headless", "pkg_resources": "setuptools<81"}
"""What brings a Python module that a metric may lack, where it has another name."""

SIDES = range(1, 513)
"""Pixels; the sides that are tried to say how large a picture must be."""


class MetricError(ValueError):
    """A metric cannot be used: its name, what it needs, or the size of a picture."""


class Metric:
    """Scores samples by one metric.

    Args:
        name: as `pyiqa.list_models()` gives it.
        device: where it computes.

    Attributes:
        needs_target: whether it compares with a target picture.

    Raises:
        MetricError: there is no such metric, it does not score single pictures, or it cannot be built.
    """

    def __init__(self, name: str, device: torch.device | str = "cpu") -> None:
        check_name(name)
        self.name = name
        self.device = torch.device(device)
        self.network = self._build()
        self.needs_target = needs_target(name)
        self.sign = -1.0 if self.network.lower_better or name in UNMARKED_DISTANCES else 1.0

    def __call__(self, samples: Sequence[Any]) -> list[float]:
        """Score samples; a distance counts negative. NaN where the metric needs a target and there is none."""
        return [self._score(sample) for sample in samples]

    def _build(self) -> Any:
        logging.getLogger("pyiqa").setLevel(logging.WARNING)
        try:
            with redirect_stdout(sys.stderr), _own_draws(), _llama_kept():  # pyiqa prints what it fetches
                return pyiqa.create_metric(self.name, device=self.device)
        except ModuleNotFoundError as error:
            package = PACKAGES.get(error.name or "", error.name)
            raise MetricError(
                f"the metric '{self.name}' needs the Python module '{error.name}'. Run: pip install '{package}'"
            ) from error
        except Exception as error:  # each library that fetches weights has its own kinds
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise MetricError(
                f"the metric '{self.name}' cannot be built ({reason:.300}). If its weights cannot be fetched here, run "
                f"this where they can, and copy the folders ~/.cache/torch/hub and ~/.cache/huggingface: "
                f"python -c \"import pyiqa; pyiqa.create_metric('{self.name}', device='cpu')\""
            ) from error

    def _score(self, sample: Any) -> float:
        pictures = [sample.output]
        if self.needs_target:
            target = sample.prompt.target
            if target is None:
                return math.nan
            pictures = [sample.output.resize(target.size, Image.Resampling.BICUBIC), target]
        try:
            return self.sign * self._value(pictures, sample.prompt.text)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # pyiqa has no class of errors for what it cannot score
            if self._takes(pictures[0].size):
                return math.nan  # such as a picture of one colour for NIQE
            least = bisect_left(SIDES, True, key=lambda side: self._takes((side, side)))
            if least == len(SIDES):
                raise
        side, (width, height) = SIDES[least], pictures[0].size
        raise MetricError(
            f"the metric '{self.name}' needs pictures of at least {side} x {side} pixels, got {width} x {height}. "
            "Make larger pictures, or use another metric."
        )

    def _value(self, pictures: Sequence[Image.Image], text: str) -> float:
        inputs = [_tensor(picture) for picture in pictures]
        captions = {"caption_list": [text]} if self.name == "clipscore" else {}
        with _own_draws():
            return float(self.network(*inputs, **captions))

    def _takes(self, size: tuple[int, int]) -> bool:
        """Whether it can score noise of this size."""
        noise = Image.effect_noise(size, 64)
        try:
            self._value([noise, noise] if self.needs_target else [noise], "noise")
        except Exception:  # as in `_score`
            return False
        return True


def check_name(name: str) -> None:
    """Refuse a name of no metric, and a metric that does not score single pictures."""
    metrics = pyiqa.list_models()
    if name not in metrics:
        near = ", ".join(difflib.get_close_matches(name, metrics, n=5))
        guess = f" (did you mean {near}?)" if near else ""
        raise MetricError(
            f"pyiqa has no metric '{name}'{guess}. It has {len(metrics)}: "
            'python -c "import pyiqa; print(*pyiqa.list_models())"'
        )
    if name in NO_SCORES:
        raise MetricError(f"the metric '{name}' {NO_SCORES[name]}; a reward scores each picture alone.")


def needs_target(name: str) -> bool:
    """Whether a metric compares with a target picture ("full reference")."""
    return name in pyiqa.list_models("FR")


def _tensor(picture: Image.Image) -> torch.Tensor:
    pixels = torch.from_numpy(np.array(picture.convert("RGB")))  # [h, w, 3]
    return pixels.permute(2, 0, 1)[None].contiguous() / 255  # [1, 3, h, w] in [0, 1]


@contextmanager
def _llama_kept() -> Iterator[None]:
    """Undo what two metrics of pyiqa put in place of transformers' Llama, which a policy of the same process may be."""
    try:
        from transformers.models.llama import configuration_llama, modeling_llama
    except ImportError:
        yield
        return
    homes = [configuration_llama, modeling_llama, modeling_llama.LlamaModel, modeling_llama.LlamaForCausalLM]
    before = [dict(vars(home)) for home in homes]
    try:
        yield
    finally:
        for home, parts in zip(homes, before, strict=True):
            for name, part in parts.items():
                if vars(home).get(name) is not part:
                    setattr(home, name, part)


@contextmanager
def _own_draws() -> Iterator[None]:
    """Some metrics draw crops: each time the same, and nobody else's draws change."""
    state = np.random.get_state()
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(0)
        np.random.seed(0)
        try:
            yield
        finally:
            np.random.set_state(state)
