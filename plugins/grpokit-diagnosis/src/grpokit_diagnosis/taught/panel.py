"""The panel "What the reward taught" of a run or an evaluation."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from grpokit import Panel, PanelTable
from grpokit.errors import plural
from grpokit.evaluation.paired import Change
from grpokit.report.verdict import headline, main_change
from grpokit.run_folder.reader import RunHistory
from grpokit_diagnosis.diagnosis import place_of
from grpokit_diagnosis.taught.folder import material
from grpokit_diagnosis.taught.measure import Material, Shift, explanation, named, shifts
from grpokit_diagnosis.taught.sentence import sentence

TITLE = "What the reward taught"


def taught_panels(run: RunHistory) -> list[Panel]:
    """The panel of a run that was evaluated twice; none where no statistic suits its outputs."""
    found = material(run)
    if found is None or not found.statistics:
        return []
    every = shifts(found, run.weights)
    if not any(shift.before is not None for shift in every):
        return []
    changes = headline(run)
    gold = [change for change in changes if change.monitor and change.name not in run.statistics]
    main = main_change(changes)
    rose = main is not None and main.verdict == "better"
    fallen = [change for change in gold if change.verdict == "worse"] if rose else []
    answer = sentence(named(every, found.before), explanation(every), fallen, rose=rose)
    tables = [_table_of(every)]
    if run.taught and gold:
        tables.append(_table_of_gold(gold))
    return [Panel(title=TITLE, text=[answer, _basis(run, found)], tables=tables)]


def _table_of(every: Sequence[Shift]) -> PanelTable:
    head = ["statistic", "before", "after", "change (SD)", "±", "correlation"]
    rows = [[shift.name, shift.before, shift.after, shift.change, shift.width, shift.correlation] for shift in every]
    return PanelTable(caption="Statistics of the outputs", head=head, rows=rows)


def _table_of_gold(gold: Sequence[Change]) -> PanelTable:
    rows = [[change.name, change.before, change.after, change.change, change.width] for change in gold]
    return PanelTable(
        caption="Rewards that were not trained on", head=["reward", "before", "after", "change", "±"], rows=rows
    )


def _basis(run: RunHistory, found: Material) -> str:
    """From how many samples it comes, and what a spread is."""
    samples = plural(len(found.before.prompt), "held-out sample")
    text = f"From {samples} of {found.labels[0]} and of {found.labels[1]}, paired by prompt and seed. "
    text += "A change of 1 is one standard deviation over the samples before. "
    if found.groups is not None:
        rows = plural(len(found.groups.prompt), "sample")
        groups = plural(len({*found.groups.prompt}), "group")
        origin = "drawn as in training" if run.taught else "of training"
        text += f"The correlations are with the reward within groups: {rows} of {groups} {origin}. "
    if not run.taught:
        name = "RUN" if "sources" in run.settings else str(place_of(run))  # an evaluation is no run
        command = shlex.join(["grpokit", "evaluate", name, "--taught"])
        text += f"To measure it in full: `{command}`"
    return text.strip()
