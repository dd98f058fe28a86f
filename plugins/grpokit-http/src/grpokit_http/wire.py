"""Samples as JSON, for a reward on another machine. There is no pickle, so neither end can make the other run anything.

Pictures travel as PNG, tensors and arrays as safetensors, in base64. What JSON lacks is an object with one key that
begins with "$". Samples of one prompt share it, and its pictures travel once.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from PIL import Image, UnidentifiedImageError

from grpokit.errors import UsageError, a_type, brief, error_line, one_line
from grpokit.images import MAX_PIXELS, as_viewed
from grpokit.types import Prompt, Sample
from grpokit_http.json_limits import LIMITS, within_limits

PROTOCOL = 1
"""Rises when one end would misunderstand the other."""

# What a request may hold, so that a small one cannot fill the memory.
SAMPLES = 4096
PIXELS = 256_000_000  # of all its pictures together

_OF_PROMPT = ("text", "images", "target", "meta")
_OF_SAMPLE = ("output", "group", "info")
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")  # that PNG keeps


class WireError(ValueError):
    """A request is not what it should be; the message is a sentence."""


def to_json(samples: Sequence[Sample]) -> bytes:
    """Samples as the body of a request.

    Raises:
        UsageError: something that cannot be sent; the message names it.
    """
    prompts: dict[int, int] = {}
    bodies: list[dict[str, Any]] = []
    rows, place = [], ""
    try:
        for row, sample in enumerate(samples):
            prompt, fields = sample.prompt, {}
            if id(prompt) not in prompts:
                prompts[id(prompt)] = len(bodies)
                for name in _OF_PROMPT:
                    place = f"`prompt.{name}` of sample {row}"
                    fields[name] = _packed(getattr(prompt, name))
                bodies.append(fields)
            fields = {"prompt": prompts[id(prompt)]}
            for name in _OF_SAMPLE:
                place = f"`{name}` of sample {row}"
                fields[name] = _packed(getattr(sample, name))
            rows.append(fields)
        place = "A number"
        return json.dumps({"protocol": PROTOCOL, "prompts": bodies, "samples": rows}).encode()
    except Exception as error:  # Pillow, safetensors and torch raise whatever they like
        raise UsageError(
            f"{place} cannot be sent to another machine: {error_line(error)}. Remove `placement`, so that the reward "
            "runs in the run's own process."
        ) from error


def _packed(value: Any) -> Any:
    """A value as JSON can hold it."""
    match value:
        case np.generic():
            return _packed(value.item())
        case None | bool() | int() | float() | str():
            return value
        case list():
            return [_packed(part) for part in value]
        case tuple():
            return {"$tuple": [_packed(part) for part in value]}
        case Mapping():
            return {"$dict": [[_packed(key), _packed(part)] for key, part in value.items()]}
        case bytes():
            return {"$bytes": _text(value)}
        case Image.Image() if value.mode in _MODES:
            file = io.BytesIO()
            shown = as_viewed(value)  # since its orientation and its profile are not sent; transparency is
            shown.save(file, "PNG", compress_level=1, icc_profile=None)
            return {"$png": _text(file.getvalue())}
        case Image.Image():
            raise TypeError(f"a picture with the mode {value.mode!r}; expected {', '.join(_MODES)}")
        case torch.Tensor():
            here = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
            return {"$tensor": _text(safetensors.torch.save({"x": here}))}
        case np.ndarray() if not isinstance(value, np.ma.MaskedArray):
            array = np.asarray(value, order="C")
            return {"$array": _text(safetensors.numpy.save({"x": array}))}
    raise TypeError(f"{a_type(value)}; expected text, numbers, pictures, arrays, tensors, lists or dicts of them")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def from_json(body: bytes | bytearray) -> list[Sample]:
    """The samples of a request's body.

    Raises:
        WireError: it is none, or it holds too much.
    """
    try:
        if not within_limits(body):
            raise WireError(f"The request has more than {LIMITS}. Send fewer.")
        json.loads(body, object_pairs_hook=_Sizes())
        request = _object(json.loads(body, object_hook=_unpacked), "protocol", "prompts", "samples")
        if type(request["protocol"]) is not int:
            raise WireError(f"Expected a protocol that is a whole number, got {a_type(request['protocol'])}.")
        if request["protocol"] != PROTOCOL:
            raise WireError(
                f"This service speaks protocol {PROTOCOL}, and the request protocol {request['protocol']!r}. Install "
                "the same version of grpokit-http at both ends."
            )
        for name in ("prompts", "samples"):
            if not isinstance(request[name], list) or len(request[name]) > SAMPLES:
                raise WireError(f"Expected a list of at most {SAMPLES} {name}.")
        prompts = [_prompt(**_object(fields, *_OF_PROMPT)) for fields in request["prompts"]]
        return [_sample(prompts, **_object(fields, "prompt", *_OF_SAMPLE)) for fields in request["samples"]]
    except WireError:
        raise
    except RecursionError:
        raise WireError("The request is nested too deeply.") from None
    except Exception as error:  # Pillow, safetensors and json raise whatever they like for bytes that are not theirs
        raise WireError(f"The request cannot be read: {one_line(error)}.") from error


def _object(value: Any, *names: str) -> dict[str, Any]:
    """An object with just these keys."""
    if not isinstance(value, dict) or value.keys() != {*names}:
        came = brief(value) if isinstance(value, dict) else a_type(value)
        raise WireError(f"Expected an object with {', '.join(names[:-1])} and {names[-1]}, got {came}.")
    return value


def _prompt(*, text: Any, images: Any, target: Any, meta: Any) -> Prompt:
    pictures = isinstance(images, tuple) and all(isinstance(each, Image.Image) for each in images)
    if not (isinstance(text, str) and pictures and isinstance(meta, dict)):
        raise WireError("Expected a prompt whose text is a string, whose images are pictures, and whose meta a dict.")
    return Prompt(text, images=images, target=target, meta=meta)


def _sample(prompts: Sequence[Prompt], *, prompt: Any, output: Any, group: Any, info: Any) -> Sample:
    if type(prompt) is not int or type(group) is not int or not isinstance(info, dict):
        raise WireError("Expected a sample whose prompt and group are whole numbers and whose info is a dict.")
    if prompt not in range(len(prompts)):
        raise WireError(f"Expected a sample whose prompt is one of {len(prompts)}, counted from 0, got {prompt}.")
    return Sample(prompt=prompts[prompt], output=output, group=group, info=info)


class _Sizes:
    """Adds up the sizes of all pictures by their headers, so that none is unpacked where they are too large.

    It sees each object as it was sent, and refuses one in which a key appears twice.
    """

    def __init__(self) -> None:
        self.pixels = 0

    def __call__(self, pairs: list[tuple[str, Any]]) -> None:
        packed: dict[str, Any] = {}
        for key, value in pairs:
            if key in packed:
                raise WireError(f"In an object of the request the key {brief(key)} appears twice.")
            packed[key] = value
        if isinstance(content := packed.get("$png"), str):
            width, height = _opened(content).size
            self.pixels += width * height
            if self.pixels > PIXELS or width * height > MAX_PIXELS:
                raise WireError("The pictures of the request have more pixels than it may hold. Send fewer.")


def _unpacked(packed: dict[str, Any]) -> Any:
    """A value as `_packed` took it apart."""
    if not any(key.startswith("$") for key in packed):
        return packed
    ((kind, content),) = packed.items()
    match kind, content:
        case "$tuple", list():
            return tuple(content)
        case "$dict", list():
            return dict(content)
        case "$bytes", str():
            return base64.b64decode(content, validate=True)
        case "$tensor", str():
            return safetensors.torch.load(base64.b64decode(content, validate=True))["x"]
        case "$array", str():
            return safetensors.numpy.load(base64.b64decode(content, validate=True))["x"]
        case "$png", str():
            picture = _opened(content)
            bare = picture.copy()  # a plain picture, as it was sent: without its file, its format and its text
            bare.info = {name: value for name, value in picture.info.items() if name == "transparency"}
            return bare
    raise WireError(f"Expected no {kind[:80]} of {a_type(content)}.")


def _opened(content: str) -> Image.Image:
    """A picture of which the header is read."""
    try:
        file = io.BytesIO(base64.b64decode(content, validate=True))
        return Image.open(file, formats=["PNG"])
    except UnidentifiedImageError:
        raise WireError("Expected a $png that holds a PNG.") from None
