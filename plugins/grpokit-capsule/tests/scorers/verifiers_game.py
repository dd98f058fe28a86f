"""Tasks and environments of verifiers, with its own base classes; they run in capsules."""

from __future__ import annotations

import verifiers.v1 as vf

__all__ = ["Game", "Numbers"]


class NumberData(vf.TaskData):
    number: int


class Number(vf.Task[NumberData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def found(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(self.data.number))

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)

    @vf.stop
    async def gives_up(self, trace: vf.Trace) -> bool:
        return trace.num_turns > 0 and trace.last_reply == "0"


class NumbersConfig(vf.TasksetConfig):
    count: int = 3


class Numbers(vf.Taskset[Number, NumbersConfig]):
    def load(self):
        for number in range(1, self.config.count + 1):
            yield Number(NumberData(prompt="Guess.", system_prompt="A game.", number=number), self.config.task)


class GameConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class Game(vf.Env[GameConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as talk:
            turn = await talk.turn()
            while not turn.terminated and turn.last_reply != str(task.data.number):
                if turn.last_reply == "crash":
                    raise KeyError("no such move")
                turn = await talk.turn("higher" if int(turn.last_reply) < task.data.number else "lower")
