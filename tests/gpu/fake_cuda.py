"""A fake CUDA device: a CPU build of PyTorch gets a `cuda:0` of the host's memory and the CPU's kernels.

What a real GPU refuses is refused here too, and its waits are counted. Speed, rounding, several streams and
torch.compile are not those of a GPU. `make gpu` runs the tests with it, and this a command or a script:

    python tests/gpu/fake_cuda.py -m grpokit train lm-arithmetic trainer.steps=2

`GPU_MIB` limits its memory. The extension is built by g++ once, into the user's cache folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import itertools
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SOURCE = Path(__file__).with_suffix(".cpp")
NAME = "grpokit_fake_cuda"
CAPACITY = 80 * 2**30  # bytes, where no limit is set
OWN = ("/grpokit/", "/grpokit_", "/tests/")  # folders whose lines a wait is told of


@dataclass
class Count:
    """What was counted: waits of the host by the line that waited, and kernels."""

    waits: Counter[str] = field(default_factory=Counter)
    launches: int = 0


_counts: list[Count] = []


@contextlib.contextmanager
def counted() -> Iterator[Count]:
    """Count waits and launches within a `with` block."""
    count = Count(launches=-device().launches())
    _counts.append(count)
    try:
        yield count
    finally:
        _counts.remove(count)
        count.launches += device().launches()


def built() -> Path:
    """The compiled extension, made by g++ if the cache has none of this source and this torch."""
    torch = Path(importlib.util.find_spec("torch").origin).parent  # type: ignore[union-attr, arg-type]
    content = SOURCE.read_bytes() + (torch / "version.py").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpokit"
    library = cache / f"{NAME}-{hashlib.sha256(content).hexdigest()[:16]}.so"
    if not library.exists():
        cache.mkdir(parents=True, exist_ok=True)
        part = library.with_suffix(f".{os.getpid()}")
        folders = [torch / "include", torch / "include/torch/csrc/api/include", Path(sysconfig.get_path("include"))]
        command = ["g++", "-shared", "-fPIC", "-std=c++20", "-O1", "-w", f"-DTORCH_EXTENSION_NAME={NAME}"]
        command += [*(f"-I{folder}" for folder in folders), str(SOURCE), "-o", str(part)]
        subprocess.run(command, check=True)
        part.replace(library)
    return library


@functools.cache
def device() -> Any:
    """The extension. The first call installs the device, and must come before torch is imported."""
    if "torch" in sys.modules:
        raise RuntimeError("torch is imported already; install the fake CUDA device first")
    library = built()
    torch_libraries = Path(importlib.util.find_spec("torch").origin).parent / "lib"  # type: ignore[union-attr, arg-type]
    for name in ("libc10.so", "libtorch_cpu.so", "libtorch.so", "libtorch_python.so"):
        ctypes.CDLL(str(torch_libraries / name), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)  # its hooks, before torch asks for any

    import torch

    with contextlib.suppress(ImportError):
        import bitsandbytes.functional  # it loads the library of the machine as it is

        _replace_paging(torch, bitsandbytes.functional)
    spec = importlib.util.spec_from_file_location(NAME, library)
    extension = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(extension)  # type: ignore[union-attr]
    extension.takes_cpu_scalars(_with_cpu_scalars())
    extension.listen(_waited)
    extension.limit(int(float(os.environ.get("GPU_MIB", CAPACITY / 2**20)) * 2**20))
    _replace_cuda(torch, extension)
    _replace_attention(torch)
    _replace_storage(torch)
    return extension


def _with_cpu_scalars() -> set[str]:
    """The operators that PyTorch's own list lets read a CPU tensor of no dimension beside CUDA tensors."""
    import torchgen

    text = (Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml").read_text("utf-8")
    blocks = re.split(r"^- func: ", text, flags=re.MULTILINE)[1:]
    return {f"aten::{block.split('(')[0]}" for block in blocks if "device_check: NoCheck" in block}


def _waited(what: str) -> None:
    """Count a wait at the innermost line of grpokit's own that led to it; copies to the host have arrived by then."""
    device().arrive()
    if not _counts:
        return
    frame: Any = sys._getframe(1)
    line = "elsewhere"
    while frame is not None:
        path = frame.f_code.co_filename
        if path != __file__ and "site-packages" not in path and any(folder in path for folder in OWN):
            line = f"{Path(path).name}:{frame.f_lineno} {frame.f_code.co_name}"
            break
        frame = frame.f_back
    for count in _counts:
        count.waits[f"{line}: {what}"] += 1


class _Event:
    def __init__(self, enable_timing: bool = False, **options: Any) -> None:
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, later: _Event) -> float:
        return (later.at - self.at) * 1000

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        _waited("Event.synchronize")


