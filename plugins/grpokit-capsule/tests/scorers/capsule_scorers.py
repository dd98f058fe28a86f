"""Scorers that import nothing of grpokit; they run in the tests' own process and in capsules."""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
import time


def fingerprint(samples, scale=1.0):
    """A number for whatever a sample holds, to the last bit; NaN where the output is empty."""
    return [number(sample) * scale for sample in samples]


def number(sample):
    if isinstance(sample.output, str) and not sample.output:
        return float("nan")
    prompt = sample.prompt
    parts = [prompt.text, prompt.image, prompt.images, prompt.target, prompt.meta]
    parts += [sample.output, sample.group, sample.info]
    digest = hashlib.sha256(plain(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 3.0


def plain(value):
    kind = type(value).__name__
    if hasattr(value, "getbands"):
        shown = value.convert("RGBA").tobytes().hex() if value.mode in ("P", "PA", "RGB") else ""
        return f"{value.mode} {value.size} {value.tobytes().hex()} {shown}"
    if kind in ("ndarray", "Tensor"):
        return f"{kind} {value.dtype} {list(value.shape)} {value.tolist()}"
    if isinstance(value, (list, tuple)):
        return f"{kind}[{', '.join(map(plain, value))}]"
    if isinstance(value, dict):
        return f"dict[{', '.join(f'{plain(key)}: {plain(part)}' for key, part in value.items())}]"
    return f"{kind} {value!r}"


def python(samples):
    """The Python that scores, as 3.08 or 3.11."""
    return [sys.version_info[0] + sys.version_info[1] / 100] * len(samples)


def gpus(samples):
    """The number of the one GPU that it sees; -1 where it sees what the run sees."""
    return [int(os.environ.get("CUDA_VISIBLE_DEVICES") or -1)] * len(samples)


def ranks(samples):
    """What it thinks to be the number of processes of torchrun."""
    return [int(os.environ.get("WORLD_SIZE", "1")) + int(os.environ.get("LOCAL_RANK", "0"))] * len(samples)


class Lengths:
    """A class, whose instances score."""

    def __init__(self, most):
        self.most = most

    def __call__(self, samples):
        return [min(len(sample.output), self.most) for sample in samples]


def as_told(samples):
    """Does what the first output says."""
    word = samples[0].output
    if word in _ACTS:
        return _ACTS[word](samples)
    return [float(len(sample.output)) for sample in samples]


def _crash(samples):
    os.kill(os.getpid(), 11)


def _exit(samples):
    print("no more of this", flush=True)
    os._exit(3)


def _hang(samples):
    time.sleep(1000)


def _raise(samples):
    raise ValueError("no\nsuch word")


def _print(samples):
    for _ in range(10_000):
        print("x" * 1000)
    return [1.0] * len(samples)


def _orphans(samples):
    """Leave processes behind: a child, one in a session of its own, and a grandchild that nobody waits for."""
    sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
    subprocess.Popen(sleep)
    subprocess.Popen(sleep, start_new_session=True)
    child = os.fork()
    if child == 0:
        os.setsid()
        subprocess.Popen(sleep, start_new_session=True)
        os._exit(0)
    os.waitpid(child, 0)
    return [1.0] * len(samples)


def _orphans_and_crash(samples):
    _orphans(samples)
    _crash(samples)


def _import(samples):
    importlib.import_module("no_such_module")


def _fork(samples):
    """A child that goes on as the parent does."""
    os.fork()
    return [2.0] * len(samples)


def _sorted(samples):
    samples.sort(key=lambda sample: sample.output)
    return [1.0] * len(samples)


_ACTS = {
    "crash": _crash,
    "exit": _exit,
    "hang": _hang,
    "raise": _raise,
    "print": _print,
    "orphans": _orphans,
    "orphans and crash": _orphans_and_crash,
    "import": _import,
    "fork": _fork,
    "sort": _sorted,
    "nothing": lambda samples: None,
    "words": lambda samples: ["good"] * len(samples),
    "too few": lambda samples: [1.0],
    "infinite": lambda samples: [float("inf")] * len(samples),
    "huge": lambda samples: [10**400] * len(samples),
}
