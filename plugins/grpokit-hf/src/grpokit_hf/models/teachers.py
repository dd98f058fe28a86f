"""Trained adapters as the teachers of another one, all around the same frozen base.

No weight of the base is copied: each teacher has its own tree of modules, whose layers are those of the base.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from grpokit.errors import UsageError, brief

M = TypeVar("M", bound=nn.Module)


def bare_copy(base: M) -> M:
    """Another tree of modules around the layers and weights of a frozen model, for an adapter of its own.

    Args:
        base: without an adapter.
    """
    layers = [module for module in base.modules() if not any(module.children())]
    shared: list[Any] = [*layers, *base.parameters(), *base.buffers()]
    return copy.deepcopy(base, {id(each): each for each in shared})


def bring_beside(model: nn.Module, device: torch.device) -> None:
    """Bring the weights of a teacher's adapter to where those of its base are."""
    tensors: list[Any] = [*model.parameters(), *model.buffers()]
    for tensor in tensors:
        if tensor.device != device and not hasattr(tensor, "to_local"):
            tensor.data = tensor.data.to(device)


@contextmanager
def named(name: str) -> Iterator[None]:
    """Inside, an error about an adapter names the teacher that it is for.

    Raises:
        UsageError: the same.
    """
    try:
        yield
    except UsageError as error:
        raise UsageError(f"teachers: {name}: {str(error).removeprefix('lora: adapter: ')}") from error


def check_teachers(teachers: Mapping[str, Any], *, trains_base: bool, moves: bool) -> None:
    """Refuse teachers that are no files or hub ids, without a frozen base, or beside another reference.

    Raises:
        UsageError: with what to change.
    """
    if not teachers:
        raise UsageError("teachers is empty. Name adapters, as in teachers: {ocr: ocr.safetensors}, or leave it out.")
    for name, adapter in teachers.items():
        if not isinstance(adapter, str | Path):
            raise UsageError(f"teachers: {name}: expected a file, a folder or a hub id, got {brief(adapter)}.")
    if trains_base:
        raise UsageError("teachers are adapters of a frozen base, and lora is null: add an adapter with lora: {r: 16}.")
    if moves:
        raise UsageError("teachers are the policy's reference, and so is the average of reference_ema: leave one out.")
