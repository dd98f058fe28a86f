"""`grpokit presets`: what specs and configs say of each preset, for people and as JSON."""

from __future__ import annotations

import json

import yaml

from command_line import Call
from grpokit import registry


def test_what_each_preset_trains_needs_and_takes(call: Call) -> None:
    presets = {preset["name"]: preset for preset in json.loads(call("presets", "--json").out)}
    assert set(presets) == {spec.name for _, spec in registry.installed("preset")}
    glyph = presets["toy-glyph"]
    assert (glyph["policy"], glyph["rewards"], glyph["steps"]) == ("toy-glyph", ["ssim", "ocr"], 70)
    assert glyph["plugins"] == ["grpokit-ocr", "grpokit-ssim", "grpokit-toy"]
    assert presets["glm-image-halves-tiny"]["steps"] == 40  # two rounds of two phases
    assert not [preset["problem"] for preset in presets.values() if preset["problem"]]
    for preset in presets.values():
        assert bool(preset["needs"]) == preset["fetches"], preset["name"]
    done = call("presets")
    assert (done.code, done.err) == (0, "")
    assert "  trains   toy-glyph by ssim, ocr, 70 steps\n" in done.out
    assert f"  takes    {glyph['takes']}\n" in done.out


def test_one_preset_is_shown_with_its_config(call: Call) -> None:
    shown = json.loads(call("presets", "toy-flow", "--json").out)
    assert (shown["steps"], yaml.safe_load(shown["config"])["trainer"]["group_size"]) == (300, 32)
    done = call("presets", "toy-flow")
    assert shown["config"] in done.out
    assert "toy-glyph" not in done.out
    assert call("presets", "toy-flwo").code == 2
