"""Whether a hub can be reached: asked once, since the libraries of the hub ask for every file, with growing pauses."""

from __future__ import annotations

import urllib.error
import urllib.request
from contextlib import suppress
from http.client import HTTPException

from grpokit.errors import one_line

PATIENCE = 10.0
"""Seconds that the hub may take to answer."""


def unreachable(endpoint: str) -> str:
    """Why nobody answers at an address, or nothing if somebody does; what the answer is does not matter here.

    Args:
        endpoint: such as "https://huggingface.co".
    """
    if urllib.request.getproxies():
        return ""  # the hub's libraries know more kinds of proxy than urllib
    try:
        with suppress(urllib.error.HTTPError):
            urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=PATIENCE).close()
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        certificates = "SSL" in type(reason).__name__  # the hub's libraries may know others
        return "" if certificates else one_line(reason if isinstance(reason, BaseException) else error)
    return ""
