"""An OpenEnv environment as a world. It runs inside a capsule, beside openenv 0.10, and imports nothing of grpokit.

The environment is the class that an OpenEnv server serves. It is stepped here, without server and client.
"""

from __future__ import annotations

import importlib
import json
import re
from typing import Any, get_type_hints

from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_SEEDS = 2**31  # numpy's old generator takes no larger ones


class World:
    """The world of one episode.

    Args:
        environment: its class, as "package.module:Name".
        action: the class of its actions; by default what its `step` declares.
        show: the field of an observation that the model reads; by default all, as JSON.
        parameters: those of the environment.
    """

    def __init__(self, environment: str, action: str = "", show: str = "", **parameters: Any) -> None:
        kind = _named(environment)
        self._environment = kind(**parameters)
        self._action = _named(action) if action else get_type_hints(kind.step)["action"]
        self._show = show
        self._return = 0.0
        self.tools: list[dict[str, Any]] = []
        if isinstance(self._environment, MCPEnvironment):
            for tool in self._environment.step(ListToolsAction()).tools:
                about = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
                self.tools.append({"type": "function", "function": about})

    def start(self, prompt: Any, seed: int) -> str:
        """Reset it, with the prompt's own `reset` arguments; the observation follows the prompt."""
        observation = self._environment.reset(seed=seed % _SEEDS, **prompt.meta.get("reset", {}))
        return f"{prompt.text}\n\n{self._text(observation)}".strip()

    def reply(self, text: str) -> Any:
        """Take the step that the model has written; None where the episode is done."""
        if self.tools:
            return self._called([json.loads(call) for call in _CALL.findall(text)])
        observation = self._step(_read(text, self._action))
        return None if observation.done else self._text(observation)

    def _called(self, calls: list[dict[str, Any]]) -> list[dict[str, str]] | None:
        """What tools answer; None for a turn without a call, and where the episode is done."""
        messages = []
        for call in calls:
            action = CallToolAction(tool_name=call["name"], arguments=call["arguments"])
            observation = self._step(action)
            if observation.done:
                return None
            messages.append({"role": "tool", "content": _result(observation)})
        return messages or None

    def _step(self, action: Any) -> Any:
        observation = self._environment.step(action)
        self._return += observation.reward or 0.0
        return observation

    def _text(self, observation: Any) -> str:
        fields = observation.model_dump(mode="json", exclude={"done", "reward", "metadata"})
        value = fields[self._show] if self._show else fields or ""
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def facts(self) -> dict[str, float]:
        """`return`, the sum of all rewards, and the last score of each rubric inside the environment's own."""
        rubric = getattr(self._environment, "rubric", None)
        scores = {} if rubric is None else {name: each.last_score for name, each in rubric.named_rubrics()}
        return {**scores, "return": float(self._return)}

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _read(text: str, action: Any) -> Any:
    """The action in a turn: a JSON object, or else the whole turn as the one field that is required."""
    required = [name for name, field in action.model_fields.items() if field.is_required()]
    try:
        fields = json.loads(text)
    except ValueError:
        fields = text
    if not isinstance(fields, dict) and len(required) == 1:
        fields = {required[0]: text.strip()}
    return action.model_validate(fields)


def _result(observation: Any) -> str:
    if observation.error is not None:
        return f"Error: {observation.error.message}"
    return "\n".join(part.text for part in observation.result.content)
