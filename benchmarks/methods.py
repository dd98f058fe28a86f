"""Methods for flows side by side: equal samples and equal seconds, held out, several seeds, each at its best rate.

    python benchmarks/methods.py toy-flow          # runs what benchmarks/methods.json does not have yet
    python benchmarks/methods.py glm-glyph-dit
    python benchmarks/methods.py --write           # draws the tables of docs/benchmarks.md again, and runs nothing

A suite takes three stages. `time`: the methods take turns, and the median of the CPU seconds of their steps counts.
`choose`: each method is run with three learning rates on seeds of their own. The best mean held-out reward wins; where
it is at the edge of the rates, the next one is run as well. `measure`: other seeds, at the rate that won. A run goes on
to the larger of two numbers of steps, that of equal samples and that of the baseline's seconds, and is scored at both.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import resource
import statistics
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lm_job.tables import write

from grpokit.evaluation.intervals import half_width

RESULTS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BASELINE, STUDENT = "grpo", "opd, two teachers"
STEPS = (10, 20, 40, 500)  # of samplers before training

Scores = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A preset, and what is compared on it.

    Attributes:
        preset: its name.
        settings: of every run.
        methods: name -> further settings.
        teachers: name -> the settings in which its run differs from the baseline's.
        steps: of equal samples.
        rates: of the first runs, from which the best is chosen.
        choosing: seeds for that.
        measuring: seeds of the table.
        samples: for each held-out prompt.
        rounds: of `time`.
        one_pass: whether the policy is small enough to score all decisions of a row at once.
        columns: scores of the table, beside the reward.
        teacher_scores: teacher -> the score that it is to raise.
    """

    preset: str
    settings: Sequence[str]
    methods: Mapping[str, Sequence[str]]
    teachers: Mapping[str, Sequence[str]]
    steps: int
    rates: Sequence[float]
    choosing: Sequence[int]
    measuring: Sequence[int]
    samples: int
    rounds: int
    one_pass: bool
    columns: Sequence[str]
    teacher_scores: Mapping[str, str]


def methods(
    *, drawn: Sequence[str], copies: int, updates: int, kl_coef: float, threshold: float, beta: float
) -> dict[str, list[str]]:
    """The methods with their settings. A KL to the start is the same for all, but for opd, which has teachers.

    Args:
        drawn: how samples are drawn of which noised copies are made.
        copies: the number of noised copies of a sample.
        updates: of a step. Averages follow after the last one, as in DiffusionNFT.
        kl_coef: of the KL.
        threshold: of dppo.
        beta: of dgpo.
    """
    kl = ["trainer.kl=velocity", f"trainer.kl_coef={kl_coef}"]
    by_time = [*drawn, f"policy.matching={{times: {copies}, weight: t}}", *kl]
    alike = [*drawn, f"policy.matching={{times: {copies}, weight: uniform}}", *kl]
    shared = [*drawn, f"policy.matching={{times: {copies}, weight: uniform, shared_noise: true}}", *kl]
    nft = [*by_time, "trainer.objective={use: nft, beta: 0.1}"]
    dgpo = [*shared, f"trainer.objective={{use: dgpo, beta: {beta}}}"]
    crd = [*alike, "trainer.objective=crd"]
    return {
        "grpo": kl,
        "grpo, kl 0.003": [*kl, "trainer.kl_coef=0.003"],
        "grpo, cps": ["policy.sampler=cps", "policy.noise=0.8", *kl],
        "grpo, guard": ["trainer.ratio=guard", "policy.step_weight=guard", *kl],
        "dppo": [f"trainer.objective={{use: dppo, threshold: {threshold}}}", *kl],
        "awm": by_time,
        "awm, shared noise": shared,
        "nft": nft,
        "nft, kl 0.1": [*nft, "trainer.kl_coef=0.1"],
        "nft, average": [*nft, f"policy.old_ema={{decay: 0.5, ramp: 0.001, every: {updates}}}"],
        "dgpo": dgpo,
        "dgpo, kl 0.1": [*dgpo, "trainer.kl_coef=0.1"],
        "crd": [*crd, f"policy.old_ema={{decay: 0.5, ramp: 0.001, every: {updates}}}"],
        "crd, slow average": [*crd, f"policy.old_ema={{decay: 0.999, ramp: 0.005, every: {updates}}}"],
        STUDENT: ["trainer.objective=opd"],
    }


