"""`grpokit watch`: what it serves, to whom, and that a run which grows, breaks or vanishes never stops it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from grpokit import UsageError
from grpokit.report.watch import Server, serving
from grpokit.run_folder.lock import locked
from made_runs import EVIL, make_run, picture, read_rows, write_rows

Ask = Callable[..., tuple[int, dict[str, str], bytes]]


@pytest.fixture
def serve() -> Iterator[Callable[..., Ask]]:
    """Starts a server and gives a function that asks it for a path."""
    stops = []

    def start(*folders: Path, **options: Any) -> Ask:
        context = serving(folders, **options)
        server: Server = context.__enter__()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        stops.append((server, thread, context))

        def ask(path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
            with closing(http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)) as connection:
                connection.request(
                    method, path, headers={name.replace("_", "-"): text for name, text in headers.items()}
                )
                answer = connection.getresponse()
                return answer.status, dict(answer.getheaders()), answer.read()

        ask.server = server  # type: ignore[attr-defined]
        return ask

    yield start
    for server, thread, context in stops:
        server.shutdown()
        thread.join()
        context.__exit__(None, None, None)


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(folder.rglob("*"))}


def test_it_serves_the_page_the_view_and_the_pictures_and_writes_nothing(
    tmp_path: Path, serve: Callable[..., Ask]
) -> None:
    folder = make_run(tmp_path / "run")
    before = tree(tmp_path)
    ask = serve(folder)
    status, headers, page = ask("/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b'id="view">null</script>' in page
    assert b"connect-src 'self'" in page
    status, headers, content = ask("/view.json")
    view = json.loads(content)
    assert (status, view["runs"][0]["steps"]) == (200, 4)
    assert ask("/view.json", If_None_Match=headers["ETag"])[0::2] == (304, b"")
    address = view["runs"][0]["evaluations"][0]["rows"][0]["output"]["picture"]
    status, headers, content = ask(f"/{address}")
    assert (status, headers["Content-Type"]) == (200, "image/png")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert content == (folder / "samples/step_000000/0000.png").read_bytes()
    assert ask("/", "POST")[0] == ask("/", "PUT")[0] == 501
    assert tree(tmp_path) == before


def test_a_folder_of_runs_is_an_index_with_a_page_for_each(tmp_path: Path, serve: Callable[..., Ask]) -> None:
    runs = tmp_path / "runs"
    make_run(runs / "a b#c")
    make_run(runs / "rates" / "low")
    make_run(tmp_path / "private")
    before = tree(tmp_path)
    ask = serve(runs)
    assert b"<title>runs" in ask("/")[2]
    _, headers, content = ask("/view.json")
    links = {row["name"]: row["link"] for row in json.loads(content)["runs"]}
    assert list(links) == ["a b#c", "rates/low"]
    for name, link in links.items():
        assert ask(f"/{link}")[0] == 200
        view = json.loads(ask(f"/{link}view.json")[2])
        assert view["runs"][0]["name"] == Path(name).name
        picture = view["runs"][0]["evaluations"][0]["rows"][0]["output"]["picture"]
        assert ask(f"/{link}{picture}")[1]["Content-Type"] == "image/png"
    for path in (
        "/run/",
        "/run/nothing/",
        "/run/../private/",
        "/run/..%2Fprivate/",
        "/run/rates/",
        "/picture/9/x/y/z.png",
    ):
        assert ask(path)[0] == 404
    assert tree(tmp_path) == before
    make_run(runs / "new")
    status, _, content = ask("/view.json", If_None_Match=headers["ETag"])
    assert status == 200
    assert [row["name"] for row in json.loads(content)["runs"]] == ["a b#c", "new", "rates/low"]


def test_a_run_that_dies_is_news(tmp_path: Path, serve: Callable[..., Ask]) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "end.json").unlink()
    ask = serve(folder)
    with locked(folder):
        _, headers, content = ask("/view.json")
        assert json.loads(content)["runs"][0]["state"] == "running: 4 of 4 steps"
    status, _, content = ask("/view.json", If_None_Match=headers["ETag"])
    assert (status, json.loads(content)["runs"][0]["state"]) == (200, "stopped after 4 of 4 steps")


@pytest.mark.parametrize("rest", [0, 1_000_000])
def test_mere_steps_wait_so_that_reading_them_slows_nothing(
    tmp_path: Path, serve: Callable[..., Ask], monkeypatch: pytest.MonkeyPatch, rest: int
) -> None:
    monkeypatch.setattr("grpokit.report.watch._REST", rest)
    folder = make_run(tmp_path / "run")
    ask = serve(folder)
    mark = ask("/view.json")[1]["ETag"]
    rows = read_rows(folder / "metrics.jsonl")
    write_rows(folder / "metrics.jsonl", [*rows, {**rows[-1], "step": 5}])
    assert ask("/view.json", If_None_Match=mark)[0] == (304 if rest else 200)
    rows = read_rows(folder / "eval.jsonl")
    write_rows(folder / "eval.jsonl", [*rows, {**rows[-1], "step": 5}])
    status, _, content = ask("/view.json", If_None_Match=mark)
    assert (status, json.loads(content)["runs"][0]["steps"]) == (200, 5)


@pytest.mark.parametrize(
    "path",
    [
        "/picture/0/samples/step_000000/../../config.png",
        "/picture/0/samples/step_000000/..%2f..%2f..%2fprivate.png",
        "/picture/0/samples/../samples/0000.png",
        "/picture/0/%2e%2e/step_000000/0000.png",
        "/picture/0/samples/step_000000/link.png",
        "/picture/0/samples/step_000009/0000.png",  # a link to a folder
        "/picture/0/samples/step_000000/samples.jsonl",
        "/picture/0/samples/step_000000/.hidden.png",
        "/picture/0/samples/step_000000/%00.png",
        "/picture/0/checkpoints/step_000000/0000.png",
        "/picture/1/samples/step_000000/0000.png",
        "/picture/x/samples/step_000000/0000.png",
        "/picture/99999999999999999999/samples/step_000000/0000.png",
        "/picture//etc/passwd",
        "/config.yaml",
        "//etc/passwd",
    ],
)
def test_nothing_else_is_served(tmp_path: Path, serve: Callable[..., Ask], path: str) -> None:
    folder = make_run(tmp_path / "run")
    for place in (tmp_path / "private.png", tmp_path / "other/0000.png", folder / "samples/step_000000/.hidden.png"):
        place.parent.mkdir(exist_ok=True)
        picture(1).save(place)
    (folder / "samples/step_000000/link.png").symlink_to(tmp_path / "private.png")
    (folder / "samples/step_000009").symlink_to(tmp_path / "other")
    (folder / "checkpoints").mkdir()
    shutil.copytree(folder / "samples/step_000000", folder / "checkpoints/step_000000")
    assert serve(folder)(path)[0] == 404


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::1", 403),
    ],
)
def test_a_name_of_the_web_that_leads_here_is_refused(
    tmp_path: Path, serve: Callable[..., Ask], host: str, status: int
) -> None:
    assert serve(make_run(tmp_path / "run"))("/view.json", Host=host)[0] == status


def test_a_run_that_comes_late_breaks_and_vanishes(tmp_path: Path, serve: Callable[..., Ask]) -> None:
    folder = tmp_path / "run"
    ask = serve(folder, other := make_run(tmp_path / "other"))

    def runs() -> list[dict[str, Any]]:
        status, _, content = ask("/view.json")
        assert status == 200
        return json.loads(content)["runs"]

    assert runs()[0]["waiting"].startswith(f"Waiting for a run: {folder} is not a run folder")
    make_run(folder, name=EVIL, prompt=EVIL, text=EVIL)
    assert [run["steps"] for run in runs()] == [4, 4]
    evaluations = read_rows(folder / "eval.jsonl")
    (folder / "eval.jsonl").write_text((folder / "eval.jsonl").read_text() + '{"step": 6, "rew')
    (folder / "samples/step_000004/samples.jsonl").write_text('{"prompt": "half')
    assert len(runs()[0]["evaluations"]) == len(evaluations)
    (folder / "eval.jsonl").write_text("{\n")
    assert "eval.jsonl, line 1, is damaged" in runs()[0]["waiting"]
    shutil.rmtree(folder)
    assert "Waiting" in runs()[0]["waiting"]
    assert runs()[1]["waiting"] == runs()[0]["waiting"]
    assert other.is_dir()


@pytest.mark.parametrize("name", ["zero \0 byte.png", "half \ud800 letter.png", "long" * 100 + ".png"])
def test_a_picture_with_a_name_that_no_file_has_is_missing(
    tmp_path: Path, serve: Callable[..., Ask], name: str
) -> None:
    folder = make_run(tmp_path / "run")
    samples = folder / "samples/step_000000/samples.jsonl"
    rows = read_rows(samples)
    rows[0]["file"] = name
    write_rows(samples, rows)
    status, _, content = serve(folder)("/view.json")
    assert status == 200
    assert json.loads(content)["runs"][0]["evaluations"][0]["rows"][0]["output"] == {"missing": True}


def test_mistakes_are_one_message(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(UsageError, match=rf"port {port}: .*in use.*--port"),
            serving([folder], port=port),
        ):
            pass
    with (
        pytest.raises(UsageError, match=r"config\.yaml is a file; expected a run folder"),
        serving([folder / "config.yaml"]),
    ):
        pass
    with pytest.raises(UsageError, match="are the same run folder"), serving([folder, folder]):
        pass


@pytest.mark.usefixtures("default_signals")
def test_the_command_follows_a_run_until_ctrl_c(tmp_path: Path) -> None:
    """The mark changes within 3 s of a new evaluation, and an idle run is not read again."""
    folder = make_run(tmp_path / "run")
    words = [sys.executable, "-m", "grpokit", "watch", "run", "soon", "--no-open", "--port", "0"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout
        line = process.stdout.readline()
        assert line.startswith("watching 2 runs at http://127.0.0.1:")
        assert process.stdout.readline() == "soon is not a run folder yet; waiting\n"
        connection = http.client.HTTPConnection(line.split()[4].removeprefix("http://").rstrip("/"), timeout=10)
        make_run(tmp_path / "soon")
        connection.request("GET", "/view.json")
        first = connection.getresponse()
        etag, view = first.headers["ETag"], json.loads(first.read())
        assert view["comparison"]["modes"]["last"]["steps"] == [4, 4]
        rows = read_rows(folder / "eval.jsonl")
        write_rows(folder / "eval.jsonl", [*rows, {**rows[-1], "step": 9}])
        start = time.perf_counter()
        connection.request("GET", "/view.json", headers={"If-None-Match": etag})
        answer = connection.getresponse()
        assert json.loads(answer.read())["comparison"]["modes"]["last"]["steps"] == [9, 4]
        assert time.perf_counter() - start + 1 < 3  # a page asks every second
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "\nstopped watching\n"
        assert process.wait(10) == 0
