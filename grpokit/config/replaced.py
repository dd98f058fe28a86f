"""What a config says of a component that an override has replaced by another one."""

from __future__ import annotations

import warnings
from typing import Any

from grpokit import registry
from grpokit.config.overrides import key_value
from grpokit.config.parts import OBJECTIVE_KEYS, RewardConfig
from grpokit.config.yaml_source import KeyPlaces
from grpokit.errors import PluginError


def leave_out(data: dict[str, Any], override: str, source: KeyPlaces) -> None:
    """Leave out the keys of the former objective, advantage or reward that the new one does not take, with a warning.

    So `trainer.objective=dppo` trains a preset that sets `clip_range`. Keys that overrides set stay.

    Args:
        data: the config with all overrides, changed in place.
        override: one of them.
        source: the places of the config's keys.
    """
    dotted_key, _ = key_value(override)
    path = tuple(int(part) if part.isdigit() else part for part in dotted_key.split("."))
    where = path[:-1] if path[-1] == "use" else path
    kind = "reward" if where[-2:-1] == ("rewards",) else where[-1] if where else ""
    if kind not in ("reward", "objective", "advantage"):
        return
    around: Any = data
    try:
        for key in where[:-1]:
            around = around[key]
        own = around[where[-1]]
    except (KeyError, IndexError, TypeError):  # a later override replaced what was around it
        return
    name: Any = own.get("use") if isinstance(own, dict) else own
    try:
        takes, takes_all = registry.declared_parameters(str(kind), name)
    except (PluginError, TypeError, AttributeError):  # no name, or of nothing: building it says so
        return
    if takes_all:
        return
    general = RewardConfig.model_fields if kind == "reward" else ("use",)
    groups = [(where, own, [key for key in own if key not in general])] if isinstance(own, dict) else []
    if kind == "objective":
        groups.append((where[:-1], around, list(OBJECTIVE_KEYS)))
    for place, group, keys in groups:
        for key in keys:
            if key in group and key not in takes and source.in_file((*place, key)):
                del group[key]
                dotted = ".".join(map(str, (*place, key)))
                warnings.warn(
                    f"{source.name} sets {dotted}, which the {kind} '{name}' does not have: it is left out.",
                    stacklevel=2,
                )
