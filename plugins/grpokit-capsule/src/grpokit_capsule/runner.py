"""The process inside a capsule: it builds a reward or a world, and answers what comes through its pipes.

The file is run by the capsule's own Python, 3.8 or newer, with the standard library and Pillow. It imports nothing of
grpokit, so none of grpokit's requirements reach the capsule. The run imports it too, for `send` and `receive`: a
message is the length of its JSON, the JSON, and the bytes that the JSON refers to. Nothing is pickled.
"""

from __future__ import annotations

import ast
import ctypes
import datetime
import decimal
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import math
import numbers
import os
import platform
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

_LENGTH = struct.Struct(">Q")
_FORMATS: dict[str, Any] = {"int64": "q", "int32": "i", "uint8": "B", "float64": "d", "float32": "f", "bool": "?"}
_AS_TEXT: dict[str, Any] = {each.__name__: each for each in (datetime.date, datetime.datetime, decimal.Decimal)}
_DIE_WITH_PARENT, _SUBREAPER = 1, 36  # of prctl; the second makes orphans of this process its children


@dataclass(frozen=True)
class Prompt:
    """As `grpokit.Prompt`."""

    text: str
    image: Any
    images: Sequence[Any]
    target: Any
    meta: Mapping[str, Any]


@dataclass(frozen=True)
class Sample:
    """As `grpokit.Sample`."""

    prompt: Prompt
    output: Any
    group: int
    info: Mapping[str, Any]


@dataclass(frozen=True)
class Array:
    """An array or tensor where neither numpy nor torch is installed: row-major, little-endian bytes."""

    dtype: str
    shape: Sequence[int]
    data: bytes

    def tolist(self) -> list[Any]:
        """The numbers of an array of one dimension, of a usual type."""
        return memoryview(self.data).cast(_FORMATS[self.dtype]).tolist()


class UnfitError(ValueError):
    """The samples lack what the reward takes."""


def to_bytes(message: Any) -> list[bytes]:
    """What is written of a message.

    Raises:
        TypeError: it holds something that cannot be sent.
        Exception: what it holds cannot be read, such as a picture whose file is cut.
    """
    parts: list[bytes] = []
    packed = _packed(message, parts)
    text = json.dumps([packed, [len(part) for part in parts]]).encode()
    return [_LENGTH.pack(len(text)), text, *parts]


