"""The page's service: what it asks of whom, that each vote counts once, and whom it refuses."""

from __future__ import annotations

import json
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from booths import Client, ask, ask_pictures, leave, picture, serving
from PIL import Image

from command_line import Call
from grpokit.run_folder.lock import locked
from grpokit.run_folder.reader import read_run
from grpokit_vote import service
from grpokit_vote.answers import Agreement, values_of
from grpokit_vote.ballots import BallotBox
from grpokit_vote.panel import panels

ASKED = {
    "state",
    "works",
    "waiting",
    "given",
    "agreement",
    "ballot",
    "samples",
    "left",
    "prompt",
    "sources",
    "question",
    "how",
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def client(run: Path) -> Iterator[Client]:
    with serving(run) as found:
        yield found


def number_of_votes(run: Path) -> int:
    return len(BallotBox(run).votes())


def test_a_page_waits_for_a_run_asks_and_says_when_it_draws(run: Path, client: Client) -> None:
    states = [client.next()]
    with locked(run):
        states.append(client.next())
        (ballot,) = ask_pictures(run, groups=1)
        states.append(client.next())
        assert client.vote(states[-1], ballot.samples[2], id="1") == (200, b'{"late":false}')
        states.append(client.next())
    states.append(client.next())
    assert [each["state"] for each in states] == ["absent", "drawing", "ask", "drawing", "ended"]
    assert [each["works"] for each in states] == [False, True, True, True, False]
    assert values_of(ballot, BallotBox(run).votes()) == {name: float(i == 2) for i, name in enumerate(ballot.samples)}


@pytest.mark.parametrize("path", ["/undo", "/vote"])
def test_a_key_that_comes_before_the_run_makes_no_folder(run: Path, client: Client, path: str) -> None:
    sent = {"voter": "ann", "id": "1", "ballot": "0" * 32, "samples": [], "answer": None}
    status, _, words = client.request("POST", path, sent)
    assert (status, b"not asked anything yet" in words) == (404, True)
    assert not run.exists()


def test_what_a_browser_learns_is_blind(run: Path, client: Client) -> None:
    ask_pictures(run, groups=24)
    firsts = set()
    for number in range(19):
        asked = client.next()
        assert asked.keys() == ASKED
        ballot, _ = BallotBox(run).find(asked["ballot"]) or pytest.fail("unknown")
        assert sorted(asked["samples"]) == sorted(ballot.samples)
        assert client.next() | {"left": 0} == asked | {"left": 0}  # as long as it is looked at
        firsts.add(ballot.samples.index(asked["samples"][0]))
        client.vote(asked, None, id=str(number))
    assert firsts == {0, 1, 2, 3}
    repeat = client.next()
    first = BallotBox(run).votes()[0]
    assert (repeat["ballot"], repeat["left"]) == (first.ballot.key, None)


def test_two_people_get_different_questions(run: Path, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    ballots = ask_pictures(run, groups=3)
    asked = [client.next(voter)["ballot"] for voter in ("ann", "ben", "ann", "ben", "cem", "ben")]
    assert asked == [ballots[i].key for i in (0, 1, 0, 1, 2, 1)]
    assert client.next("dan")["ballot"] == ballots[0].key  # all are looked at
    monkeypatch.setattr(service, "_LOOK", 0.0)
    assert client.next("eve")["ballot"] == ballots[0].key
    client.vote(client.next("ann"), None, id="1")
    assert client.next("ben")["waiting"] == 2
    assert client.next("dan")["ballot"] == ballots[1].key


def test_pairs_are_asked_one_by_one(run: Path, client: Client) -> None:
    (ballot,) = ask_pictures(run, groups=1, how="pairs")
    rank = {name: i for i, name in enumerate(ballot.samples)}
    pairs = []
    for number in range(4):
        asked = client.next()
        assert asked["waiting"] == 4 - number
        pairs.append(tuple(sorted(asked["samples"])))
        client.vote(asked, max(asked["samples"], key=rank.__getitem__), id=str(number))
    assert tuple(pairs) == ballot.asks
    values = values_of(ballot, BallotBox(run).votes()) or {}
    assert max(values, key=values.__getitem__) == ballot.samples[3]
    assert client.next()["state"] == "ended"


def test_a_vote_counts_once(run: Path, client: Client) -> None:
    (ballot,) = ask_pictures(run, groups=1)
    asked = client.next()
    for answer in ballot.samples[:2]:
        assert client.vote(asked, answer, id="the-same")[0] == 200
    (vote,) = BallotBox(run).votes()
    assert vote.answer == ballot.samples[0]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"answer": "other.png"}, 400),
        ({"answer": ["a", "b"]}, 400),
        ({"answer": {"a": 1}}, 400),
        ({"answer": [[], {}]}, 400),
        ({"samples": ["a", "b"]}, 400),
        ({"samples": 5}, 400),
        ({"id": ""}, 400),
        ({"id": 5}, 400),
        ({"voter": "../x"}, 400),
        ({"ballot": ["x"]}, 400),
        ({"ballot": "0" * 32}, 404),
        ({"ballot": "x" * 64}, 404),
    ],
)
@pytest.mark.parametrize("how", ["best", "best-worst", "stars", "pairs"])
def test_what_is_no_vote_is_refused(run: Path, client: Client, how: str, change: dict[str, Any], status: int) -> None:
    ask_pictures(run, groups=1, how=how)
    asked = client.next()
    vote = {"id": "1", "voter": "ann", "ballot": asked["ballot"], "samples": asked["samples"], "answer": None}
    refused, _, words = client.request("POST", "/vote", vote | change)
    assert (refused, number_of_votes(run)) == (status, 0), words
    assert client.request("POST", "/vote", vote)[0] == 200


