"""A model of the voter: how much they like a picture, as a weighted sum of its features.

The weights are those of a Bradley-Terry model, fitted to who won against whom in each group. Their posterior says how
sure each comparison of two pictures is (MacKay, 1992, Neural Computation 4, "The evidence framework applied to
classification networks"). A taste is a file, and a reward: `TasteReward` scores pictures by it, and `write_package`
makes a plugin of it, to keep and to share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from grpokit import Sample, UsageError
from grpokit.errors import one_line
from grpokit.files import replacing, writing
from grpokit.images import to_rgb
from grpokit_vote.bradley_terry import Array, chance, fit
from grpokit_vote.features import Kind, features

_ARRAYS = ("weights", "mean", "scale", "precision")
_TIGHTNESS = 0.25  # of the prior, for each feature


@dataclass(frozen=True, kw_only=True)
class Taste:
    """A linear model of a voter.

    Attributes:
        kind: of the features.
        weights: [F] of the standardised features.
        mean: [F] of the features.
        scale: [F] by which they are divided.
        precision: [F, F] of the weights' posterior.
    """

    kind: Kind
    weights: Array
    mean: Array
    scale: Array
    precision: Array

    @classmethod
    def fit(cls, groups: Sequence[Mapping[str, float]], vectors: Mapping[str, Array], *, kind: Kind) -> Taste:
        """The taste that explains votes best; the same votes give the same bits, in whatever order they are.

        In a group of n, each pair of samples with different values is a comparison of weight 2 / n: all pairs
        together weigh n - 1, as many as it takes to order the group.

        Args:
            groups: at least one; sample -> its value by the votes. The sample with the higher value wins.
            vectors: sample -> its features [F], for all samples of the groups.
            kind: of the features.
        """
        pairs = []
        for group in groups:
            ordered = [pair for pair in combinations(sorted(group), 2) if group[pair[0]] != group[pair[1]]]
            pairs += [(one, other, float(group[one] > group[other]), 2 / len(group)) for one, other in ordered]
        pairs.sort()
        names = sorted({sample for group in groups for sample in group})
        place = {sample: row for row, sample in enumerate(names)}
        table = np.stack([vectors[sample] for sample in names])  # [n, F]
        mean, scale = table.mean(0), table.std(0)
        scale[scale < 1e-9] = 1.0
        standard = (table - mean) / scale
        ones = [place[one] for one, *_ in pairs]
        others = [place[other] for _, other, *_ in pairs]
        shares, counts = np.array([pair[2:] for pair in pairs]).reshape(-1, 2).T
        weights, precision = fit(
            standard[ones] - standard[others], shares, precision=_TIGHTNESS * len(mean), weights=counts
        )
        return cls(kind=kind, weights=weights, mean=mean, scale=scale, precision=precision)

    def utility(self, vectors: Array) -> Array:
        """How much the voter likes pictures, comparable between groups: features [n, F] -> [n]."""
        return self._standard(vectors) @ self.weights

    def win_rates(self, vectors: Array) -> Array:
        """The share of the others of its group that each picture is expected to win against, from 0 to 1.

        Args:
            vectors: [n, F] features of a group of n, at least 2.
        """
        chances = self._chances(vectors)
        return (chances.sum(1) - 0.5) / (len(vectors) - 1)  # 0.5: against itself

    def doubt(self, vectors: Array) -> float:
        """How likely the model is wrong about a pair of a group, on average: 0.5 knows nothing, 0 is sure."""
        chances = self._chances(vectors)
        return float(np.minimum(chances, chances.T)[np.triu_indices(len(vectors), 1)].mean())

    def _standard(self, vectors: Array) -> Array:
        return (vectors - self.mean) / self.scale

    def _chances(self, vectors: Array) -> Array:
        """[n, n] how likely each wins against each, with what the weights may be averaged over."""
        standard = self._standard(vectors)
        strengths = standard @ self.weights
        shared = standard @ self._covariance @ standard.T
        own = np.diag(shared)
        variance = np.maximum(own[:, None] + own - 2 * shared, 0.0)
        differences = strengths[:, None] - strengths
        return chance(differences / np.sqrt(1 + math.pi / 8 * variance))

    @cached_property
    def _covariance(self) -> Array:
        return np.asarray(np.linalg.inv(self.precision))

    def state_dict(self) -> dict[str, Any]:
        """What `of_state` makes the same taste of: tensors in float64, and the kind of features."""
        return {"kind": self.kind} | {name: torch.from_numpy(getattr(self, name)).clone() for name in _ARRAYS}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Taste:
        """The taste of a `state_dict`."""
        return cls(kind=state["kind"], **{name: state[name].numpy() for name in _ARRAYS})

    def save(self, file: Path) -> None:
        """Write it as safetensors.

        Raises:
            RunError: the file cannot be written.
        """
        state = self.state_dict()
        with writing(file), replacing(file) as temporary:
            save_file({name: state[name] for name in _ARRAYS}, temporary, metadata={"features": self.kind})

    @classmethod
    def load(cls, file: Path) -> Taste:
        """Read what `save` wrote.

        Raises:
            UsageError: it is not such a file.
        """
        try:
            with safe_open(file, framework="pt") as content:
                state = {name: content.get_tensor(name) for name in _ARRAYS}
                return cls.of_state(state | {"kind": content.metadata()["features"]})
        except (OSError, SafetensorError, KeyError, TypeError) as error:
            raise UsageError(f"{file} is not a voter's taste that grpokit wrote: {one_line(error)}.") from error


def right_pairs(expected: Mapping[str, float], values: Mapping[str, float]) -> tuple[float, int]:
    """How many pairs a model orders as the votes do, and of how many; of a tie of the model, half.

    Args:
        expected: sample -> the model's number.
        values: sample -> that of the votes. Pairs of equal values do not count.

    >>> right_pairs({"a": 0.9, "b": 0.5, "c": 0.5}, {"a": 1.0, "b": 0.0, "c": 0.5})
    (2.5, 3)
    """
    right, count = 0.0, 0
    for one, other in combinations(values, 2):
        if values[one] != values[other]:
            count += 1
            agreement = (expected[one] - expected[other]) * (values[one] - values[other])
            right += 0.5 if agreement == 0 else float(agreement > 0)
    return right, count


class TasteReward:
    """How much a voter likes a picture, in nats of a comparison: at 1 more, it wins 73 % of the time.

    Args:
        path: a file of `Taste.save`.
        options: of the features, such as `device` and `weights_path`.

    Raises:
        UsageError: it is not such a file, or the features need what is not there.
    """

    def __init__(self, path: str | Path, **options: Any) -> None:
        self.taste = Taste.load(Path(path))
        self.features = features(self.taste.kind, **options)

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples.

        Args:
            samples: B samples whose outputs are pictures.

        Returns:
            B scores.

        Raises:
            RewardError: an output is not a picture.
        """
        pictures = [to_rgb(sample.output, what=f"the output of row {row}") for row, sample in enumerate(samples)]
        return self.taste.utility(self.features(pictures)).tolist()
