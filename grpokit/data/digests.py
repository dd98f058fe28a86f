"""Digests of prompts: whether a resumed run has the prompts that it was started with.

Pictures in files count by the bytes of their files, without being decoded; what a run holds in memory counts by its
values. An object of an unknown class counts by its class alone, since its text may hold an address of its process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from grpokit.data.sequences import as_prompts
from grpokit.data.shards import Slice
from grpokit.errors import DataError, one_line
from grpokit.types import Prompt

_READERS = 8  # threads; hashing lets go of Python's lock
_PORTION = 100  # prompts that a thread takes at a time


@dataclass(frozen=True, kw_only=True)
class PromptDigests:
    """What the prompts of a run are, in 16 hexadecimal digits for each part of a prompt; empty where it has none.

    Attributes:
        texts: of text and meta together.
        targets: of the target.
        images: of the source picture.
    """

    texts: Sequence[str]
    targets: Sequence[str]
    images: Sequence[str]


def digests(prompts: Iterable[str | Prompt]) -> PromptDigests:
    """Digests of all prompts of a sequence.

    Raises:
        DataError: a picture's file cannot be read.
    """
    sequence = as_prompts(prompts)

    def of_one(index: int) -> list[str]:
        try:
            return ["" if part is None else digest(part) for part in sequence.parts(index)]
        except OSError as error:
            raise DataError(f"{sequence.where(index)}: {one_line(error)}.") from error

    def of_some(start: int) -> list[list[str]]:
        return [of_one(index) for index in range(start, min(start + _PORTION, len(sequence)))]

    with ThreadPoolExecutor(_READERS) as readers:
        rows = [row for some in readers.map(of_some, range(0, len(sequence), _PORTION)) for row in some]
    texts, targets, images = zip(*rows, strict=True) if rows else ((), (), ())
    return PromptDigests(texts=texts, targets=targets, images=images)


def digest(value: Any) -> str:
    """16 hexadecimal digits that tell values apart, the same in every process.

    >>> digest({"a": 1, "b": [2.0]}) == digest({"b": [2.0], "a": 1}), digest("1") == digest(1)
    (True, False)
    """
    hasher = hashlib.blake2b(digest_size=8)
    _feed(hasher, value)
    return hasher.hexdigest()


def _feed(hasher: hashlib.blake2b, value: Any) -> None:
    """Add a value behind its kind and size, so that neighbours cannot be confused."""
    content: bytes | memoryview = b""
    parts: list[Any] = []
    kind = type(value).__name__
    if value is None or isinstance(value, (bool, int, float, complex)):
        content = repr(value).encode()
    elif isinstance(value, str):
        kind, content = "str", value.encode(errors="surrogatepass")
    elif isinstance(value, bytes):
        kind, content = "file", value
    elif isinstance(value, (Path, Slice)):
        kind, content = "file", value.read_bytes()
    elif isinstance(value, Image.Image):
        picture = value.convert("RGBA") if value.mode == "P" else value
        kind, content = f"picture {value.mode} {value.size}", picture.tobytes()
    elif isinstance(value, torch.Tensor):
        here = value.detach().cpu().contiguous().reshape(-1)
        kind, content = f"tensor {value.dtype} {tuple(value.shape)}", here.view(torch.uint8).numpy().tobytes()
    elif isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        kind, content = f"array {value.dtype.str} {value.shape}", value.tobytes()
    elif isinstance(value, Mapping):
        kind = "mapping"
        parts = [part for key in sorted(value, key=repr) for part in (key, value[key])]
    elif isinstance(value, (list, tuple)):
        kind, parts = "list", list(value)
    hasher.update(f"{kind}:{len(content)}:{len(parts)}:".encode())
    hasher.update(content)
    for part in parts:
        _feed(hasher, part)
