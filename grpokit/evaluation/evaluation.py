"""An evaluation: samples and their scores, wherever the samples came from.

A policy draws them (`held_out`), or they lie in files (`sample_files`, `files`) or in a run's record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from grpokit.data.digests import picture_digests
from grpokit.evaluation.intervals import Summary, half_width, mean_of_totals, or_none
from grpokit.rewards.scoring import Scores
from grpokit.types import Prompt, Sample


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Samples with their scores.

    Attributes:
        samples: B samples, each prompt's next to each other; those of files are read when one is asked for.
        prompts: B prompts, without the pictures of those in files.
        scores: their scores [B, R].
        problems: row -> why its files could not be read.
        file_pictures: of samples in files, as `pictures`.
    """

    samples: Sequence[Sample]
    prompts: Sequence[Prompt]
    scores: Scores
    problems: Mapping[int, str] = field(default_factory=dict)
    file_pictures: Sequence[str] = ()

    @property
    def texts(self) -> list[str]:
        """The texts of the prompts."""
        return [prompt.text for prompt in self.prompts]

    @cached_property
    def pictures(self) -> Sequence[str]:
        """A digest of each prompt's source pictures, empty where it has none."""
        return self.file_pictures or picture_digests(self.prompts)

    def part(self, rows: Sequence[int]) -> Evaluation:
        """The scores of some samples alone, without the samples, which would be read from their files."""
        return Evaluation(
            samples=(),
            prompts=[self.prompts[i] for i in rows],
            scores=self.scores.select(torch.tensor(rows, dtype=torch.int64)),
            file_pictures=[self.pictures[i] for i in rows],
        )

    def columns(self) -> dict[str, Tensor]:
        """Name -> [B] for every reward; "reward" has the rows' totals, if any reward has a weight."""
        columns = dict(zip(self.scores.names, self.scores.matrix.T, strict=True))
        if self.scores.trained.names:
            columns["reward"] = self.scores.totals
        return columns

    @cached_property
    def summary(self) -> Summary:
        """The mean of each of the `columns` over the scored samples, with its interval."""
        prompts = self.scores.groups.tolist()
        columns = self.scores.matrix.T.tolist()
        widths = {}
        for name, column in zip(self.scores.names, columns, strict=True):
            widths[name] = half_width(column, prompts)
        if self.scores.trained.names:
            widths["reward"] = mean_of_totals(columns, self.scores.weights.tolist(), prompts).half_width
        return Summary(
            means={name: or_none(float(column.nanmean())) for name, column in self.columns().items()},
            ci95={name: or_none(width) for name, width in widths.items()},
        )
