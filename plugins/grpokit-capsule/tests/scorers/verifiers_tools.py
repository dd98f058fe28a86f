"""A task of verifiers that has a tool."""

from __future__ import annotations

import verifiers.v1 as vf

__all__ = ["Sums"]


class Adder(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    async def add(self, one: int, other: int) -> int:
        """Add two numbers."""
        return one + other


class Sum(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Adder(vf.ToolsetConfig())]


class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    def load(self):
        yield Sum(vf.TaskData(prompt="What is 2 + 3?"), self.config.task)