def send(stream: BinaryIO, data: Sequence[bytes]) -> None:
    """Write what `to_bytes` made of a message.

    Raises:
        OSError: nobody reads it.
    """
    for part in data:
        stream.write(part)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read a message.

    Raises:
        EOFError: the other end is closed.
        ValueError: what came is no message.
    """
    (length,) = _LENGTH.unpack(_read(stream, _LENGTH.size))
    packed, lengths = json.loads(_read(stream, length))
    parts = [_read(stream, each) for each in lengths]
    return _unpacked(packed, parts)


def _read(stream: BinaryIO, length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return data


def _packed(value: Any, parts: list[bytes]) -> Any:
    """A value as JSON can hold it; bytes go to `parts`. What JSON lacks is an object whose one key begins with "$"."""
    is_number_of_numpy = isinstance(value, float) and hasattr(value, "dtype")
    if value is None or (isinstance(value, (bool, int, float, str)) and not is_number_of_numpy):
        return value
    if isinstance(value, list):
        return [_packed(part, parts) for part in value]
    if isinstance(value, tuple):
        return {"$tuple": [_packed(part, parts) for part in value]}
    if isinstance(value, Mapping):
        pairs = []
        for key, part in value.items():
            pairs.append([_packed(key, parts), _packed(part, parts)])
        return {"$dict": pairs}
    if type(value) in _AS_TEXT.values():
        return {"$text": [type(value).__name__, str(value)]}
    if isinstance(value, bytes):
        return {"$bytes": _stored(value, parts)}
    if hasattr(value, "getbands"):  # of Pillow
        fields = [value.mode, list(value.size), _stored(value.tobytes(), parts)]
        palette = None
        if value.mode in ("P", "PA"):
            kind = value.palette.mode  # with or without alpha
            palette = [value.getpalette(kind), kind]
        return {"$picture": [*fields, palette, _packed(value.info.get("transparency"), parts)]}
    if hasattr(value, "detach"):  # of torch
        here = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        torch = sys.modules["torch"]
        data = here.reshape(-1).view(torch.uint8).numpy().tobytes()
        return {"$tensor": [str(here.dtype).partition(".")[2], list(here.shape), _stored(data, parts)]}
    if hasattr(value, "dtype") and hasattr(value, "tobytes"):  # of numpy
        if not value.dtype.isnative or value.dtype.kind not in "biufc":
            raise TypeError(f"an array of {value.dtype}; expected numbers")
        kind = "$array" if value.shape else "$number"
        return {kind: [str(value.dtype), list(value.shape), _stored(value.tobytes(), parts)]}
    raise TypeError(
        f"{type(value).__module__}.{type(value).__qualname__}; expected text, numbers, dates, pictures, arrays, "
        "tensors, lists or dicts of them"
    )


def _stored(data: bytes, parts: list[bytes]) -> int:
    """Add bytes to the parts; returns their place among them."""
    parts.append(data)
    return len(parts) - 1


def _unpacked(packed: Any, parts: Sequence[bytes]) -> Any:
    """A value as `_packed` took it apart."""
    if isinstance(packed, list):
        return [_unpacked(value, parts) for value in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == "$tuple":
        return tuple(_unpacked(content, parts))
    if kind == "$dict":
        return dict(_unpacked(content, parts))
    if kind == "$bytes":
        return parts[content]
    if kind == "$text":
        name, text = content
        parse = getattr(_AS_TEXT[name], "fromisoformat", _AS_TEXT[name])
        return parse(text)
    if kind == "$picture":
        return _picture(content, parts)
    return _array(kind, content, parts)


def _picture(content: Sequence[Any], parts: Sequence[bytes]) -> Any:
    from PIL import Image

    mode, size, place, palette, transparency = content
    picture = Image.frombytes(mode, tuple(size), parts[place])
    if palette is not None:
        picture.putpalette(*palette)
    if transparency is not None:
        picture.info["transparency"] = _unpacked(transparency, parts)
    return picture


def _array(kind: str, content: Sequence[Any], parts: Sequence[bytes]) -> Any:
    """A tensor, an array or a number of numpy; what is not installed is replaced by what is."""
    name, shape, place = content
    data = parts[place]
    torch = _module("torch") if kind == "$tensor" else None
    if torch is not None:
        dtype = getattr(torch, name)
        if not data:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
    numpy = _module("numpy")
    if numpy is None or name == "bfloat16":
        return Array(name, shape, data)
    array = numpy.frombuffer(data, dtype=name).reshape(shape)
    return array[()] if kind == "$number" else array.copy()


def _module(name: str) -> Any:
    """A module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def samples_in(message: Mapping[str, Any]) -> list[Sample]:
    """The samples of a request, which holds each of their prompts once."""
    prompts = [Prompt(**fields) for fields in message["prompts"]]
    samples = []
    for prompt, output, group, info in message["samples"]:
        samples.append(Sample(prompts[prompt], output, group, info))
    return samples


def imported(order: Mapping[str, Any]) -> Any:
    """The class or function that an order names."""
    sys.path[:0] = order["path"]
    sys.path.append(order["folder"])
    for name, file in order["modules"].items():
        if importlib.util.find_spec(name) is None:
            _load(name, file)
    target: Any = importlib.import_module(order["module"])
    for name in order["name"].split("."):
        target = getattr(target, name)
    return target