def test_undo_takes_the_last_vote_back_until_the_run_has_used_it(run: Path, client: Client) -> None:
    ballots = ask_pictures(run, groups=3)
    undo = {"voter": "ann"}
    assert client.request("POST", "/undo", undo)[0] == 409
    for number in range(2):
        client.vote(client.next(), None, id=str(number))
    assert client.next()["ballot"] == ballots[2].key
    assert client.request("POST", "/undo", undo)[0] == 200
    again = client.next()
    assert (again["ballot"], again["given"], again["waiting"]) == (ballots[1].key, 1, 2)
    leave(run, ballots[0])
    status, _, words = client.request("POST", "/undo", undo)
    assert (status, b"already learned" in words) == (409, True)
    assert client.request("POST", "/undo", {"voter": "ben"})[0] == 409
    assert number_of_votes(run) == 1


def test_a_late_vote_is_kept(run: Path, client: Client) -> None:
    (ballot,) = ask_pictures(run, groups=1)
    asked = client.next()
    leave(run, ballot)
    assert client.vote(asked, ballot.samples[1], id="1") == (200, b'{"late":true}')
    assert number_of_votes(run) == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:99"}, 200),
        ({"Host": "[::1]"}, 200),
        ({"Host": "votes.example.org"}, 403),
        ({"Host": "127.0.0.1.example.org"}, 403),
        ({"Origin": "http://votes.example.org"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost:99", "Origin": "http://localhost:99"}, 200),
        ({"Host": "localhost:99", "Origin": "http://localhost:98"}, 403),
        ({"Content-Type": "text/plain"}, 415),
    ],
)
def test_a_stranger_is_refused(run: Path, client: Client, headers: dict[str, str], status: int) -> None:
    ask_pictures(run, groups=1)
    asked = client.next()
    vote = {"id": "1", "voter": "ann", "ballot": asked["ballot"], "samples": asked["samples"], "answer": None}
    refused, answered, _ = client.request("POST", "/vote", vote, headers)
    assert (refused, number_of_votes(run)) == (status, int(status == 200))
    assert answered["cross-origin-resource-policy"] == "same-origin"
    if status == 403:
        for path in ("/", "/next?voter=ann"):
            assert client.request("GET", path, headers=headers)[0] == 403


@pytest.mark.parametrize(("body", "status"), [(b"[" * 99, 400), (b"[1]", 400), (b"\xff", 400), (b"0" * 64_001, 413)])
def test_a_body_is_a_small_object(client: Client, body: bytes, status: int) -> None:
    assert client.request("POST", "/vote", body)[0] == status


def test_samples_are_served_and_no_other_file(run: Path, client: Client) -> None:
    sent = picture(1, (20, 10))
    (image, text) = ask(run, [sent, "<b>two\nlines\u2028</b>"]).samples
    (run / "votes" / "samples" / "secret.txt").write_text("secret")
    status, headers, content = client.request("GET", f"/sample/{image}")
    assert (status, headers["content-type"], headers["x-content-type-options"]) == (200, "image/png", "nosniff")
    (run / "served.png").write_bytes(content)
    assert Image.open(run / "served.png").tobytes() == sent.tobytes()
    status, headers, content = client.request("GET", f"/sample/{text}")
    assert (headers["content-type"], content.decode()) == ("text/plain; charset=utf-8", "<b>two\nlines\u2028</b>")
    for name in ("secret.txt", "..%2f.lock", "0" * 32 + ".png", f"{image}x"):
        assert client.request("GET", f"/sample/{name}")[0] == 404


def test_the_page_lets_no_other_program_in(client: Client) -> None:
    for path in ("/", "/page.css", "/page.js"):
        status, headers, _ = client.request("GET", path)
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert (status, headers["cache-control"]) == (200, "no-store")
        assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == "'self'"
    assert client.request("GET", "/service.py")[0] == 404


def test_a_service_that_starts_again_goes_on(run: Path) -> None:
    ask_pictures(run, groups=5)
    with serving(run) as client:
        client.vote(client.next(), None, id="1")
        before = client.next()
    with serving(run) as client:
        assert client.next() | {"left": 0} == before | {"left": 0}
        assert (before["given"], before["waiting"]) == (1, 4)


