"""`reference-likeness` learns during a run to tell your pictures from the policy's; `reference-nearness` measures.

At the end of each step the head is fitted anew: to the training references against what all processes have drawn in
the last steps. It scores the next step. So no picture is scored by a head that has learned from it, every process has
the same head, and a score follows from what checkpoints hold and from the picture (Adv-GRPO, Mao et al., 2025,
arXiv:2511.20256, whose head is a network that learns by gradient in steps of its own).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grpokit import Sample, UsageError
from grpokit.images import to_rgb
from grpokit.rewards.submission import by_group
from grpokit.settings import BelowOne, Count, Positive
from grpokit_likeness.features import Features, Kind, features
from grpokit_likeness.head import Head, right_share
from grpokit_likeness.logistic import Array
from grpokit_likeness.references import distances, read_references

_RECENT = 10  # steps by which the head is judged
_FAR = 0.2  # between the shares of right pairs, from which on a head knows its references by heart
_COPIES = 0.5  # of the pictures of a step, from which on the policy copies


class ReferenceLikeness:
    """How likely a picture is one of your pictures and not one of the policy's, in nats; 0: as likely as not.

    The first step is scored 0, since nothing was drawn before it. Held-out prompts are not scored: each step has
    another head, and scores by two heads are not comparable.

    Args:
        references: a folder with your pictures.
        features: what the head looks at: "pixels" (colours and their places), "clip" or "lpips" (the features of these
            networks).
        held_out: the share of your pictures that the head never sees, and that measure it.
        past: from how many steps the head learns what the policy draws.
        ridge: how small the head's weights are kept.
        feature_options: parameters of these networks, such as `weights_path`.
    """

    files = ()

    def __init__(
        self,
        *,
        references: str,
        features: Kind = "pixels",
        held_out: BelowOne = 0.2,
        past: Count = 5,
        ridge: Positive = 0.5,
        feature_options: Mapping[str, Any] | None = None,
    ) -> None:
        name = "reference-likeness"
        self._features = _features(features, feature_options, name)
        self._references = read_references(references, self._features, held_out=held_out, reward=name)
        self.past, self.ridge = past, ridge
        self._begun = False
        self._step = 0  # the last one that was drawn
        self._seen: dict[int, Array] = {}  # group -> features of its pictures [G, F]
        self._window: list[Array] = []  # of the last steps, features [n, F]
        self._head: Head | None = None
        self._shares: list[tuple[float, float]] = []  # of the last steps: training, held-out
        self._warned: list[str] = []

    def begin(self, folder: Path, waits: Callable[[str], None], *, replays: bool = False) -> None:
        """A run begins, which it learns from."""
        self._begun = True

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples of a training step.

        Args:
            samples: B samples whose outputs are pictures.

        Returns:
            B logits; NaN for samples of no training step.

        Raises:
            RewardError: an output is not a picture.
            UsageError: there is no run that it could learn from.
        """
        step = samples[0].info.get("training_step") if samples else None
        if step is None:
            return [math.nan] * len(samples)
        if not self._begun:
            raise UsageError(
                "it learns while a run trains, and here none does. Pictures that are there already are scored by "
                "reference-nearness."
            )
        if step != self._step:
            self._step, self._seen = step, {}
        vectors = self._features(_pictures(samples))
        for rows in by_group(samples):
            self._seen[samples[rows[0]].group] = vectors[rows]
        if self._head is None:
            return [0.0] * len(samples)
        return list(map(float, self._head.logits(vectors)))

    def lesson(self) -> dict[int, Array]:
        """What was drawn in the step."""
        seen, self._seen = self._seen, {}
        return seen

    def learn(self, lessons: Sequence[dict[int, Array]], warn: Callable[[str], None]) -> dict[str, float]:
        """Measure the head on the step that it has scored, and fit it for the next one."""
        of_group = {group: vectors for lesson in lessons for group, vectors in lesson.items()}
        if not of_group:
            return {}
        vectors = np.concatenate([*of_group.values()])
        metrics = self._measured(self._head, vectors, warn) if self._head else {}
        self._window = [*self._window, vectors][-self.past :]
        self._fit()
        return metrics

    def _fit(self) -> None:
        self._head = None
        if self._window:
            self._head = Head.fit(self._references.training, np.concatenate(self._window), ridge=self.ridge)

    def _measured(self, head: Head, vectors: Array, warn: Callable[[str], None]) -> dict[str, float]:
        """How well the head tells references from pictures [n, F] that it has not learned from, and what these copy."""
        training, held_out = self._references.training, self._references.held_out
        logits = head.logits(vectors)
        shares = right_share(head.logits(training), logits), right_share(head.logits(held_out), logits)
        self._shares = [*self._shares, shares][-_RECENT:]
        gaps = distances(vectors, training)
        metrics = {
            "told_training": shares[0],
            "told_held_out": shares[1],
            "copies": float((gaps.min(1) < self._closest).mean()),
            "covered": len({*gaps.argmin(1).tolist()}) / len(training),
        }
        self._watch(metrics["copies"], warn)
        return metrics

    @cached_property
    def _closest(self) -> float:
        """How near two references are to each other at most."""
        vectors = np.concatenate([self._references.training, self._references.held_out])
        gaps = distances(vectors, vectors)
        return float(gaps[np.triu_indices(len(gaps), 1)].min())

    def _watch(self, copies: float, warn: Callable[[str], None]) -> None:
        """Warn once of a head that knows its references by heart, and once of a policy that copies them."""
        training, held_out = np.mean(self._shares, axis=0)
        by_chance = 0.5 + 1.64 * math.sqrt(1 / 12 / len(self._references.held_out))
        if len(self._shares) == _RECENT and held_out < by_chance and held_out < training - _FAR:
            self._warn(
                "memorised",
                f"reference-likeness knows its references by heart: in the last {_RECENT} steps it told the training "
                f"references from the policy's pictures in {training:.0%} of pairs, and those that it has not learned "
                f"from in {held_out:.0%}, where chance gives 50%. Stop here if the pictures are what you wanted. Else "
                "give more references, other features or a larger ridge.",
                warn,
            )
        if copies >= _COPIES:
            self._warn(
                "copies",
                f"reference-likeness: {copies:.0%} of the step's pictures are nearer to a reference than any two "
                "references are to each other, so the policy copies. Look at the samples, and give more references.",
                warn,
            )

    def _warn(self, name: str, words: str, warn: Callable[[str], None]) -> None:
        if name not in self._warned:
            self._warned = [*self._warned, name]
            warn(words)

    def state_dict(self) -> dict[str, Any]:
        """What the policy has drawn in the last steps, from which the head follows."""
        state: dict[str, Any] = {
            "references": self._references.digest,
            "rows": [len(vectors) for vectors in self._window],
            "shares": [list(shares) for shares in self._shares],
            "warned": self._warned,
        }
        if self._window:
            state["vectors"] = torch.from_numpy(np.concatenate(self._window))
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a result of `state_dict`.

        Raises:
            UsageError: the run has begun with other references or features.
        """
        if state["references"] != self._references.digest:
            raise UsageError(
                "reference-likeness: the references, their features or the share that is held out are not those that "
                "the run has begun with. Restore them, or begin another run."
            )
        ends = np.cumsum(state["rows"])[:-1]
        self._window = np.split(state["vectors"].numpy(), ends) if state["rows"] else []
        self._shares = [(training, held_out) for training, held_out in state["shares"]]
        self._warned = list(state["warned"])
        self._seen = {}
        self._fit()


class ReferenceNearness:
    """Minus the distance to the nearest held-out reference: -1 is as near as your other pictures are, 0 is a copy.

    It learns nothing, so that the beginning of a run and its end have one scale. `reference-likeness` never sees the
    held-out references. The distance is that of the features.

    Args:
        references: a folder with your pictures.
        features: "pixels", "clip" or "lpips", as for `reference-likeness`.
        held_out: the share of your pictures that is held out, as there.
        feature_options: parameters of these networks, such as `weights_path`.
    """

    def __init__(
        self,
        *,
        references: str,
        features: Kind = "pixels",
        held_out: BelowOne = 0.2,
        feature_options: Mapping[str, Any] | None = None,
    ) -> None:
        name = "reference-nearness"
        self._features = _features(features, feature_options, name)
        pictures = read_references(references, self._features, held_out=held_out, reward=name)
        self._held_out = pictures.held_out
        self._unit = float(np.median(self._nearest(pictures.training)))
        if not self._unit:
            raise UsageError(f"{name}: the pictures in {references} are too much alike to tell what is near.")

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples.

        Args:
            samples: B samples whose outputs are pictures.

        Returns:
            B scores of at most 0.

        Raises:
            RewardError: an output is not a picture.
        """
        if not samples:
            return []
        gaps = self._nearest(self._features(_pictures(samples)))
        return [-float(gap) / self._unit for gap in gaps]

    def _nearest(self, vectors: Array) -> Array:
        """How far each is from its nearest held-out reference: [n, F] -> [n]."""
        return np.asarray(distances(vectors, self._held_out).min(1))


def _features(kind: Kind, options: Mapping[str, Any] | None, reward: str) -> Features:
    if options and kind == "pixels":
        raise UsageError(f"{reward}: feature_options are for the features clip and lpips.")
    return features(kind, reward=reward, **(options or {}))


def _pictures(samples: Sequence[Sample]) -> list[Any]:
    return [to_rgb(sample.output, what=f"the output of row {row}") for row, sample in enumerate(samples)]
