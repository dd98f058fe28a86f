"""Opens Ray for the first reward that needs it, and closes it after the last one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Hashable, Mapping

import ray

from grpokit.errors import UsageError, error_line

_lock = threading.Lock()
_wanted: dict[Hashable, Mapping[str, float]] = {}  # by everybody who has opened Ray
_opened_here = False
_local = False


def connect(who: Hashable, wanted: Mapping[str, float], address: str | None) -> None:
    """Open Ray, unless it is open.

    Args:
        who: needs it.
        wanted: what its actors need together, by Ray's names, such as {"CPU": 4}.
        address: of a cluster; None: `RAY_ADDRESS`, or else a Ray of this process's own.

    Raises:
        UsageError: there is no Ray at the address, an own one has no room, or several processes want GPUs of own ones.
    """
    global _opened_here, _local
    with _lock:
        if not ray.is_initialized():
            address = address or os.environ.get("RAY_ADDRESS") or "local"
            if address == "local":
                _refuse_gpus_of_several(wanted)
            _open(address)
            _opened_here, _local = True, address == "local"
        if _opened_here and _local:
            _refuse_gpus_of_several(wanted)
            _check_room(wanted)
        _wanted[who] = wanted


def disconnect(who: Hashable) -> None:
    """Close Ray, if nobody needs it and it was opened here."""
    global _opened_here
    with _lock:
        _wanted.pop(who, None)
        if _opened_here and not _wanted:
            _opened_here = False
            ray.shutdown()


def _open(address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to Ray's makers
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(address=address, logging_level="warning", include_dashboard=False)
    except Exception as error:
        what = "Ray cannot be started on this machine" if address == "local" else f"There is no Ray at {address}"
        raise UsageError(f"{what} ({error_line(error)}).") from error
    finally:
        for number, handler in handlers.items():  # Ray sets its own, and the run's would be lost
            if main and handler is not None:
                signal.signal(number, handler)


def _refuse_gpus_of_several(wanted: Mapping[str, float]) -> None:
    """Each of several processes has an own Ray, which knows nothing of the others' actors."""
    if wanted.get("GPU") and os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1"):
        raise UsageError(
            "Each of several processes would start a Ray of its own here, and all would hand out the same GPU. Start "
            "one with `ray start --head`, and give address: auto."
        )


def _check_room(wanted: Mapping[str, float]) -> None:
    there = ray.cluster_resources()
    for name, amount in wanted.items():
        taken = sum(other.get(name, 0.0) for other in _wanted.values())
        left = there.get(name, 0.0) - taken
        if amount > left + 1e-6:
            free = f"{there.get(name, 0.0):g}" if not taken else f"{left:g} left of {there.get(name, 0.0):g}"
            key = f"{name.lower()}s"
            raise UsageError(
                f"The replicas need {amount:g} {name}, and Ray has {free} on this machine. Set fewer replicas or a "
                f"smaller share ({key}), or give the address of a larger cluster."
            )
