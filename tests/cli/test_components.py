"""`grpokit plugins`: presets say what they need and take, and one of them is shown with its config."""

from __future__ import annotations

import json

import yaml

from command_line import Call
from grpokit import registry
from grpokit.registry.specs import PresetSpec


def test_what_each_preset_needs_and_takes(call: Call) -> None:
    rows = {row["name"]: row["summary"] for row in json.loads(call("plugins", "--json").out) if row["kind"] == "preset"}
    specs = [spec for _, spec in registry.installed("preset") if isinstance(spec, PresetSpec)]
    assert set(rows) == {spec.name for spec in specs}
    for spec in specs:
        assert bool(spec.needs) == spec.fetches, spec.name
        assert spec.needs in rows[spec.name]
        assert spec.takes in rows[spec.name]


def test_one_preset_is_shown_with_its_config(call: Call) -> None:
    of_policy, shown = json.loads(call("plugins", "toy-flow", "--json").out)
    assert (of_policy["kind"], shown["kind"], shown["problem"]) == ("policy", "preset", "")
    assert yaml.safe_load(shown["config"])["trainer"]["group_size"] == 32
    done = call("plugins", "toy-flow")
    assert shown["config"] in done.out
    assert f"  takes    {shown['takes']}\n" in done.out
    assert call("plugins", "toy-flwo").code == 2
