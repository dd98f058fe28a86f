"""Environments of verifiers as worlds, with the real library in a capsule that uv builds."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from grpokit import Prompt, create

pytestmark = pytest.mark.slow
CAPSULE = {"requires": ["verifiers==0.4.0"], "path": str(Path(__file__).parents[1] / "scorers")}
FIRST = [{"role": "system", "content": "A game."}, {"role": "user", "content": "Guess."}]


def world(**environment: Any) -> Any:
    config = {"taskset": {"id": "verifiers_game", "count": 9}} | environment
    return create("world", "verifiers", {"environment": config, **CAPSULE})


def prompt(task: int) -> Prompt:
    return Prompt("A game.", meta={"task": task})


def test_an_environment_asks_for_turns_and_its_task_scores_them() -> None:
    games = [world() for _ in range(3)]
    assert [game.start(prompt(6), seed) for seed, game in enumerate(games)] == [FIRST] * 3
    assert [game.reply(word) for game, word in zip(games, "397", strict=True)] == [
        [{"role": "user", "content": "higher"}],
        [{"role": "user", "content": "lower"}],
        None,
    ]
    assert games[0].reply("7") is None
    assert games[0].facts() == {"return": 2.0, "found": 1.0, "turns": 2.0}
    assert games[2].facts() == {"return": 2.0, "found": 1.0, "turns": 1.0}
    for game in games:
        game.close()


def test_a_task_that_stops_an_episode_ends_it() -> None:
    game = world()
    game.start(prompt(6), 0)
    assert game.reply("0") is None
    assert game.facts() == {"return": 0.0, "found": 0.0, "turns": 1.0}
    game.close()


def test_an_episode_that_the_model_leaves_is_scored_as_it_stands() -> None:
    game = world()
    game.start(prompt(6), 0)
    game.reply("5")
    assert game.facts() == {"return": 0.0, "found": 0.0, "turns": 1.0}
    game.close()


def test_an_error_of_the_environment_is_one_of_the_world() -> None:
    game = world()
    game.start(prompt(6), 0)
    with pytest.raises(Exception, match=r"EnvError: .*no such move"):
        game.reply("crash")
    assert game.facts() == {}
    game.close()


def test_the_seed_chooses_a_task_and_a_plain_set_has_one_turn() -> None:
    """Without an environment of its own a task is one prompt and one answer."""
    found = []
    for seed in (3, 12):
        game = world(id="single_agent")
        assert game.start(Prompt("A game."), seed) == FIRST
        assert game.reply("4") is None
        found.append(game.facts()["return"])
        game.close()
    assert found == [2.0, 2.0]
    with pytest.raises(Exception, match="list index out of range"):
        world().start(prompt(9), 0)


class User(BaseHTTPRequestHandler):
    """A model behind an endpoint, which wants a 7."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = "###DONE###" if body["messages"][-1]["content"] == "7" else "I want a 7."
        choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())


@pytest.fixture
def user() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), User) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_another_model_plays_the_seat_that_names_it(user: str) -> None:
    """The environment `user_sim` of verifiers itself, whose user runs as a program."""
    seat = {"model": "m", "client": {"type": "eval", "base_url": user}, "runtime": {"type": "subprocess"}}
    game = world(id="user_sim", user=seat)
    assert game.start(prompt(6), 0) == [FIRST[0], {"role": "user", "content": "I want a 7."}]
    assert game.reply("5") == [{"role": "user", "content": "I want a 7."}]
    assert game.reply("7") is None
    assert game.facts() == {"return": 2.0, "found": 1.0, "turns": 2.0, "user_turns": 3.0}
    game.close()


def test_a_second_conversation_is_refused() -> None:
    game = world(id="best_of_n")
    game.start(prompt(6), 0)
    with pytest.raises(Exception, match="another conversation"):
        game.reply("4")
    game.close()


def test_tools_are_refused() -> None:
    game = world(taskset={"id": "verifiers_tools"})
    with pytest.raises(Exception, match="does not support MCP tools"):
        game.start(Prompt("A game."), 0)
    game.close()
