"""The GPUs that a plan knows, with what their makers' data sheets say.

FLOP/s are dense, without sparsity. "bf16" has fp32 sums. "fp32" is what torch does by default: without TF32.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from grpokit.errors import UsageError

GIB = 2**30
_SLOWER = frozenset({"pcie", "nvl", "d"})  # words in the names of other cards of the same size
USABLE = 0.92  # the rest is for CUDA's context, the workspaces of libraries, and gaps between tensors


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU.

    Attributes:
        name: how it is printed.
        memory: in bytes.
        bandwidth: of its memory, in bytes per second; None where it is not known.
        bf16: dense FLOP/s; None where they are not known.
        fp32: FLOP/s.
        source: where the numbers are from.
        names: what --gpu calls it, in small letters and digits.
    """

    name: str
    memory: float
    bandwidth: float | None = None
    bf16: float | None = None
    fp32: float | None = None
    source: str = ""
    names: tuple[str, ...] = ()

    @property
    def usable(self) -> float:
        """The bytes that a run may fill."""
        return self.memory * USABLE


CARDS = (
    Card(
        name="RTX 4090",
        memory=24 * GIB,
        bandwidth=1.008e12,
        bf16=165.2e12,
        fp32=82.6e12,
        source="NVIDIA Ada GPU Architecture, whitepaper, appendix A",
        names=("4090", "rtx4090", "24gb"),
    ),
    Card(
        name="A100 40GB",
        memory=40 * GIB,
        bandwidth=1.555e12,
        bf16=312e12,
        fp32=19.5e12,
        source="NVIDIA A100 data sheet, SXM",
        names=("a100", "a10040gb", "40gb"),
    ),
    Card(
        name="H100 80GB",
        memory=80 * GIB,
        bandwidth=3.35e12,
        bf16=989e12,
        fp32=67e12,
        source="NVIDIA H100 data sheet, SXM",
        names=("h100", "h10080gb", "80gb"),
    ),
    Card(
        name="H200 141GB",
        memory=141 * GIB,
        bandwidth=4.8e12,
        bf16=989e12,
        fp32=67e12,
        source="NVIDIA H200 data sheet, SXM",
        names=("h200", "h200141gb", "141gb"),
    ),
)


def by_name(name: str) -> Card:
    """The card that a user means, such as "H100" or "24 GB".

    Raises:
        UsageError: no card has this name; the message names all.
    """
    plain = re.sub(r"[^a-z0-9]", "", name.lower().removeprefix("nvidia"))
    for card in CARDS:
        if plain in card.names:
            return card
    known = ", ".join(f"'{card.name}'" for card in CARDS)
    raise UsageError(f"No card is called '{name}'. Known: {known}. Leave --gpu out for a table of all.")


def here() -> Card | None:
    """This machine's first GPU, with the speeds of the known card that it is; None without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return recognised(found.name, found.total_memory)


def recognised(name: str, memory: float) -> Card:
    """A GPU as a driver describes it: its own memory, and the speeds of the known card whose name and size it has.

    >>> recognised("NVIDIA H100 80GB HBM3", 79.6 * 2**30).bandwidth
    3350000000000.0
    >>> recognised("NVIDIA A100-SXM4-80GB", 79.3 * 2**30).bandwidth  # another A100 than the one that is known
    >>> recognised("NVIDIA H100 PCIe", 79.2 * 2**30).bandwidth  # whose memory is slower than that of an H100 SXM
    """
    words = re.split(r"[^a-z0-9]+", name.lower())
    for card in CARDS:
        if card.names[0] in words and _SLOWER.isdisjoint(words) and abs(memory / card.memory - 1) < 0.1:
            return Card(
                name=name,
                memory=memory,
                bandwidth=card.bandwidth,
                bf16=card.bf16,
                fp32=card.fp32,
                source=card.source,
            )
    return Card(name=name, memory=memory)
