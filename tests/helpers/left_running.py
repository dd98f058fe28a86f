"""What a process has left running."""

from __future__ import annotations

import time

import psutil


def gone(processes: set[int]) -> bool:
    """Whether processes end within seconds."""
    end = time.monotonic() + 10
    while alive := [each for each in processes if psutil.pid_exists(each)]:
        zombies = [each for each in alive if _status(each) == psutil.STATUS_ZOMBIE]  # the system reaps them
        if len(zombies) == len(alive):
            return True
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _status(process: int) -> str:
    try:
        return str(psutil.Process(process).status())
    except psutil.NoSuchProcess:
        return psutil.STATUS_ZOMBIE
