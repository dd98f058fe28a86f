"""Weights from the network, for rewards with a model of their own.

Whether a server answers is asked once: the libraries of a hub ask again for every file, with growing pauses.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from grpokit.errors import on_one_line, one_line

PATIENCE = 10.0
"""Seconds that a server may take to answer."""


def unreachable(endpoint: str) -> str:
    """Why an address does not answer; empty if it does, whatever the answer.

    Args:
        endpoint: such as "https://huggingface.co".
    """
    proxies = urllib.request.getproxies().keys() - {"no"}
    return "" if proxies else _silent(endpoint)  # the hub's libraries know more kinds of proxy than urllib


def _silent(address: str) -> str:
    try:
        with suppress(urllib.error.HTTPError):
            urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=PATIENCE).close()
    except (OSError, HTTPException, ValueError) as error:
        reason = str(getattr(error, "reason", error))
        return "" if "SSL" in reason else on_one_line(reason)  # the hub's libraries may know other certificates
    return ""


def fetch(url: str, place: Path, *, digest: str, by: str) -> str:
    """Bring a file of weights to its place, with a line on stderr; returns why that failed, or nothing.

    Args:
        url: of the file.
        place: where it goes; the folder is made.
        digest: the beginning of its SHA-256, in hex.
        by: who asks, for the line.
    """
    import torch

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):  # which means all downloads
        return "HF_HUB_OFFLINE is set"
    print(f"{by}: fetching {url} to '{place}'", file=sys.stderr)
    reason = _silent(url)
    if not reason:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(place), hash_prefix=digest, progress=sys.stderr.isatty())
        except urllib.error.HTTPError as error:
            return f"the server says {error.code} {error.reason}"
        except (OSError, HTTPException, RuntimeError) as error:  # the last: another digest
            return one_line(error)
    return reason
