"""Where GLM-Image's visual tokens stand: the grids that a picture is written in, and positions on three axes.

A picture of H x W pixels is a large grid of H/32 x W/32 tokens. For a text alone the model first writes a draft of
about 256 tokens. For an edit there is no draft, but each source picture is a grid in the prompt. Every token has a
position in time, height and width: a text's tokens move along all three together, a grid stands still in time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PIXELS = 32  # of a picture's side, for one token
_DRAFT = 16  # tokens of a square draft's side


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Rows and columns of visual tokens, which are written row by row."""

    rows: int
    columns: int

    @property
    def count(self) -> int:
        """How many tokens it has."""
        return self.rows * self.columns

    @property
    def span(self) -> int:
        """How far positions move on behind it."""
        return max(self.rows, self.columns)

    def positions(self, start: int) -> Tensor:
        """Positions [3, rows * columns] on the CPU of a grid that begins at a position.

        >>> Grid(rows=2, columns=2).positions(7).tolist()
        [[7, 7, 7, 7], [7, 7, 8, 8], [7, 8, 7, 8]]
        """
        row, column = torch.arange(self.rows), torch.arange(self.columns)
        height, width = row.repeat_interleave(self.columns), column.repeat(self.rows)
        return torch.stack([torch.zeros_like(height), height, width]) + start


@dataclass(frozen=True, kw_only=True)
class Target:
    """The grids that a picture is written in.

    Attributes:
        draft: the one that is written first; None for an edit.
        large: the one that is decoded.
    """

    draft: Grid | None
    large: Grid

    @property
    def grids(self) -> tuple[Grid, ...]:
        """In the order in which they are written."""
        return (self.large,) if self.draft is None else (self.draft, self.large)

    @property
    def count(self) -> int:
        """T, the visual tokens of a picture. The end token behind them says nothing and is left out."""
        return sum(grid.count for grid in self.grids)

    def part(self, name: str) -> slice:
        """Which of the T tokens belong to the "draft", to the "large" grid, or to "both"."""
        before = 0 if self.draft is None else self.draft.count
        return {"draft": slice(0, before), "large": slice(before, self.count), "both": slice(0, self.count)}[name]

    def positions(self, start: int) -> Tensor:
        """Positions [3, T] of all tokens, behind a prompt that ends before the position `start`."""
        parts = []
        for grid in self.grids:
            parts.append(grid.positions(start))
            start += grid.span
        return torch.cat(parts, 1)


def target_of(height: int, width: int, *, edits: bool) -> Target:
    """The grids of a picture, as GLM-Image's processor makes them.

    Args:
        height: in pixels.
        width: in pixels.
        edits: whether it is made from others, so without a draft.
    """
    large = Grid(rows=height // PIXELS, columns=width // PIXELS)
    shape = math.sqrt(large.rows / large.columns)
    draft = Grid(rows=int(_DRAFT * shape), columns=int(_DRAFT / shape))
    return Target(draft=None if edits else draft, large=large)


def prompt_positions(tokens: Sequence[int], sources: Sequence[Grid], *, begin: int) -> Tensor:
    """Positions [3, S] on the CPU of a prompt's tokens, as the model's own `get_rope_index` gives them.

    Args:
        tokens: S ids; each source picture stands behind a begin token.
        sources: the grids of the source pictures, in their order.
        begin: the id of the token that begins a picture; that of the picture to write is the prompt's last.
    """
    parts: list[Tensor] = []
    done = position = 0  # tokens that have a position, and the next position of a text
    starts = [index + 1 for index, token in enumerate(tokens) if token == begin]
    for start, grid in zip(starts, sources, strict=False):
        parts += [_line(position, start - done), grid.positions(position + start - done)]
        position += start - done + grid.span
        done = start + grid.count
    parts.append(_line(position, len(tokens) - done))
    return torch.cat(parts, 1)


def _line(start: int, count: int) -> Tensor:
    """Positions [3, count] of a text."""
    return torch.arange(start, start + count).expand(3, -1)
