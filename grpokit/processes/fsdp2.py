"""Weights that several processes hold together, by FSDP2: each keeps a part of every block and gathers it when needed.

A block is a layer of a transformer, one of many alike. What is outside of blocks, and adapters inside, stay whole in
each process. Blocks are gathered once for a whole rollout or scoring pass, where no process waits for another. In
training each is gathered for its own forward and backward pass, so all processes must make the same passes:
`grpokit.training.gradient` sees to that.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, distributed, nn

from grpokit.errors import UsageError
from grpokit.policy import Policy, optional
from grpokit.processes.rendezvous import join, new_group
from grpokit.processes.team import is_sharded

How: TypeAlias = Literal["fsdp2", "fsdp2-offload"]

_blocks: list[weakref.ref[Any]] = []  # sharded ones, in the same order in every process
_depth = 0  # of `gathered`


def check(how: How | None, mixed_precision: str, optimizer: str) -> None:
    """Refuse a precision whose loss scaler does not know sharded gradients, and optimizers that do not know them."""
    if how and mixed_precision == "fp16":
        raise UsageError("sharding does not work with mixed_precision 'fp16'; use bf16.")
    if how and optimizer != "adamw":
        raise UsageError(f"sharding does not work with optimizer '{optimizer}'; use adamw.")


def any_shards() -> bool:
    """Whether this process has cut any weights that are still there."""
    return any(block() is not None for block in _blocks)


def has_shards(policy: Policy) -> bool:
    """Whether the policy's blocks are spread over the processes."""
    modules = policy.modules().values()
    return any(is_sharded(p) for module in modules for p in module.parameters())


def shard(policy: Policy, how: How, device: torch.device) -> None:
    """Spread the blocks of a policy over all processes, in place; one that is spread already does not change.

    It has equal weights in all processes, and a frozen copy exists already. "fsdp2-offload" keeps the parts of each
    process, and what the optimizer has of them, in the CPU's memory.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard

    new = [block for block in _blocks_of(policy) if not isinstance(block, FSDPModule)]
    if not new:
        return
    mesh = DeviceMesh.from_group(new_group(), device.type)  # whose calls mix with no others
    offload = CPUOffloadPolicy(pin_memory=device.type == "cuda") if how == "fsdp2-offload" else OffloadPolicy()
    options: dict[str, Any] = {"mesh": mesh, "offload_policy": offload}
    block: Any  # gets the methods of FSDPModule
    for block in new:
        fully_shard(block, reshard_after_forward=True, ignored_params=_adapter(block), **options)
        block.set_gradient_divide_factor(1.0)  # gradients are summed: the loss is normalised by all rows
        block.set_force_sum_reduction_for_comms(True)
        if hasattr(block, "set_reduce_scatter_unused_params"):  # PyTorch 2.13
            block.set_reduce_scatter_unused_params(True)  # an expert may be used by the rows of one process only
    for before, block in zip([new[0], *new], new, strict=False):
        # The default follows the passes so far, and rollouts are not as many in every process.
        block.set_modules_to_backward_prefetch([before])
    _blocks.extend(map(weakref.ref, new))
    for parent in _parents(policy, new):
        _connect_blocks(parent, options)


def _connect_blocks(parent: nn.Module, options: dict[str, Any]) -> None:
    """Let each block of a module be gathered while the one before it computes.

    FSDP2 sets this up in the module's first forward pass, and refuses it once a block has run without the module, as
    some policies call them. PyTorch has no public way to do it earlier, so this calls a private one.
    """
    from torch.distributed.fsdp import fully_shard

    warnings.filterwarnings("ignore", rf"FSDP2-wrapped module \(FSDP{type(parent).__name__}\) returned a view")
    rest = {p for p in parent.parameters() if not is_sharded(p)}
    fully_shard(parent, ignored_params=rest, **options)
    fully_shard.state(parent)._lazy_init()  # type: ignore[attr-defined]


@contextmanager
def gathered() -> Iterator[None]:
    """Inside, all blocks are whole and a pass waits for no process; all processes must enter it. It may be nested."""
    global _depth
    blocks = [] if _depth else _living()
    _depth += 1
    try:
        for block in blocks:
            block.unshard()
            block.set_reshard_after_forward(False)
        yield
    finally:
        _depth -= 1
        for block in blocks:
            block.set_reshard_after_forward(True)
            block.reshard()


def _living() -> list[Any]:
    """The blocks that no process has thrown away yet."""
    if not _blocks:
        return []
    blocks = [reference() for reference in _blocks]
    living = {number for number, block in enumerate(blocks) if block is not None}
    in_all = set.intersection(*join().gather(living))
    return [blocks[number] for number in sorted(in_all)]


def full(tensor: Tensor) -> Tensor | None:
    """A sharded tensor from all processes' parts, on the CPU of process 0 alone; all must ask for it."""
    whole: Tensor = tensor.detach().full_tensor()  # type: ignore[attr-defined]
    return whole.cpu() if distributed.get_rank() == 0 else None


def cut_as(value: Any, like: Any) -> Any:
    """Cut a whole tensor as another one is sharded, without communication; else return it unchanged."""
    if not isinstance(value, Tensor) or not isinstance(like, Tensor) or not is_sharded(like):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]


def _blocks_of(policy: Policy) -> list[nn.Module]:
    """The policy's blocks that have weights."""
    every = dict.fromkeys(optional(policy, "blocks")())
    blocks = [block for block in every if list(block.parameters())]
    problem = ""
    if not blocks:
        problem = (
            "run.sharding spreads a policy's blocks over the processes, but this one has none: no torch.nn.ModuleList "
            "with several layers of one kind in its modules(). Leave run.sharding out, or give the policy a method "
            "blocks()."
        )
    elif any(not p.is_floating_point() for block in blocks for p in block.parameters()):
        problem = "run.sharding cannot spread quantised weights. Leave out the policy's quantization, or run.sharding."
    if problem:
        raise UsageError(problem, page="scale#weights-that-do-not-fit-into-one-gpu")
    return blocks


def _adapter(block: nn.Module) -> set[nn.Parameter]:
    """The parts of a block that stay whole: those that train, if they are small next to a frozen base."""
    training = {p for p in block.parameters() if p.requires_grad}
    trained_size = sum(p.numel() for p in training)
    size = sum(p.numel() for p in block.parameters())
    return training if 2 * trained_size < size else set()


def _parents(policy: Policy, blocks: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules that call blocks, each once."""
    wanted = set(blocks)
    modules = [part for module in policy.modules().values() for part in module.modules()]
    parents = []
    for module in dict.fromkeys(modules):
        lists = [child for child in module.children() if isinstance(child, nn.ModuleList)]
        if any(wanted & set(children) for children in lists):
            parents.append(module)
    return parents
