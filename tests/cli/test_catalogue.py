"""All that is known of components: what is installed comes first, then what pip can add with its command."""

from __future__ import annotations

import json
from itertools import groupby

import pytest

from command_line import Call
from grpokit import registry
from grpokit.cli import catalogue
from grpokit.registry import shipped
from grpokit.registry.entry_points import COMPONENT_KINDS


@pytest.mark.usefixtures("core_alone")
def test_every_component_of_ours_is_known() -> None:
    rows = catalogue.rows([])
    here = {(row.kind, row.name) for row in rows if row.state == "ok"}
    elsewhere = {(row.kind, row.name): row for row in rows if row.state == "not installed"}
    entries = {(kind, name): entry for kind, name, entry in shipped.entries() if "extra" in entry}
    assert here == {(spec.kind, spec.name) for plugin in registry.plugins() for spec in plugin.specs}
    assert elsewhere.keys() == entries.keys()
    assert len(elsewhere) > 60
    assert all(row.summary and row.install == shipped.install(*key) for key, row in elsewhere.items())
    assert "pip install" in elsewhere["reward", "lpips"].install
    assert "GPU" in elsewhere["preset", "glm-image-t2i"].summary


@pytest.mark.usefixtures("core_alone")
def test_the_order_is_that_of_groups_and_what_is_installed_comes_first() -> None:
    rows = catalogue.rows([])
    groups = [group for group, _ in groupby(rows, key=lambda row: row.group)]
    assert groups == [group for group in catalogue.GROUPS if group in groups]
    assert groups[0] == "reward"
    for _, some in groupby(rows, key=lambda row: row.group):
        states = [state for state, _ in groupby(some, key=lambda row: row.state)]
        assert states in (["ok"], ["ok", "not installed"], ["not installed"])
    statistics = {row.name for row in rows if row.group == "statistic"}
    assert {"brightness", "contrast"} <= statistics
    assert not {"length", "ssim"} & statistics


@pytest.mark.usefixtures("core_alone")
def test_each_group_ends_with_the_commands_that_add_to_it(call: Call) -> None:
    said = call("plugins", "--kind", "advantage").out
    assert "pip install" not in said
    lines = call("plugins", "--kind", "world").out.splitlines()
    place = lines.index(f"  not installed: {shipped.install('world', 'calculator')}")
    assert [line.split()[0] for line in lines[place + 1 : place + 3]] == ["calculator", "guess-the-number"]
    assert json.loads(call("plugins", "--kind", "world", "--json").out) == []  # programs ask what they can use
    assert [row["state"] for row in json.loads(call("plugins", "--search", "calculator", "--json").out)] == [
        "not installed"
    ]


def test_every_kind_has_its_place() -> None:
    assert set(catalogue.kinds()) == set(COMPONENT_KINDS)
    known = [kind for kind in catalogue.kinds() if kind in catalogue.GROUPS]
    assert known == [group for group in catalogue.GROUPS if group in known]
    assert catalogue.kinds()[: len(known)] == known  # a kind that is new here comes last
