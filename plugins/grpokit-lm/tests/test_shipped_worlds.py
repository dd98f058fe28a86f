"""The worlds that ship, by hand; the game's preset; and what stands between two turns in templates of several forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_models import EOS, tiny_model, tiny_tokenizer

from grpokit import Prompt, UsageError
from grpokit.config import presets
from grpokit.runs import build
from grpokit_lm.policy import CausalLMPolicy
from grpokit_lm.worlds.calculator import Calculator
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


def call(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "calculator", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "results"),
    [
        ("Let me see. " + call('{"expression": "3 * (4 + 5)"}'), ["27"]),
        (call('{"expression": "1/3"}') + call('{"expression": "2-5"}'), ["0.3333333333", "-3"]),
        (call('{"expression": "7*7"}').removesuffix("</tool_call>"), ["49"]),  # where that is a stop token
        ("It is 27.", None),
        (call('{"expression": "1/0"}'), ["Error: it divides by zero"]),
        (call('{"expression": "__import__(\\"os\\")"}'), ["Error: '_' is neither a number"]),
        (call('{"expression": 3}'), ["Error: this is no call of the calculator"]),
        (call("[]"), ["Error: this is no call of the calculator"]),
        (f"<tool_call>{'[' * 100_000}</tool_call>", ["Error: this is no JSON"]),
        ('<tool_call>{"name": "shell", "arguments": {}}</tool_call>', ["Error: this is no call of the calculator"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_call_of_the_calculator(text: str, results: list[str] | None) -> None:
    world = Calculator()
    answers = world.reply(text)
    if results is None:
        assert answers is None
        return
    assert answers is not None
    assert [each["role"] for each in answers] == ["tool"] * len(results)
    assert all(each["content"].startswith(result) for each, result in zip(answers, results, strict=True))
    failed = sum(result.startswith("Error") for result in results)
    assert world.facts() == {"calls": len(results), "failed_calls": failed}


TURNS = (
    "{% if tools %}<system>{{ tools | tojson }}<eos>\n{% endif %}{% for m in messages %}"
    "{% if m.role == 'tool' %}<user><result>{{ m.content }}</result><eos>\n"
    "{% elif m.role == 'assistant' %}<assistant>\nCONTENT<eos>\n{% else %}<user>{{ m.content }}<eos>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>\nBEGUN{% endif %}"
)
WHOLE, LAST = "{{ m.content }}", "{{ m.content.split('</think>')[-1] }}"
GO_ON = "\n<user><result>27</result><eos>\n<assistant>\n"


@pytest.mark.parametrize(
    ("content", "begun", "last", "expected"),
    [
        (WHOLE, "", EOS, GO_ON),
        (WHOLE, "", ord("z"), f"<eos>{GO_ON}"),  # a stop text ended the turn
        (LAST, "", EOS, GO_ON),  # earlier thoughts are dropped, from what would be read back
        (WHOLE, "<think></think>", EOS, f"{GO_ON}<think></think>"),
        ("{{ m.content | trim }}", "", EOS, GO_ON),
    ],
)
def test_what_stands_between_two_turns(content: str, begun: str, last: int, expected: str) -> None:
    template = TURNS.replace("CONTENT", content).replace("BEGUN", begun)
    policy = CausalLMPolicy(
        tiny_model("llama"), tokenizer=tiny_tokenizer(), world=Calculator, chat_template=template, max_new_tokens=20
    )
    tokens = policy.encoder.between(policy.encoder.messages({"role": "tool", "content": "27"}), last)
    assert tiny_tokenizer().decode(tokens) == expected
    assert '"name": "calculator"' in policy.encoder.text(Prompt(text="3 * 9?"))


def test_prompts_and_held_out_prompts_share_none() -> None:
    prompts, held_out = build.prompts(presets.read_config("lm-guess")[0])
    assert held_out is not None
    assert (len(prompts), len(held_out)) == (600, 200)
    assert not {p.text for p in prompts} & {p.text for p in held_out}


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_game_is_learnt(seed: int, tmp_path: Path) -> None:
    done = train_config("lm-guess", tmp_path / "r", f"seed={seed}")
    assert (
        done.after.means["reward"] - done.after.ci95["reward"]
        > done.before.means["reward"] + done.before.ci95["reward"]
    )
