"""Environments of OpenEnv as worlds, with the real library in a capsule that uv builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpokit import Prompt, create

pytestmark = pytest.mark.slow
SCORERS = str(Path(__file__).parents[1] / "scorers")
CAPSULE = {"requires": ["openenv==0.10.0"], "path": SCORERS}


def world(environment: str, **options: Any) -> Any:
    return create("world", "openenv", {"environment": f"openenv_game:{environment}", **CAPSULE, **options})


def test_a_step_is_what_the_model_writes() -> None:
    game = world("Game", high=20, show="hint")
    prompt = Prompt("A game.", meta={"reset": {"number": 12}})
    assert game.start(prompt, 0) == "A game.\n\nGuess my number from 1 to 20."
    assert game.reply(" 5 ") == "higher"
    assert game.reply('{"number": 15}') == "lower"
    with pytest.raises(Exception, match="valid integer"):
        game.reply("no number")
    assert game.reply("12") is None
    assert game.facts() == {"return": 1.5, "near": 1.0}
    game.close()


def test_the_seed_decides_and_observations_are_json() -> None:
    games = [world("Game") for _ in range(6)]
    starts = [game.start(Prompt(""), seed) for game, seed in zip(games, [5, 5, 5, 6, 7, 2**40], strict=True)]
    assert starts == ['{"hint": "Guess my number from 1 to 9."}'] * 6
    hints = [tuple(game.reply(str(number)) for number in range(1, 10)) for game in games]
    assert hints[0] == hints[1] == hints[2]
    assert len({*hints}) > 1


def test_tools_of_an_environment_are_tools_of_the_world() -> None:
    till = world("Till")
    (tool,) = till.tools
    assert tool["function"]["name"] == "buy"
    assert tool["function"]["parameters"]["properties"]["price"]["type"] == "integer"
    assert till.start(Prompt("Buy."), 0) == "Buy."
    call = '<tool_call>{"name": "buy", "arguments": {"price": PRICE}}</tool_call>'
    assert till.reply(f"I buy {call.replace('PRICE', '4')}") == [{"role": "tool", "content": "4 in all"}]
    (answer,) = till.reply(call.replace("PRICE", '"x"'))
    assert answer["content"].startswith("Error: ")
    assert till.reply(call.replace("PRICE", "7")) is None
    assert till.facts() == {"return": pytest.approx(0.4 + 0.4 + 1.1)}
    till.start(Prompt("Buy."), 0)
    assert till.reply("That is all.") is None
