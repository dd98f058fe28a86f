"""What is read of all prompts before a run: their pictures, and digests, so that a resumed run has the same prompts.

Pictures in files count by the bytes of their files, without being decoded; what a run holds in memory counts by its
values. An object of an unknown class counts by its class alone, since its text may hold an address of its process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from grpokit.data.sequences import PromptSequence, Stored
from grpokit.errors import DataError, one_line
from grpokit.types import Prompt

_READERS = 8  # threads; decoding and hashing let go of Python's lock
_PORTION = 100  # prompts that a thread takes at a time


def check_pictures(*sequences: PromptSequence | None) -> None:
    """Read the pictures of all prompts to their ends, so that a damaged one stops a run before its first step.

    Raises:
        DataError: a picture cannot be read.
    """
    with ThreadPool(_READERS) as readers:
        for prompts in filter(None, sequences):
            for _ in readers.imap(prompts.check_pictures, range(len(prompts)), _PORTION):
                pass


def digests(prompts: PromptSequence) -> dict[str, list[str]]:
    """Digests of all prompts: of the "texts" with their meta, of the "targets" and of the source "images".

    Returns:
        For each part a list with 16 hexadecimal digits per prompt; empty ones where a prompt has no such part.

    Raises:
        DataError: a picture's file cannot be read.
    """

    def of_one(index: int) -> list[str]:
        row = prompts.row(index)
        prompt = row.prompt
        images: Any = prompt.images or None
        if len(prompt.images) == 1:
            images = prompt.images[0]
        parts = [(prompt.text, prompt.meta), prompt.target, images]
        try:
            return ["" if part is None else digest(part) for part in parts]
        except OSError as error:
            raise DataError(f"{row.where}: {one_line(error)}.") from error

    with ThreadPool(_READERS) as readers:
        rows = list(readers.imap(of_one, range(len(prompts)), _PORTION))
    return {
        "texts": [text for text, _, _ in rows],
        "targets": [target for _, target, _ in rows],
        "images": [images for _, _, images in rows],
    }


def picture_digests(prompts: Sequence[Prompt]) -> list[str]:
    """A digest of the source pictures of each prompt, by their pixels; empty where it has none."""
    known: dict[int, str] = {}  # the samples of a group share their prompt
    found = []
    for prompt in prompts:
        if id(prompt) not in known:
            known[id(prompt)] = digest(prompt.images) if prompt.images else ""
        found.append(known[id(prompt)])
    return found


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
    elif isinstance(value, (Path, Stored)):
        kind, content = "file", value.read_bytes()
    elif isinstance(value, Image.Image):
        picture = value.convert("RGBA") if value.mode == "P" else value
        kind, content = f"picture {value.mode} {value.size}", picture.tobytes()
    elif isinstance(value, torch.Tensor):
        kind = f"tensor {value.dtype} {tuple(value.shape)}"
        here = value.detach().cpu().contiguous().reshape(-1)
        content = here.view(torch.uint8).numpy().tobytes()
    elif isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        kind, content = f"array {value.dtype.str} {value.shape}", value.tobytes()
    elif isinstance(value, Mapping):
        kind = "mapping"
        for key in sorted(value, key=repr):
            parts += [key, value[key]]
    elif isinstance(value, (list, tuple)):
        kind, parts = "list", list(value)
    hasher.update(f"{kind}:{len(content)}:{len(parts)}:".encode())
    hasher.update(content)
    for part in parts:
        _feed(hasher, part)
