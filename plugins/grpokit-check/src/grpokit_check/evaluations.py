"""The checks that every evaluation of a plugin passes: `grpokit evaluate RUN --with NAME` could begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from grpokit import registry
from grpokit.config.evaluation import of_plugin
from grpokit.errors import PluginError
from grpokit.registry.specs import EvaluationSpec
from grpokit.runs import build
from grpokit_check.check import Check, NotChecked, checks_of, expect


def evaluation_checks(spec: EvaluationSpec, *, module: str | None = None) -> Iterator[Check]:
    """Yield the checks of an evaluation.

    Args:
        spec: what its plugin announces.
        module: the plugin's module behind the entry point, which must import nothing heavy.
    """
    yield from checks_of(_CHECKS, spec, module)


def config(spec: EvaluationSpec) -> None:
    """Its file is in the package, and all of its keys and values are right."""
    of_plugin(spec)


def rewards(spec: EvaluationSpec) -> None:
    """The rewards that it names are installed and take the parameters that it gives."""
    evaluation = of_plugin(spec)
    for reward in evaluation.rewards:
        try:
            registry.parameters("reward", reward.use, reward.params)
        except PluginError as error:
            if "needs the parameter" in str(error) and spec.needs:  # which the user gives
                raise NotChecked(f"it needs {spec.needs}") from error
            raise


def data(spec: EvaluationSpec) -> None:
    """Its prompts can be read, and have the columns that it tells apart."""
    evaluation = of_plugin(spec)
    prompts = build.evaluation_prompts(evaluation)
    if prompts is None:
        raise NotChecked("it takes the run's held-out prompts")
    expect(len(prompts), "at least one prompt", "none", "a file or a split that is empty")
    for column in evaluation.by:
        expect(any(column in prompt.meta for prompt in prompts), f"prompts with the column '{column}' of `by`", "none",
               "a misspelt column")  # fmt: skip


_CHECKS: Sequence[Callable[[EvaluationSpec], None]] = (config, rewards, data)
