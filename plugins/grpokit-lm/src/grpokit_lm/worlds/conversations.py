"""The conversations of a rollout: the model writes a turn, its world answers, and the same row goes on.

A path writes token by token, for all rows together. Here its two callbacks are wrapped. When a row's turn ends, its
world is asked, and the tokens of the answer are what the row "draws" in its next columns. So the cache goes on over
all turns, no row waits for another one, and no token of the model is ever read back from a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from grpokit import Prompt, UsageError
from grpokit.errors import RunError, a_type, brief, one_line
from grpokit.rewards.isolation import outside_code
from grpokit_hf.tokens.drawing import Draw
from grpokit_hf.tokens.sampler import Sampler
from grpokit_lm.prompts import PromptEncoder
from grpokit_lm.stopping import Stops
from grpokit_lm.worlds.world import Message, World, Worlds, WorldSettings

_ERRORS = "world_errors: message tells the model, and end ends the episode."


@dataclass(kw_only=True)
class _Episode:
    """One row's conversation so far.

    Attributes:
        world: its own.
        messages: all of them behind the prompt.
        turn: the model's tokens of the turn that it writes.
        tokens: how many the model has written in all.
        turns: of the model that have ended.
        finish: why it ended; empty while it goes on.
        length: columns, once it has ended.
        output: the model's last turn.
    """

    world: World
    messages: list[dict[str, Any]] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    tokens: int = 0
    turns: int = 0
    finish: str = ""
    length: int = 0
    output: str = ""


class Conversations:
    """Draws the tokens of a rollout, with each row's world.

    Args:
        settings: how long they are, and what an error does.
        worlds: makes each row's world.
        encoder: writes a world's messages as the model reads them, and a turn as its world does.
        stops: when a turn ends.
    """

    def __init__(self, settings: WorldSettings, worlds: Worlds, *, encoder: PromptEncoder, stops: Stops) -> None:
        self.settings, self.worlds, self._encoder, self._stops = settings, worlds, encoder, stops
        self._episodes: list[_Episode] = []

    def start(self, prompts: Sequence[Prompt], group_size: int, seeds: Sequence[int]) -> list[Prompt]:
        """Begin `group_size` episodes for each prompt; returns what the model reads, as prompts.

        Raises:
            RunError: a world fails, or the episodes of a group start with different messages.
            UsageError: a first message has the wrong form.
        """
        begun = []
        for prompt, seed in zip(prompts, seeds, strict=True):
            first, *others = [self._begin(self.worlds.make(), prompt, seed) for _ in range(group_size)]
            if any(other != first for other in others):
                raise RunError(
                    f"The world '{self.worlds.name}' starts the episodes of a group with different messages, such as "
                    f"{brief(first, most=60)}. All chance in start must come from its seed."
                )
            messages = [] if first is None else self._read(first)
            begun.append(self._prompt(prompt, messages) if messages else prompt)
            for episode in self._episodes[-group_size:]:
                episode.messages = list(messages)
        return begun

    def _begin(self, world: World, prompt: Prompt, seed: int) -> Message | None:
        """A world's first message; from here on it is closed with the others."""
        self._episodes.append(_Episode(world=world))
        return self.worlds.start(world, prompt, seed)

    def close(self) -> None:
        """Close all worlds.

        Raises:
            RunError: one of them failed.
        """
        with ExitStack() as stack:
            for episode in self._episodes:
                stack.callback(self.worlds.close, episode.world)

    def _prompt(self, prompt: Prompt, messages: Sequence[Mapping[str, Any]]) -> Prompt:
        """The prompt that has a world's first messages in place of its own text."""
        if not self._encoder.chats:
            return replace(prompt, text=messages[0]["content"])
        return replace(prompt, meta={**prompt.meta, "messages": messages})

    def _read(self, message: Message) -> list[dict[str, Any]]:
        try:
            return self._encoder.messages(message)
        except UsageError as error:
            raise UsageError(f"The world '{self.worlds.name}' sends a message that cannot be read. {error}") from error

    def draws(self, sampler: Sampler, columns: int) -> None:
        """Draw with a sampler, at most so many columns."""
        self._sampler, device = sampler, sampler.chances.device
        self._sent = torch.zeros(len(self._episodes), columns, dtype=torch.int64, device=device)
        self._told = torch.zeros(len(self._episodes), columns, dtype=torch.bool)  # which of them a world has sent
        self._is_sent = self._told.to(device, non_blocking=True)
        self._seen = 0

    def draw(self, logits: Tensor, t: int, rows: Tensor) -> Draw:
        """As `Sampler`: the next tokens, which are a world's where it has sent some."""
        drawn, sent = self._sampler(logits, t, rows), self._is_sent[rows, t]
        return Draw(
            tokens=torch.where(sent, self._sent[rows, t], drawn.tokens),
            logprobs=torch.where(sent, 0.0, drawn.logprobs),
        )

    def ended(self, tokens: Tensor, _first: int) -> Tensor:
        """[B] bool on the CPU: which episodes have ended; tokens: [B, t], of which only the last column is new."""
        t = tokens.shape[1] - 1
        if t == self._seen:
            self._seen += 1
            last, told = tokens[:, t].tolist(), self._told[:, t].tolist()
            for row, episode in enumerate(self._episodes):
                if not episode.finish and not told[row]:
                    self._take(row, episode, last[row], t + 1)
        return torch.tensor([bool(episode.finish) for episode in self._episodes])

    def _take(self, row: int, episode: _Episode, token: int, count: int) -> None:
        """A token of the model, the last of `count` columns: it may end the turn, and so the episode."""
        episode.turn.append(token)
        episode.tokens, episode.length = episode.tokens + 1, count
        if self._stops.completed_by_last(episode.turn):
            sent = self._answer(episode)
            columns = self._sent.shape[1]
            if sent is not None and count + len(sent) >= columns:  # at least one token of the model must follow
                episode.finish = "length"
            elif sent is not None:
                place = slice(count, count + len(sent))
                self._sent[row, place] = torch.tensor(sent).to(self._sent.device, non_blocking=True)
                self._told[row, place] = True
                self._is_sent[row, place] = True
                episode.turn = []
        elif count == self._sent.shape[1]:
            self._say(episode)
            episode.finish = "length"

    def _say(self, episode: _Episode) -> str:
        episode.output = self._encoder.completion(episode.turn)
        episode.messages.append({"role": "assistant", "content": episode.output})
        episode.turns += 1
        return episode.output

    def _answer(self, episode: _Episode) -> list[int] | None:
        """The tokens of the world's answer to a turn that has ended; None if the episode ends with it."""
        text = self._say(episode)
        last = episode.turn[-1]
        turn = f"turn {episode.turns}, after the model wrote {brief(text, most=60)}"
        try:
            with outside_code(f"The world '{self.worlds.name}' failed in {turn}", remedy=_ERRORS):
                answer = episode.world.reply(text)
                tokens = None if answer is None else self._tokens(episode, answer, last)
        except RunError as error:
            if self.settings.world_errors == "stop":
                raise
            if self.settings.world_errors == "end":
                episode.finish = "error"
                return None
            role = "tool" if getattr(episode.world, "tools", ()) else "user"
            words = f"Error: {self._encoder.escaped(one_line(error.__cause__ or error))}"
            tokens = self._tokens(episode, {"role": role, "content": words} if self._encoder.chats else words, last)
        if tokens is None:
            episode.finish = "stop"
        elif episode.turns == self.settings.max_turns:
            episode.finish, tokens = "turns", None
        return tokens

    def _tokens(self, episode: _Episode, answer: Message, last: int) -> list[int]:
        """What follows the model's last token up to where it goes on, as tokens; the answer joins the conversation."""
        messages = self._read(answer)
        tokens = self._encoder.between(messages, last)
        episode.messages += messages
        return tokens

    def lengths(self, tokens: Tensor) -> tuple[list[int], list[bool]]:
        """As of `Stops`, once all is written: columns up to the model's last token, and whether the world ended it."""
        self.ended(tokens, 0)
        return [e.length for e in self._episodes], [e.finish == "stop" for e in self._episodes]

    def decided(self, columns: int) -> Tensor:
        """[B, columns] bool on the CPU: all but a world's tokens."""
        return ~self._told[:, :columns]

    def infos(self) -> list[dict[str, Any]]:
        """`Sample.info` of each episode.

        Raises:
            RunError: a world's facts cannot be read.
        """
        return [
            {
                **self._facts(episode.world),
                "finish": episode.finish,
                "tokens": episode.tokens,
                "turns": episode.turns,
                "messages": episode.messages,
            }
            for episode in self._episodes
        ]

    def _facts(self, world: World) -> dict[str, Any]:
        with outside_code(f"The world '{self.worlds.name}' failed in facts"):
            facts = world.facts() if hasattr(world, "facts") else {}
        if not isinstance(facts, Mapping):
            raise RunError(f"facts of the world '{self.worlds.name}' must return a mapping, got {a_type(facts)}.")
        return dict(facts)

    def outputs(self) -> list[str]:
        """What rewards see: the model's last turn. A world may send messages of an assistant, too."""
        return [episode.output for episode in self._episodes]
