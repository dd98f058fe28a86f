"""The GPUs that a plan knows, with what their makers' data sheets say.

FLOP/s are dense, without sparsity. "bf16" has fp32 sums. "fp32" is what torch does by default: without TF32.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from grpokit.errors import UsageError

GIB = 2**30
_OTHERS = frozenset({"pcie", "nvl", "d", "ti"})  # words in the names of other cards of the same size
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
        names: what --gpu calls it, in small letters and digits; the first is a word of the driver's name.
        listed: whether the table of cards has it.
    """

    name: str
    memory: float
    bandwidth: float | None = None
    bf16: float | None = None
    fp32: float | None = None
    source: str = ""
    names: tuple[str, ...] = ()
    listed: bool = True

    @property
    def usable(self) -> float:
        """The bytes that a run may fill."""
        return self.memory * USABLE


_AMPERE = "NVIDIA Ampere GA102 GPU Architecture, whitepaper, appendix "
_ROWS: tuple[tuple[str, float, float, float, float, bool, str, str], ...] = (
    # name, GiB, GB/s, TFLOP/s in bf16 and fp32, whether it is listed, what --gpu calls it, source
    ("RTX 3090", 24, 936, 71, 35.6, False, "3090 rtx3090", _AMPERE + "A"),
    ("RTX 4090", 24, 1008, 165.2, 82.6, True, "4090 rtx4090 24gb",
     "NVIDIA Ada GPU Architecture, whitepaper, appendix A"),
    ("RTX 5090", 32, 1792, 209.5, 104.8, True, "5090 rtx5090 32gb",
     "NVIDIA RTX Blackwell GPU Architecture, whitepaper, appendix A"),
    ("L40S", 48, 864, 362, 91.6, True, "l40s l40s48gb 48gb", "NVIDIA L40S data sheet"),
    ("RTX A6000", 48, 768, 154.8, 38.7, False, "a6000 rtxa6000", _AMPERE + "C"),
    ("A100 40GB", 40, 1555, 312, 19.5, True, "a100 a10040gb 40gb", "NVIDIA A100 data sheet, SXM"),
    ("A100 80GB", 80, 2039, 312, 19.5, True, "a100 a10080gb", "NVIDIA A100 data sheet, SXM"),
    ("H100 80GB", 80, 3350, 989, 67, True, "h100 h10080gb 80gb", "NVIDIA H100 data sheet, SXM"),
    ("H200 141GB", 141, 4800, 989, 67, True, "h200 h200141gb 141gb", "NVIDIA H200 data sheet, SXM"),
    ("B200", 180, 8000, 2250, 80, False, "b200 b200180gb 180gb",
     "NVIDIA Blackwell Architecture, technical brief, HGX B200; NVIDIA DGX B200 data sheet"),
)  # fmt: skip

CARDS = tuple(
    Card(
        name=name,
        memory=memory * GIB,
        bandwidth=bandwidth * 1e9,
        bf16=bf16 * 1e12,
        fp32=fp32 * 1e12,
        source=source,
        names=tuple(names.split()),
        listed=listed,
    )
    for name, memory, bandwidth, bf16, fp32, listed, names, source in _ROWS
)


def by_name(name: str) -> Card:
    """The card that a user means, such as "H100" or "24 GB"; of a size that no card has, one without speeds.

    Raises:
        UsageError: no card has this name; the message names all.
    """
    plain = re.sub(r"[^a-z0-9]", "", name.lower().removeprefix("nvidia"))
    for card in CARDS:
        if plain in card.names:
            return card
    if size := re.fullmatch(r"(\d*\.?\d+)gi?b", name.lower().replace(" ", "")):
        return Card(name=name, memory=float(size[1]) * GIB)
    known = ", ".join(f"'{card.name}'" for card in CARDS)
    raise UsageError(f"No card is called '{name}'. Known: {known}. A memory such as '22 GB' will do, too.")


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
    >>> recognised("NVIDIA A100-SXM4-80GB", 79.3 * 2**30).bandwidth  # not that of the A100 of 40 GB
    2039000000000.0
    >>> recognised("NVIDIA H100 PCIe", 79.2 * 2**30).bandwidth  # whose memory is slower than that of an H100 SXM
    """
    words = re.split(r"[^a-z0-9]+", name.lower())
    for card in CARDS:
        named = card.names[0] in words and _OTHERS.isdisjoint(words)
        if named and abs(memory / card.memory - 1) < 0.1:
            return Card(
                name=name,
                memory=memory,
                bandwidth=card.bandwidth,
                bf16=card.bf16,
                fp32=card.fp32,
                source=card.source,
            )
    return Card(name=name, memory=memory)
