"""How much memory this process takes, on systems that say so."""

from __future__ import annotations

import sys


def highest() -> int:
    """The peak since this process began, in bytes; 0 where that is not known."""
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
