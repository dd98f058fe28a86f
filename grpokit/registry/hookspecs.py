"""The hooks that a plugin may implement. Each docstring holds a full example.

A plugin is a light module (it imports only grpokit) named in its package's metadata:

    [project.entry-points.grpokit]
    mypackage = "mypackage.plugin"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pluggy

from grpokit.registry.panels import Panel
from grpokit.registry.specs import (
    AdvantageSpec,
    CommandSpec,
    DatasetSpec,
    EvaluationSpec,
    ModifierSpec,
    ObjectiveSpec,
    PlacementSpec,
    PolicySpec,
    PresetSpec,
    RewardSpec,
    WorldSpec,
)

PROJECT = "grpokit"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin's module as one of the hooks below."""


@hookspec
def grpokit_rewards() -> Iterable[RewardSpec]:  # type: ignore[empty-body]
    """Yield the rewards that the plugin brings.

    Example:
        ```python
        from grpokit import RewardSpec, hookimpl

        @hookimpl
        def grpokit_rewards():
            yield RewardSpec(
                api=1, name="brightness", factory="mypackage.reward:brightness", accepts={"image"}, range=(0, 1)
            )
        ```
        with, in `mypackage/reward.py`,
        ```python
        from grpokit.images import to_rgb
        from PIL import ImageStat

        def brightness(samples):
            pictures = [to_rgb(s.output, what="what `brightness` scores") for s in samples]
            return [ImageStat.Stat(picture.convert("L")).mean[0] / 255 for picture in pictures]
        ```
    """


@hookspec
def grpokit_policies() -> Iterable[PolicySpec]:  # type: ignore[empty-body]
    """Yield the policies that the plugin brings.

    Example:
        ```python
        @hookimpl
        def grpokit_policies():
            yield PolicySpec(api=1, name="my-generator", factory="mypackage.policy:MyGenerator", makes="image")
        ```
    """


@hookspec
def grpokit_advantages() -> Iterable[AdvantageSpec]:  # type: ignore[empty-body]
    """Yield advantage functions.

    Such a function gives 0, to rounding, to all rows of a group that teaches nothing: metrics and dynamic sampling find
    these groups by it, and a guard looks for steps in which all are exactly 0. One with a parameter `decision_rewards`
    gets [B, T] what an environment gave for each decision, NaN where nothing was decided.

    Example:
        ```python
        @hookimpl
        def grpokit_advantages():
            yield AdvantageSpec(api=1, name="ranked", factory="mypackage.advantages:ranked")
        ```
    """


@hookspec
def grpokit_objectives() -> Iterable[ObjectiveSpec]:  # type: ignore[empty-body]
    """Yield objectives.

    Example:
        ```python
        @hookimpl
        def grpokit_objectives():
            yield ObjectiveSpec(api=1, name="plain", factory="mypackage.objectives:plain")
        ```
    """


@hookspec
def grpokit_modifiers() -> Iterable[ModifierSpec]:  # type: ignore[empty-body]
    """Yield modifiers for `trainer.modifiers: [{use: NAME}]`.

    Example:
        ```python
        @hookimpl
        def grpokit_modifiers():
            yield ModifierSpec(api=1, name="good-only", factory="mypackage.good_only:GoodOnly")
        ```
        with, in `mypackage/good_only.py`,
        ```python
        from dataclasses import dataclass, replace
        from grpokit import Modifier

        @dataclass(kw_only=True)
        class GoodOnly(Modifier):
            above: float = 0.0

            def rows(self, signal, step):
                good = signal.advantages > self.above  # [B]
                return replace(signal, weights=signal.weights * good)
        ```
    """


@hookspec
def grpokit_placements() -> Iterable[PlacementSpec]:  # type: ignore[empty-body]
    """Yield kinds of places where rewards run.

    Example:
        ```python
        @hookimpl
        def grpokit_placements():
            yield PlacementSpec(api=1, name="queue", factory="mypackage.queue:place", shorthand="address")
        ```
        with, in `mypackage/queue.py`, for the config `placement: {queue: 'gpu-2:5555'}`,
        ```python
        def place(use, params, timeout, *, address):
            return QueuedReward(address, use, params, timeout)  # with submit and close
        ```
    """


@hookspec
def grpokit_worlds() -> Iterable[WorldSpec]:  # type: ignore[empty-body]
    """Yield worlds for `policy: {use: hf-lm, world: {use: NAME}}`.

    Example:
        ```python
        @hookimpl
        def grpokit_worlds():
            yield WorldSpec(api=1, name="riddles", factory="mypackage.riddles:Riddle", summary="asks again")
        ```
        with, in `mypackage/riddles.py`,
        ```python
        class Riddle:
            def start(self, prompt, seed):
                self.answer = prompt.target
                return None  # the model reads the prompt as it is

            def reply(self, text):
                self.right = self.answer in text
                return None if self.right else "No. Try again."

            def facts(self):
                return {"return": float(self.right)}
        ```
    """


