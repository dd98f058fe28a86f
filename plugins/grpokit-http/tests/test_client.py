"""Servers that no client may trust: what they say is bounded in time and size, and fit for a message."""

from __future__ import annotations

import email.utils
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from grpokit import Prompt, RewardError, Sample, UsageError
from grpokit.rewards.scoring import score_samples
from grpokit.rewards.terms import RewardTerm
from grpokit_http.client import AnswerError, ask
from grpokit_http.reward import TOKEN, RemoteReward
from grpokit_http.wire import PROTOCOL

KEY = 'a "secret" \\'


@contextmanager
def answering(answer: Callable[[bytes], Iterator[bytes]]) -> Iterator[str]:
    """A server that sends what `answer` yields for a request's first line."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, suppress(OSError):
                        for part in answer(connection.recv(1 << 20).split(b"\r\n")[0]):
                            connection.sendall(part)
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(1 << 20):  # what is left unread would reset the connection
                            pass

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def whole(content: object, status: str = "200 OK", *headers: str) -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize(
    ("scheme", "start", "piece"),
    [
        ("http", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"x"),
        ("http", b"HTTP/1.1 500 No\r\n\r\n", b"x"),
        ("http", b"", b"H"),
        ("http", b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        ("http", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n"),
        ("http", b"", CONTINUE),
        ("http", b"", CONTINUE * 4000),  # more than can be read in time
        ("https", b"\x16\x03\x03\x40\x00", b"\x02"),
    ],
)
def test_a_drip_of_bytes_does_not_outlast_the_timeout(scheme: str, start: bytes, piece: bytes) -> None:
    def drip(_: bytes) -> Iterator[bytes]:
        yield start
        for _ in range(60):
            time.sleep(0.05)
            yield piece

    with answering(drip) as url:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            ask(url.replace("http", scheme, 1), timeout=0.3)
        assert 0.25 < time.monotonic() - began < 1.5
    assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())


@pytest.mark.parametrize(("part", "count"), [(b"[],", 200), (b'{"a":0},', 200), (b'"ab",', 1000)])
def test_an_answer_with_too_many_values_is_none(part: bytes, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpokit_http.json_limits.LISTS", 100)
    monkeypatch.setattr("grpokit_http.json_limits.VALUES", 1000)
    with (
        answering(lambda _: iter([whole(b"[" + part * count + b"0]")])) as url,
        pytest.raises(OSError, match=r"an answer of more than .* lists and objects or "),
    ):
        ask(url, timeout=20)


@pytest.mark.parametrize("location", ["mailto:x", "http://[::1", "http://a:x"])
def test_a_redirect_to_no_address_is_an_error_like_others(location: str) -> None:
    with answering(lambda _: iter([whole("", "302 Found", f"Location: {location}")])) as url, pytest.raises(OSError):
        ask(url, timeout=20)


def test_an_endless_answer_is_read_to_its_limit_only() -> None:
    sent = 0

    def endless(_: bytes) -> Iterator[bytes]:
        nonlocal sent
        yield b"HTTP/1.1 200 OK\r\n\r\n"
        while sent < 2**28:
            sent += 2**20
            yield b" " * 2**20

    with answering(endless) as url, pytest.raises(OSError, match="an answer of more than 8 MB"):
        ask(url, timeout=20, most=2**23)
    assert sent < 2**25


def test_an_answer_that_ends_early_is_none() -> None:
    with (
        answering(lambda _: iter([whole([1, 2, 3])[:-2]])) as url,
        pytest.raises(OSError, match="without sending"),
    ):
        ask(url, timeout=20)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (b"your Authorization: Bearer " + KEY.encode(), "your Authorization: Bearer ***"),
        ({"error": f"no {KEY}"}, "no ***"),
        ({"error": {"message": ["no", KEY]}}, "***"),
        ({"error": ["no", 3]}, "['no', 3]"),
        ({"error": "red \x1b[31m\x07\n\u202e"}, "red \\x1b[31m\\x07 \\u202e"),
        (b"[" * 3_000_000, "[" * 250),
    ],
)
def test_the_words_of_a_refusal_are_fit_for_a_message(words: object, shown: str) -> None:
    with answering(lambda _: iter([whole(words, f"403 {KEY}", f"Location: http://x/{KEY}")])) as url:
        with pytest.raises(AnswerError) as caught:
            ask(url, key=KEY, timeout=20)
        said = str(caught.value)
        assert said.startswith("HTTP 403 ***: ")
        assert shown in said
        assert "secret" not in f"{said} {caught.value.location} {caught.value.__cause__}"
        assert len(said) <= 303


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        (["Retry-After: 1.5"], 1.5, 1.5),
        (["retry-after-ms: 250", "Retry-After: 1"], 0.25, 0.25),
        ([f"Retry-After: {email.utils.formatdate(time.time() + 36_000, usegmt=True)}"], 30_000, 36_000),
        (["Retry-After: Wed, 21 Oct 2015 07:28:00 GMT"], 0, 0),
        (["Retry-After: soon"], 0, 0),
        (["Retry-After: Mon, 01 Jan 99999999999 00:00:00 GMT"], 0, 0),
        (["Retry-After: -1"], 0, 0),
        (["Retry-After: inf"], 0, 0),
        ([], 0, 0),
    ],
)
def test_how_long_a_server_asks_to_wait(headers: list[str], least: float, most: float) -> None:
    refusal = {"error": {"code": "rate_limit", "message": "slow down"}}
    with answering(lambda _: iter([whole(refusal, "429 Slow", *headers)])) as url, pytest.raises(AnswerError) as caught:
        ask(url, timeout=20)
    assert caught.value.code == "rate_limit"
    assert least <= caught.value.wait <= most


@pytest.mark.parametrize(
    ("part", "raised", "message"),
    [
        ([None, "", ["UsageError", f"\x1b {KEY}", ""]], UsageError, r"\\x1b \*\*\*"),
        ([None, f"{KEY} {'x' * 3_000_000}", None], RewardError, r"\*\*\* x{1900,2000}\."),
        ([None, "", ["NoSuchError", "x", None]], RewardError, "could not be asked: "),
        ([None, "", ["a_type", "x", None]], RewardError, "could not be asked: "),
        ([None, "", ["UsageError", "x", "\x1b[31mguards"]], RewardError, "could not be asked: "),
        ([None, "", ["UsageError", "x", f"guards#{KEY}"]], RewardError, "could not be asked: "),
        ([None, "", ["UsageError", "x"]], RewardError, "could not be asked: "),
        ([1, 2, 3, 4], RewardError, "could not be asked: .* gave an answer that is none of a reward service"),
        ([None, ["x"], None], RewardError, "could not be asked: .* gave an answer that is none of a reward service"),
        ({"rows": [0]}, RewardError, "could not be asked: .* gave an answer that is none of a reward service"),
        ([[["x"]], "", None], RewardError, "gave .* for row 0"),
        ([[{"\x1b": 1}], "", None], RewardError, "gave .* for row 0"),
    ],
)
def test_what_a_reward_service_says_is_words(
    part: object, raised: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpokit_http.reward._PATIENCE", 0.0)
    monkeypatch.setenv(TOKEN, KEY)
    health = {"protocol": PROTOCOL, "reward": KEY, "params": {}}

    def answer(line: bytes) -> Iterator[bytes]:
        yield whole({"portions": [part]} if b"/score" in line else health)

    with answering(answer) as url:
        with pytest.raises(UsageError, match=r"serves \*\*\* .* asks for other"):
            RemoteReward([url], use="other").start()
        reward = RemoteReward([url])
        with pytest.raises(raised, match=message) as caught:
            score_samples([RewardTerm(name="r", reward=reward)], [Sample(prompt=Prompt(text="p"), output="x", group=0)])
        reward.close()
    assert "secret" not in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2500


@pytest.mark.parametrize(
    ("health", "message"),
    [
        (b"<html>\x1b", "gave an answer that is none of a reward service"),
        ({"reward": "x"}, "gave an answer that is none of a reward service"),
        (
            {"protocol": PROTOCOL + 1, "reward": f"\x1b{KEY}", "params": {}},
            rf"serves \\x1b\*\*\* in protocol {PROTOCOL + 1}, and the run asks for x in protocol {PROTOCOL}",
        ),
        *(
            ({"protocol": protocol, "reward": "x", "params": {}}, "gave an answer that is none of a reward service")
            for protocol in (str(PROTOCOL), True, None)
        ),
        (
            b'{"protocol": 1, "reward": "y", "params": {}, "reward": "x"}',
            "gave an answer that is none of a reward service",
        ),
    ],
)
def test_a_service_that_is_another_is_named(health: object, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, KEY)
    with answering(lambda _: iter([whole(health)])) as url, pytest.raises(UsageError, match=message) as caught:
        RemoteReward([url], use="x").start()
    assert "secret" not in str(caught.value)