def build(order: Mapping[str, Any]) -> Any:
    """The reward that an order names: what a class or a function makes, or a function with its parameters.

    It is called with samples, also where it takes columns.
    """
    target = imported(order)
    columns = _load("grpokit_columns", order["columns"])
    parameters = order["parameters"]
    if inspect.isclass(target) or columns.makes_reward(target, parameters):
        reward = target(**parameters)
    else:
        with suppress(ValueError):  # compiled code may not tell what it takes
            inspect.signature(target).bind_partial(**parameters)  # an unknown one is refused now, not in each call
        reward = functools.partial(target, **parameters)
    return columns.of_samples(reward, error=UnfitError)


class Worlds:
    """The worlds of all episodes, each with the number that the run gives it.

    Args:
        order: names what makes a world. One is made at once, to look at it.
    """

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._make = functools.partial(imported(order), **order["parameters"])
        self._worlds: dict[int, Any] = {}
        world = self._make()
        lacking = [name for name in ("start", "reply") if not callable(getattr(world, name, None))]
        if lacking:
            raise TypeError(f"it has no method {' and no '.join(lacking)}")
        self.tools = [*getattr(world, "tools", ())]

    def answer(self, request: Sequence[Any]) -> dict[str, Any]:
        """What a method of a world returns as "value", or "raised": the kind of an exception and its text."""
        number, name, arguments = request
        try:
            if name == "start":
                self._worlds[number] = self._make()
                fields, seed = arguments
                arguments = [Prompt(**fields), seed]
            world = self._worlds.pop(number, None) if name == "close" else self._worlds[number]
            method = getattr(world, name, dict)  # `facts` and `close` may be missing
            return {"value": method(*arguments)}
        except BaseException as error:
            traceback.print_exc()
            return {"raised": [type(error).__name__ + raised_in(error), str(error)]}


def code(order: Mapping[str, Any]) -> str:
    """A digest of the modules that were imported from the user's own folders, without comments and blank lines."""
    digest = hashlib.sha256()
    folders = [*order["path"], order["folder"]]
    folders_of_plugin = [os.path.dirname(file) for file in order["modules"].values()]
    for name, module in sorted(sys.modules.items()):
        file = str(getattr(module, "__file__", None) or "")
        if not file.endswith(".py") or file == __file__:
            continue
        is_own = _is_below(file, folders) and "site-packages" not in file
        if is_own or _is_below(file, folders_of_plugin):
            with open(file, "rb") as source:
                digest.update(f"{name} {ast.dump(ast.parse(source.read()))}".encode())
    return digest.hexdigest()[:16]


def _is_below(file: str, folders: Sequence[str]) -> bool:
    return any(file.startswith(os.path.join(folder, "")) for folder in folders)


def _load(name: str, file: str) -> Any:
    """Import a module or a package from its file; what lies beside it belongs to the run's environment."""
    folders = [os.path.dirname(file)] if os.path.basename(file) == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def answer(reward: Callable[[list[Sample]], Any], message: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of a request's samples as "values", or how it failed: "failure" of a call, "error" of its answer."""
    samples = samples_in(message)
    torch = sys.modules.get("torch")
    order = [id(sample) for sample in samples]
    try:
        with torch.no_grad() if torch else nullcontext():
            values = reward(samples)
    except UnfitError as error:
        return {"error": str(error)}
    except BaseException as error:
        lacks = ", a package that its capsule lacks," if isinstance(error, ModuleNotFoundError) else ""
        return {"failure": f"raised {described(error)}{lacks}"}
    if order != [id(sample) for sample in samples]:
        return {"error": "it changed the order of the samples in its list; sort a copy: `sorted(samples, key=...)`."}
    if hasattr(values, "tolist"):  # of numpy or torch
        values = values.tolist()
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        return {"error": f"it returned {type(values).__name__}; expected one number per sample."}
    return {"values": [*map(_number, values)]}


def _number(value: Any) -> Any:
    """A score as JSON has it; the run refuses what is no number."""
    if hasattr(value, "item"):
        with suppress(RuntimeError, ValueError):  # more than one number
            value = value.item()
    if isinstance(value, numbers.Real):
        with suppress(OverflowError):
            return float(value)
        return math.inf
    return value if isinstance(value, str) else repr(value)


def described(error: BaseException) -> str:
    """An exception on one line, with the place in the reward's own code where it was raised."""
    name = type(error).__name__
    words = " ".join(str(error).split())[:500]
    place = raised_in(error)
    return f"{name}: {words}{place}" if words else f"{name}{place}"


def raised_in(error: BaseException) -> str:
    """The place in the user's own code where an exception was raised, in brackets; empty where it was none of that."""
    others = (__file__, "site-packages", "importlib")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(other in frame.filename for other in others)]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def versions() -> dict[str, str]:
    """The version of Python, and of each installed package."""
    installed: dict[str, str] = {}
    for each in importlib.metadata.distributions():
        name = each.metadata["Name"]
        if name:  # a torn installation has none
            installed.setdefault(name.lower().replace("_", "-"), each.version)  # the first is what is imported
    return {"python": platform.python_version(), **dict(sorted(installed.items()))}


