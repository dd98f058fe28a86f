"""A small server on this machine that answers as an OpenAI-compatible one does."""

import atexit
import base64
import io
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from PIL import Image, ImageStat


@dataclass(kw_only=True)
class Request:
    """What came in."""

    path: str
    headers: dict
    body: dict
    time: float

    @property
    def text(self):
        return self.body["messages"][0]["content"][0]["text"]

    @property
    def pictures(self):
        parts = self.body["messages"][0]["content"]
        urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
        assert all(url.startswith("data:image/png;base64,") for url in urls)
        return [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in urls]


@dataclass(kw_only=True)
class Judge:
    """The server.

    `script` has what it says to the next requests: (state, headers, text), a function of the request that gives the
    words of an answer, or seconds to sleep first. After it, a rating of the picture's brightness.
    """

    url: str = ""
    script: list = field(default_factory=list)
    requests: list = field(default_factory=list)
    working: int = 0
    most_working: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def brightness(request):
    """From 0 to 10."""
    return json.dumps({"rating": ImageStat.Stat(request.pictures[0].convert("L")).mean[0] / 25.5})


def handler_of(judge):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            request = Request(path=self.path, headers=dict(self.headers), body=body, time=time.monotonic())
            with judge.lock:
                judge.requests.append(request)
                judge.working += 1
                judge.most_working = max(judge.most_working, judge.working)
                step = judge.script.pop(0) if judge.script else brightness
            if isinstance(step, float):
                time.sleep(step)
                step = brightness
            state, headers, text = step if isinstance(step, tuple) else (200, {}, None)
            if text is None:
                words = {"message": {"role": "assistant", "content": step(request)}}
                usage = {"prompt_tokens": 100, "completion_tokens": 7}
                text = json.dumps({"choices": [words], "usage": usage})
            with judge.lock:
                judge.working -= 1
            try:
                self.send_response(state)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())
            except OSError:
                pass  # who asked has gone

        def do_GET(self):
            judge.requests.append(Request(path=self.path, headers=dict(self.headers), body={}, time=0.0))
            self.send_error(404)

        def log_message(self, *_):
            pass

    return Handler


@pytest.fixture
def judge():
    judge = Judge()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler_of(judge)) as server:
        judge.url = f"http://127.0.0.1:{server.server_port}/v1"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield judge
        server.shutdown()


@pytest.fixture(autouse=True)
def at_exit(monkeypatch):
    """What would be called when the process ends; no proxy either."""
    calls = []
    monkeypatch.setattr(atexit, "register", lambda function, **options: calls.append((function, options)))
    monkeypatch.setenv("no_proxy", "*")
    return calls
