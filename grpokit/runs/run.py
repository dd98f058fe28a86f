"""A run: a config, a folder, and the trainer that fills it.

Everything is built, and a checkpoint is loaded, before anything in the folder changes. What the run prints is for
the `Watcher` that is passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from grpokit import registry, report
from grpokit.config.component_names import with_lasting_names
from grpokit.config.schema import RunConfig, to_dict
from grpokit.data import check_pictures, check_prompts
from grpokit.errors import RunError, UsageError, plural
from grpokit.evaluation.evaluation import Evaluation
from grpokit.evaluation.held_out import evaluate
from grpokit.evaluation.intervals import Summary
from grpokit.files import delete, step_name, write_text
from grpokit.guards.hacking import too_seldom
from grpokit.phases.phased_trainer import PhasedTrainer
from grpokit.processes.team import Team
from grpokit.report import alarm
from grpokit.rewards.terms import as_terms
from grpokit.run_folder import rollout_record
from grpokit.run_folder.journal import Journal
from grpokit.run_folder.lock import locked
from grpokit.run_folder.names import CHECKPOINTS, CONFIG, REPORT, WAITING
from grpokit.run_folder.reader import Row
from grpokit.run_folder.run_metadata import versions, write_header, write_machine
from grpokit.run_folder.start import can_resume, initialised
from grpokit.runs import build, build_rewards, preflight, resuming
from grpokit.runs.tracking import Tracking
from grpokit.tracking.step_report import StepReport
from grpokit.training import checkpoint


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """Callbacks for a front end; each is optional.

    Attributes:
        say: gets one line of text at a time.
        start: gets the trainer when it is ready.
        step: gets the report of each step.
        waiting: gets what the run waits for, and "" once it goes on; from any thread.
        evaluating: gets the number of held-out samples that are about to be drawn and scored.
        evaluated: gets the number of completed steps and the evaluation after them.
    """

    say: Callable[[str], None] = lambda line: None
    start: Callable[[PhasedTrainer], None] = lambda trainer: None
    step: Callable[[StepReport], None] = lambda report: None
    waiting: Callable[[str], None] = lambda words: None
    evaluating: Callable[[int], None] = lambda samples: None
    evaluated: Callable[[int, Evaluation], None] = lambda step, evaluation: None

    @classmethod
    def of(cls, front_end: object) -> Watcher:
        """The callbacks that an object has as methods of these names."""
        return cls(**{each.name: getattr(front_end, each.name) for each in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended.

    Attributes:
        folder: the run folder.
        steps: completed steps; fewer than planned where it converged, or `run.stop` ended it.
        planned: the steps that the config asks for.
        before: evaluation before the first step, None without held-out prompts.
        after: evaluation after the last step.
        interrupted: it was stopped by Ctrl-C, and can be resumed.
    """

    folder: Path
    steps: int
    planned: int
    before: Summary | None
    after: Summary | None
    interrupted: bool = False