class _Stream:
    _numbers = itertools.count(1)

    def __init__(self, device: Any = None, **options: Any) -> None:
        self.stream_id = self.cuda_stream = next(self._numbers)
        self.device_index, self.device_type = 0, 1

    def wait_stream(self, stream: Any) -> None:
        pass

    wait_event = wait_stream

    def record_event(self, event: Any = None) -> _Event:
        event = event or _Event()
        event.record()
        return event

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        _waited("Stream.synchronize")


def _replace_cuda(torch: Any, extension: Any) -> None:
    """Give `torch.cuda`, which asks a driver, the fake device's answers."""
    cuda, streams = torch.cuda, [_Stream()]

    class Graph(extension.Graph):
        def __init__(self, keep_graph: bool = False) -> None:
            super().__init__()

        def capture_begin(self, *options: Any, **further: Any) -> None:
            super().capture_begin()

        def pool(self) -> tuple[int, int]:
            return 0, id(self)

    @contextlib.contextmanager
    def within(stream: _Stream | None) -> Iterator[None]:
        streams.append(stream or streams[-1])
        yield
        streams.pop()

    def statistics(device: Any = None) -> dict[str, int]:
        sizes = {"current": extension.used(), "peak": extension.peak()}
        return {f"{kind}_bytes.all.{name}": size for kind in ("allocated", "reserved") for name, size in sizes.items()}

    modes = {"default": 0, "warn": 1, "error": 2, 0: 0, 1: 1, 2: 2}
    properties = SimpleNamespace(
        name="Fake CUDA device", major=9, minor=0, total_memory=CAPACITY, multi_processor_count=132, uuid="GPU-0",
        warp_size=32, max_threads_per_multi_processor=2048, L2_cache_size=50 * 2**20, is_integrated=False,
    )  # fmt: skip
    answers = {
        "is_available": True, "is_initialized": True, "_is_in_bad_fork": False, "device_count": 1,
        "_device_count_nvml": 1, "current_device": 0, "_exchange_device": 0, "_maybe_exchange_device": 0,
        "is_bf16_supported": True, "get_device_name": properties.name, "get_device_capability": (9, 0),
        "get_device_properties": properties, "_lazy_init": None, "init": None, "set_device": None,
        "ipc_collect": None, "empty_cache": None,
    }  # fmt: skip
    functions = {
        **{name: lambda *given, answer=answer, **options: answer for name, answer in answers.items()},
        "_lazy_call": lambda call, **options: call(),
        "synchronize": lambda device=None: _waited("torch.cuda.synchronize"),
        "memory_stats": statistics,
        "memory_allocated": lambda device=None: extension.used(),
        "memory_reserved": lambda device=None: extension.used(),
        "max_memory_allocated": lambda device=None: extension.peak(),
        "max_memory_reserved": lambda device=None: extension.peak(),
        "reset_peak_memory_stats": lambda device=None: extension.reset_peak(),
        "mem_get_info": lambda device=None: (CAPACITY - extension.used(), CAPACITY),
        "get_sync_debug_mode": lambda: 2 if extension.waits_are_errors() else 0,
        "set_sync_debug_mode": lambda mode: extension.set_waits_are_errors(modes[mode] == 2),
        "is_current_stream_capturing": extension.is_capturing,
        "current_stream": lambda device=None: streams[-1],
        "default_stream": lambda device=None: streams[0],
        "set_stream": lambda stream: streams.__setitem__(-1, stream),
        "stream": within,
        "StreamContext": lambda stream: within(stream),
        "Event": _Event,
        "Stream": _Stream,
        "CUDAGraph": Graph,
    }
    for module in (cuda, cuda.memory, cuda.streams, cuda.graphs):
        for name, function in functions.items():
            if module is cuda or hasattr(module, name):
                setattr(module, name, function)
    cuda._initialized, cuda.default_generators = True, (extension.default_generator(),)
    torch.version.cuda = "13.0"
    low_level = {
        "_cuda_getDeviceCount": 1, "_cuda_getDevice": 0, "_cuda_exchangeDevice": 0, "_cuda_maybeExchangeDevice": 0,
        "_cuda_isInBadFork": False, "_cuda_getArchFlags": "sm_90", "_cuda_getCompiledVersion": 13000,
        "_cuda_getCurrentRawStream": 0, "_host_emptyCache": None, "_cuda_init": None, "_cuda_setDevice": None,
        "_cuda_emptyCache": None, "_cuda_synchronize": None,
    }  # fmt: skip
    for name, answer in low_level.items():
        setattr(torch._C, name, lambda *given, answer=answer: answer)


