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


CARDS = (
    Card(
        name="RTX 3090",
        memory=24 * GIB,
        bandwidth=936e9,
        bf16=71e12,
        fp32=35.6e12,
        source="NVIDIA Ampere GA102 GPU Architecture, whitepaper, appendix A",
        names=("3090", "rtx3090"),
        listed=False,
    ),
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
        name="RTX 5090",
        memory=32 * GIB,
        bandwidth=1.792e12,
        bf16=209.5e12,
        fp32=104.8e12,
        source="NVIDIA RTX Blackwell GPU Architecture, whitepaper, appendix A",
        names=("5090", "rtx5090", "32gb"),
    ),
    Card(
        name="L40S",
        memory=48 * GIB,
        bandwidth=864e9,
        bf16=362e12,
        fp32=91.6e12,
        source="NVIDIA L40S data sheet",
        names=("l40s", "l40s48gb", "48gb"),
    ),
    Card(
        name="RTX A6000",
        memory=48 * GIB,
        bandwidth=768e9,
        bf16=154.8e12,
        fp32=38.7e12,
        source="NVIDIA Ampere GA102 GPU Architecture, whitepaper, appendix C",
        names=("a6000", "rtxa6000"),
        listed=False,
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
        name="A100 80GB",
        memory=80 * GIB,
        bandwidth=2.039e12,
        bf16=312e12,
        fp32=19.5e12,
        source="NVIDIA A100 data sheet, SXM",
        names=("a100", "a10080gb"),
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
    Card(
        name="B200",
        memory=180 * GIB,
        bandwidth=8e12,
        bf16=2250e12,
        fp32=80e12,
        source="NVIDIA Blackwell Architecture, technical brief, HGX B200; NVIDIA DGX B200 data sheet",
        names=("b200", "b200180gb", "180gb"),
        listed=False,
    ),
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
    if size := re.fullmatch(r"([\d.]*\d)gi?b", name.lower().replace(" ", "")):
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
        if card.names[0] in words and _OTHERS.isdisjoint(words) and abs(memory / card.memory - 1) < 0.1:
            return Card(
                name=name,
                memory=memory,
                bandwidth=card.bandwidth,
                bf16=card.bf16,
                fp32=card.fp32,
                source=card.source,
            )
    return Card(name=name, memory=memory)