class Run:
    """One run, in all of its processes.

    Its methods are called in their order: `read`, `build`, `begin`, then `step` until `ended`, and `end`.

    Attributes:
        resumed: whether it continues from a checkpoint.
        trainer: takes the steps.
        journal: what is written down after each step; in process 0.
    """

    resumed: bool
    trainer: PhasedTrainer
    journal: Journal

    def __init__(self, config: RunConfig, folder: Path, watcher: Watcher, team: Team) -> None:
        self.config = config
        self.folder = folder
        self.team = team
        self.watcher = watcher if team.rank == 0 else Watcher()
        self.checkpoints = folder / CHECKPOINTS
        self._trackers = Tracking()
        self._saved = time.monotonic()
        self._waits_for = ""

    def read(self, stack: ExitStack, *, resume: bool, overwrite: bool) -> None:
        """Read the prompts, lock the folder, and build the rewards; the stack ends what must end with the run."""
        names = self.team.first(partial(resuming.names_before, self.folder)) if resume else None
        self.config, self._warnings = with_lasting_names(self.config, names)
        config = self.config
        self.prompts, self.held_out, unscorable = preflight.check_run(config)
        self._warnings += unscorable
        data = self.prompts, self.held_out
        if self.team.rank == 0:
            stack.enter_context(locked(self.folder))
        self._resume = resume
        goes_on = partial(can_resume, self.folder, resume=resume, overwrite=overwrite)
        self.resumed = self.team.first(goes_on)
        if resume and not self.resumed and (self.folder / CONFIG).exists():
            self.watcher.say(f"{self.folder} has no checkpoint, so the run starts over")
        if not self.resumed:  # else digests tell whether they are the same
            preflight.keep_prompts(config, self.folder)
            self.team.first(lambda: check_pictures(*data))
        self.terms, self._own_terms = stack.enter_context(build_rewards.all_rewards(config))  # which may fetch weights
        self._digests = resuming.prompt_digests(*data)
        self._followers = build_rewards.all_followers(self.terms, self._own_terms)
        elsewhere = build_rewards.versions_elsewhere(self.terms, self._own_terms)
        self._versions = versions(to_dict(config), elsewhere)
        self._warnings += resuming.refuse_other_processes(self.team, config, self._digests, self._versions)
        self._weights = {"reward": 1.0}
        self._weights |= {term.name: term.weight for term in as_terms(self.terms)}
        stack.push(self._trackers.finish)

    def build(self, *, force: bool) -> None:
        """Build the policy and its trainer, and load the checkpoint of a resumed run."""
        self._notes = {"config": to_dict(self.config), "versions": self._versions}  # as they are now
        changes: Mapping[str, str] = {}
        if self.resumed:
            changes = self.team.first(partial(self._changes, force=force))
        policies = build.policies(self.config)
        self._drawing = build.evaluation_policy(policies)
        if self.held_out is not None:
            check_prompts(self._drawing, self.held_out)  # a trainer looks at its own
        self.trainer = build.trainer(self.config, policies, self.terms, self.prompts, own_rewards=self._own_terms)
        self._warnings += preflight.trained_held_out_prompts(self.prompts, self.held_out, self._digests)
        self._other_scores = not changes.keys().isdisjoint(("held_out", "rewards"))
        if self.resumed:
            self._load()
        else:
            for phase in self.trainer.phases.values():
                self._warnings += too_seldom(phase.trainer.terms, phase.trainer.steps)
        self._warnings += [f"resumed with other {line}" for line in changes.values()]

    def _changes(self, *, force: bool) -> dict[str, str]:
        """What differs from the run as it was started: "train", "held_out" or "rewards" -> a line about it."""
        sequences = {"train": self.prompts, "held_out": self.held_out}
        changes = resuming.changed_prompts(self.folder, self._digests, sequences)
        settings = resuming.changed_config(self.folder, self.config)
        if not force:
            resuming.refuse_changes(self.folder, [*settings, *changes.values()])
        packages = resuming.changed_versions(self.folder, self._versions)
        if resuming.scores_otherwise(self.config, settings, packages):
            changes["rewards"] = "rewards or another policy: they or their code changed"
        if packages:
            listed = ", ".join(f"{name} {change}" for name, change in packages.items())
            self._warnings.append(f"{self.folder} was started with other versions ({listed}): the numbers may differ")
        return changes

    def _load(self) -> None:
        latest = self.team.first(lambda: checkpoint.latest(self.checkpoints))
        assert latest is not None  # `can_resume` has seen it
        self.trainer.load(latest)
        if self.trainer.completed > self.trainer.steps:
            done = plural(self.trainer.completed, "step")
            raise UsageError(
                f"{self.folder} has completed {done}, and the config asks for {self.trainer.steps}. Raise "
                f"{'rounds' if self.config.phases else 'trainer.steps'}, or start over with --overwrite."
            )
        self.watcher.say(f"resuming after step {self.trainer.completed} of {self.trainer.steps} from {latest}")
        state = checkpoint.read_state(latest)
        for name in state["parts"].keys() - self.trainer.parts().keys():
            if "observers/" in name:
                observer = name.rpartition("/")[2]
                self._warnings.append(f"the observer '{observer}' of {latest} is not there now: it follows no step")
        broken_off = checkpoint.broken_off(state)
        if broken_off is not None:
            phase, updates = broken_off
            self._warnings.append(
                f"{latest} was saved in the middle of step {self.trainer.completed + 1}, when {updates} of its "
                f"{self.trainer.phases[phase].trainer.updates_per_step} updates were made; the step is drawn again, so "
                "this run differs from an uninterrupted one"
            )

    def begin(self) -> None:
        """Begin the folder of a new run or cut that of a resumed one, and evaluate where that is due."""
        every = self.config.eval.every
        with ExitStack() as stack:
            if self.team.rank == 0:
                stack.enter_context(initialised(self.folder, resumed=self.resumed, keep=self._lasting_files()))
                self._begin_folder()
            self.team.first(lambda: None)  # the folder is there
            for reward in self._followers:
                reward.begin(self.folder, self._wait, replays=False)
            if self._last_evaluation < 0 or (every and self.trainer.completed % every == 0):  # but a resume adds none
                self.evaluate()
            if self.resumed and self._last_evaluation == self.trainer.completed:
                self._keep_best()  # a failure may have come between the evaluation and this

    def _lasting_files(self) -> set[str]:
        """What a run that starts over although it should resume keeps of its folder."""
        names: set[str] = set()
        for reward in self._followers if self._resume else ():
            names.update(reward.files)
        return names

    def _wait(self, words: str) -> None:
        """Show what the run waits for."""
        if self.team.rank == 0 and words != self._waits_for:
            self._waits_for = words
            self.watcher.waiting(words)
            with suppress(RunError, OSError):  # it is only a notice, and a full disk is told soon enough
                if words:
                    write_text(self.folder / WAITING, words)
                else:
                    delete(self.folder / WAITING)

    def _begin_folder(self) -> None:
        """In process 0; the header comes after the files that a resume cuts, since it says what those follow from."""
        self.watcher.start(self.trainer)
        self._trackers.start(self.config, self.folder, self.trainer, warn=self._warn)
        self.journal = Journal(self.folder, self.trainer.completed)
        write_machine(self.folder, self.trainer.current.trainer.torch_device)
        if self._other_scores and self.journal.evaluations:
            self._warnings.append(self.journal.set_evaluations_aside())
        write_header(self.folder, to_dict(self.config), self._digests, self._versions)
        checkpoint.prune(self.checkpoints, None)  # repairs what a kill has left
        self._notify("grpokit_run_start", folder=self.folder, config=self.config.model_dump())
        for line in dict.fromkeys(self._warnings):  # once each, though phases may share rewards
            self._warn(line)

    @property
    def ended(self) -> bool:
        """Whether no step is left to take: all are taken, nothing is left to learn, or `run.stop` says so."""
        if self.trainer.completed >= self.trainer.steps or self.trainer.converged:
            return True
        rule = self.config.run.stop
        if rule is None:
            return False
        weight = self._weights[rule.reward]
        waited = self.team.first(lambda: self.journal.evaluations_without_gain(rule.reward, weight=weight))
        return waited >= rule.patience

    def step(self) -> None:
        """Take a step, write down what it did, and evaluate and save where that is due."""
        settings = self.config.run
        every = self.config.eval.every
        step_report = self.trainer.step()
        number = step_report.step
        due = bool(every and number % every == 0)
        groups = due or number in (1, self.trainer.steps) or bool(self.trainer.converged)
        if groups or settings.record:
            step_report = self.trainer.whole(step_report)
        if self.team.rank == 0:
            self._keep(step_report, groups=groups)
        del step_report  # frees the rollout before the next one is drawn
        if due:
            self.evaluate()
        if (settings.save_every and number % settings.save_every == 0) or self._save_time_is_over():
            self.save()

    def _save_time_is_over(self) -> bool:
        """By the clock of process 0, so that all processes save after the same step."""
        seconds = 60 * self.config.run.save_minutes
        if not seconds:
            return False
        return self.team.first(lambda: time.monotonic() - self._saved >= seconds)

    def _keep(self, step_report: StepReport, *, groups: bool) -> None:
        if self.config.run.record:  # first: a step is there with its record, or not at all
            rollout_record.write_step(self.folder, step_report)
        self.journal.step(step_report)
        if groups:
            self.journal.groups(step_report)
        self.watcher.step(step_report)
        self._notify("grpokit_step_end", report=step_report)

    def evaluate(self) -> None:
        """Score the held-out prompts, unless there are none or it is done already."""
        step = self.trainer.completed
        if self.held_out is None or self._last_evaluation == step:
            return
        trainer = self.trainer.current.trainer
        settings = self.config.eval
        drawn = trainer.sizes.rollout_batch_size or trainer.prompts_per_step * trainer.group_size
        self.watcher.evaluating(len(self.held_out) * settings.samples)
        evaluation = evaluate(
            self._drawing,
            self.terms,
            self.held_out,
            seed=self.config.seed,
            samples_per_prompt=settings.samples,
            batch_size=settings.batch_size or drawn,
            mixed_precision=self.config.trainer.mixed_precision,
            team=self.team,
        )
        if self.team.rank == 0:
            self.journal.evaluation(step, evaluation)
            self._trackers.evaluation(step, evaluation)
            self.watcher.evaluated(step, evaluation)
            for line in evaluation.scores.notes:
                self._warn(f"held-out prompts: {line}")
        self._keep_best()

    @property
    def _last_evaluation(self) -> int:
        """The step of the last evaluation; -1 if there is none."""
        return self.team.first(lambda: self.journal.last_evaluation)

    def _keep_best(self) -> None:
        name = self.config.run.best
        if name is None:
            return
        weight = self._weights[name]
        if self.team.first(lambda: self.journal.is_best(name, weight=weight)):
            self.save()
            if self.team.rank == 0:
                checkpoint.mark_best(self.checkpoint)
                checkpoint.prune(self.checkpoints, self.config.run.keep_last)

    @property
    def checkpoint(self) -> Path:
        """Where the state after the completed steps is saved."""
        return self.checkpoints / step_name(self.trainer.completed)

    def save(self) -> None:
        """Save the state, unless it is saved already."""
        if not self.team.first(self.checkpoint.exists):
            self.write_checkpoint()
        self._saved = time.monotonic()
        if self.team.rank == 0:
            checkpoint.prune(self.checkpoints, self.config.run.keep_last)

    def write_checkpoint(self) -> None:
        """Save the state: in process 0, or in all of them where weights are sharded."""
        if self.team.rank == 0 or self.config.run.sharding:  # sharded weights are gathered from all
            self.trainer.save(self.checkpoint, notes=self._notes)

    def end(self, *, ended: bool) -> Result:
        """Write the report, in process 0 alone; `ended` is False where the run was stopped."""
        rule = self.config.run.stop
        trainer = self.trainer
        early = trainer.converged
        if rule and ended and trainer.completed < trainer.steps and not early:
            early = f"The held-out score '{rule.reward}' has not improved for {plural(rule.patience, 'evaluation')}."
            self.watcher.say(f"after step {trainer.completed} the run ends: {early}")
        delete(self.folder / REPORT)  # of an earlier stop: a run that has ended and has no report was killed in between
        self.journal.end("finished" if ended else "stopped", trainer.steps, early)
        report.write(self.folder)
        suspicion = alarm(self.folder)
        if suspicion:
            self.watcher.say(f"warning: {suspicion}")
        self._notify("grpokit_run_end", folder=self.folder)
        evaluations = self.journal.evaluations
        return Result(
            folder=self.folder,
            steps=trainer.completed,
            planned=trainer.steps,
            before=next((_summary(row) for row in evaluations if row["step"] == 0), None),
            after=_summary(evaluations[-1]) if evaluations else None,
            interrupted=not ended,
        )

    def _warn(self, line: str) -> None:
        self.journal.warning(self.trainer.completed, line)
        self.watcher.say(f"warning: {line}")

    def _notify(self, hook: str, **arguments: Any) -> None:
        for line in registry.notify(hook, **arguments):
            self.watcher.say(f"warning: {line}")


def _summary(row: Row) -> Summary:
    return Summary(means=row["means"], ci95=row["ci95"])
