"""Writes docs/reference/gallery.md: every component of this repository, with parameters, grades, speed and examples.

`python tools/make_gallery.py` writes the page from the plugins and from docs/gallery.json; with `--check` it exits with
1 where the page is out of date. `--measure [NAME ...]` first measures rewards again, all or these, and writes
docs/gallery.json and the example pictures. Nothing is fetched: a reward whose weights are not on the machine keeps its
figures. Those of `lpips` need `TORCH_HOME=FOLDER`, with the FOLDER of tools/lpips_trunks.py.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), *(str(folder) for folder in sorted(ROOT.glob("plugins/*/src")))]

import shipped_components  # noqa: E402  # only now that the path leads here

from grpokit import GrpokitError, RewardSpec, Sample, create, registry, settings  # noqa: E402
from grpokit.cli.catalogue import GROUPS, needs  # noqa: E402
from grpokit.cli.component_page import example, scores  # noqa: E402
from grpokit.registry import shipped  # noqa: E402
from grpokit.registry.specs import PolicySpec, Spec  # noqa: E402
from grpokit_check.reward.examples import example_samples, samples_for, spec_examples  # noqa: E402
from grpokit_check.robustness.ladder import ladder  # noqa: E402

PAGE, FIGURES, PICTURES = ROOT / "docs/reference/gallery.md", ROOT / "docs/gallery.json", ROOT / "docs/images/gallery"
REPEATS, SAMPLES = 3, 24
_TAUGHT = "../reward-hacking.md#after-the-run-what-the-reward-taught"
HEAD = """<!-- Written by tools/make_gallery.py: run it instead of editing this page. -->

# Plugin gallery

What is in this repository, by kind, as `grpokit plugins` lists what is installed on your machine, yours included.
`grpokit plugins --search WORD` also finds what is here and not installed. `grpokit plugins NAME` shows the parameters,
the needs, the grade and the example of one component.