@hookspec
def grpokit_datasets() -> Iterable[DatasetSpec]:  # type: ignore[empty-body]
    """Yield prompts for `data: {use: NAME}`.

    Example:
        ```python
        @hookimpl
        def grpokit_datasets():
            yield DatasetSpec(api=1, name="sums", factory="mypackage.sums:sums", summary="sums of two numbers")
        ```
        with, in `mypackage/sums.py`, for the config `data: {use: sums, largest: 20}`,
        ```python
        from grpokit import Prompt

        def sums(split, largest=9):
            held_out = split == "eval"
            pairs = [(a, b) for a in range(largest + 1) for b in range(largest + 1)]
            return [Prompt(text=f"{a} + {b} =", target=str(a + b)) for a, b in pairs if (a * b % 5 == 0) == held_out]
        ```
    """


@hookspec
def grpokit_commands() -> Iterable[CommandSpec]:  # type: ignore[empty-body]
    """Yield commands of `grpokit`.

    Example:
        ```python
        @hookimpl
        def grpokit_commands():
            yield CommandSpec(api=1, name="hello", factory="mypackage.hello:hello", summary="Greet someone.")
        ```
        with, in `mypackage/hello.py`, for `grpokit hello Ada --times 2`,
        ```python
        def hello(name: str, times: int = 1) -> None:
            print(f"Hello {name}. " * times)
        ```
    """


@hookspec
def grpokit_presets() -> Iterable[PresetSpec]:  # type: ignore[empty-body]
    """Yield configs that `grpokit train NAME` can run.

    Example:
        ```python
        @hookimpl
        def grpokit_presets():
            yield PresetSpec(api=1, name="my-run", factory="mypackage:presets/my-run.yaml", summary="what it trains")
        ```
    """


@hookspec
def grpokit_evaluations() -> Iterable[EvaluationSpec]:  # type: ignore[empty-body]
    """Yield evaluation files that `grpokit evaluate RUN --with NAME` can run.

    Example:
        ```python
        @hookimpl
        def grpokit_evaluations():
            yield EvaluationSpec(api=1, name="signs", factory="mypackage:evaluations/signs.yaml", summary="on signs")
        ```
    """


@hookspec
def grpokit_observers() -> Mapping[str, Any]:  # type: ignore[empty-body]
    """Return observers (`grpokit.Observer`) of a trainer that is being built, by name; checkpoints keep their state.

    Example:
        ```python
        from grpokit import Observer, RunError, hookimpl

        class Patience(Observer):
            def scored(self, step):
                if step.number == 100 and step.scores.totals.nanmean() < 0.1:
                    raise RunError("After 100 steps the mean reward is below 0.1.")
                return []

        @hookimpl
        def grpokit_observers():
            return {"patience": Patience()}
        ```
    """


@hookspec
def grpokit_panels(run: Any) -> Sequence[Panel]:  # type: ignore[empty-body]
    """Return panels for the page of a run or of an evaluation; `run` is its `grpokit.run_folder.reader.RunHistory`.

    `grpokit watch` calls it again whenever the run has grown, so it should take far less than a second: keep what was
    computed for as long as the files are the same. A plugin that has nothing to say returns nothing.

    Example:
        ```python
        from grpokit import Panel, PanelTable, hookimpl

        @hookimpl
        def grpokit_panels(run):
            times = [row["step_time"] for row in run.metrics if "step_time" in row]
            if not times:
                return []
            table = PanelTable(caption="Seconds of a step", head=["step", "s"], rows=[*enumerate(times, 1)])
            return [Panel(title="Speed", text=[f"The slowest step took {max(times):.1f} s."], tables=[table])]
        ```
    """


@hookspec
def grpokit_run_start(folder: Any, config: Any) -> None:
    """A run begins in `folder` (a `Path`) with the resolved `config` (plain data). Watch; change nothing.

    Example:
        ```python
        @hookimpl
        def grpokit_run_start(folder):
            print("watching", folder)
        ```
    """


@hookspec
def grpokit_step_end(report: Any) -> None:
    """A training step is done; `report` is its `grpokit.StepReport`. Watch; change nothing.

    Example:
        ```python
        @hookimpl
        def grpokit_step_end(report):
            print(report.step, report.metrics["reward"])
        ```
    """


@hookspec
def grpokit_run_end(folder: Any) -> None:
    """A run is done, and its report is written.

    Example:
        ```python
        @hookimpl
        def grpokit_run_end(folder):
            print("see", folder / "report.html")
        ```
    """
