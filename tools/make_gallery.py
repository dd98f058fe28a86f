"""Writes docs/reference/gallery.md: every installed component, with parameters, grades, speed and examples.

`python tools/make_gallery.py` writes the page from the plugins and from docs/gallery.json; with `--check` it exits with
1 where the page is out of date. `--measure [NAME ...]` first measures rewards again, all or these, and writes
docs/gallery.json and the example pictures. Nothing is fetched: a reward whose weights are not on the machine keeps its
figures. Those of `lpips` need `TORCH_HOME=FOLDER`, with the FOLDER of tools/lpips_trunks.py.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), *(str(folder) for folder in sorted(ROOT.glob("plugins/*/src")))]

from grpokit import GrpokitError, RewardSpec, create, registry, settings  # noqa: E402  # only now that the path leads here
from grpokit.registry.specs import Spec  # noqa: E402
from grpokit_check.reward.examples import example_samples, samples_for, spec_examples  # noqa: E402
from grpokit_check.robustness.ladder import ladder  # noqa: E402

PAGE, FIGURES, PICTURES = ROOT / "docs/reference/gallery.md", ROOT / "docs/gallery.json", ROOT / "docs/images/gallery"
REPEATS, SAMPLES = 3, 24
_TAUGHT = "../reward-hacking.md#after-the-run-what-the-reward-taught"
HEAD = """<!-- Written by tools/make_gallery.py: run it instead of editing this page. -->

# Plugin gallery

What is in this repository, by kind. `grpokit plugins` lists what is installed on your machine, yours included.