def descendants(process: int) -> list[int]:
    """A process's children, their children and so on, in whatever session they are."""
    processes: list[int] = []
    with suppress(OSError):  # it is gone
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children") as file:
                children = [int(number) for number in file.read().split()]
            for child in children:
                processes += [child, *descendants(child)]
    return processes


def end_descendants(process: int) -> None:
    """End all that a process has started."""
    for child in descendants(process):
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def end(process: int) -> None:
    """End a process that leads a group, and all that it has started."""
    end_descendants(process)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)


def main(parent: int, answers: int, *command: str) -> None:
    """Build a reward or a world, and answer the requests that come through stdin, in a process that this one watches.

    Args:
        parent: the run's process.
        answers: the pipe for the answers.
        command: runs in the watched process instead, if there is one.
    """
    _prctl(_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    worker = os.fork()
    if worker:
        _watch(parent, worker, answers)
    _prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    if command:
        os.execv(command[0], command)
    requests = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the reward, and what it starts, must not read the requests
    with os.fdopen(requests, "rb") as reader, os.fdopen(answers, "wb") as writer, suppress(EOFError, OSError):
        _serve(reader, writer)


def _prctl(option: int, value: int) -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _watch(parent: int, worker: int, answers: int) -> None:
    """Wait until the worker or the run has ended; then end all that the worker has started, and end as it did."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for each in (0, 1, 2, answers):
        os.dup2(nothing, each)
    status = 0
    ended = 0
    while ended != worker and os.getppid() == parent:
        signal.sigtimedwait({signal.SIGCHLD}, 0.2)
        ended, status = os.waitpid(-1, os.WNOHANG)
        while ended not in (0, worker):  # an orphan that it left
            ended, status = os.waitpid(-1, os.WNOHANG)
    end_descendants(os.getpid())
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def _serve(reader: BinaryIO, writer: BinaryIO) -> None:
    try:
        order = receive(reader)
        worlds = Worlds(order) if order["kind"] == "world" else None
        reply = worlds.answer if worlds else functools.partial(answer, build(order))
        about = {"code": code(order), **versions()}
        send(writer, to_bytes({"versions": about, "tools": worlds.tools if worlds else []}))
    except BaseException as error:
        missing = ""
        if isinstance(error, ModuleNotFoundError):
            missing = error.name or ""
        send(writer, to_bytes({"error": described(error), "missing": missing}))
        return
    process = os.getpid()
    while True:
        message = reply(receive(reader))
        if os.getpid() != process:  # a fork that the reward has left running
            os._exit(0)
        try:
            data = to_bytes(message)
        except TypeError as error:  # of what a world returned
            data = to_bytes({"raised": ["TypeError", f"it returned {error}"]})
        send(writer, data)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
