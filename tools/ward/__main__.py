"""The ward's command: `python tools/ward train | table | diagnose | healthy [WORD ...]`.

train     trains healthy bases and sick runs, those whose name or cause holds a word
table     writes what became of them, as measured.md beside the file of cases
diagnose  diagnoses the sick runs, follows the advice, and says whether it healed them
healthy   trains presets as they are, and diagnoses them; expected is no cause
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # where a folder is run, its own path stands here

from ward import patients, treatment
from ward.patients import Base, Case, Patients
from ward.treatment import Outcome


def main(words: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="tools/ward", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("act", choices=["train", "table", "diagnose", "healthy"])
    parser.add_argument("words", nargs="*", help="parts of names or causes; without any, all")
    parser.add_argument("--patients", type=Path, default=patients.FILE, help="the file of cases")
    parser.add_argument("--home", type=Path, default=Path("runs/ward"), help="the folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="of each run")
    parser.add_argument("--jobs", type=int, default=1, help="runs that train at a time")
    arguments = parser.parse_args(words)
    arguments.home.mkdir(parents=True, exist_ok=True)
    acts = {"train": train, "table": table, "diagnose": diagnose, "healthy": healthy}
    return acts[arguments.act](patients.read(arguments.patients), arguments)


def train(ward: Patients, arguments: argparse.Namespace) -> int:
    """Train the cases and their bases."""
    cases = ward.named(arguments.words)
    runs = list({case.base.name: (case.healthy, "reward") for case in cases}.values())
    runs += [(case.run, case.score) for case in cases]
    jobs = [(*run, seed) for run in runs for seed in arguments.seeds]

    def one(job: tuple[Base, str, int]) -> None:
        run, score, seed = job
        folder = treatment.train(run, arguments.home, seed)
        print(f"{run.name} seed {seed}: {_brief(treatment.outcome(folder, score))}", flush=True)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(one, jobs))
    return 0


def _brief(outcome: Outcome) -> str:
    stopped = f"; it stopped: {outcome.error[:160]}" if outcome.error else ""
    return (
        f"training {outcome.first:.3f} -> {outcome.last:.3f}, held-out {outcome.change:+.3f} ± {outcome.width:.3f}, "
        f"{outcome.seconds:.0f} s{stopped}"
    )


def table(ward: Patients, arguments: argparse.Namespace) -> int:
    """Write what became of the trained cases and their bases; returns 1 where a case is no case."""
    lines = [
        "For each seed: the training score in the first and the last quarter of the steps, and the change of the",
        "held-out score with its 95 % interval; none where a run stopped before its second evaluation. Written by",
        "`python tools/ward table`; seconds are those of a sick run, on a machine that had more to do.",
        "",
        "| case | cause | symptom | base: training | base: held-out | sick: training | sick: held-out | seconds |",
        "|---|---|---|---|---|---|---|---:|",
    ]
    wrong = []
    for case in ward.named(arguments.words):
        pairs = [_pair(case, arguments.home, seed) for seed in arguments.seeds if _is_there(case, arguments.home, seed)]
        bases = [base for base, _ in pairs]
        sick = [own for _, own in pairs]
        cells = [_training(bases), _held_out(bases), _training(sick), _held_out(sick)]
        seconds = min((each.seconds for each in sick), default=0)  # on a busy machine the others take longer
        lines.append(f"| {case.name} | {case.cause} | {case.symptom} | {' | '.join(cells)} | {seconds:.0f} |")
        if not pairs or any(own.rises or not base.rises for base, own in pairs):
            wrong.append(case.name)
    text = "\n".join(lines) + "\n"
    print(text)
    if wrong:
        print(f"No case, since the base does not rise or the sick run does: {', '.join(wrong)}")
    elif not arguments.words:
        arguments.patients.with_name("measured.md").write_text(text, encoding="utf-8")
    return 1 if wrong else 0


def _pair(case: Case, home: Path, seed: int) -> tuple[Outcome, Outcome]:
    """The base and the sick run of a case."""
    base = treatment.folder_of(home, case.healthy.name, seed)
    own = treatment.folder_of(home, case.name, seed)
    return treatment.outcome(base, case.score), treatment.outcome(own, case.score)


def _is_there(case: Case, home: Path, seed: int) -> bool:
    """Whether both runs are trained as the case has them now."""
    return all(treatment.is_trained(run, home, seed) for run in (case.healthy, case.run))


def _training(outcomes: Sequence[Outcome]) -> str:
    return "; ".join(f"{each.first:.3g} → {each.last:.3g}" for each in outcomes)


def _held_out(outcomes: Sequence[Outcome]) -> str:
    return "; ".join(_change(each) for each in outcomes)


def _change(outcome: Outcome) -> str:
    return "none" if math.isnan(outcome.change) else f"{outcome.change:+.3g} ± {outcome.width:.2g}"


def diagnose(ward: Patients, arguments: argparse.Namespace) -> int:
    """Diagnose and treat the sick runs; returns 1 where the right cause is not named, or the advice does not heal.

    The whole ward is also written as a table beside the file of cases.
    """
    count = {"first": 0, "named": 0, "healed": 0}
    jobs = [(case, seed) for case in ward.named(arguments.words) for seed in arguments.seeds]
    rows = []
    for case, seed in jobs:
        result = treatment.treated(case, arguments.home, seed)
        count["first"] += result.causes[:1] == [case.cause]
        count["named"] += case.cause in result.causes
        count["healed"] += result.healed
        named = ", ".join(result.causes) or "no cause"
        print(f"{case.name} seed {seed}: {case.cause} expected, {named} named; {' '.join(result.advice)}")
        print(f"  sick: {_brief(result.sick)}\n  {'healed' if result.healed else 'NOT HEALED'}: {_brief(result.after)}")
        advice = " ".join(f"`{word}`" for word in result.advice)
        healed = _change(result.after) if result.healed else f"{_change(result.after)}, not healed"
        rows.append(f"| {case.name} | {seed} | {named} | {advice} | {_change(result.sick)} | {healed} |")
    total = (
        f"Of {len(jobs)} runs the right cause came first in {count['first']} and was among three in {count['named']}; "
        f"the advice healed {count['healed']}."
    )
    print(total)
    if not arguments.words:
        _write_diagnosed(arguments.patients, rows, total)
    return 0 if count["named"] == count["healed"] == len(jobs) else 1


def _write_diagnosed(patients: Path, rows: Sequence[str], total: str) -> None:
    """Write what was named, what was followed, and what that did to the score on held-out prompts."""
    head = ["| case | seed | named | followed | held-out, sick | held-out, treated |", "|---|---:|---|---|---:|---:|"]
    text = "\n".join([total, "Written by `python tools/ward diagnose`.", "", *head, *rows])
    patients.with_name(f"{patients.stem}.diagnosed.md").write_text(f"{text}\n", encoding="utf-8")


def healthy(ward: Patients, arguments: argparse.Namespace) -> int:
    """Train the presets as they are, and diagnose them; returns 1 where a cause is named."""
    alarms = 0
    jobs = [(base, seed) for base in ward.healthy if _named(base, arguments.words) for seed in arguments.seeds]
    for base, seed in jobs:
        folder = treatment.train(base, arguments.home, seed)
        causes = [cause["id"] for cause in treatment.diagnosed(folder)]
        alarms += bool(causes)
        print(f"{base.name} seed {seed}: {', '.join(causes) or 'no cause'}; {_brief(treatment.outcome(folder))}")
    print(f"{alarms} false alarms in {len(jobs)} runs")
    return 1 if alarms else 0


def _named(base: Base, words: Sequence[str]) -> bool:
    return not words or any(word in base.name for word in words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