**Grade**: how easily adversarial examples fool the reward, from A (very hard) to E (at once), by the
[ladders](../conformance.md#the-ladders-of-a-reward) with the reward's defaults. **Speed**: samples per second,
{machine}, on one thread. The samples are the reward's own examples, or small signs and short texts. Compare speeds with
each other rather than with your run. A reward without figures needs weights that this machine did not have, or a
service, or a parameter; `grpokit check NAME` grades it on your machine.
"""


def measured(spec: RewardSpec) -> dict[str, Any]:
    """Speed, grade and example scores of a reward, or nothing if it cannot run here without downloads."""
    if not {"image", "text"} & set(spec.accepts):
        return {}
    samples = (samples_for(spec.accepts, spec) * SAMPLES)[:SAMPLES]
    try:
        reward = create("reward", spec.name)
        reward(samples)  # the first call loads models
    except GrpokitError as error:  # it must be given a parameter, asks a service, or lacks its weights
        print(f"{spec.name}: {error}")
        return {}
    pairs = spec_examples(spec)
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        reward(samples)
        seconds.append(time.perf_counter() - begin)
    speed = len(samples) / min(seconds)
    figures: dict[str, Any] = {"per_second": float(f"{speed:.2g}")}
    graded = ladder(reward, spec=spec)
    figures |= {"grade": graded.grade, "overall": graded.overall}
    better, worse = pairs[0] if pairs else example_samples(spec.accepts)[:2]
    figures["example"] = [
        {"score": float(f"{reward([sample])[0]:.3g}"), **_shown(spec.name, side, sample.output)}
        for side, sample in (("better", better), ("worse", worse))
    ]
    return figures


def _needed(spec: Spec) -> list[str]:
    """The weights and other files that a component needs with its defaults."""
    return [asset.name for asset in spec.assets if not asset.module]


def _shown(name: str, side: str, output: Any) -> dict[str, str]:
    if isinstance(output, str):
        return {"text": output}
    PICTURES.mkdir(parents=True, exist_ok=True)
    small = output.convert("RGB")
    small.thumbnail((192, 192))
    small.save(PICTURES / f"{name}-{side}.png", optimize=True)
    return {"picture": f"images/gallery/{name}-{side}.png"}


def parameters(spec: Spec) -> list[tuple[str, str, str, str]]:
    """(name, meaning, default, type) of each parameter that a config may give to a component."""
    declared, _ = registry.declared_parameters(spec.kind, spec.name)
    meanings = settings.meanings(registry.resolve(spec.factory))
    rows = []
    for name, p in declared.items():
        default = "required" if p.default is p.empty else f"`{_plain(p.default)}`"
        meaning = meanings.get(name, "").replace("None", "null")
        rows.append((name, meaning, default, f"`{settings.type_text(p.annotation)}`"))
    return rows


def _plain(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _parameter_table(spec: Spec) -> str:
    rows = parameters(spec)
    if not rows:
        return "It takes no parameters.\n"
    head = "| parameter | meaning | default | type |\n|---|---|---|---|\n"
    return head + "".join(f"| `{row[0]}` | {' | '.join(_cell(cell) for cell in row[1:])} |\n" for row in rows)


def _range(spec: RewardSpec) -> str:
    low, high = (f"{bound:g}" if bound is not None and math.isfinite(bound) else None for bound in spec.range)
    if low is None and high is None:
        return "any number"
    return f"at most {high}" if low is None else f"at least {low}" if high is None else f"{low} to {high}"


def _reward(package: str, spec: RewardSpec, figures: dict[str, Any]) -> str:
    lines = [f"### `{spec.name}`\n", f"{spec.summary[:1].upper()}{spec.summary[1:]}.\n"]
    facts = [f"**Scores** {', '.join(sorted(spec.accepts))}", f"**range** {_range(spec)}", f"**package** `{package}`"]
    if _needed(spec):
        facts.append("**weights** " + ", ".join(_needed(spec)))
    if figures:
        facts += [f"**grade** {figures['grade'] or 'none'}", f"**speed** {figures['per_second']:,.10g} per second"]
    lines.append(" · ".join(facts) + "\n")
    if figures:
        lines.append(f"{figures['overall'][:1].upper()}{figures['overall'][1:]}.\n")
        cells = [_example(side, each) for side, each in zip(("better", "worse"), figures["example"], strict=True)]
        scores = " | ".join(f"score {each['score']:g}" for each in figures["example"])
        lines.append(f"| {cells[0]} | {cells[1]} |\n|---|---|\n| {scores} |\n")
    lines.append(_parameter_table(spec))
    return "\n".join(lines)


def _example(side: str, example: dict[str, Any]) -> str:
    if "picture" in example:
        return f"![the {side} example](../{example['picture']})"
    return f"`{_cell(example['text'])}`"


def _statistics(specs: list[tuple[str, RewardSpec]]) -> str:
    """The rewards that describe and do not judge, so that no grade and no example of a better one fits."""
    lines = ["## Statistics\n"]
    lines.append(f"Rewards that describe an output and do not judge it: [what the reward taught]({_TAUGHT}).\n")
    lines.append("| name | what it measures | low | high | of | package |\n|---|---|---|---|---|---|")
    for package, spec in specs:
        low, high = spec.statistic or ("", "")
        meaning = _cell(spec.summary.removeprefix("a statistic: "))
        kinds = ", ".join(sorted(spec.accepts))
        lines.append(f"| `{spec.name}` | {meaning} | {low} | {high} | {kinds} | `{package}` |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """What docs/reference/gallery.md should hold."""
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    parts = [HEAD.format(machine=f"measured on {figures['machine']} on {figures['date']}")]
    every = [(plugin.package, spec) for plugin, spec in registry.installed("reward")]
    rewards = [(package, spec) for package, spec in every if not spec.statistic or package == "grpokit"]
    parts.append("## Rewards\n\n| name | what it does | grade | per second | scores |\n|---|---|---|---:|---|")
    for _, spec in rewards:
        found = figures["rewards"].get(spec.name, {})
        speed = f"{found['per_second']:,.10g}" if found else ""
        kinds = ", ".join(sorted(spec.accepts))
        parts.append(
            f"| [`{spec.name}`](#{spec.name}) | {_cell(spec.summary)} | {found.get('grade', '')} | {speed} | {kinds} |"
        )
    parts += ["", *(_reward(package, spec, figures["rewards"].get(spec.name, {})) for package, spec in rewards)]
    parts.append(_statistics([(package, spec) for package, spec in every if spec.statistic]))
    parts.append("## Policies\n")
    for plugin, spec in registry.installed("policy"):
        parts += [f"### `{spec.name}`\n", f"{spec.summary[:1].upper()}{spec.summary[1:]}.\n"]
        parts += [f"**Makes** {spec.makes} · **package** `{plugin.package}`\n", _parameter_table(spec)]
    parts.append("## Datasets\n")
    for plugin, spec in registry.installed("dataset"):
        parts += [f"### `{spec.name}`\n", f"{spec.summary[:1].upper()}{spec.summary[1:]}.\n"]
        parts += [f"**Package** `{plugin.package}`\n", _parameter_table(spec)]
    parts.append("## Presets\n\n| name | what it does | takes | package |\n|---|---|---|---|")
    for plugin, spec in registry.installed("preset"):
        parts.append(f"| `{spec.name}` | {_cell(spec.summary)} | {spec.takes or 'not measured'} | `{plugin.package}` |")
    parts.append("")
    for kind, title in (
        ("evaluation", "Evaluations"),
        ("advantage", "Advantages"),
        ("objective", "Objectives"),
        ("modifier", "Modifiers"),
    ):
        parts.append(f"## {title}\n\n| name | what it does | package |\n|---|---|---|")
        parts += [f"| `{s.name}` | {_cell(s.summary)} | `{p.package}` |" for p, s in registry.installed(kind)]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def measure(names: list[str]) -> None:
    """Measure all rewards, or those with these names, and write the figures."""
    rewards = json.loads(FIGURES.read_text(encoding="utf-8"))["rewards"] if FIGURES.is_file() else {}
    for _, spec in registry.installed("reward"):
        if (names and spec.name not in names) or (spec.statistic and spec.name not in rewards):
            continue
        if figures := measured(spec):
            rewards[spec.name] = figures
        print(spec.name, figures.get("grade", "not measured"), flush=True)
    machine = f"a {platform.machine()} CPU"
    known = dict(sorted(rewards.items()))
    text = json.dumps({"machine": machine, "date": date.today().isoformat(), "rewards": known}, indent=2)
    FIGURES.write_text(text + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Write the page, or with --check compare it; returns the exit code."""
    if arguments[:1] == ["--measure"]:
        os.environ["HF_HUB_OFFLINE"] = "1"
        import torch

        torch.set_num_threads(1)
        measure(arguments[1:])
    if arguments[:1] != ["--check"]:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print(f"{PAGE.relative_to(ROOT)} is out of date: run python tools/make_gallery.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
