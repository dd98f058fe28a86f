"""What clients of servers share: addresses that can be asked, secrets that stay out of messages, and no redirects."""

from __future__ import annotations

import os
import urllib.parse
import urllib.request
from typing import Any

from grpokit.errors import UsageError, shown


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The standard one would send a secret to wherever an answer points."""

    def redirect_request(self, *_: Any) -> None:
        return None


opener = urllib.request.build_opener(_NoRedirect)
"""Opens requests, through the proxy of the environment if there is one; a redirect is an `HTTPError`."""


def checked_address(given: Any, *, key: str, example: str, instead: str) -> str:
    """An address that can be asked, without a slash at its end.

    Args:
        given: the address, such as "http://gpu-2:8000".
        key: what messages call it.
        example: of one.
        instead: where a secret belongs, such as "Name an environment variable that holds it as api_key_env."

    Raises:
        UsageError: it is none, or has a secret in it. The message does not quote a secret.
    """
    if isinstance(given, str) and ("@" in given.rpartition("://")[2].partition("/")[0] or "?" in given or "#" in given):
        raise UsageError(
            f"{key} has a user, a password, a query or a fragment in it. It is stored with the run, so a key or a "
            f"password does not belong there. {instead}"
        )
    try:
        parts = urllib.parse.urlsplit(given if isinstance(given, str) else "")
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0  # or raises
        (parts.hostname or "").encode("idna")
    except ValueError:
        fits = False
    if not fits or not given.isascii() or not given.isprintable() or " " in given:
        raise UsageError(f"{key} must be an address such as {example}, got {shown(given)}.")
    return str(given).rstrip("/")


def secret(variable: str) -> str:
    """A key or a token from an environment variable, without white space around it; empty where it is not set.

    Raises:
        UsageError: no header can carry it; the message does not quote it.
    """
    text = os.environ.get(variable, "").strip()
    if not text.isascii() or not text.isprintable():
        raise UsageError(
            f"The environment variable {variable} has characters that cannot be sent. Expected a key or a token of "
            "letters, digits and other printable ASCII characters."
        )
    return text
