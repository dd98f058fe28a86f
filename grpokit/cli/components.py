"""The commands about components: plugins, check, schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpokit.cli.app import FAILED, app, console
from grpokit.cli.options import Json, Prompts, PromptsFile, read_prompts
from grpokit.config.overrides import parse_parameters
from grpokit.errors import PluginError, UsageError, counted, nearest

if TYPE_CHECKING:
    from warnings import WarningMessage

    from grpokit.testing import Check, Ladder, Outcome


_WIDE = 100  # columns from which on a table has room for what a component does


@app.command()
def plugins(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Show this component and its parameters.")] = "",
    as_json: Json = False,
) -> None:
    """List the installed policies, rewards and presets.

    It lists advantages and objectives, too, and placements of rewards. Each has the package that brings it, and a mark
    if it is broken or ambiguous; presets say what they need and how long they take. With a name it shows the parameters
    with their defaults, or a preset's config.
    """
    if name:
        _show_components(name, as_json)
    elif as_json:
        print(json.dumps([dict(zip(_COLUMNS, row, strict=True)) for row in _plugin_rows()]))
    else:
        _list_plugins()


def _show_components(name: str, as_json: bool) -> None:
    """All components of a name, of whatever kind."""
    from grpokit import registry

    kinds = [kind for kind in _KINDS if registry.named(kind, name)]
    if not kinds:
        known = sorted({spec.name for kind in _KINDS for _, spec in registry.installed(kind)})
        raise PluginError(f"No component is called '{name}'{nearest(name, known)}. `grpokit plugins` lists all.")
    facts = [_facts(kind, name) for kind in kinds]
    if as_json:
        print(json.dumps(facts, default=repr))
        return
    out = console()
    for fact in facts:
        out.print(f"{fact['kind']} {fact['name']}: {fact['summary']}", markup=False, soft_wrap=True, style="bold")
        out.print(f"  of {fact['package']} {fact['version']}", markup=False, soft_wrap=True)
        for parameter in fact["parameters"]:
            default = "needed" if parameter["needed"] else json.dumps(parameter["default"], default=repr)
            out.print(f"  {parameter['name']}: {parameter['type']} = {default}", markup=False, soft_wrap=True)
        if fact["problem"]:
            out.print(f"  problem  {fact['problem']}", markup=False, soft_wrap=True)
        for title in ("needs", "takes"):
            if fact.get(title):
                out.print(f"  {title:<7}  {fact[title]}", markup=False, soft_wrap=True)
        if fact.get("config"):
            out.print(f"\n{fact['config']}", markup=False, soft_wrap=True, end="")


def _facts(kind: str, name: str) -> dict[str, Any]:
    """What a component's spec and its factory say."""
    import inspect

    from grpokit import registry
    from grpokit.config import presets
    from grpokit.errors import GrpokitError
    from grpokit.registry.specs import PresetSpec

    plugin, spec = registry.find(kind, name)
    facts: dict[str, Any] = {"kind": kind, "name": spec.name, "package": plugin.package, "version": plugin.version}
    facts |= {"summary": spec.summary, "parameters": [], "problem": ""}
    try:
        if isinstance(spec, PresetSpec):
            facts |= {"needs": spec.needs, "takes": spec.takes, "config": presets.text_of(spec)}
            presets.read_config(name)
            return facts
        parameters, _ = registry.declared(kind, name)
    except GrpokitError as error:  # a dependency is missing
        facts["problem"] = f"{error} {spec.install if kind == 'preset' else ''}".strip()
        return facts
    for key, parameter in parameters.items():
        needed = parameter.default is parameter.empty
        words = re.sub(r"\b(?:\w+\.)+(?=\w)", "", inspect.formatannotation(parameter.annotation))
        default = None if needed else parameter.default
        facts["parameters"].append({"name": key, "type": words, "needed": needed, "default": default})
    return facts


def _list_plugins() -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from grpokit import registry

    rows = list(_plugin_rows())
    out = console()
    if out.width >= _WIDE:
        table = Table(box=None, pad_edge=False)
        for title in _COLUMNS[:-1]:
            table.add_column(title, no_wrap=True)
        table.add_column("what it does")
        for *names, state, summary in rows:  # as Text: a plugin's own brackets are no markup
            table.add_row(*map(Text, names), Text(state, style=_STYLES.get(state, "")), Text(summary))
        out.print(table)
    else:
        kind_width, name_width = (max(len(row[i]) for row in rows) for i in (0, 1))
        for kind, name, package, version, state, summary in rows:
            start = f"{kind:<{kind_width}}  {name:<{name_width}}  {package} {version}  "
            line = Text(start).append(state, style=_STYLES.get(state, ""))
            out.print(line, soft_wrap=True)
            out.print(Padding(Text(summary), (0, 0, 0, kind_width + 2)))
    for clash in registry.clashes():
        choices = " or ".join(f"'{name}' (of {package})" for name, package in clash.choices.items())
        out.print(f"The {clash.kind} name '{clash.name}' is ambiguous: write {choices}.", markup=False, soft_wrap=True)
    for plugin in registry.plugins():
        if plugin.error:
            out.print(f"{plugin.name}: {plugin.error}", markup=False, soft_wrap=True)


_COLUMNS = ("kind", "name", "package", "version", "state", "summary")
_KINDS = ("policy", "reward", "preset", "advantage", "objective", "placement", "command")
_STYLES = {"ambiguous": "yellow", "broken": "red"}


