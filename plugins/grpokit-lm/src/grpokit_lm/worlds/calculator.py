"""A calculator as a tool, for models whose chat template writes tools as Hermes and Qwen do.

The model calls it with `<tool_call>{"name": "calculator", "arguments": {"expression": "3 * (4 + 5)"}}</tool_call>`. A
turn without a call is its answer, and ends the episode.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from grpokit import Prompt
from grpokit_lm.tasks.expressions import ExpressionError, compute

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FORM = 'write {"name": "calculator", "arguments": {"expression": "1 + 2"}}'


class Calculator:
    """The world of one conversation with the tool. The prompt stays as it is."""

    tools: ClassVar[Sequence[Mapping[str, Any]]] = [
        {
            "type": "function",
            "function": {
                "name": "calculator",
                "description": "Computes an expression of whole numbers with + - * / and brackets.",
                "parameters": {
                    "type": "object",
                    "properties": {"expression": {"type": "string", "description": "such as 3 * (4 + 5)"}},
                    "required": ["expression"],
                },
            },
        }
    ]

    def __init__(self) -> None:
        self.calls, self.failed = 0, 0

    def start(self, prompt: Prompt, seed: int) -> None:
        """Nothing is said before the prompt."""

    def reply(self, text: str) -> list[dict[str, str]] | None:
        """A message of the tool for each call; None for a turn without one."""
        return [{"role": "tool", "content": self._result(call)} for call in _CALL.findall(text)] or None

    def _result(self, call: str) -> str:
        """What a call gives. An error is a result, too: the model reads it and may try again."""
        self.calls += 1
        try:
            return _number(_expression(call))
        except ExpressionError as error:
            self.failed += 1
            return f"Error: {error}"

    def facts(self) -> Mapping[str, Any]:
        """How many `calls` there were, and how many of them `failed_calls`."""
        return {"calls": self.calls, "failed_calls": self.failed}


def _expression(call: str) -> str:
    try:
        read = json.loads(call)
    except (ValueError, RecursionError):
        raise ExpressionError(f"this is no JSON; {_FORM}") from None
    arguments = read.get("arguments") if isinstance(read, dict) and read.get("name") == "calculator" else None
    expression = arguments.get("expression") if isinstance(arguments, dict) else None
    if not isinstance(expression, str):
        raise ExpressionError(f"this is no call of the calculator; {_FORM}")
    return expression


def _number(expression: str) -> str:
    """A value: exact if it is whole, else with ten digits."""
    value = compute(expression).value
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"
