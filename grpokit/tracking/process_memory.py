"""How much memory this process takes, on systems that say so."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PROCESS = Path("/proc/self")


@dataclass
class Rise:
    """What `rise` has measured, in bytes."""

    bytes: int = 0


@contextmanager
def rise() -> Iterator[Rise]:
    """How far this process's memory rises inside the context, at its highest.

    Linux can forget a peak, so it is measured there. Other Unixes only know the peak since the process began, and tell
    how far it was exceeded; where nothing is known it is 0.
    """
    found = Rise()
    try:
        (_PROCESS / "clear_refs").write_text("5")  # forgets the peak
    except OSError:
        before, after = highest(), highest
    else:
        before, after = _status("VmRSS"), lambda: _status("VmHWM")
    yield found
    found.bytes = max(0, after() - before)


def highest() -> int:
    """The peak since this process began, in bytes; 0 where that is not known."""
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _status(key: str) -> int:
    """An entry of this process's status, in bytes."""
    line = re.search(rf"^{key}:\s*(\d+) kB", (_PROCESS / "status").read_text(encoding="ascii"), re.MULTILINE)
    return int(line[1]) * 1024 if line else 0