def _plugin_rows() -> Iterator[tuple[str, str, str, str, str, str]]:
    """Kind, name, package, version, state and summary of each component that a plugin brings."""
    from grpokit import registry

    ambiguous = {(clash.kind, clash.name) for clash in registry.clashes()}
    for kind in _KINDS:
        for plugin, spec in registry.installed(kind):
            state = "ambiguous" if (kind, spec.name) in ambiguous else "ok"
            cost = ", ".join(filter(None, (getattr(spec, "needs", ""), getattr(spec, "takes", ""))))
            summary = f"{spec.summary} ({cost})" if cost else spec.summary
            yield kind, spec.name, plugin.package, plugin.version, state, summary
    for plugin in registry.plugins():
        if plugin.error:
            yield "plugin", plugin.name, plugin.package, plugin.version, "broken", "see below"
        elif not plugin.specs:
            yield "plugin", plugin.name, plugin.package, plugin.version, "ok", "watches runs"


@app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A policy or reward: its name, or package.module:Name.")],
    parameters: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Its parameters, as in temperature=0.7.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="policy or reward, if NAME could be either.")] = None,
    prompt: Prompts = None,
    prompts: PromptsFile = None,
    slow: Annotated[bool, typer.Option("--slow", help="Also check that a policy learns a toy reward.")] = False,
) -> None:
    """Check a policy or a reward against its contract.

    A policy draws for the prompts that you give (two or more), or else for those of a preset that uses it. For a
    reward, the command also measures how easily the reward is fooled.
    """
    import warnings

    from rich.table import Table
    from rich.text import Text

    from grpokit.testing import component

    ladder = None
    own_prompts = read_prompts(prompt, prompts)
    params = parse_parameters(parameters or [])
    with (
        warnings.catch_warnings(record=True) as records,  # warnings are printed below the table
        _progress() as show,
        ExitStack() as stack,
    ):
        show(f"building {name}")
        if component.kind_of(name, kind) == "policy":
            first = own_prompts if prompts is None or own_prompts is None else own_prompts[:4]
            checks = component.of_policy(name, params, first, slow=slow)
        else:
            if own_prompts:
                raise UsageError(
                    f"'{name}' is a reward, which reads no prompts. Leave out --prompt and --prompts, or add --kind "
                    "policy if it makes a policy."
                )
            checks, ladder = stack.enter_context(component.of_reward(name, params))
        results = list(_run(checks, show))
        report = "" if ladder is None else _report(ladder, results)
    table = Table(box=None, pad_edge=False)
    table.add_column("check", max_width=40)
    table.add_column("result", no_wrap=True)
    table.add_column("message")
    for outcome in _merged(results):
        style = {"ok": "", "failed": "red"}.get(outcome.state, "yellow")
        table.add_row(Text(outcome.name), Text(outcome.state, style=style), Text(outcome.message))
    out = console()
    out.print(table)
    for line in _warning_lines(records):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    if report:
        out.print(f"\n{report}\n", markup=False, highlight=False, soft_wrap=True)
    passes, failures, expected_failures, skips = (
        sum(outcome.state == state for outcome in results)
        for state in ("ok", "failed", "expected failure", "not checked")
    )
    summary = [f"{failures} of {passes + failures} checks failed" if failures else f"all {passes} checks passed"]
    summary += [counted(expected_failures, "expected failure")] if expected_failures else []
    summary += [f"{skips} not checked"] if skips else []
    print(f"{name}: {', '.join(summary)}")
    if failures:
        raise typer.Exit(FAILED)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Yields a function that shows a line on a terminal, in place of the line before. Elsewhere it shows nothing."""
    errors = console(stderr=True)
    if not errors.is_terminal:
        yield lambda line: None
        return
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    spinner = Spinner("line")
    with Live(spinner, console=errors, transient=True, redirect_stdout=False, redirect_stderr=False) as live:

        def show(line: str) -> None:
            spinner.update(text=Text(line))
            live.refresh()

        yield show


def _run(checks: Iterable[Check], show: Callable[[str], None]) -> Iterator[Outcome]:
    """Run the checks one after the other, and show which one runs."""
    from grpokit.testing import outcomes

    every = list(checks)
    for number, check in enumerate(every, 1):
        show(f"check {number} of {len(every)}: {check.name}")
        yield from outcomes([check])


def _merged(results: Sequence[Outcome]) -> Iterator[Outcome]:
    """The outcomes, with one row for all that were not checked for the same reason."""
    from grpokit.testing import Outcome

    names: dict[str, list[str]] = {}
    for outcome in results:
        if outcome.state == "not checked":
            names.setdefault(outcome.message, []).append(outcome.name)
    for outcome in results:
        if outcome.state != "not checked":
            yield outcome
        elif outcome.message in names:  # the first of its reason
            yield Outcome(name=", ".join(names.pop(outcome.message)), state=outcome.state, message=outcome.message)


def _warning_lines(records: Iterable[WarningMessage]) -> Iterator[str]:
    """Each warning once, on one line; those about future versions of a library are left out."""
    future = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
    current = (w for w in records if not issubclass(w.category, future))
    yield from dict.fromkeys(f"warning: {w.category.__name__}: {' '.join(str(w.message).split())}" for w in current)


def _report(ladder: Ladder, results: Sequence[Outcome]) -> str:
    """The report of the ladders. If a reward raises on one, the check of that ladder shows the error."""
    from grpokit.testing.reward.calls import UNSCORED

    if any(outcome.message == UNSCORED for outcome in results):
        return f"ladder: not measured, since {UNSCORED}"
    try:
        return f"ladder\n{ladder.report}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a component may raise anything
        return f"ladder: not measured, since the reward raised {type(error).__name__}"


@app.command()
def schema() -> None:
    """Print the JSON schema of a config, for editors.

    It holds every key with its type, default and meaning, and the installed components with their parameters.
    """
    from grpokit.config import schema

    print(schema.schema())