def _replace_attention(torch: Any) -> None:
    """CUDA's operators of attention, each by the CPU's flash kernel; which one a GPU chooses is in fake_cuda.cpp."""
    aten = torch.ops.aten
    forward = aten._scaled_dot_product_flash_attention_for_cpu
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward

    def triangle(q: Any, k: Any) -> Any:
        """Each query sees the keys up to its own place, counted from the end."""
        i, j = (torch.arange(x.shape[-2], device=q.device) for x in (q, k))
        seen = j <= i[:, None] + (len(j) - len(i))
        return torch.zeros((), dtype=q.dtype, device=q.device).where(seen, float("-inf"))

    def flash(q, k, v, dropout=0.0, causal=False, debug=False, *, scale=None):  # type: ignore[no-untyped-def]
        if q.dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        mask = triangle(q, k) if causal else None
        result, sums = forward(q, k, v, dropout, False, attn_mask=mask, scale=scale)
        seed = torch.zeros((), dtype=torch.int64, device=q.device)
        return result, sums, None, None, q.shape[2], k.shape[2], seed, seed, seed

    def flash_backward(gradient, q, k, v, result, sums, _q, _k, _mq, _mk, dropout, causal, *_seeds, scale=None):  # type: ignore[no-untyped-def]
        mask = triangle(q, k) if causal else None
        return backward(gradient, q, k, v, result, sums, dropout, False, attn_mask=mask, scale=scale)

    def efficient(q, k, v, bias, _sums, dropout=0.0, causal=False, *, scale=None):  # type: ignore[no-untyped-def]
        result, sums = forward(q, k, v, dropout, causal, attn_mask=bias, scale=scale)
        seed = torch.zeros((), dtype=torch.int64, device=q.device)
        return result, sums, seed, seed

    def efficient_backward(  # type: ignore[no-untyped-def]
        gradient, q, k, v, bias, result, sums, _seed, _offset, dropout, _wanted, causal=False, *, scale=None
    ):
        mask = bias if bias is not None and bias.numel() else None
        given = backward(gradient, q, k, v, result, sums, dropout, causal, attn_mask=mask, scale=scale)
        return *given, None

    def by_place(q, k, v, bias, _1, _2, _3, _4, dropout, triangular, _sums=False, *, scale=None, **_):  # type: ignore[no-untyped-def]
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        mask = triangle(q, k) if triangular == 2 else bias
        result, sums = forward(q, k, v, dropout, triangular == 1, attn_mask=mask, scale=scale)
        seed = torch.zeros((), dtype=torch.int64, device=q.device)
        return result.transpose(1, 2).contiguous(), sums, seed, seed, q.shape[2], k.shape[2]

    def by_place_backward(  # type: ignore[no-untyped-def]
        gradient,
        q,
        k,
        v,
        bias,
        result,
        _1,
        _2,
        _3,
        _4,
        sums,
        dropout,
        _seed,
        _offset,
        triangular,
        _,
        *,
        scale=None,
        **__,
    ):
        gradient, q, k, v, result = (x.transpose(1, 2) for x in (gradient, q, k, v, result))
        mask = triangle(q, k) if triangular == 2 else bias
        given = backward(gradient, q, k, v, result, sums, dropout, triangular == 1, attn_mask=mask, scale=scale)
        return *(x.transpose(1, 2).contiguous() for x in given), None

    def norm_backward(gradient, x, shape, scale, weight, wanted):  # type: ignore[no-untyped-def]
        normed, wide = x.float() * scale, gradient.float()
        weighted = wide * weight.float()
        for_x = scale * (weighted - normed * (weighted * normed).mean(-1, keepdim=True))
        for_weight = (wide * normed).flatten(0, -2).sum(0).to(weight) if wanted[1] else None
        return for_x.to(x), for_weight

    global _library
    _library = torch.library.Library("aten", "IMPL", "CUDA")
    for name, call in {
        "_scaled_dot_product_flash_attention": flash,
        "_scaled_dot_product_flash_attention_backward": flash_backward,
        "_scaled_dot_product_efficient_attention": efficient,
        "_scaled_dot_product_efficient_attention_backward": efficient_backward,
        "_efficient_attention_forward": by_place,
        "_efficient_attention_backward": by_place_backward,
        "_fused_rms_norm_backward": norm_backward,
    }.items():
        _library.impl(name, call)

    names = ("query", "key", "value", "attn_mask", "dropout", "is_causal", "enable_gqa")

    def can_use_flash(given: Any, debug: bool = False) -> bool:
        q, k, v = given.query, given.key, given.value
        fits = q.is_cuda and q.dtype == k.dtype == v.dtype and q.dtype in (torch.float16, torch.bfloat16)
        fits = fits and q.shape[-1] == v.shape[-1] <= 256 and all(x.stride(-1) == 1 for x in (q, k, v))
        return fits and given.attn_mask is None and not (given.is_causal and q.shape[-2] != k.shape[-2])

    from torch.nn.attention import bias as biases

    replaced = {
        "SDPAParams": lambda *values: SimpleNamespace(**dict(zip(names, values, strict=True))),
        "can_use_flash_attention": can_use_flash,
        "can_use_efficient_attention": lambda given, debug=False: given.query.is_cuda,
        "can_use_cudnn_attention": lambda given, debug=False: False,
    }
    for module in (torch.backends.cuda, biases):
        for name, call in replaced.items():
            if hasattr(module, name):
                setattr(module, name, call)