def nine(every: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """The methods without the variants that only toy-flow has time for."""
    names = (BASELINE, "grpo, guard", "dppo", "awm", "nft", "nft, average", "dgpo", "crd", STUDENT)
    return {name: every[name] for name in names}


SUITES = {
    "toy-flow": Suite(
        preset="toy-flow",
        settings=["data.use=methods:rings", "trainer.steps=100000"],
        methods=methods(
            drawn=["policy.sampler=ode", "policy.noise=null"],
            copies=10,
            updates=4,
            kl_coef=0.03,
            threshold=1e-3,
            beta=1,
        ),
        teachers={"small": ["data.only=small"], "large": ["data.only=large"]},
        steps=60,
        rates=(1e-3, 3e-3, 1e-2),
        choosing=(101, 102, 103),
        measuring=(1, 2, 3, 4, 5),
        samples=64,
        rounds=12,
        one_pass=True,
        columns=("spread",),
        teacher_scores={"small": "small", "large": "large"},
    ),
    "glm-glyph-dit": Suite(
        preset="glm-glyph-dit",
        settings=[
            "policy.lora={r: 16, alpha: 32}",
            "trainer.steps=100000",
            "trainer.group_size=8",
            "trainer.minibatches=2",
        ],
        methods=nine(
            methods(
                drawn=["policy.sampler=ode", "policy.window=null"],
                copies=2,
                updates=2,
                kl_coef=0,
                threshold=1e-5,
                beta=100,
            )
        ),
        teachers={
            "words": ["rewards=[{use: ocr}, {use: ssim, weight: 0}]"],
            "sharpness": ["rewards=[{use: ssim}, {use: ocr, weight: 0}]"],
        },
        steps=20,
        rates=(3e-4, 1e-3, 3e-3),
        choosing=(101, 102),
        measuring=(1, 2, 3, 4, 5),
        samples=1,
        rounds=4,
        one_pass=False,
        columns=("ocr", "ssim"),
        teacher_scores={"words": "ocr", "sharpness": "ssim"},
    ),
}


def rings(split: str, only: str | None = None) -> list[Any]:
    """toy-flow's prompts, each with the teacher of its radius; those of one teacher alone, if one is named."""
    from grpokit_toy.flow import ring_prompts

    named = []
    for prompt in ring_prompts(split):
        radius = float(prompt.text.split()[-1])
        teacher = "small" if radius < 1 else "large"
        if only in (None, teacher):
            named.append(replace(prompt, meta={"teacher": teacher}))
    return named


class Run:
    """A run that is scored on held-out prompts.

    Args:
        suite: what it belongs to.
        settings: in which it differs from the suite's.
        rate: the learning rate.
        seed: of the run.
    """

    def __init__(self, suite: Suite, settings: Sequence[str], *, rate: float, seed: int) -> None:
        from grpokit.config import presets
        from grpokit.runs import build, build_rewards

        words = [*suite.settings, *settings, f"trainer.learning_rate={rate}", f"seed={seed}"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # settings of the preset's objective that another lacks
            config, _ = presets.read_config(suite.preset, words)
        policies = build.policies(config)
        self.policy: Any = next(iter(policies.values()))
        if suite.one_pass:
            self.policy.slices = lambda rollout: [slice(0, rollout.mask.shape[1])]
        self.rewards = build_rewards.rewards(config)
        prompts, self.held_out = build.prompts(config)
        self.trainer = build.trainer(config, policies, self.rewards, prompts)
        self.samples = suite.samples

    def step(self) -> float:
        """Train for a step; returns its CPU seconds, with those of child processes."""
        begin = _cpu_seconds()
        self.trainer.step()
        return _cpu_seconds() - begin

    def scores(self, *, as_in_training: bool = False) -> Scores:
        """The means on held-out prompts, from the same draws each time."""
        from grpokit import evaluate

        assert self.held_out is not None
        done = evaluate(
            self.policy,
            self.rewards,
            self.held_out,
            seed=0,
            samples_per_prompt=self.samples,
            batch_size=256,
            as_in_training=as_in_training,
        )
        return {**done.summary.means, **shape(done.samples, self.samples), **of_teachers(done)}


def shape(samples: Sequence[Any], each: int) -> Scores:
    """How points lie on their rings: the spread, 1 for a whole ring and 0 for a spot, and the one-sidedness."""
    if not isinstance(samples[0].output, tuple):
        return {}
    spreads, sides = [], []
    for start in range(0, len(samples), each):
        points = [complex(*sample.output) for sample in samples[start : start + each]]
        middle = sum(points) / each
        variance = sum(abs(point - middle) ** 2 for point in points) / (each - 1)
        spreads.append(math.sqrt(variance) / samples[start].output.radius)
        sides.append(abs(sum(point / abs(point) for point in points)) / each)
    return {"spread": statistics.mean(spreads), "one-sidedness": statistics.mean(sides)}


def of_teachers(done: Any) -> Scores:
    """The mean reward of the prompts of each teacher, where prompts name one."""
    totals: dict[str, list[float]] = {}
    for prompt, total in zip(done.prompts, done.scores.totals.tolist(), strict=True):
        if "teacher" in prompt.meta:
            totals.setdefault(prompt.meta["teacher"], []).append(total)
    return {name: statistics.mean(each) for name, each in totals.items()}


def before(suite: Suite) -> Scores:
    """The scores of the start."""
    return Run(suite, suite.methods[BASELINE], rate=suite.rates[0], seed=suite.choosing[0]).scores()


def run(suite: Suite, settings: Sequence[str], rate: float, seed: int, points: Sequence[int]) -> Scores:
    """A run's scores at some of its steps, by the step's number as text."""
    from grpokit import RunError

    learner = Run(suite, settings, rate=rate, seed=seed)
    found: Scores = {}
    try:
        for step in range(1, max(points) + 1):
            learner.step()
            if step in points:
                found[str(step)] = learner.scores()
    except RunError as error:
        return {**found, "failed": str(error)}
    if "spread" in suite.columns:
        found["drawn"] = learner.scores(as_in_training=True)
    return found


def teach(suite: Suite, teacher: str, rate: float, seed: int, file: Path) -> Scores:
    """Train a teacher by the baseline and leave its weights in a file; returns its scores."""
    settings = [*suite.methods[BASELINE], *suite.teachers[teacher]]
    learner = Run(suite, settings, rate=rate, seed=seed)
    for _ in range(suite.steps):
        learner.step()
    save(learner.policy, file)
    return {str(suite.steps): learner.scores()}


def taught_by(files: Mapping[str, Path]) -> str:
    """The setting that names a student's teachers."""
    return f"policy.teachers={json.dumps({name: str(file) for name, file in files.items()})}"


def save(policy: Any, file: Path) -> None:
    """Write a policy's weights, or a folder with its adapter."""
    from safetensors.torch import save_file

    from grpokit.runs.export import Exports

    if isinstance(policy, Exports):
        file.mkdir(parents=True, exist_ok=True)
        policy.export(file, merge=False)
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(policy.state_dict(), file)


def seconds(suite: Suite, folder: Path) -> dict[str, float]:
    """The median CPU seconds of a step of each method, which take turns."""
    rate, seed = suite.rates[0], suite.choosing[0]
    runs = {}
    for method, settings in suite.methods.items():
        own = list(settings)
        if method == STUDENT:  # untrained teachers cost as much
            start = folder / f"{suite.preset}-start"
            save(runs[BASELINE].policy, start)
            own.append(taught_by(dict.fromkeys(suite.teachers, start)))
        runs[method] = Run(suite, own, rate=rate, seed=seed)
    taken: dict[str, list[float]] = {method: [] for method in runs}
    for number in range(suite.rounds + 1):
        for method, learner in runs.items():
            spent = learner.step()
            if number:  # the first step sets up
                taken[method].append(spent)
    return {method: statistics.median(each) for method, each in taken.items()}


def spreads(suite: Suite) -> dict[str, float]:
    """The standard deviation of what each sampler draws before training, by sampler and steps."""
    found = {}
    for sampler in ("flow-sde", "dance-sde", "cps", "ode"):
        for steps in STEPS:
            own = [f"policy.sampler={sampler}", "policy.noise=null", f"policy.steps={steps}"]
            if sampler == "ode":
                own.append("policy.matching={times: 1}")
            found[f"{sampler} {steps}"] = _deviation(Run(suite, own, rate=suite.rates[0], seed=0))
    return found


def _deviation(run: Run) -> float:
    """Of both coordinates of points that are drawn as in training."""
    from grpokit.evaluation.held_out import draw

    assert run.held_out is not None
    points = draw(run.policy, run.held_out, seed=0, samples_per_prompt=1024, batch_size=4096, evaluate=False)
    numbers = [number for sample in points for number in sample.output]
    return statistics.pstdev(numbers)


class Study:
    """A suite with what is known of it.

    Args:
        name: of the suite.
        file: keeps the results of all suites.
    """

    def __init__(self, name: str, file: Path = RESULTS) -> None:
        self.name, self.suite, self.file = name, SUITES[name], file
        everything = json.loads(file.read_text()) if file.is_file() else {}
        self.known: dict[str, Any] = everything.get(name, {})
        self.runs: dict[str, Scores] = self.known.setdefault("runs", {})

    def keep(self) -> None:
        """Write what is known, beside the other suites."""
        everything = json.loads(self.file.read_text()) if self.file.is_file() else {}
        everything[self.name] = self.known
        rounded = json.loads(json.dumps(everything), parse_float=lambda number: round(float(number), 6))
        lines = json.dumps(rounded, indent=1, sort_keys=True)
        lines = re.sub(r"\{[^{}]*\}", lambda scores: " ".join(scores[0].split()), lines)  # one line for each score
        new = self.file.with_suffix(".new")
        new.write_text(lines + "\n")
        os.replace(new, self.file)

    def score(self, method: str, rate: float, seed: int, step: int | str, name: str = "reward") -> float | None:
        """A score of a run at a step: 0 if it failed, None if it has not been made."""
        found = self.runs.get(key(method, rate, seed))
        if found is None:
            return None
        if str(step) not in found:
            return 0.0 if "failed" in found else None
        value: float = found[str(step)][name]
        return value

    def choice(self, method: str) -> tuple[float | None, list[float]]:
        """The best rate, and the rates that are missing before it can be said."""
        rates = sorted(self.suite.rates)
        while True:
            means = {rate: self._mean(method, rate) for rate in rates}
            missing = [rate for rate, mean in means.items() if mean is None]
            if missing:
                return None, missing
            best = max(rates, key=lambda rate: means[rate] or 0.0)
            if best == rates[0]:
                rates.insert(0, next_rate(best, down=True))
            elif best == rates[-1]:
                rates.append(next_rate(best, down=False))
            else:
                return best, []

    def _mean(self, method: str, rate: float) -> float | None:
        scores = []
        for seed in self.suite.choosing:
            score = self.score(method, rate, seed, self.suite.steps)
            if score is None:
                return None
            scores.append(score)
        return statistics.mean(scores)

    def values(self, method: str, step: int | str, name: str = "reward") -> dict[int, float]:
        """The scores of the measured runs at a step, by seed."""
        rate, _ = self.choice(method)
        if rate is None:
            return {}
        scores = {seed: self.score(method, rate, seed, step, name) for seed in self.suite.measuring}
        return {seed: score for seed, score in scores.items() if score is not None}

    def mean(self, method: str, step: int | str, name: str) -> str:
        """The mean of a score over the seeds, with its 95 % interval."""
        values = self.values(method, step, name)
        return _interval(values, sign="")

    def cells(self, method: str, step: int) -> list[str]:
        """The reward at a step, and how much more it is than the baseline's of the same seed."""
        own = self.values(method, step)
        base = self.values(BASELINE, self.suite.steps)
        more = {seed: own[seed] - base[seed] for seed in own.keys() & base.keys()}
        return [_interval(own, sign=""), "" if method == BASELINE else _interval(more, sign="+")]

    def equal_seconds(self, method: str) -> int:
        """The number of steps that take the baseline's seconds."""
        costs = self.known["seconds"]
        return round(self.suite.steps * costs[BASELINE] / costs[method])

    def wanted(self, folder: Path) -> Iterator[tuple[str, partial[Scores]]]:
        """The runs that can be made now, with the keys of their results."""
        suite = self.suite
        for method in suite.methods:
            best, rates = self.choice(method)
            seeds, points = suite.choosing, {suite.steps}
            if best is not None:
                rates, seeds, points = [best], suite.measuring, {suite.steps, self.equal_seconds(method)}
            for rate, seed in itertools.product(rates, seeds):
                if self.score(method, rate, seed, max(points)) is None:
                    yield from self._jobs(method, rate, seed, sorted(points), folder)

    def _jobs(
        self, method: str, rate: float, seed: int, points: Sequence[int], folder: Path
    ) -> Iterator[tuple[str, partial[Scores]]]:
        """A run, or those of the teachers that it needs first, which learn at the baseline's rate."""
        settings = [*self.suite.methods[method]]
        if method == STUDENT:
            base, _ = self.choice(BASELINE)
            if base is None:
                return
            files = {name: folder / f"{self.name}-{name}-{base:g}-{seed}" for name in self.suite.teachers}
            lacking = [name for name, file in files.items() if not file.exists()]
            for name in lacking:
                yield key(f"teacher {name}", base, seed), partial(teach, self.suite, name, base, seed, files[name])
            if lacking:
                return
            settings.append(taught_by(files))
        yield key(method, rate, seed), partial(run, self.suite, settings, rate, seed, points)


def _interval(values: Mapping[int, float], *, sign: str) -> str:
    """A mean over seeds with half the width of its 95 % interval."""
    if not values:
        return "not run yet"
    numbers = list(values.values())
    width = half_width(numbers, list(values))
    return f"{statistics.mean(numbers):{sign}.3f} ± {width:.3f}"


def key(method: str, rate: float, seed: int) -> str:
    """What a run is called in the results."""
    return f"{method} | {rate:g} | {seed}"


def next_rate(rate: float, *, down: bool) -> float:
    """The neighbour in 1, 3, 10, 30, ...

    >>> next_rate(3e-3, down=False), next_rate(3e-3, down=True), next_rate(1e-2, down=True)
    (0.01, 0.001, 0.003)
    """
    one = f"{rate:e}".startswith("1")
    factor = (0.3 if one else 1 / 3) if down else (3 if one else 10 / 3)
    return float(f"{rate * factor:.0e}")


def make(study: Study, folder: Path, jobs: int) -> None:
    """Make all runs that are missing, each stage after the one that it needs."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_alone) as pool:
        first: dict[str, partial[Any]] = {
            "seconds": partial(seconds, study.suite, folder),
            "before": partial(before, study.suite),
        }
        if study.name == "toy-flow":
            first["spreads"] = partial(spreads, study.suite)
        for name, job in first.items():
            if name not in study.known:
                study.known[name] = pool.submit(job).result()
                study.keep()
        while wanted := dict(study.wanted(folder)):
            running = {pool.submit(job): name for name, job in wanted.items()}
            for done in as_completed(running):
                study.runs[running[done]] = done.result()
                study.keep()
                print(running[done], done.result(), file=sys.stderr, flush=True)


def _alone() -> None:
    """Hold a process to one thread."""
    import torch

    torch.set_num_threads(1)


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def table(study: Study) -> str:
    """What is known of the methods, as lines of Markdown."""
    suite, extra = study.suite, study.suite.columns
    head = ["method", "rate", "reward", f"minus {BASELINE}", *extra]
    head += ["CPU of a step", "steps in equal seconds", "reward then", f"minus {BASELINE} then"]
    lines = [_row(head), _row(["---"] * len(head))]
    before = study.known.get("before")
    if before:
        cells = ["before", "", f"{before['reward']:.3f}", "", *(f"{before[name]:.3f}" for name in extra)]
        lines.append(_row([*cells, "", "", "", ""]))
    for method in suite.methods:
        rate, _ = study.choice(method)
        if rate is None:
            continue
        later = study.equal_seconds(method)
        cost = study.known["seconds"][method] / study.known["seconds"][BASELINE]
        cells = [method, f"{rate:g}", *study.cells(method, suite.steps)]
        cells += [study.mean(method, suite.steps, name) for name in extra]
        lines.append(_row([*cells, f"{cost:.2f}", str(later), *study.cells(method, later)]))
    return "\n".join(lines)


def before_table(study: Study) -> str:
    """How far apart the points are that each sampler draws before training."""
    known = study.known["spreads"]
    lines = [_row(["sampler", *(f"{steps} steps" for steps in STEPS)]), "|---|---|---|---|---|"]
    for sampler in ("flow-sde", "dance-sde", "cps", "ode"):
        lines.append(_row([sampler, *(f"{known[f'{sampler} {steps}']:.3f}" for steps in STEPS)]))
    return "\n".join(lines)


def after_table(study: Study) -> str:
    """Training samples after training, and evaluation's, which follow the ODE."""
    drawn_by = {"grpo": "flow-sde", "grpo, cps": "cps", "awm": "ode", "nft": "ode", "dgpo": "ode", "crd": "ode"}
    lines = [
        "| method | drawn by | reward | spread | reward by the ODE | spread by the ODE |",
        "|---|---|---|---|---|---|",
    ]
    for method, sampler in drawn_by.items():
        means = [
            study.mean(method, step, name) for step in ("drawn", study.suite.steps) for name in ("reward", "spread")
        ]
        lines.append(_row([method, sampler, *means]))
    return "\n".join(lines)


def teacher_table(study: Study) -> str:
    """Each teacher where it teaches, and the student and the baseline there."""
    suite = study.suite
    rate, _ = study.choice(BASELINE)
    lines = ["| scores of | teacher | student | grpo on all prompts |", "|---|---|---|---|"]
    for teacher, score in suite.teacher_scores.items():
        own = {}
        for seed in suite.measuring:
            value = None if rate is None else study.score(f"teacher {teacher}", rate, seed, suite.steps, score)
            if value is not None:
                own[seed] = value
        others = [study.mean(method, suite.steps, score) for method in (STUDENT, BASELINE)]
        lines.append(_row([teacher, _interval(own, sign=""), *others]))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def tables(name: str) -> dict[str, str]:
    """All tables of a suite, by the names of their places on the page."""
    study = Study(name)
    drawn = {f"methods {name}": table(study), f"methods teachers {name}": teacher_table(study)}
    if "spreads" in study.known:
        drawn |= {f"methods before {name}": before_table(study), f"methods after {name}": after_table(study)}
    return drawn


def main() -> None:
    """Make runs, and print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", nargs="?", choices=list(SUITES), help="whose runs are made (default: none)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default: %(default)s)")
    parser.add_argument("--teachers", type=Path, help="a folder that keeps the weights of teachers, to go on later")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    given = parser.parse_args()
    if given.suite:
        with tempfile.TemporaryDirectory() as folder:
            make(Study(given.suite), (given.teachers or Path(folder)).resolve(), given.jobs)
    for name in json.loads(RESULTS.read_text()):
        for place, text in tables(name).items():
            print(f"{place}\n{text}\n")
            if given.write:
                write(PAGE, place, text)


if __name__ == "__main__":
    main()
