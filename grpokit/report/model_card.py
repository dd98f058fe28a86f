"""The README.md of an exported model: what it was trained from, on what, with which rewards, and what that changed.

All of it comes from the run's files, so nobody has to remember it, and a hub reads the facts at the top.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from grpokit.errors import counted
from grpokit.report.scores import Change, changes
from grpokit.report.view import as_yaml
from grpokit.run_folder.reader import Run
from grpokit.run_folder.scales import packages_of


def model_card(run: Run, *, step: int, title: str, facts: Mapping[str, str]) -> str:
    """A model card in Markdown.

    Args:
        run: the run that the model comes from.
        step: training steps that the exported weights have behind them.
        title: of the card; it stands for `FOLDER` in the code that loads the model.
        facts: from the policy, all optional: `base_model`, `library_name`, `versions`, and `usage`, code that loads
            the folder.
    """
    base = facts.get("base_model")
    header = {
        **({"base_model": base} if base and _is_hub_id(base) else {}),
        **({"library_name": facts["library_name"]} if "library_name" in facts else {}),
        **_dataset(run),
        "tags": ["grpo", "grpokit", "reinforcement-learning"],
    }
    sections = [
        f"---\n{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---",
        f"# {title}",
        f"{f'`{base}`' if base else 'A model'}, post-trained for {counted(step, 'step')} with GRPO by "
        "[grpokit](https://pypi.org/project/grpokit).",
    ]
    if "usage" in facts:
        code = facts["usage"].replace("BASE_MODEL", base or "BASE_MODEL").replace("FOLDER", title)
        sections += ["## Use", f"```python\n{code.rstrip()}\n```"]
    sections += ["## Training", "\n".join(_training(run, step)), "\n".join(_rewards(run))]
    sections += ["## Held-out scores", "\n".join(_scores(run, step))]
    sections += ["## Reproduce", _versions(run.versions, facts.get("versions", ""))]
    sections += [f"The whole config:\n\n````yaml\n{run.config.rstrip()}\n````"]
    return "\n\n".join(section for section in sections if section) + "\n"


def _dataset(run: Run) -> dict[str, list[str]]:
    name = _part(run, "data").get("dataset")
    return {"datasets": [name]} if isinstance(name, str) and _is_hub_id(name) else {}


def _is_hub_id(name: str) -> bool:
    """A hub refuses a card whose header names a folder."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None and not name.startswith(".") and not Path(name).exists()


def _part(run: Run, key: str) -> Mapping[str, Any]:
    part = run.settings.get(key)
    return part if isinstance(part, dict) else {}


def _training(run: Run, step: int) -> Iterator[str]:
    trainer, data, policy = _part(run, "trainer"), _part(run, "data"), _part(run, "policy")
    source = next((data[key] for key in ("dataset", "prompts", "use") if data.get(key)), "unknown")
    own = {key: value for key, value in policy.items() if key != "use" and value is not None}
    rows = {
        "policy": f"{policy.get('use', 'unknown')} {as_yaml(own) if own else ''}",
        "data": source,
        "steps": step,
        "prompts per step": trainer.get("prompts_per_step"),
        "samples per prompt": trainer.get("group_size"),
        "learning rate": trainer.get("learning_rate"),
        "objective": as_yaml(trainer.get("objective")),
        "advantage": as_yaml(trainer.get("advantage")),
        "kl_coef": trainer.get("kl_coef"),
        "seed": run.settings.get("seed"),
    }
    yield "| | |\n|---|---|"
    yield from (f"| {key} | {_cell(value)} |" for key, value in rows.items() if value is not None)


def _rewards(run: Run) -> Iterator[str]:
    weights = {name: weight for name, weight in run.weights.items() if name != "reward"}
    yield "| reward | weight |\n|---|---|"
    for name, weight in weights.items():
        yield f"| {_cell(name)} | {f'{weight:g}' if weight else '0 (only measured)'} |"


def _scores(run: Run, step: int) -> Iterator[str]:
    """Before and after; the last evaluation that the exported weights have behind them."""
    known = [row for row in run.evaluations if row["step"] <= step]
    if len(known) < 2:
        yield "The run has no evaluation before and after training."
        return
    first, last = known[0], known[-1]
    when = "" if last["step"] == step else f" The last evaluation was made after step {last['step']}, not {step}."
    yield f"Means with 95 % confidence intervals over prompts.{when}\n"
    yield f"| | before (step {first['step']}) | after (step {last['step']}) | change |\n|---|---|---|---|"
    for change in changes(first, last, run.scored(first["step"]), run.scored(last["step"]), run.weights):
        yield f"| {_cell(change.name)} | {_mean(change, 'before')} | {_mean(change, 'after')} | {_change(change)} |"


def _mean(change: Change, side: str) -> str:
    mean, width = (change.before, change.before_width) if side == "before" else (change.after, change.after_width)
    if mean is None:
        return "not scored"
    return f"{mean:.3f}" if width is None else f"{mean:.3f} ± {width:.3f}"


def _change(change: Change) -> str:
    if change.change is None:
        return "–"
    return f"{change.change:+.3f}" if change.width is None else f"{change.change:+.3f} ± {change.width:.3f}"


def _versions(text: str, further: str) -> str:
    versions = packages_of(text)
    plugins = versions.get("plugins")
    names = [f"{key} {value}" for key, value in versions.items() if isinstance(value, str)]
    names += [f"{package} {version}" for package, version in plugins.items()] if isinstance(plugins, dict) else []
    names += filter(None, [further])
    return f"Versions: {', '.join(dict.fromkeys(names))}." if names else ""


def _cell(value: Any) -> str:
    """A value that stays in its cell of a table."""
    return " ".join(str(value).split()).replace("|", "\\|")
