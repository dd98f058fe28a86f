"""Samples as JSON, for a reward on another machine. There is no pickle, so neither end can make the other run anything.

Pictures travel as PNG, tensors and arrays as safetensors, in base64. What JSON lacks is an object with one key that
begins with "$". Samples of one prompt share it, and its pictures travel once.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from PIL import Image

from grpokit.errors import UsageError, a_type, one_line, typed_line
from grpokit.images import MAX_PIXELS
from grpokit.types import Prompt, Sample

PROTOCOL = 1
"""Rises when one end would misunderstand the other."""

_OF_PROMPT = ("text", "images", "target", "meta")
_OF_SAMPLE = ("output", "group", "info")
_MOST_LISTS = 1_000_000  # each takes 60 bytes or more, and 3 of a request
_OF_PICTURE = ("transparency",)  # what a picture's info says of its pixels
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")  # that PNG keeps


class WireError(ValueError):
    """A request or an answer is not what it should be; the message is a sentence."""


@dataclass
class Limits:
    """What a request may hold, so that a small one cannot fill the memory.

    Attributes:
        samples: how many.
        pixels: of all its pictures together.
    """

    samples: int = 4096
    pixels: int = 256_000_000


def to_json(samples: Sequence[Sample]) -> bytes:
    """Samples as the body of a request.

    Raises:
        UsageError: something that cannot be sent; the message names it.
    """
    try:
        return _body(samples)
    except (RecursionError, ValueError) as error:  # lists in lists, or a number of thousands of digits
        raise UsageError(
            f"The samples cannot be sent to another machine: {one_line(error)}. Remove `placement`, so that the reward "
            "runs in the run's own process."
        ) from error


def _body(samples: Sequence[Sample]) -> bytes:
    prompts: dict[int, int] = {}
    bodies: list[dict[str, Any]] = []
    rows = []
    for row, sample in enumerate(samples):
        if id(sample.prompt) not in prompts:
            prompts[id(sample.prompt)] = len(bodies)
            bodies.append({name: _packed(getattr(sample.prompt, name), (row, f"prompt.{name}")) for name in _OF_PROMPT})
        body = {name: _packed(getattr(sample, name), (row, name)) for name in _OF_SAMPLE}
        rows.append({"prompt": prompts[id(sample.prompt)], **body})
    return json.dumps({"protocol": PROTOCOL, "prompts": bodies, "samples": rows}, allow_nan=False).encode()


def from_json(body: bytes, limits: Limits) -> list[Sample]:
    """The samples of a request's body.

    Raises:
        WireError: it is none, or it is larger than the limits.
    """
    try:
        if body.count(b"[") + body.count(b"{") > _MOST_LISTS:
            raise WireError(f"Expected at most {_MOST_LISTS:,} lists and objects.")
        request = json.loads(body)
        if not isinstance(request, dict) or request.keys() != {"protocol", "prompts", "samples"}:
            raise WireError("Expected an object with protocol, prompts and samples.")
        if request["protocol"] != PROTOCOL:
            raise WireError(
                f"This service speaks protocol {PROTOCOL}, and the request protocol {request['protocol']!r}. Install "
                "the same version of grpokit at both ends."
            )
        for name in ("prompts", "samples"):
            if not isinstance(request[name], list) or len(request[name]) > limits.samples:
                raise WireError(f"Expected a list of at most {limits.samples} {name}.")
        reader = _Reader(limits.pixels)
        prompts = [reader.prompt(each) for each in request["prompts"]]
        return [reader.sample(each, prompts) for each in request["samples"]]
    except WireError:
        raise
    except RecursionError:
        raise WireError("The request is nested too deeply.") from None
    except Exception as error:  # Pillow, safetensors and json raise whatever they like for bytes that are not theirs
        raise WireError(f"The request cannot be read: {one_line(error)}.") from error


def _packed(value: Any, place: tuple[int, str]) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, Image.Image):
        return {"$png": _saved(lambda: _png(value, place), place)}
    if isinstance(value, torch.Tensor):
        here = value.detach().cpu().resolve_conj().resolve_neg()
        return {"$tensor": _saved(lambda: safetensors.torch.save({"x": here.contiguous()}), place)}
    if isinstance(value, np.generic) and not isinstance(value.item(), np.generic):
        return _packed(value.item(), place)
    if type(value) in (np.ndarray, np.memmap) and value.dtype != object:  # others have more than numbers, as a mask
        return {"$array": _saved(lambda: safetensors.numpy.save({"x": np.asarray(value, order="C")}), place)}
    if isinstance(value, bytes):
        return {"$bytes": _text(value)}
    row, name = place
    if isinstance(value, (list, tuple)):
        parts = [_packed(part, (row, f"{name}[{i}]")) for i, part in enumerate(value)]
        return {"$tuple": parts} if isinstance(value, tuple) else parts
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {str(key): _packed(part, (row, f"{name}.{key}")) for key, part in value.items()}
        return {
            "$dict": [[_packed(key, place), _packed(part, (row, f"{name}[{key!r}]"))] for key, part in value.items()]
        }
    raise UsageError(
        f"`{name}` of sample {row} is {a_type(value)}, which cannot be sent to another machine; pictures, text, "
        "numbers, arrays, tensors, lists and dicts of them can. Remove `placement`, so that the reward runs in the "
        "run's own process."
    )


def _png(picture: Image.Image, place: tuple[int, str]) -> bytes:
    if picture.mode not in _MODES:
        raise UsageError(
            f"`{place[1]}` of sample {place[0]} is a picture with the mode {picture.mode!r}, which PNG cannot keep; "
            f"expected {', '.join(_MODES)}. Convert it, or remove `placement`."
        )
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=1, icc_profile=None)  # of the rest only its transparency is kept
    return file.getvalue()


def _saved(save: Callable[[], bytes], place: tuple[int, str]) -> str:
    """What a library writes, as text.

    Raises:
        UsageError: it refuses; the message names the field.
    """
    try:
        return _text(save())
    except UsageError:
        raise
    except Exception as error:  # Pillow, safetensors and torch raise whatever they like
        row, name = place
        raise UsageError(
            f"`{name}` of sample {row} cannot be sent to another machine: {typed_line(error)}. Remove `placement`, so "
            "that the reward runs in the run's own process."
        ) from error


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


@dataclass
class _Reader:
    """Makes values of what came; counts pixels before it unpacks any."""

    pixels: int
    kinds: Mapping[str, Callable[[Any], Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.kinds = {
            "$float": {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.__getitem__,
            "$png": self._picture,
            "$tensor": lambda text: safetensors.torch.load(_data(text))["x"],
            "$array": lambda text: safetensors.numpy.load(_data(text))["x"],
            "$bytes": _data,
            "$tuple": lambda parts: tuple(self.value(_list(parts))),
            "$dict": lambda pairs: dict(map(self.value, map(_list, _list(pairs)))),
        }

    def prompt(self, body: Any) -> Prompt:
        fields = self._fields(body, {*_OF_PROMPT}, "prompt")
        if not (isinstance(fields["text"], str) and isinstance(fields["meta"], dict)):
            raise WireError("Expected a prompt whose text is a string and whose meta is an object.")
        if not (isinstance(fields["images"], tuple) and all(isinstance(x, Image.Image) for x in fields["images"])):
            raise WireError("Expected a prompt whose images are a tuple of pictures.")
        return Prompt(**fields)

    def sample(self, body: Any, prompts: Sequence[Prompt]) -> Sample:
        fields = self._fields(body, {"prompt", *_OF_SAMPLE}, "sample")
        if not all(type(fields[name]) is int for name in ("prompt", "group")) or not isinstance(fields["info"], dict):
            raise WireError("Expected a sample whose prompt and group are whole numbers and whose info is an object.")
        if not 0 <= fields["prompt"] < len(prompts):
            raise WireError(f"A sample is of prompt {fields['prompt']}, and there are {len(prompts)}.")
        return Sample(**{**fields, "prompt": prompts[fields["prompt"]]})

    def _fields(self, body: Any, names: set[str], what: str) -> dict[str, Any]:
        if not isinstance(body, dict) or body.keys() != names:
            raise WireError(f"Expected a {what} with {', '.join(sorted(names))}.")
        return {name: self.value(part) for name, part in body.items()}

    def value(self, packed: Any) -> Any:
        if isinstance(packed, list):
            return [self.value(part) for part in packed]
        if not isinstance(packed, dict):
            return packed
        if len(packed) == 1 and (kind := next(iter(packed))) in self.kinds:
            return self.kinds[kind](packed[kind])
        if any(key.startswith("$") for key in packed):
            raise WireError(f"Expected one of {', '.join(self.kinds)}, got {', '.join(packed)[:80]}.")
        return {key: self.value(part) for key, part in packed.items()}

    def _picture(self, text: Any) -> Image.Image:
        picture = Image.open(io.BytesIO(_data(text)), formats=["PNG"])
        pixels = picture.width * picture.height
        self.pixels -= pixels
        if self.pixels < 0 or pixels > MAX_PIXELS:
            raise WireError(
                "The pictures of the request have more pixels than it may hold. Send fewer, or smaller ones."
            )
        picture.load()
        bare = picture.copy()  # a plain picture, as it was sent: without its file, its format and its text
        bare.info = {name: picture.info[name] for name in _OF_PICTURE if name in picture.info}
        return bare


def _list(parts: Any) -> list[Any]:
    if not isinstance(parts, list):
        raise WireError("Expected a list.")
    return parts


def _data(text: Any) -> bytes:
    if not isinstance(text, str):
        raise WireError("Expected base64 in a string.")
    return base64.b64decode(text, validate=True)