**Grade**: how easily adversarial examples fool the reward, from A (very hard) to E (at once), by the
[ladders](../conformance.md#the-ladders-of-a-reward) with the reward's defaults. **Speed**: samples per second,
{machine}, on one thread. The samples are the reward's own examples, or small signs and short texts. Compare speeds with
each other rather than with your run. A reward without figures needs weights that this machine did not have, or a
service, or a parameter; `grpokit check NAME` grades it on your machine.

`grpokit[ocr]` stands for `pip install 'grpokit[ocr]'`. What you look for is not here? [Write yours](#write-yours).
"""
YOURS = """## Write yours

Any function from samples to numbers is a reward: `rewards: [{use: "my_module:score"}]` takes it from a file in the
folder where you run the command. As a package it has a name, and others can install it:

```bash
grpokit new reward shine            # a package that works, with tests, a licence and workflows
cd grpokit-shine
pip install -e '.[test]'
pytest && grpokit check shine       # put your idea into score() and run both until they pass
pip install build twine
python -m build                     # the package, in dist/
twine check --strict dist/*
twine upload dist/*
```

The package's README lists what to fill in before the last line, which asks for a token of PyPI. The workflow
`publish.yml` needs none: it builds, checks and uploads whenever you push a tag such as `v0.1.0`
([Publish it](../plugins.md#publish-it)).

`grpokit new` has put `grpokit-plugin` among the package's keywords. By this word people
[find it on PyPI](https://pypi.org/search/?q=grpokit-plugin). Where it is installed, `grpokit plugins` lists it, and
`grpokit plugins --search WORD` looks through its name, summary and keywords. [Your own reward or policy](../plugins.md)
has the rest.
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
    for repeat in range(REPEATS):
        fresh = [_marked(sample, SAMPLES * repeat + number) for number, sample in enumerate(samples)]
        begin = time.perf_counter()
        reward(fresh)
        seconds.append(time.perf_counter() - begin)
    speed = len(samples) / min(seconds)
    figures: dict[str, Any] = {"per_second": float(f"{speed:.2g}")}
    graded = ladder(reward, spec=spec)
    figures |= {"grade": graded.grade, "overall": graded.overall}
    better, worse = pairs[0] if pairs else example_samples(spec.accepts)[:2]
    scored = [float(f"{reward([sample])[0]:.3g}") for sample in (better, worse)]
    if scored[0] != scored[1]:
        shown = [_shown(spec.name, "better", better.output), _shown(spec.name, "worse", worse.output)]
        figures["example"] = [{"score": score, **output} for score, output in zip(scored, shown, strict=True)]
    return figures


def _marked(sample: Sample, number: int) -> Sample:
    """A sample whose picture differs from all others in a pixel, so that no reward remembers it."""
    if not isinstance(sample.output, Image.Image):
        return sample
    picture = sample.output.convert("RGB")
    picture.putpixel((0, 0), (number % 256, number // 256, 0))
    return replace(sample, output=picture)


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


def _origin(spec: Spec) -> str:
    """What brings a component."""
    extra = shipped.entry(spec.kind, spec.name).get("extra", "")
    return f"`grpokit[{extra}]`" if extra else "`grpokit`"


def _reward(spec: RewardSpec, figures: dict[str, Any]) -> str:
    lines = [f"### `{spec.name}`\n", f"{spec.summary[:1].upper()}{spec.summary[1:]}.\n"]
    facts = [f"**Scores** {scores(spec)}", f"**comes with** {_origin(spec)}"]
    if needs(spec):
        facts.append(f"**needs** {needs(spec)}")
    if figures:
        facts += [f"**grade** {figures['grade'] or 'none'}", f"**speed** {figures['per_second']:,.10g} per second"]
    lines.append(" · ".join(facts) + "\n")
    if figures:
        lines.append(f"{figures['overall'][:1].upper()}{figures['overall'][1:]}.\n")
    if "example" in figures:
        cells = [_example(side, each) for side, each in zip(("better", "worse"), figures["example"], strict=True)]
        score = " | ".join(f"score {each['score']:g}" for each in figures["example"])
        lines.append(f"| {cells[0]} | {cells[1]} |\n|---|---|\n| {score} |\n")
    lines += [_to_paste(spec), _parameter_table(spec)]
    return "\n".join(lines)


def _to_paste(spec: Spec) -> str:
    declared, _ = registry.declared_parameters(spec.kind, spec.name)
    return f"```yaml\n{example(spec, spec.name, declared)}\n```\n"


def _example(side: str, example: dict[str, Any]) -> str:
    if "picture" in example:
        return f"![the {side} example](../{example['picture']})"
    return f"`{_cell(example['text'])}`"


def _statistics(specs: list[RewardSpec]) -> Iterator[str]:
    """The rewards that describe and do not judge, so that no grade and no example of a better one fits."""
    yield "## Statistics\n"
    yield f"Rewards that describe an output and do not judge it: [what the reward taught]({_TAUGHT}).\n"
    yield "| name | what it measures | low | high | of | comes with |\n|---|---|---|---|---|---|"
    for spec in specs:
        low, high = spec.statistic or ("", "")
        kinds = ", ".join(sorted(spec.accepts))
        yield f"| `{spec.name}` | {_cell(spec.summary)} | {low} | {high} | {kinds} | {_origin(spec)} |"
    yield ""


def _rewards(specs: list[RewardSpec]) -> Iterator[str]:
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))["rewards"]
    yield "## Rewards\n\n| name | what it does | grade | per second | scores |\n|---|---|---|---:|---|"
    for spec in specs:
        found = figures.get(spec.name, {})
        speed = f"{found['per_second']:,.10g}" if found else ""
        kinds = ", ".join(sorted(spec.accepts))
        cells = (f"[`{spec.name}`](#{spec.name})", _cell(spec.summary), found.get("grade", ""), speed, kinds)
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield from (_reward(spec, figures.get(spec.name, {})) for spec in specs)


def _policies(specs: list[PolicySpec]) -> Iterator[str]:
    yield "## Policies\n"
    for spec in specs:
        yield f"### `{spec.name}`\n\n{spec.summary[:1].upper()}{spec.summary[1:]}.\n"
        yield f"**Makes** {spec.makes} · **comes with** {_origin(spec)}\n"
        yield _to_paste(spec)
        yield _parameter_table(spec)


def _others(title: str, use: str, specs: list[Spec]) -> Iterator[str]:
    """A table, and the examples of those whose names alone are not enough."""
    takes = specs[0].kind == "preset"
    yield f"## {title}\n\nAs in `{use}`.\n"
    yield f"| name | what it does |{' takes |' if takes else ''} comes with |\n|---|---|{'---|' if takes else ''}---|"
    for spec in specs:
        time = f" {getattr(spec, 'takes', '') or 'not measured'} |" if takes else ""
        yield f"| `{spec.name}` | {_cell(spec.summary)} |{time} {_origin(spec)} |"
    yield ""
    examples = [spec.example.strip() for spec in specs if spec.example]
    if examples and use.startswith("grpokit"):
        yield "```bash\n" + "\n".join(examples) + "\n```\n"
    else:
        yield from (f"```yaml\n{each}\n```\n" for each in examples)


def page() -> str:
    """What docs/reference/gallery.md should hold."""
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    parts = [HEAD.format(machine=f"measured on {figures['machine']} on {figures['date']}")]
    for group, (title, use) in GROUPS.items():
        specs = [spec for package, spec in shipped_components.specs() if group in _groups(package, spec)]
        if group == "reward":
            parts += _rewards(specs)
        elif group == "statistic":
            parts += _statistics(specs)
        elif group == "policy":
            parts += _policies(specs)
        elif specs:
            parts += _others(title, use, specs)
    parts.append(YOURS)
    return "\n".join(parts).rstrip() + "\n"


def _groups(package: str, spec: Spec) -> set[str]:
    """Of the page. The core's statistics stand among the rewards too, since they are there for trials."""
    if not getattr(spec, "statistic", None):
        return {spec.kind}
    return {"reward", "statistic"} if package == "grpokit" else {"statistic"}


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
