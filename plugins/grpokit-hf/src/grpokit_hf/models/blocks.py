"""The blocks of a transformer, where most of its weights and nearly all of its time are."""

from __future__ import annotations

import os
import shutil

from torch import nn

from grpokit.errors import UsageError


def block_lists(model: nn.Module) -> list[nn.ModuleList]:
    """The model's lists of blocks of one kind."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
    return [blocks for blocks in lists if len(set(map(type, blocks))) == 1]


def compile_blocks(model: nn.Module) -> None:
    """Let `torch.compile` compile the blocks when they are first called: one kind once, for all of its blocks.

    Raises:
        UsageError: there is no C++ compiler, which torch needs for that.
    """
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        raise UsageError("compiled needs a C++ compiler, and there is no g++. Install it, or leave compiled out.")
    for blocks in block_lists(model):
        for block in blocks:
            block.compile()
