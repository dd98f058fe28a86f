"""What is looked at, in the order in which a signal goes: reward, groups, gradient, update, evaluation.

A link that is broken makes all behind it look bad, so the first broken one is the first cause.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpokit_diagnosis.evidence import Evidence, Look
from grpokit_diagnosis.looks.evaluation import evaluation_looks
from grpokit_diagnosis.looks.gradient import gradient_looks
from grpokit_diagnosis.looks.groups import group_looks
from grpokit_diagnosis.looks.reward import reward_looks
from grpokit_diagnosis.looks.update import update_looks


def looks(evidence: Evidence) -> Iterator[Look]:
    """All that can be said of a run, in order."""
    broken = False
    for part in (reward_looks, group_looks, gradient_looks):
        for look in part(evidence):
            broken = broken or look.cause is not None
            yield look
    yield from update_looks(evidence, follows=broken)
    yield from evaluation_looks(evidence)
