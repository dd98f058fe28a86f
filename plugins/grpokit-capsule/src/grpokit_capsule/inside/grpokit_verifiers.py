"""A verifiers environment as a world. It runs inside a capsule, beside verifiers 0.4, and imports nothing of grpokit.

An environment of verifiers drives the model itself, through an endpoint that speaks OpenAI's chat completions. Here the
endpoint holds each request until grpokit's model has written the turn. What a program of verifiers would do between
the environment and the endpoint, the harness below does: it sends the conversation.
"""

from __future__ import annotations

import asyncio
import functools
import json
from contextlib import AsyncExitStack
from typing import Any

import verifiers.v1 as vf
from aiohttp import ClientSession, ClientTimeout, web
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.dialects.chat import message_to_wire

__all__ = ["Conversation"]
_NAME = "grpokit_verifiers"  # of this module, which verifiers imports as the harness's plugin
_MOST = 1000  # tasks of a set that has no end


class Conversation(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """Sends a conversation to the endpoint, and takes the turn that comes back; without tools."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Write one turn."""
        system, prompt = self.resolve_prompt(data)
        messages = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else [*(prompt or [])]
        if system:
            messages.insert(0, vf.SystemMessage(content=system))
        body = {"model": ctx.model, "messages": [message_to_wire(message) for message in messages]}
        headers = {"Authorization": f"Bearer {secret}"}
        async with (
            ClientSession(headers=headers, timeout=ClientTimeout(total=None)) as client,
            client.post(f"{endpoint}/chat/completions", json=body) as reply,
        ):
            return vf.ProgramResult(exit_code=0 if reply.ok else 1, stdout="", stderr=await reply.text())


class _Host:
    """An environment, and the endpoint that its episodes ask for turns.

    Args:
        config: the environment's, as verifiers reads it from a file.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.loop = asyncio.new_event_loop()
        self.episodes: dict[str, tuple[World, vf.Trace]] = {}  # by the ids of their traces
        whole = vf.resolve_env_config(config)
        seats = {}
        for name, seat in agent_config_fields(whole).items():
            if seat.client is None:  # no other model plays it
                own = {"harness": vf.HarnessConfig(id=_NAME), "runtime": vf.SubprocessConfig()}
                seats[name] = seat.model_copy(update=own)
        self.environment = vf.load_environment(whole.model_copy(update=seats))
        taskset = self.environment.taskset
        self.tasks = [*(taskset if taskset.bounded else taskset.take(_MOST))]
        self.loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        application = web.Application(client_max_size=2**30)
        application.router.add_post("/chat/completions", self._complete)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        client = vf.EvalClientConfig(base_url=f"http://127.0.0.1:{port}", api_key_var="GRPOKIT_NO_KEY")
        self.context = vf.ModelContext(model="policy", client=client)
        self._serving = AsyncExitStack()
        await self._serving.enter_async_context(self.environment.serving())

    async def _complete(self, request: web.Request) -> web.Response:
        """Have a turn written; an error once the model writes no more."""
        body = await request.json()
        world, trace = self.episodes[request.headers["X-Session-ID"]]
        text = await world.turn(trace, body["messages"])
        if text is None:
            return web.json_response({"error": {"message": "the model writes no more"}}, status=400)
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return web.json_response(
            {"id": "turn", "object": "chat.completion", "created": 0, "model": "policy", "choices": [choice]}
        )


@functools.cache
def _host(config: str) -> _Host:
    return _Host(json.loads(config))


class World:
    """The world of one episode.

    Args:
        environment: its config, such as {"taskset": {"id": "my_tasks"}}. A prompt's `task` is the number of its task;
            without it the seed chooses one.
    """

    def __init__(self, environment: dict[str, Any]) -> None:
        self._host = _host(json.dumps(environment, sort_keys=True))
        self._loop = self._host.loop
        self._messages: list[Any] = []
        self._answer = self._loop.create_future()  # the turn that the environment waits for
        self._episode: Any = None

    def start(self, prompt: Any, seed: int) -> Any:
        """Begin an episode; returns the messages of the first turn."""
        tasks, environment = self._host.tasks, self._host.environment
        (slot,) = environment.slots(tasks[prompt.meta.get("task", seed % len(tasks))])
        episode = environment.run_slot(slot, self._host.context, on_trace=self._begun)
        self._episode = self._loop.create_task(episode)
        messages = self._advance()
        if messages is None:
            raise ValueError("the episode ended before the model's first turn")
        return messages

    def _begun(self, trace: vf.Trace) -> None:
        self._host.episodes[trace.id] = (self, trace)

    async def turn(self, trace: vf.Trace, messages: list[Any]) -> str | None:
        """Wait for the model's turn behind these messages; None where it writes no more."""
        self._trace = trace
        self._answer = self._loop.create_future()
        self._asked.set_result(messages)
        text: str | None = await self._answer
        return text

    def reply(self, text: str) -> Any:
        """Go on with a turn; returns the messages behind it, or None where the episode has ended."""
        self._messages.append({"role": "assistant", "content": text})
        self._answer.set_result(text)
        return self._advance()

    def _advance(self) -> Any:
        """Let the episode go on until it asks for a turn or ends; returns its new messages."""
        self._asked = self._loop.create_future()
        either = asyncio.wait([self._episode, self._asked], return_when=asyncio.FIRST_COMPLETED)
        self._loop.run_until_complete(either)
        if not self._asked.done():
            _check(self._episode.result())
            return None
        before, self._messages = self._messages, self._asked.result()
        if self._messages[: len(before)] != before:
            raise ValueError("the environment asks for a turn of another conversation than the one that it began with")
        return self._messages[len(before) :]

    def facts(self) -> dict[str, Any]:
        """`return`, the weighted sum of the rewards; each of them, and the metrics, by name. Nothing after an error."""
        if not self._episode.done():  # the model writes no more
            self._trace.stop("max_turns")
            self._answer.set_result(None)
            self._advance()
        if not self._trace.ok:
            return {}
        rewards = {name: reward.score for name, reward in self._trace.rewards.items()}
        return {**self._trace.metrics, **rewards, "return": self._trace.reward}

    def close(self) -> None:
        """End an episode that still goes on."""
        if self._episode is not None:
            self._episode.cancel()
            self._answer.cancel()
            self._loop.run_until_complete(asyncio.wait([self._episode]))
        others = {key: value for key, value in self._host.episodes.items() if value[0] is not self}
        self._host.episodes = others


def _check(episode: vf.Episode) -> None:
    """Refuse an episode that the environment could not bring to its end."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if errors:
        raise RuntimeError(f"{errors[0].type}: {errors[0].message}")
