"""Tensors of several sizes in one: padded, or in the form that a trace can hold.

A rollout's trace has one row per prompt, and between the calls of a rollout only axis 1 may differ. Pictures and what
belongs to them differ in more. So each prompt's tensor becomes a row of numbers, padded with zeros, beside a row that
tells its shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

AXES = 6  # the most that a tensor may have


def padded(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors [n, ...] with zeros behind the shorter ones: [b, longest, ...].

    >>> padded([torch.tensor([1, 2, 3]), torch.tensor([4])]).tolist()
    [[1, 2, 3], [4, 0, 0]]
    """
    return torch.nn.utils.rnn.pad_sequence(list(tensors), batch_first=True)


def flattened(name: str, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Entries of `Trace.per_group` for one tensor per prompt.

    Args:
        name: of the entry; that of the shapes is `name.shape`.
        tensors: P tensors of one dtype, on one device. A prompt without one gives an empty tensor.

    Returns:
        The numbers [P, longest], and the shapes [P, AXES] on the CPU: the sizes, and -1 behind the last.

    >>> entries = flattened("grid", [torch.tensor([[1, 2], [3, 4]]), torch.tensor([5])])
    >>> entries["grid"].tolist(), entries["grid.shape"].tolist()
    ([[1, 2, 3, 4], [5, 0, 0, 0]], [[2, 2, -1, -1, -1, -1], [1, -1, -1, -1, -1, -1]])
    """
    shapes = []
    for x in tensors:
        missing = AXES - x.ndim
        shapes.append([*x.shape, *[-1] * missing])
    numbers = padded([x.flatten() for x in tensors])
    return {name: numbers, f"{name}.shape": torch.tensor(shapes)}


def restored(name: str, entries: Mapping[str, Tensor]) -> list[Tensor]:
    """What `flattened` was given, from `Trace.per_group`; views of its rows, without waiting for a device."""
    tensors = []
    for row, sizes in zip(entries[name], entries[f"{name}.shape"].tolist(), strict=True):
        shape = [size for size in sizes if size >= 0]
        tensors.append(row[: math.prod(shape)].view(shape))
    return tensors
