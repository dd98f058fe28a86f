"""A run: a config, a folder, and the loop that fills it.

Builds everything that the config names, trains step by step, evaluates and saves when due, and ends with the report.
What it prints is for whoever passes a `Watcher`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpokit import registry, report
from grpokit.config.schema import RunConfig, resolved
from grpokit.data import PromptSequence, check_prompts
from grpokit.errors import UsageError, counted
from grpokit.evaluation.held_out import Evaluation, evaluate
from grpokit.files import step_name
from grpokit.guards.hacking import too_seldom
from grpokit.phases.phased_trainer import PhasedTrainer
from grpokit.processes.joining import join
from grpokit.processes.team import Team
from grpokit.report import alarm
from grpokit.rewards.terms import RewardTerm, as_terms
from grpokit.runs import before_training, build, resuming, rollout_record, signals, tracking
from grpokit.runs.failing import Others, no_exit, saved_on_error
from grpokit.runs.folder import claimed, locked, versions, write_header, write_machine
from grpokit.runs.journal import Journal, has_start
from grpokit.tracking.step_report import StepReport
from grpokit.training import checkpoint
from grpokit.types import Prompt


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """Callbacks for a front end; each is optional.

    Attributes:
        say: gets one line of text at a time.
        start: gets the trainer when it is ready.
        step: gets the report of each step.
        evaluating: gets the number of held-out samples that are about to be drawn and scored.
        evaluated: gets the number of completed steps and the evaluation after them.
    """

    say: Callable[[str], None] = lambda line: None
    start: Callable[[PhasedTrainer], None] = lambda trainer: None
    step: Callable[[StepReport], None] = lambda report: None
    evaluating: Callable[[int], None] = lambda samples: None
    evaluated: Callable[[int, Evaluation], None] = lambda step, evaluation: None


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
    before: Mapping[str, float] | None
    after: Mapping[str, float] | None
    interrupted: bool = False


_MANY = 50_000  # prompts whose check takes seconds


def train(
    config: RunConfig,
    *,
    name: str = "run",
    resume: bool = False,
    overwrite: bool = False,
    auto_resume: bool = False,
    force: bool = False,
    watcher: Watcher | None = None,
) -> Result:
    """Train as the config says, and leave a run folder.

    In the main thread the first Ctrl-C, SIGTERM or SIGHUP (of a closed terminal) ends the run after its step, and a
    second one, or one before the first step, is a KeyboardInterrupt.

    Args:
        config: the run.
        name: names the folder where the config does not.
        resume: go on from the folder's last checkpoint.
        overwrite: delete what is in the folder.
        auto_resume: go on where the folder has a checkpoint, else start; a run in it that has none is deleted.
        force: resume even though the config or the prompts have changed.
        watcher: callbacks for progress.

    Raises:
        UsageError: bad input, a folder in which another process trains, one that is in use without `resume` or
            `overwrite`, or a resume whose config or prompts differ from the run's without `force`.
        RunError, RewardError: the run failed; the message says what is left.
    """
    if auto_resume and (resume or overwrite):
        raise UsageError("--auto-resume decides between a resume and a start. Leave out --resume and --overwrite.")
    folder = Path(config.run.dir or Path("runs") / name)
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    if config.run.record:
        rollout_record.require()
    tracking.require(config.run.trackers)
    team = join(config.run.process_timeout)  # before anything is built, since it takes this process's GPU
    early = signals.handled(signal.default_int_handler, *signals.ENDS)  # leaves all tidy, too
    with early, no_exit(), ExitStack() as stack:
        with team.failing_together(), no_exit():
            data = build.prompts(config)  # before rewards, which may fetch weights
            if len(data[0]) >= _MANY and watcher and team.rank == 0:
                watcher.say(f"checking {len(data[0]):,} prompts")
            unscorable = before_training.unscorable_prompts(config, *data)
            build.check_prompts(config, *data)
            terms, own_terms = stack.enter_context(build.all_rewards(config))
            digests = resuming.digests(*data)
            unscorable += resuming.refuse_other_processes(team, config, digests)
            if team.rank == 0:
                stack.enter_context(locked(folder))
            if auto_resume:
                resume = team.first(lambda: resuming.has_checkpoint(folder))
                overwrite = not resume
        trackers = stack.enter_context(tracking.Tracking())
        return _train(
            config,
            folder,
            data,
            digests,
            terms,
            own_terms,
            watcher if watcher and team.rank == 0 else Watcher(),
            trackers,
            team,
            warnings=unscorable,
            resume=resume,
            overwrite=overwrite,
            force=force,
        )


def _train(
    config: RunConfig,
    folder: Path,
    data: tuple[PromptSequence, PromptSequence | None],
    digests: resuming.Digests,
    terms: list[RewardTerm],
    own_terms: Mapping[str, list[RewardTerm]],
    watcher: Watcher,
    trackers: tracking.Tracking,
    team: Team,
    *,
    warnings: list[str],
    resume: bool,
    overwrite: bool,
    force: bool,
) -> Result:
    prompts, held_out = data
    with team.failing_together(), no_exit():
        before_training.check_scores(config, terms, held_out)
        weights = {"reward": 1.0, **{term.name: term.weight for term in as_terms(terms)}}
        policies = build.policies(config)
        drawing = build.drawing(policies)
        if held_out is not None:
            check_prompts(drawing, held_out)  # a trainer looks at its own
    every = config.run.eval_every
    notes = {"config": resolved(config), "versions": versions(config)}
    checkpoints = folder / "checkpoints"
    saves = team.rank == 0 or bool(config.run.sharding)  # sharded weights are gathered from all

    def scored(held_out: Sequence[Prompt]) -> Evaluation:
        now = trainer.current.trainer
        drawn = now.sizes.rollout_batch_size or now.prompts_per_step * now.group_size
        return evaluate(
            drawing,
            terms,
            held_out,
            seed=config.seed,
            samples_per_prompt=config.run.eval_samples,
            batch_size=config.run.eval_batch_size or drawn,
            mixed_precision=config.trainer.mixed_precision,
            team=team,
        )

    def evaluate_now(step: int) -> None:
        if held_out is None or last_evaluation() == step:
            return
        watcher.evaluating(len(held_out) * config.run.eval_samples)
        evaluation = scored(held_out)
        if team.rank == 0:
            note_evaluation(step, evaluation)
        keep_best()

    def last_evaluation() -> int:
        return team.first(lambda: journal.last_evaluation)

    def note_evaluation(step: int, evaluation: Evaluation) -> None:
        journal.evaluation(step, evaluation)
        trackers.evaluation(step, evaluation)
        watcher.evaluated(step, evaluation)
        for line in evaluation.scores.notes:
            journal.warning(step, f"held-out prompts: {line}")
            watcher.say(f"warning, held-out prompts: {line}")

    def tracker_warning(line: str) -> None:
        journal.warning(trainer.completed, line)
        watcher.say(f"warning: {line}")

    def keep_best() -> None:
        name = config.run.best
        if name is not None and team.first(lambda: journal.is_best(name, weight=weights[name])):
            save_once()
            if team.rank == 0:
                checkpoint.mark_best(checkpoints / step_name(trainer.completed))
                checkpoint.prune(checkpoints, config.run.keep_last)

    def stale() -> bool:
        """Whether the score of `run.stop` has not improved for as long as it may."""
        rule = config.run.stop
        return rule is not None and team.first(
            lambda: journal.evaluations_without_gain(rule.reward, weight=weights[rule.reward]) >= rule.patience
        )

    def save() -> Path:
        place = checkpoints / step_name(trainer.completed)
        trainer.save(place, notes=notes)
        if team.rank == 0:
            checkpoint.prune(checkpoints, config.run.keep_last)
        return place

    def save_once() -> None:
        if not team.first((checkpoints / step_name(trainer.completed)).exists) and saves:
            save()

    def keep(step_report: StepReport, *, groups: bool) -> None:
        if config.run.record:  # first: a step is there with its record, or not at all
            rollout_record.write(folder, step_report)
        journal.step(step_report)
        if groups:
            journal.groups(step_report)
        watcher.step(step_report)
        _notify(watcher, "grpokit_step_end", report=step_report)

    def compared() -> tuple[list[str], dict[str, str]]:
        if not resume:
            write_header(folder, config, digests)  # first, so that a killed set-up can be recognised
            return [], {}
        changes, unknown = resuming.changed_prompts(folder, digests, {"train": prompts, "held_out": held_out})
        if not force:
            resuming.refuse_other_config(folder, config)
            resuming.refuse_other_prompts(folder, changes, unknown)
        if resuming.changed_rewards(folder, config):
            changes["rewards"] = "rewards: they or their code changed"
        return resuming.changed_versions(folder, config) + unknown, changes

    with team.failing_together(), no_exit(), ExitStack() as claim:
        if team.rank == 0:  # what fails in here leaves the folder as it was
            claim.enter_context(claimed(folder, resume=resume, overwrite=overwrite))
        found, changes = team.first(compared)
        warnings += found
        trainer = build.trainer(config, policies, terms, prompts, own_rewards=own_terms)
        own_trainers = [phase.trainer for phase in trainer.phases.values()]
        for own in own_trainers:
            before_training.refuse_what_cannot_fit(own)
        warnings += dict.fromkeys(line for own in own_trainers for line in before_training.repeated_prompts(own))
        warnings += before_training.trained_held_out_prompts(prompts, held_out, digests)
        no_start = team.first(lambda: resume and held_out is not None and not has_start(folder))
        other_scores = not changes.keys().isdisjoint(("held_out", "rewards"))
        start = scored(held_out) if held_out is not None and (no_start or other_scores) else None
        if no_start:
            warnings.append(
                f"{folder / 'eval.jsonl'} has no evaluation before training (it was changed or cut), so the untrained "
                "policy was scored on the held-out prompts again"
            )
        if resume:
            warnings += _resume(trainer, folder, watcher, team)
        else:
            warnings += dict.fromkeys(line for own in own_trainers for line in too_seldom(own.terms, own.steps))
        warnings += [f"resumed with other {line}" for line in changes.values()]
        journal: Journal  # of process 0

        def begin() -> None:
            nonlocal journal
            watcher.start(trainer)
            _notify(watcher, "grpokit_run_start", folder=folder, config=config.model_dump())
            trackers.start(config, folder, trainer, warn=tracker_warning)
            journal = Journal(folder, trainer.completed)
            write_machine(folder, trainer.current.trainer.torch_device)
            damage = list(journal.damage)
            if other_scores and journal.evaluations:
                damage.append(journal.set_evaluations_aside())
            if start is not None:
                journal.evaluation(0, start)
                watcher.evaluated(0, start)
            if resume:
                write_header(folder, config, digests)
            rollout_record.cut(folder, trainer.completed)
            for line in [*warnings, *damage]:
                journal.warning(trainer.completed, line)
                watcher.say(f"warning: {line}")

        if team.rank == 0:
            begin()
        if last_evaluation() < 0 or (every and trainer.completed % every == 0):  # but a resume adds none
            evaluate_now(trainer.completed)
        if resume and last_evaluation() == trainer.completed:
            keep_best()  # a failure may have come between the evaluation and this

    def nothing_lost() -> AbstractContextManager[None]:
        others = Others(team) if config.run.sharding else None
        if team.rank == 0:
            return saved_on_error(folder, journal, trainer, save, others)
        return others.helping(save) if others else nullcontext()

    with signals.stopping() as stop, nothing_lost(), team.failing_together(), no_exit():
        while not (ended := trainer.completed >= trainer.steps or bool(trainer.converged) or stale()):
            if any(team.gather(stop.is_set())):
                break
            step_report = trainer.step()
            number = step_report.step
            groups = number in (1, trainer.steps) or bool(every and number % every == 0) or bool(trainer.converged)
            if groups or config.run.record:
                step_report = trainer.whole(step_report)
            if team.rank == 0:
                keep(step_report, groups=groups)
            del step_report  # frees the rollout before the next one is drawn
            if every and number % every == 0:
                evaluate_now(number)
            if config.run.save_every and number % config.run.save_every == 0:
                save_once()
        save_once()
        if team.rank == 0:
            checkpoint.prune(checkpoints, config.run.keep_last)  # a kill may have come before it
    if ended:
        with nothing_lost(), team.failing_together(), no_exit():
            evaluate_now(trainer.completed)

    def end() -> Result:
        rule, early = config.run.stop, trainer.converged
        if rule and ended and trainer.completed < trainer.steps and not early:
            early = f"The held-out score '{rule.reward}' has not improved for {counted(rule.patience, 'evaluation')}."
            watcher.say(f"after step {trainer.completed} the run ends: {early}")
        journal.end("finished" if ended else "stopped", trainer.steps, early)
        report.write(folder)
        suspicion = alarm(folder)
        if suspicion:
            watcher.say(f"warning: {suspicion}")
        _notify(watcher, "grpokit_run_end", folder=folder)
        return Result(
            folder=folder,
            steps=trainer.completed,
            planned=trainer.steps,
            before=next((row for row in journal.evaluations if row["step"] == 0), None),
            after=journal.evaluations[-1] if journal.evaluations else None,
            interrupted=not ended,
        )

    with team.failing_together(), no_exit():
        return team.first(end)


def _resume(trainer: PhasedTrainer, folder: Path, watcher: Watcher, team: Team) -> list[str]:
    """Load the last checkpoint; returns warnings about it."""

    def found() -> Path:
        checkpoint.prune(folder / "checkpoints", None)  # repairs what a kill has left
        latest = checkpoint.latest(folder / "checkpoints")
        if latest is None:
            raise UsageError(f"{folder} has no checkpoint to resume from. Start again with --overwrite.")
        return latest

    latest = team.first(found)
    trainer.load(latest)
    watcher.say(f"resuming after step {trainer.completed} of {trainer.steps} from {latest}")
    broken_off = checkpoint.broken_off(checkpoint.read_state(latest))
    if broken_off is None:
        return []
    phase, updates = broken_off
    return [
        f"{latest} was saved in the middle of step {trainer.completed + 1}, when {updates} of its "
        f"{trainer.phases[phase].trainer.updates_per_step} updates were made; the step is drawn again, so this run "
        "differs from an uninterrupted one"
    ]


def _notify(watcher: Watcher, hook: str, **arguments: Any) -> None:
    for line in registry.notify(hook, **arguments):
        watcher.say(f"warning: {line}")
