"""How far this process's memory rises, on systems that say so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Rise:
    """What `rise` has measured, in bytes."""

    bytes: int = 0


@contextmanager
def rise() -> Iterator[Rise]:
    """How far this process's memory rises inside the context, at its highest; 0 on systems other than Linux."""
    risen = Rise()
    process = Path("/proc/self")

    def status(key: str) -> int:
        text = (process / "status").read_text(encoding="ascii")
        line = re.search(rf"^{key}:\s*(\d+) kB", text, re.MULTILINE)
        return int(line[1]) * 1024 if line else 0

    try:
        (process / "clear_refs").write_text("5")  # forgets the peak
    except OSError:
        yield risen
        return
    before = status("VmRSS")
    yield risen
    risen.bytes = max(0, status("VmHWM") - before)
