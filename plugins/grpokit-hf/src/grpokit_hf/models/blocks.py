"""The blocks of a transformer, where most of its weights and nearly all of its time are."""

from __future__ import annotations

from torch import nn


def block_lists(model: nn.Module) -> list[nn.ModuleList]:
    """The model's lists of blocks of one kind."""
    return [m for m in model.modules() if isinstance(m, nn.ModuleList) and len({type(block) for block in m}) == 1]


def compile_blocks(model: nn.Module) -> None:
    """Let `torch.compile` compile the blocks when they are first called: one kind once, for all of its blocks."""
    for blocks in block_lists(model):
        for block in blocks:
            block.compile()
