"""The README.md of an exported model: what it was trained from, on what, with which rewards, and what that changed.

All of it comes from the run's files, so nobody has to remember it, and a hub reads the facts at the top.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from grpokit.errors import plural
from grpokit.evaluation.paired import changes
from grpokit.report.verdict import format_score
from grpokit.report.view import as_yaml, settings_of
from grpokit.run_folder.reader import RunHistory
from grpokit.run_folder.scales import packages_of


def model_card(run: RunHistory, *, step: int, title: str, facts: Mapping[str, str]) -> str:
    """A model card in Markdown.

    Args:
        run: the run that the model comes from.
        step: training steps that the exported weights have behind them.
        title: of the card; it stands for `FOLDER` in the code that loads the model.
        facts: from the policy, all optional: `base_model`, `library_name`, `versions`, and `usage`, code that loads
            the folder.
    """
    base = facts.get("base_model")
    header: dict[str, Any] = {}
    if base and _is_hub_id(base):
        header["base_model"] = base
    if "library_name" in facts:
        header["library_name"] = facts["library_name"]
    dataset = settings_of(run, "data").get("dataset")
    if isinstance(dataset, str) and _is_hub_id(dataset):
        header["datasets"] = [dataset]
    header["tags"] = ["grpo", "grpokit", "reinforcement-learning"]
    sections = [
        f"---\n{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---",
        f"# {title}",
        f"{f'`{base}`' if base else 'A model'}, post-trained for {plural(step, 'step')} with GRPO by "
        "[grpokit](https://pypi.org/project/grpokit).",
    ]
    if "usage" in facts:
        code = facts["usage"]
        if base:
            code = code.replace("BASE_MODEL", base)
        code = code.replace("FOLDER", title).rstrip()
        sections += ["## Use", f"```python\n{code}\n```"]
    sections += [
        "## Training",
        "\n".join(_training(run, step)),
        "\n".join(_rewards(run)),
        "## Held-out scores",
        "\n".join(_scores(run, step)),
        "## Reproduce",
        _versions(run.versions, facts.get("versions", "")),
        f"The whole config:\n\n````yaml\n{run.config.rstrip()}\n````",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _is_hub_id(name: str) -> bool:
    """A hub refuses a card whose header names a folder."""
    has_form = re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None
    return has_form and not name.startswith(".") and not Path(name).exists()


def _training(run: RunHistory, step: int) -> Iterator[str]:
    trainer = settings_of(run, "trainer")
    data = settings_of(run, "data")
    policy = dict(settings_of(run, "policy"))
    name = policy.pop("use", "unknown")
    parameters = {key: value for key, value in policy.items() if value is not None}
    rows = {
        "policy": f"{name} {as_yaml(parameters) if parameters else ''}",
        "data": data.get("dataset") or data.get("prompts") or data.get("use") or "unknown",
        "steps": step,
        "prompts per step": trainer.get("prompts_per_step"),
        "samples per prompt": trainer.get("group_size"),
        "learning rate": trainer.get("learning_rate"),
        "objective": as_yaml(trainer.get("objective")),
        "advantage": as_yaml(trainer.get("advantage")),
        "modifiers": as_yaml(trainer["modifiers"]) if trainer.get("modifiers") else None,
        "kl_coef": trainer.get("kl_coef"),
        "seed": run.settings.get("seed"),
    }
    yield "| | |\n|---|---|"
    for key, value in rows.items():
        if value is not None:
            yield f"| {key} | {_cell(value)} |"


def _rewards(run: RunHistory) -> Iterator[str]:
    weights = {name: weight for name, weight in run.weights.items() if name != "reward"}
    yield "| reward | weight |\n|---|---|"
    for name, weight in weights.items():
        yield f"| {_cell(name)} | {f'{weight:g}' if weight else '0 (only measured)'} |"


def _scores(run: RunHistory, step: int) -> Iterator[str]:
    """Before and after; the last evaluation that the exported weights have behind them."""
    known = [row for row in run.evaluations if row["step"] <= step]
    if len(known) < 2:
        yield "The run has no evaluation before and after training."
        return
    first, last = known[0], known[-1]
    when = "" if last["step"] == step else f" The last evaluation was made after step {last['step']}, not {step}."
    yield f"Means with 95 % confidence intervals over prompts.{when}\n"
    yield f"| | before (step {first['step']}) | after (step {last['step']}) | change |\n|---|---|---|---|"
    old = run.scored(first["step"])
    new = run.scored(last["step"])
    for change in changes(first, last, old, new, run.weights):
        before = format_score(change.before, change.before_width)
        after = format_score(change.after, change.after_width)
        difference = format_score(change.change, change.width, sign="+")
        yield f"| {_cell(change.name)} | {before} | {after} | {difference} |"


def _versions(text: str, further: str) -> str:
    versions = packages_of(text)
    plugins = versions.get("plugins")
    names = [f"{key} {value}" for key, value in versions.items() if isinstance(value, str)]
    if isinstance(plugins, dict):
        names += [f"{package} {version}" for package, version in plugins.items()]
    if further:
        names.append(further)
    return f"Versions: {', '.join(dict.fromkeys(names))}." if names else ""


def _cell(value: Any) -> str:
    """A value that stays in its cell of a table."""
    return " ".join(str(value).split()).replace("|", "\\|")
