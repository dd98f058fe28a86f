"""The tables of `docs/benchmarks.md`: their jobs, their rows, and how they get into the page.

Times on a CPU are ratios only, since absolute ones would be those of someone else's machine. On a GPU they are
absolute, with its name.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lm_job.job import PHASES, Job
from lm_job.rounds import Entrant, Result

TABLES = ("main", "avx2", "prompts", "micro", "scaling", "lengths")

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
"""Holds torch and both of its libraries for products to AVX2, as on a CPU that has no more."""

Row = Sequence[str]


def wanted(table: str | None, device: str) -> list[str]:
    """The tables of a name, of "all" on a device, or none.

    Raises:
        ValueError: the table is one of a CPU only.
    """
    if table == "avx2" and device != "cpu":
        raise ValueError("the table avx2 is about a CPU; leave out --device cuda")
    if table == "all":
        return [name for name in TABLES if name != "avx2" or device == "cpu"]
    return [] if table is None else [table]


def jobs(table: str, job: Job) -> dict[str, Job]:
    """Label -> job, of a table's rows."""
    if table in ("main", "avx2"):
        return {"": job}
    if table == "prompts":
        tokens = job.new_tokens // 2
        return {
            "": dataclasses.replace(job, prompts=max(1, job.prompts // 2), prompt_tokens=2 * tokens, new_tokens=tokens)
        }
    if table == "micro":
        return {f"micro-batch {size}": dataclasses.replace(job, micro=size) for size in (8, 2, 1)}
    if table == "lengths":
        many = dataclasses.replace(job, prompts=4 * job.prompts, new_tokens=4 * job.new_tokens, ragged=True)
        equal = dataclasses.replace(many, ragged=False)
        lengths = [length for step in range(100) for length in many.lengths(step)]
        mean = dataclasses.replace(equal, new_tokens=round(statistics.mean(lengths)))
        jobs = {f"{each.new_tokens:,} new tokens": each for each in (mean, equal)}
        return jobs | {f"log-normal lengths up to {many.new_tokens:,}": many}
    one = dataclasses.replace(job, prompts=1, group=4, micro=4, new_tokens=max(1, job.new_tokens // 2))
    changes: Iterable[dict[str, int | bool]] = [
        {},
        *({"group": 4 * n, "micro": min(8, 4 * n)} for n in (2, 4, 8)),
        *({"new_tokens": one.new_tokens * n} for n in (2, 4, 8)),
        *({"vocab": max(16, job.vocab * n // 4)} for n in (1, 2, 8)),
        {"group": 32, "micro": 8, "new_tokens": job.new_tokens},
        {"group": 32, "micro": 8, "new_tokens": job.new_tokens, "ragged": True},
    ]
    return {_label(change): dataclasses.replace(one, **change) for change in changes}  # type: ignore[arg-type]


def markdown(results: Mapping[str, Result]) -> str:
    """A table of one job has a row per contender and its phases; one of several jobs has a row per job."""
    if len(results) == 1:
        (result,) = results.values()
        rows = _contenders(result)
    else:
        rows = _sweep(results)
    head, *body = rows
    rule = ["---", *["---:"] * (len(head) - 1)]
    lines = ["| " + " | ".join(row) + " |" for row in (head, rule, *body)]
    return "\n".join([_machine(next(iter(results.values()))), "", *lines])


def write(page: Path, name: str, text: str) -> None:
    """Replace what is between a table's markers.

    Raises:
        ValueError: the page lacks them.
    """
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before = page.read_text(encoding="utf-8")
    pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(before):
        raise ValueError(f"{page.name} lacks the lines '{start}' and '{end}', between which the table goes.")
    page.write_text(pattern.sub(lambda _: f"{start}\n{text}\n{end}", before, count=1), encoding="utf-8")


def _contenders(result: Result) -> Iterable[Row]:
    gpu = bool(result.machine["gpu"])
    head = ["contender", "time, s" if gpu else "time", "memory growth", "share of floor", "share in generation"]
    yield [*head, *PHASES, *["new tokens/s"] * gpu]
    first = _first(result.entrants)
    for entrant in result.entrants:
        if entrant.failure or first is None:
            yield [entrant.name, f"did not finish: {entrant.failure}", *[""] * (3 + len(PHASES) + gpu)]
            continue
        unit = 1.0 if gpu else first.seconds
        phases = entrant.phases()
        yield [
            entrant.name,
            f"{entrant.seconds / unit:.2f}",
            f"{entrant.growth / 1024:.1f} GiB" if gpu else f"{entrant.growth / first.growth:.2f}",
            f"{result.floor / entrant.seconds:.0%}",
            f"{result.generate_floor / phases['generate']:.0%}",
            *[f"{phases[name] / unit:.3f}" if name in phases else "-" for name in PHASES],
            *[f"{1 / entrant.per_token:,.0f}"] * gpu,
        ]


def _sweep(results: Mapping[str, Result]) -> Iterable[Row]:
    names = [entrant.name for entrant in next(iter(results.values())).entrants]
    first, *others = names
    own = ("time per token", "floor per token", "memory growth", "last / first growth", "share of floor")
    yield [
        "job",
        *(f"{first}: {what}" for what in own),
        *(f"{name}: {what}" for name in others for what in ("time", "memory growth")),
    ]
    unit: tuple[Result, Entrant] | None = None
    for label, result in results.items():
        entrants = {entrant.name: entrant for entrant in result.entrants}
        ours = entrants[first]
        if ours.failure:
            yield [label, f"did not finish: {ours.failure}", *[""] * (4 + 2 * len(others))]
            continue
        unit = unit or (result, ours)
        row = [label, f"{ours.per_token / (result.pace or unit[1].per_token):.2f}"]
        row.append(f"{result.floor_per_token / unit[0].floor_per_token:.2f}")
        row += [f"{ours.growth / unit[1].growth:.2f}", f"{ours.creep:.2f}", f"{result.floor / ours.seconds:.0%}"]
        for name in others:
            other = entrants[name]
            if other.failure:
                row += ["did not finish", ""]
            else:
                row += [f"{other.seconds / ours.seconds:.2f}", f"{other.growth / ours.growth:.2f}"]
        yield row


def _first(entrants: Sequence[Entrant]) -> Entrant | None:
    return next((entrant for entrant in entrants if not entrant.failure), None)


def _label(change: Mapping[str, int | bool]) -> str:
    if not change:
        return "group 4"
    words = {"group": "group {}", "new_tokens": "{} new tokens", "vocab": "vocabulary {:,}"}
    said = [words[name].format(value) for name, value in change.items() if name in words]
    return ", ".join([*said, *["log-normal lengths"] * bool(change.get("ragged"))])


def _machine(result: Result) -> str:
    """What ran, on what, and how it was measured."""
    job, machine = result.job, result.machine
    clock = result.entrants[0].clock if result.entrants else "wall"
    cpu = f"{machine['cpu']}, {job.threads} of {machine['cores']} cores, {machine['instructions']}, fp32"
    what = machine["gpu"] or cpu
    versions = ", ".join(f"{name} {version}" for name, version in sorted(result.versions.items()))
    seconds = "wall-clock time" if clock == "wall" else "CPU seconds of the process"
    return f"{what}; {versions}; medians of {result.rounds} rounds; {seconds}."
