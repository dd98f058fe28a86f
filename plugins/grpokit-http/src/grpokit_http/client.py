"""One request to a server that nobody need trust: bounded, without redirects, its words fit for a message.

The placement `http`, the reward `vlm-judge` and the engines of grpokit-lm ask with it.
"""

from __future__ import annotations

import email.utils
import functools
import math
import os
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import httpx

from grpokit.errors import UsageError, brief, on_one_line, one_line
from grpokit.files import parse_json
from grpokit_http.json_limits import LIMITS, within_limits

MOST_ANSWER = 8 * 2**20
"""Bytes of an answer."""

_MOST_WORDS = 10_000  # bytes of a refusal


class AnswerError(OSError):
    """An answer with another status than 200; its text is the server's, fit for a message.

    Attributes:
        status (int): the HTTP status.
        location (str): where a redirect points to.
        code (str): what the server calls the error, such as "content_filter"; may be empty.
        wait (float): seconds that the server asks to wait before a new try; 0 where it does not ask.
    """

    def __init__(self, reply: httpx.Response, answer: Any, key: str) -> None:
        start, words = f"HTTP {reply.status_code} {reply.reason_phrase}", error_in(answer)
        super().__init__(public(f"{start}: {words}" if words else start, key).rstrip(". "))
        self.status = reply.status_code
        self.location = public(reply.headers.get("Location", "another address"), key)
        error = answer.get("error") if isinstance(answer, dict) else None
        self.code = str(error.get("code") or "") if isinstance(error, dict) else ""
        self.wait = _seconds(reply.headers)


def ask(url: str, body: bytes | None = None, *, key: str = "", timeout: float, most: int = MOST_ANSWER) -> Any:
    """The JSON of a server's answer; its text where it is none, or where a key of an object appears twice.

    The request goes through the proxy of the environment, if there is one. Redirects are not followed.

    Args:
        url: the address.
        body: JSON to send; None: a GET.
        key: a secret that goes with it as a bearer token, and into no message.
        timeout: seconds that the answer may take until its last byte has come, whatever comes before.
        most: bytes of it.

    Raises:
        AnswerError: it has another state than 200, such as a redirect.
        TimeoutError: it did not come in time.
        OSError: there is none, or it is too large.
    """
    method = "GET" if body is None else "POST"
    headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    content, end = bytearray(), time.monotonic() + timeout
    try:
        with (
            _cut_off(end) as trace,
            httpx.Client(verify=_certificates(), timeout=timeout) as client,
            client.stream(method, url, content=body, headers=headers, extensions={"trace": trace}) as reply,
        ):
            good = reply.status_code == 200
            for part in reply.iter_raw():
                content += part
                if len(content) > (most if good else _MOST_WORDS):
                    break
    except (httpx.TransportError, httpx.InvalidURL) as error:  # the second: of a redirect
        if isinstance(error, httpx.TimeoutException) or time.monotonic() >= end:
            raise TimeoutError("timed out") from None
        raise OSError(public(one_line(error), key)) from None
    if time.monotonic() >= end:  # where a connection is cut off, its end may look like that of the answer
        raise TimeoutError("timed out")
    if not good:
        raise AnswerError(reply, _read(content[:_MOST_WORDS]), key)
    if len(content) > most:
        raise OSError(f"an answer of more than {most / 2**20:g} MB")
    if not within_limits(content):
        raise OSError(f"an answer of more than {LIMITS}")
    return _read(content)


@contextmanager
def _cut_off(end: float) -> Iterator[Callable[[str, Mapping[str, Any]], None]]:
    """Cut a request's connection off at a time, since a timeout of httpx begins anew with each byte that comes.

    Yields:
        The request's `trace`, by which httpx tells of its connection.
    """
    connections: list[socket.socket] = []

    def cut() -> None:
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
                while connection.recv(2**20):  # what has come already may take seconds to read
                    pass

    def trace(event: str, info: Mapping[str, Any]) -> None:
        if event.endswith("connect_tcp.complete"):
            connections.append(info["return_value"].get_extra_info("socket").dup())  # httpx's own changes with TLS
            if time.monotonic() >= end:
                cut()

    timer = threading.Timer(end - time.monotonic(), cut)
    timer.start()
    try:
        yield trace
    finally:
        timer.cancel()
        timer.join()
        for connection in connections:
            connection.close()


@functools.cache
def _certificates() -> ssl.SSLContext:
    return ssl.create_default_context()  # reading them takes longer than a request


def _read(content: bytearray) -> Any:
    text = content.decode(errors="replace")
    try:
        return parse_json(text)
    except ValueError:
        return text


def _seconds(headers: httpx.Headers) -> float:
    """What the headers retry-after-ms and Retry-After ask for; the latter has seconds or a date."""
    milliseconds, after = headers.get("retry-after-ms"), headers.get("Retry-After", "")
    try:
        seconds = float(milliseconds) / 1000 if milliseconds else float(after)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(after).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    return seconds if 0 <= seconds < math.inf else 0.0


def public(text: Any, key: str = "", *, most: int = 300) -> str:
    """What a server says, for a message: on one line, not too long, and without the secret that it may have echoed."""
    shown = str(text)
    if key:
        shown = shown.replace(key, "***")
    return on_one_line(shown, most=most)


def error_in(answer: Any) -> str:
    """The words of an answer that is an error."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or answer)


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
    text = given if isinstance(given, str) else ""
    host, _, _ = text.rpartition("://")[2].partition("/")
    if "@" in host or "?" in text or "#" in text:
        raise UsageError(
            f"{key} has a user, a password, a query or a fragment in it. It is stored with the run, so a key or a "
            f"password does not belong there. {instead}"
        )
    try:
        parts = urllib.parse.urlsplit(text)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0  # or raises
        (parts.hostname or "").encode("idna")
    except ValueError:
        fits = False
    if not fits or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError(f"{key} must be an address such as {example}, got {brief(given)}.")
    return text.rstrip("/")


def secret(variable: str) -> str:
    """A key or a token from an environment variable, without white space around it; empty where it is not set.

    Raises:
        UsageError: no header can carry it; the message does not quote it.
    """
    text = os.environ.get(variable, "").strip()
    if not text.isascii() or not text.isprintable():
        raise UsageError(
            f"The environment variable {variable} has characters that cannot be sent. Expected a key or a token of "
            "printable ASCII characters."
        )
    return text
