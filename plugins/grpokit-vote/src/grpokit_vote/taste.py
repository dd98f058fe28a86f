"""A model of the voter: how much they like a picture, as a weighted sum of its features.

The weights are those of a Bradley-Terry model, fitted to who won against whom in each group. Their posterior says how
sure each comparison of two pictures is (MacKay, 1992, Neural Computation 4, "The evidence framework applied to
classification networks"). A taste is a file, and a reward: `TasteReward` scores pictures by it, and `write_package`
makes a plugin of it, to keep and to share.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from grpokit import Sample, UsageError
from grpokit.errors import one_line
from grpokit.files import writing
from grpokit.images import to_rgb
from grpokit_likeness.features import Kind, features
from grpokit_likeness.logistic import Array, chance, fit

_TEMPLATES = Path(__file__).parent / "exported"  # of a package; MODULE stands for its module
_ARRAYS = ("weights", "mean", "scale", "precision")
_CONSTANT = 1e-9  # the spread of a feature that is the same in all pictures
_TIGHTNESS = 0.5  # of the prior, for each feature: two random pictures differ by about 2 nats


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
        names = sorted({sample for group in groups for sample in group})
        table = np.stack([vectors[sample] for sample in names])  # [n, F]
        mean, scale = table.mean(0), table.std(0)
        scale[scale < _CONSTANT] = 1.0
        standard = dict(zip(names, (table - mean) / scale, strict=True))
        comparisons = sorted(comparison for group in groups for comparison in _comparisons(group))
        differences = [standard[winner] - standard[loser] for winner, loser, _ in comparisons]
        weights, precision = fit(
            np.array(differences).reshape(-1, len(mean)),
            np.ones(len(comparisons)),
            precision=_TIGHTNESS * len(mean),
            weights=np.array([weight for *_, weight in comparisons]),
        )
        return cls(kind=kind, weights=weights, mean=mean, scale=scale, precision=precision)

    def utility(self, vectors: Array) -> Array:
        """How much the voter likes pictures, comparable between groups: features [n, F] -> [n]."""
        return np.asarray((vectors - self.mean) / self.scale @ self.weights)

    def win_rates(self, vectors: Array) -> Array:
        """The share of the others of its group that each picture is expected to win against, from 0 to 1.

        Args:
            vectors: [n, F] features of a group of n, at least 2.
        """
        wins = self._chances(vectors).sum(1) - 0.5  # against itself
        return np.asarray(wins / (len(vectors) - 1))

    def doubt(self, vectors: Array) -> float:
        """How likely the model is wrong about a pair of a group, on average: 0.5 knows nothing, 0 is sure."""
        chances = self._chances(vectors)
        return float(np.minimum(chances, chances.T)[np.triu_indices(len(vectors), 1)].mean())

    def _chances(self, vectors: Array) -> Array:
        """[n, n] how likely each wins against each, with what the weights may be averaged over."""
        strengths = self.utility(vectors)
        standard = (vectors - self.mean) / self.scale
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
        state: dict[str, Any] = {"kind": self.kind}
        for name in _ARRAYS:
            state[name] = torch.from_numpy(getattr(self, name)).clone()
        return state

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
        with writing(file):
            save_file({name: state[name] for name in _ARRAYS}, file, metadata={"features": self.kind})

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


def _comparisons(group: Mapping[str, float]) -> Iterator[tuple[str, str, float]]:
    """(winner, loser, weight) of each pair of a group that is no tie."""
    for pair in combinations(sorted(group), 2):
        loser, winner = sorted(pair, key=group.__getitem__)
        if group[loser] < group[winner]:
            yield winner, loser, 2 / len(group)


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
        self.features = features(self.taste.kind, reward="human-vote", **options)

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
        return list(map(float, self.taste.utility(self.features(pictures))))


def write_package(
    taste: Taste, folder: Path, name: str, *, facts: Mapping[str, object], options: Mapping[str, Any] | None = None
) -> None:
    """Write a package that pip can install, with the taste as a reward.

    Args:
        taste: what the voter likes.
        folder: where its files go; a new one, or an empty one.
        name: of the package, and of the reward in configs.
        facts: for its README, what the taste was learned from, such as {"question": "Which is nicer?"}.
        options: of the features, such as `net`, where they are not the defaults.

    Raises:
        UsageError: the name cannot be used.
        RunError: the files cannot be written.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or len(name) > 40:
        raise UsageError(
            f"A taste's name has small letters, digits and single hyphens, at most 40, such as my-taste; got {name!r}."
        )
    module = f"taste_{name.replace('-', '_')}"
    words = {
        "name": name,
        "module": module,
        "kind": taste.kind,
        "extra": "" if taste.kind == "pixels" else f"[{taste.kind}]",
        "facts": "\n".join(f"- {what}: {fact}" for what, fact in facts.items()),
        "options": repr(dict(options or {})),
    }
    with writing(folder):
        (folder / module).mkdir(parents=True)
        for template in sorted(_TEMPLATES.rglob("*.template")):
            text = Template(template.read_text(encoding="utf-8")).substitute(words)
            place = str(template.relative_to(_TEMPLATES).with_suffix("")).replace("MODULE", module)
            (folder / place).write_text(text, encoding="utf-8")
        taste.save(folder / module / "taste.safetensors")
