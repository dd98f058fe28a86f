"""What clients of servers share: one request with its limits, secrets that stay out of messages, and no redirects."""

from __future__ import annotations

import http.client
import io
import json
import os
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from email.message import Message
from functools import partial
from ipaddress import ip_address
from typing import Any

from grpokit.errors import UsageError, one_line, plain, shown

MOST_ANSWER = 64 * 2**20
"""Bytes of an answer."""

_MOST_WORDS = 10_000  # bytes of a refusal


class AnswerError(Exception):
    """An answer with another state than 200; its text is the server's, fit for a message.

    Attributes:
        status: its number.
        location: where a redirect points to.
        retry_after: the header of that name.
    """

    def __init__(self, error: urllib.error.HTTPError, key: str) -> None:
        words = ""
        with error, suppress(OSError, http.client.HTTPException):
            words = error.read(_MOST_WORDS).decode(errors="replace")
        with suppress(ValueError, RecursionError):
            words = error_in(json.loads(words))
        super().__init__(public(f"HTTP {error.code} {error.reason}{': ' * bool(words)}{words}", key).rstrip(". "))
        self.status = error.code
        self.location = public(error.headers.get("Location", "another address"), key)
        self.retry_after = error.headers.get("Retry-After")


def ask(url: str, body: bytes | None = None, *, key: str = "", timeout: float, most: int = MOST_ANSWER) -> Any:
    """The JSON of a server's answer; its text where it is none.

    The request goes through the proxy of the environment, if there is one.

    Args:
        url: the address.
        body: JSON to send; None: a GET.
        key: a secret that goes with it, and into no message.
        timeout: seconds that the answer may take until its last byte has come.
        most: bytes of it.

    Raises:
        AnswerError: it has another state than 200, such as a redirect.
        TimeoutError: it did not come in time.
        OSError: there is none.
        ValueError: it is too large.
    """
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    try:
        with _opener.open(urllib.request.Request(url, body, headers), timeout=timeout) as reply:
            answer = reply.read(most + 1)
            left = reply.length
    except urllib.error.HTTPError as error:
        raise AnswerError(error, key) from None
    except http.client.HTTPException as error:
        raise OSError(public(one_line(error), key)) from None
    if len(answer) > most:
        raise ValueError(f"an answer of more than {most / 2**20:g} MB")
    if left:
        raise OSError("the answer has no end")
    text = answer.decode(errors="replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def public(text: Any, key: str = "", *, most: int = 300) -> str:
    """What a server says, for a message: on one line, not too long, and without the secret that it may have echoed."""
    return plain(str(text).replace(key, "***") if key else str(text), most=most)


def error_in(answer: Any) -> str:
    """The words of an answer that is an error."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or answer)


def is_local(headers: Message, host: str) -> bool:
    """Whether a request was made to an address of this computer: a page of the web may let its own name point here.

    Args:
        headers: of the request.
        host: the name of the server.
    """
    try:
        name = urllib.parse.urlsplit(f"//{headers.get('Host', '')}").hostname or ""
    except ValueError:  # half a pair of brackets
        return False
    return name in ("localhost", host) or is_loopback(name)


def is_loopback(host: str) -> bool:
    """Whether only this computer reaches an address.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class Timed(io.RawIOBase):
    """What comes over a connection until `end` of the monotonic clock."""

    def __init__(self, file: io.RawIOBase, connection: socket.socket, end: float) -> None:
        self._file, self._connection, self.end = file, connection, end

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """As in the base class.

        Raises:
            TimeoutError: the time is over.
        """
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(left)
        return self._file.readinto(buffer)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, connection: socket.socket, *arguments: Any, end: float, **options: Any) -> None:
        super().__init__(connection, *arguments, **options)
        self.fp = io.BufferedReader(Timed(self.fp.detach(), connection, end))


class _Plain(http.client.HTTPConnection):
    def __init__(self, host: str, /, *, timeout: float = 60.0, **options: Any) -> None:
        super().__init__(host, timeout=timeout, **options)
        self.response_class = partial(_Response, end=time.monotonic() + timeout)  # type: ignore[assignment]


class _Secure(_Plain, http.client.HTTPSConnection):
    pass


class _Handler(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Connections whose answers have a time to end."""

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Plain, request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Secure, request)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The standard one would send a secret to wherever an answer points."""

    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirect, _Handler)


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
