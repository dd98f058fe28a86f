"""The calculator, by hand, and what stands between two turns in templates of several forms."""

from __future__ import annotations

import pytest
from tiny_models import EOS, tiny_model, tiny_tokenizer

from grpokit import Prompt
from grpokit_lm.policy import CausalLMPolicy
from grpokit_lm.worlds.calculator import Calculator


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
