"""The game of guessing a number, by hand, and its preset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpokit import Prompt, UsageError
from grpokit.config import presets
from grpokit.runs import build
from grpokit_lm.worlds.guess import GuessTheNumber
from whole_runs import train_config


def played(guesses: list[str], seed: int = 0) -> tuple[int, list[str | None], dict[str, Any]]:
    world = GuessTheNumber()
    assert world.start(Prompt(text="Game 1."), seed) == "Game 1. Guess my number from 1 to 9."
    return world.number, [world.reply(guess) for guess in guesses], dict(world.facts())


def test_the_number_follows_from_the_seed_and_all_are_drawn() -> None:
    numbers = [played([], seed)[0] for seed in range(900)]
    assert numbers == [played([], seed)[0] for seed in range(900)]
    assert all(70 < numbers.count(number) < 130 for number in range(1, 10))  # 100, give or take three deviations


@pytest.mark.parametrize("seed", range(12))
def test_halving_finds_the_number(seed: int) -> None:
    world, low, high, used = GuessTheNumber(), 1, 9, 0
    world.start(Prompt(text=""), seed)
    answer: str | None = ""
    while answer is not None:
        used += 1
        answer = world.reply(f" {(low + high) // 2}\n")
        low, high = ((low + high) // 2 + 1, high) if answer == "higher" else (low, (low + high) // 2 - 1)
    assert world.facts() == {"return": 1.0, "success": True, "guesses": used}


def test_what_is_no_number_costs_a_guess_and_the_last_one_ends_the_game() -> None:
    number, answers, facts = played(["5 or 6", "", "٥", "100"])
    assert number < 100
    assert answers == ["a number", "a number", "a number", None]
    assert facts == {"return": 0.0, "success": False, "guesses": 4}


def test_a_range_without_numbers_is_refused() -> None:
    with pytest.raises(UsageError, match="low must not be above high"):
        GuessTheNumber(low=3, high=2)


def test_prompts_and_held_out_prompts_share_none() -> None:
    prompts, held_out = build.prompts(presets.read_config("lm-guess")[0])
    assert held_out is not None
    assert (len(prompts), len(held_out)) == (600, 200)
    assert not {p.text for p in prompts} & {p.text for p in held_out}


@pytest.mark.very_slow
@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_game_is_learnt(seed: int, tmp_path: Path) -> None:
    done = train_config("lm-guess", tmp_path / "r", f"seed={seed}")
    assert (
        done.after.means["reward"] - done.after.ci95["reward"]
        > done.before.means["reward"] + done.before.ci95["reward"]
    )