@contextmanager
def full_at(size: int) -> Iterator[None]:
    """Inside, no file of this process grows beyond some bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 50])
def test_a_full_disk_loses_nothing(run: Path, client: Client, room: int) -> None:
    ask_pictures(run, groups=2)
    client.vote(client.next(), None, id="1")
    before = (run / "votes.jsonl").read_bytes()
    asked = client.next()
    with full_at(len(before) + room):
        status, words = client.vote(asked, None, id="2")
        assert (run / "votes.jsonl").read_bytes() == before
    assert (status, b"cannot be written" in words) == (507, True)
    for _ in range(2):
        assert client.vote(asked, None, id="2")[0] == 200
    lines = (run / "votes.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["1", "2"]


def test_every_20th_question_comes_again_and_counts_for_no_score(run: Path, client: Client) -> None:
    ballots = {ballot.key: ballot for ballot in ask_pictures(run, groups=60)}
    asked_again = []
    for number in range(1, 62):
        asked = client.next()
        best = ballots[asked["ballot"]].samples[1 if number == 40 else 0]
        asked_again += [asked["ballot"]] * (number % 20 == 0)
        client.vote(asked, best, id=str(number))
    votes = BallotBox(run).votes()
    assert asked_again == [vote.ballot.key for vote in votes[:3]]
    assert client.next()["agreement"] == {"same": 2, "repeats": 3, "chance": 0.25, "better": False}
    second = votes[1].ballot
    values = values_of(second, [vote for vote in votes if vote.ballot.key == second.key])
    assert values
    assert values[second.samples[0]] == 1.0
    client.request("POST", "/undo", {"voter": "ann"})
    assert client.next()["given"] == 60


def test_a_question_comes_again_though_the_run_has_drawn_its_step_anew(run: Path, client: Client) -> None:
    ballots = ask_pictures(run, groups=30)
    for number in range(19):
        client.vote(client.next(), None, id=str(number))
    for ballot in ballots[:19]:  # of a step that was broken off, and drawn with other samples
        BallotBox(run).withdraw(ballot)
    repeat = client.next()
    assert repeat["ballot"] == ballots[0].key
    assert client.vote(repeat, None, id="again")[0] == 200
    assert client.next()["ballot"] == ballots[19].key


def test_a_line_that_is_no_answer_is_left_out_of_the_agreement(run: Path, client: Client) -> None:
    (ballot,) = ask_pictures(run, groups=1, how="best-worst")
    for answer in (5, "x", ["x"], None, [*ballot.samples[:2]]):  # by hand, in votes.jsonl
        BallotBox(run).vote(ballot, answer, voter="ann")
    assert client.next()["agreement"]["repeats"] == 1


@pytest.mark.parametrize(("repeats", "says"), [(1, "too few to tell"), (3, "at random would"), (0, "")])
def test_the_report_calls_a_voter_random_only_where_it_knows(run: Path, repeats: int, says: str) -> None:
    (ballot,) = ask_pictures(run, groups=1, size=4)
    leave(run, ballot)
    for _ in range(1 + repeats):
        BallotBox(run).vote(ballot, ballot.samples[0], voter="ann")
    (run / "config.yaml").write_text("{}")
    (panel,) = panels(read_run(run))
    words = " ".join(panel.text)
    assert says in words
    assert "no better than chance" not in words


@pytest.mark.parametrize(("chance", "repeats"), [(0.25, 7), (0.5, 12), (0.0625, 40)])
def test_at_most_one_random_voter_in_twenty_is_better_than_chance(chance: float, repeats: int) -> None:
    draws = np.random.default_rng(0)
    same = draws.binomial(repeats, chance, size=4000)
    better = [bool(Agreement(same=int(count), repeats=repeats, chance=chance).better) for count in same]
    assert 0 < np.mean(better) <= 0.055
    assert Agreement(same=repeats, repeats=repeats, chance=chance).better
    assert Agreement(same=1, repeats=1, chance=chance).better is None


def test_the_command_serves_a_run_and_ends_quietly(run: Path, default_signals: None) -> None:
    ask_pictures(run, groups=2)
    command = [sys.executable, "-m", "grpokit", "vote", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        port = int(process.stdout.readline().split("127.0.0.1:")[1].split("/")[0])
        client = Client(port)
        assert client.vote(client.next(), None, id="1")[0] == 200
        process.kill()
    command[-1] = str(port)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        lines = [process.stdout.readline() for _ in range(3)]
        assert (client.next()["given"], client.next()["waiting"]) == (1, 1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "", "")
    assert f"ssh -L {port}:127.0.0.1:{port}" in lines[2]


def test_a_file_and_a_port_in_use_are_refused(tmp_path: Path, call: Call) -> None:
    (tmp_path / "file").write_text("")
    done = call("vote", str(tmp_path / "file"))
    assert (done.code, "is a file" in done.err) == (2, True)
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = call("vote", str(tmp_path), "--port", str(other.getsockname()[1]))
    assert (done.code, "--port" in done.err) == (2, True)
