"""Announces the objectives `opd`, `dgpo` and `crd` to grpokit.

A light module: it imports only grpokit.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import ObjectiveSpec, hookimpl

_INSTALL = "pip install 'grpokit[methods]'"


@hookimpl
def grpokit_objectives() -> Iterator[ObjectiveSpec]:
    """Yield them."""
    for name, factory, summary in (
        (
            "opd",
            "opd:OPD",
            "on-policy distillation: the KL to a teacher, at decisions that the student drew; needs no reward",
        ),
        ("dgpo", "dgpo:DGPO", "a group's good samples against its bad ones, by their errors; flows with matching"),
        ("crd", "crd:CRD", "a policy's own reward follows the given one inside each group; flows with matching"),
    ):
        yield ObjectiveSpec(api=1, name=name, factory=f"grpokit_methods.{factory}", summary=summary, install=_INSTALL)
