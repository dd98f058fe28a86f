"""Whether a server of weights answers; the rewards that fetch from one test that."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from grpokit.rewards import downloads


class Busy(BaseHTTPRequestHandler):
    """A hub that answers, if not to this question."""

    def do_HEAD(self) -> None:
        self.send_error(405)

    def log_message(self, *given: Any) -> None:
        """Silent."""


def test_a_hub_that_answers_anything_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        Thread(target=server.handle_request, daemon=True).start()
        assert downloads.unreachable(f"http://127.0.0.1:{server.server_port}") == ""
    assert "unknown url type" in downloads.unreachable("hf-mirror.com")
    assert "refused" in downloads.unreachable("http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "*")  # names no proxy
    assert "refused" in downloads.unreachable("http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")  # of which urllib knows nothing
    assert downloads.unreachable("http://127.0.0.1:9") == ""
