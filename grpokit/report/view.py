"""What the page shows, as one JSON object: of one run, or of several that are compared.

`grpokit report` writes it into the page, `grpokit watch` sends it again whenever the run has grown. Words and numbers
that are more than a label are made here, so that they can be tested without a browser.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import yaml

from grpokit.config.schema import differences
from grpokit.errors import plural
from grpokit.evaluation.paired import Change, changes
from grpokit.files import read_json
from grpokit.report import samples
from grpokit.report.curves import advantages, charts, reward_against_kl
from grpokit.report.metric_words import words
from grpokit.report.panels import panels_on_page
from grpokit.report.pictures import Album
from grpokit.report.sameness import sameness
from grpokit.report.verdict import alarms, attribution_table, headline, main_change, mood_of, prompts_of, verdict
from grpokit.run_folder.names import MACHINE, WAITING
from grpokit.run_folder.reader import Row, RunHistory
from grpokit.run_folder.scales import on_another_scale, packages_of, same_mix

_EVALUATIONS, _GROUPS = 20, 6  # whose samples are on a page; several runs share them
_HALF = "± is half of a 95 % confidence interval (Student's t over the prompts)"
_RANGES = 8  # of the steps of a warning, which are named


def view(runs: Sequence[RunHistory], albums: Sequence[Album]) -> dict[str, Any]:
    """The page's content: `runs`, the `weights` of their rewards, and for several of them `comparison`.

    Args:
        runs: what was read; the first is what the others are compared with.
        albums: where each run's pictures go.
    """
    equal = _equal_step(runs)
    pairs = zip(runs, albums, strict=True)
    return {
        "runs": [_run(run, album, len(runs), equal) for run, album in pairs],
        "weights": _shared(runs),
        "comparison": _comparison(runs, equal) if len(runs) > 1 else None,
    }


def _run(run: RunHistory, album: Album, runs: int, equal: int | None) -> dict[str, Any]:
    """One of `runs` on a page, with the samples of the step `equal`."""
    scores = headline(run)
    same = sameness(run)
    last = run.metrics[-1] if run.metrics else {}
    evaluations = max(4, _EVALUATIONS // runs)
    groups = max(2, _GROUPS // runs)
    return {
        "name": run.title,
        "steps": run.steps,
        "planned": run.planned,
        "state": _state(run),
        "failure": run.message if run.state == "failed" else "",
        "facts": _facts(run),
        "verdict": verdict(run, scores, same),
        "mood": mood_of(run, scores, same),
        "alarm": alarms(scores, same),
        "warnings": [*map(_warning, run.warnings)],
        "scores": [asdict(change) for change in scores],
        "rewards": list(run.weights),
        "basis": _basis(run, scores),
        "evaluations": samples.evaluations(run, album, most=evaluations, also=equal),
        "charts": charts(run),
        "advantages": advantages(run),
        "reward_against_kl": reward_against_kl(run),
        "prompts": samples.prompt_table(run),
        "phases": [{"name": name, "first": first, "last": last} for name, first, last in run.stretches],
        "moved": attribution_table(run),
        "groups": samples.groups(run, album, most=groups),
        "last": [[words(key, run.names), value] for key, value in last.items()],
        "config": run.config,
        "versions": run.versions,
        **panels_on_page(run),
    }


def outcome(run: RunHistory) -> dict[str, Any]:
    """A run in one row: how far it is, and what it did to the reward on held-out prompts."""
    scores = headline(run)
    change = main_change(scores)
    score = asdict(change) if change else None
    mood = mood_of(run, scores, sameness(run))
    if score and len(run.evaluations) < 2:  # there is nothing to compare with yet
        score |= {"before": None, "change": None, "width": None}
        mood = mood if mood == "alarmed" else ""
    return {
        "state": run.state if run.planned or run.state != "finished" else "evaluated",
        "steps": run.steps,
        "planned": run.planned,
        "policy": _policy(run),
        "score": score,
        "mood": mood,
    }


def duration(seconds: float) -> str:
    """A time as a person says it.

    >>> duration(0.4), duration(75), duration(7260)
    ('0.4 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours = whole // 3600
    minutes = whole // 60 % 60
    parts = [(hours, "h"), (minutes, "min")]
    if not hours:
        parts.append((whole % 60, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def _state(run: RunHistory) -> str:
    """How a run is going or has ended, and the time that its steps still take, as the last 200 did."""
    if run.state == "finished" and not run.planned:
        return "evaluated"
    word = {"running": "running:", "finished": "finished:"}.get(run.state, f"{run.state} after")
    steps = f"{run.steps:,} of {plural(run.planned, 'step')}" if run.planned else plural(run.steps, "step")
    times = [row["step_time"] for row in run.metrics[-200:] if row.get("step_time")]
    left = run.planned - run.steps
    waits_for = _waits_for(run)
    if waits_for:
        return f"{word} {steps}, waits for {waits_for}"
    if run.state == "running" and times and left > 0:
        return f"{word} {steps}, about {duration(left * math.fsum(times) / len(times))} of training to go"
    if run.state == "finished" and left > 0:
        steps += ", ended early" if run.message.startswith("The held-out score") else ", converged"
    return f"{word} {steps}"


def _waits_for(run: RunHistory) -> str:
    """What a run waits for at the moment, such as votes; empty where it waits for nothing, or does not run."""
    try:
        return (run.folder / WAITING).read_text(encoding="utf-8") if run.state == "running" else ""
    except OSError:
        return ""


def _facts(run: RunHistory) -> list[tuple[str, str]]:
    """What a person asks first about a run; a fact that is not known is left out."""
    try:
        machine = read_json(run.folder / MACHINE)
    except (OSError, ValueError):
        machine = {}
    machine = machine if isinstance(machine, dict) else {}
    seconds = math.fsum(row.get("step_time") or 0.0 for row in run.metrics)
    held_out = prompts_of(run)
    facts = {
        "Started": _date(machine.get("started")),
        "Last step": _date(run.last_row and datetime.fromtimestamp(run.last_row, UTC).isoformat()),
        "Training took": duration(seconds) if seconds else "",
        "Device": str(machine.get("device", "")),
        "Seed": str(run.settings.get("seed", "")),
        "Policy": _policy(run),
        "Rewards": _listed_rewards(run),
        "Held-out prompts" if run.planned else "Prompts": f"{held_out:,}" if held_out else "",
    }
    return [(name, text) for name, text in facts.items() if text]


def settings_of(run: RunHistory, part: str) -> Mapping[str, Any]:
    """A part of a run's config, such as that of the trainer; empty where it has none."""
    settings = run.settings.get(part)
    return settings if isinstance(settings, dict) else {}


def _policy(run: RunHistory) -> str:
    return str(settings_of(run, "policy").get("use", ""))


def _date(started: Any) -> str:
    try:
        return datetime.fromisoformat(started).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (TypeError, ValueError, OverflowError):
        return ""


def _listed_rewards(run: RunHistory) -> str:
    weights = {name: weight for name, weight in run.weights.items() if name != "reward"}
    trained = [name if weight == 1 else f"{weight:g} × {name}" for name, weight in weights.items() if weight]
    monitors = [f"{name} (monitor)" for name, weight in weights.items() if not weight]
    return ", ".join([*trained, *monitors])


def in_ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges, for a person.

    >>> in_ranges([7, 1, 2, 3, 9])
    '1-3, 7, 9'
    >>> in_ranges(range(1, 40, 2))
    '1, 3, 5, 7, 9, 11, 13, 15 and 12 more'
    """
    ranges: list[list[int]] = []
    for n in sorted(set(numbers)):
        if ranges and ranges[-1][-1] == n - 1:
            ranges[-1].append(n)
        else:
            ranges.append([n])
    parts = [f"{own[0]}-{own[-1]}" if len(own) > 1 else str(own[0]) for own in ranges[:_RANGES]]
    text = ", ".join(parts)
    rest = sum(map(len, ranges[_RANGES:]))
    return f"{text} and {rest} more" if rest else text


def _warning(warning: tuple[str, Sequence[int]]) -> dict[str, str]:
    message, steps = warning
    where = "before the first step" if list(steps) == [0] else f"step{'s' * (len(steps) > 1)} {in_ranges(steps)}"
    return {"text": message, "steps": where}


def _basis(run: RunHistory, scores: Sequence[Change]) -> str:
    """What the figures of the headline are means of, and what follows ±."""
    if not scores:
        return ""
    first, last = (run.label(row["step"]) for row in (run.evaluations[0], run.evaluations[-1]))
    held_out = prompts_of(run)
    text = f"Mean on {f'{held_out:,} ' if held_out else ''}{'held-out ' if run.planned else ''}prompts"
    text += f", {first} → {last}. " if first != last else f", {last}. "
    if first == last:
        return f"{text}{_HALF}."
    shared = scores[0].shared
    if shared:
        prompts = "prompt" if shared == held_out else f"the {plural(shared, 'prompt')} that both have"
        return f"{text}{_HALF}; the change and its interval are of differences paired by {prompts}."
    return f"{text}{_HALF}; both means count as independent in the interval of the change, since their prompts differ."


def _equal_step(runs: Sequence[RunHistory]) -> int | None:
    """The last step after which all runs were evaluated; None for a single run, and where there is none."""
    steps = [{row["step"] for row in run.evaluations} for run in runs]
    return max(set.intersection(*steps), default=None) if len(runs) > 1 else None


def _comparison(runs: Sequence[RunHistory], equal: int | None) -> dict[str, Any]:
    """Each run against the first, at the last evaluations and at equal steps; and where config and versions differ."""
    last = [run.evaluations[-1] if run.evaluations else None for run in runs]
    modes = {"last": _at(runs, last)}
    if equal is not None:
        rows = [_evaluation(run, equal) for run in runs]
        if rows != last:
            modes["equal"] = _at(runs, rows)
    return {
        "modes": modes,
        "config": _differences([run.settings for run in runs]),
        "versions": _differences([packages_of(run.versions) for run in runs]),
    }


def _evaluation(run: RunHistory, step: int) -> Row:
    return next(row for row in run.evaluations if row["step"] == step)


def _at(runs: Sequence[RunHistory], rows: Sequence[Row | None]) -> dict[str, Any]:
    """The runs compared by an evaluation of each."""
    first, before = runs[0], rows[0]
    gaps = []
    mixed = False
    for i, (other, after) in enumerate(zip(runs, rows, strict=True)):
        if i and before and after:
            old = first.scored(before["step"])
            new = other.scored(after["step"])
            scores = changes(before, after, old, new, _shared([first, other]))
            gaps.append({"run": i, "scores": [asdict(change) for change in scores]})
            mixed = mixed or not same_mix(first, other)
    notes = []
    missing = [run.title for run, row in zip(runs, rows, strict=True) if row is None]
    if missing:
        notes.append(f"Without an evaluation on held-out prompts: {', '.join(missing)}.")
    if gaps and not any(gap["scores"] for gap in gaps):
        notes = ["The runs have no reward in common on one scale, so there is no score to compare."]
    elif mixed:
        notes.append("The runs mix different rewards or weights, so the rewards as a whole are not compared.")
    if gaps:
        notes += [_apart(first, other) for other in runs[1:]]
    steps = [row["step"] if row else None for row in rows]
    return {
        "steps": steps,
        "gaps": gaps,
        "note": " ".join(filter(None, notes)),
        "basis": _basis_of_many(runs, steps, gaps),
    }


def _basis_of_many(runs: Sequence[RunHistory], steps: Sequence[int | None], gaps: Sequence[dict[str, Any]]) -> str:
    """The same as `_basis`, of runs that are compared with the first one."""
    changed = [score for gap in gaps for score in gap["scores"]]
    if not changed:
        return ""
    places = [f"step {step} of {run.title}" for run, step in zip(runs, steps, strict=True) if step is not None]
    counts = sorted({score["shared"] for score in changed} - {0})
    paired = f"differences paired by the {' or '.join(map(str, counts))} prompts that both have"
    independent = "two independent means, since their held-out prompts differ"
    return f"Mean on held-out prompts after {', '.join(places)}. {_HALF}, of {paired if counts else independent}."


def _apart(first: RunHistory, other: RunHistory) -> str:
    """Why rewards of one name are not compared."""
    names = " and ".join(f"'{name}'" for name in on_another_scale(first, other))
    reason = f"In {first.title} and {other.title}, {names} has other parameters, code or versions"
    return f"{reason}: its scores are on two scales and are not compared." if names else ""


def _shared(runs: Sequence[RunHistory]) -> dict[str, float]:
    """The weights of the rewards that all runs have, on one scale; without the sum where it is not the same sum."""
    shared = dict(runs[0].weights)
    for other in runs[1:]:
        comparable = set(other.weights) - set(on_another_scale(runs[0], other))
        shared = {name: weight for name, weight in shared.items() if name in comparable}
        if not same_mix(runs[0], other):
            shared.pop("reward", None)
    return shared


def _differences(settings: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """[key, a value for each run] as YAML would say it; the run folders differ anyway."""
    changed: dict[str, list[str]] = {}
    for i, other in enumerate(settings[1:], 1):
        for key, old, new in differences(settings[0], other):
            if key != "run.dir":
                row = changed.setdefault(key, [as_yaml(old)] * len(settings))
                row[i] = as_yaml(new)
    return [[key, *values] for key, values in changed.items()]


def as_yaml(value: Any) -> str:
    """A value on one line."""
    if value is None:
        return "–"
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")