def _replace_storage(torch: Any) -> None:
    """Copies of whole storages, which a deep copy makes, go through tensors."""
    clone, to = torch.UntypedStorage.clone, torch.storage._to

    def copied(storage: Any, non_blocking: bool = False) -> Any:
        made = torch.empty(storage.nbytes(), dtype=torch.uint8, device="cuda").untyped_storage()
        made.copy_(storage, non_blocking)
        return made

    def to_device(storage: Any, device: Any, non_blocking: bool = False) -> Any:
        onto = torch.device(device).type == "cuda" and storage.device.type != "cuda"
        return copied(storage, non_blocking) if onto else to(storage, device, non_blocking)

    torch.storage._to = to_device
    torch.UntypedStorage.clone = lambda storage: copied(storage) if storage.device.type == "cuda" else clone(storage)


def _replace_paging(torch: Any, functional: Any) -> None:
    """Memory of bitsandbytes that a driver moves between a GPU and the CPU is the GPU's, and stays there."""

    def paged(*shape: int, dtype: Any, device: Any) -> Any:
        made = torch.empty(shape, dtype=dtype, device=device)
        made.is_paged = True
        return made

    functional.get_paged, functional.prefetch_tensor = paged, lambda tensor, to_cpu=False: None
    functional.fill = lambda tensor, value: tensor.fill_(value)


def main() -> None:
    """Run a module or a script as if this machine had the GPU."""
    if not shutil.which("g++"):
        sys.exit(1)  # what was said already
    _, *command = sys.argv
    if command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")


if shutil.which("g++"):
    device()  # so that pytest gets the device with `-p fake_cuda`
else:
    print("There is no g++, which builds the fake CUDA device: what needs CUDA is skipped.", file=sys.stderr)
if __name__ == "__main__":
    sys.modules["fake_cuda"] = sys.modules["__main__"]
    main()
