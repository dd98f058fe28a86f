"""The reward `human-vote`: people vote on each group of a step, and the run waits for them.

A step's groups become ballots, which `grpokit vote` puts before people. What they have answered before is not asked
again. All ballots of a step are counted together, a moment after the last answer, so that each can be taken back until
then. A group that nobody answers in time is not scored.

With a model of the voter, groups that it is sure of are not asked. What is asked follows from earlier steps alone,
never from votes of this step or of later ones: so a resumed run asks the same, and learns the same.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from grpokit import GrpokitError, Pending, Portion, RewardError, Sample, UsageError
from grpokit.errors import error_line, plural
from grpokit.rewards.remote import ENDING
from grpokit.rewards.submission import by_group
from grpokit.settings import Positive, Share, Whole
from grpokit_likeness.features import Kind
from grpokit_vote.answers import Asked, open_asks, pairs_of, usual_mean, values_of
from grpokit_vote.ballots import VOTES, Ballot, BallotBox, By, How, Scored, by_ballot, key_of
from grpokit_vote.judge import Judge
from grpokit_vote.taste import write_package

GRACE = 2.0
"""Seconds after a step's last answer in which it can be taken back."""

_PAUSE = 0.2  # seconds between two looks at the votes


@dataclass(kw_only=True, eq=False)
class _Group:
    """One group of a step, and where its scores go."""

    rows: Sequence[int]
    names: Sequence[str]  # of the rows' samples
    ballot: Ballot
    expected: Mapping[str, float]  # by the model
    drawn: bool = False  # whether it measures the model
    future: Future[Portion] = field(default_factory=Future)

    def finish(self, values: Mapping[str, float], error: GrpokitError | None = None) -> None:
        """Hand out what became of it, if the run still wants to know."""
        scores = [values.get(name, math.nan) for name in self.names]
        with suppress(InvalidStateError):
            self.future.set_result(Portion(rows=self.rows, values=scores, error=error))


class HumanVote:
    """Asks people which samples of a group are better.

    Args:
        question: what people are asked.
        how: what they answer: "best" chooses one of the group, "best-worst" the best and the worst one, "stars" gives
            each 1 to 5, "pairs" compares two at a time.
        pairs: how many pairs of a group are compared; 0: as many as it has samples.
        wait_minutes: how long a step waits for people; groups without an answer are then unscored.
        votes: further files of votes, such as `other/votes.jsonl`: what was answered there is not asked again.
        model: what a model of the voter looks at: "pixels" (colours and their places), "clip" or "lpips" (the features
            of these networks). None: there is no model, and all groups are asked.
        model_options: parameters of these networks, such as `weights_path`.
        ask: the share of a step's groups that people are asked about, once the model may answer for the others.
        trust: how often the model must order two samples as people do to answer for them.
    """

    files = (VOTES, "votes")

    def __init__(
        self,
        *,
        question: str = "Which one is best?",
        how: How = "best",
        pairs: Whole = 0,
        wait_minutes: Positive = 60.0,
        votes: Sequence[str] | str = (),
        model: Kind | None = None,
        model_options: Mapping[str, Any] | None = None,
        ask: Share = 1.0,
        trust: Share = 0.7,
    ) -> None:
        if ask < 1 and model is None:
            raise UsageError(f"human-vote: ask: {ask:g} needs a model that answers for the others, as model: pixels.")
        if pairs and how != "pairs":
            raise UsageError(f"human-vote: pairs: {pairs} is for how: pairs, and here it is {how}.")
        if model_options and model is None:
            raise UsageError("human-vote: model_options needs a model, as model: clip.")
        self.question, self.how, self.pairs = question, how, pairs
        self.wait_minutes, self.ask = wait_minutes, ask
        files = [votes] if isinstance(votes, str) else votes
        self._others = [_box_of(Path(file)) for file in files]
        self._known = by_ballot(vote for box in self._others for vote in box.votes())
        self._options = dict(model_options or {})
        self._judge = Judge(model, self._options, trust=trust) if model else None
        self._box: BallotBox | None = None
        self._waits: Callable[[str], None] = lambda words: None
        self._replays = False
        self._step = 0  # the last one that was drawn
        self._closed = threading.Event()

    def begin(self, folder: Path, waits: Callable[[str], None], *, replays: bool = False) -> None:
        """Keep votes in the folder of a run, and tell the run what it waits for; a replay repeats the scores."""
        self._box, self._waits, self._replays = BallotBox(folder), waits, replays
        if not replays:
            self._box.prepare()

    def submit(self, samples: Sequence[Sample]) -> Pending:
        """Put the groups of a training step before people; held-out samples are not asked, and stay unscored."""
        step = samples[0].info.get("training_step") if samples else None
        if step is None:
            return _unscored(len(samples))
        if self._box is None:
            raise UsageError("it asks people while a run trains, and here nobody can be asked.")
        self._step = step
        self._learn(self._box, before=step)
        groups = [self._group(samples, rows, self._box) for rows in by_group(samples)]
        if self._replays:
            values = {_place(row.ballot): row.values for row in self._box.scored()}
            for group in groups:
                group.finish(values.get(_place(group.ballot), {}))
            return Pending([group.future for group in groups])
        with self._box.lock:
            for ballot in self._box.waiting():
                if ballot.step < step:
                    self._box.withdraw(ballot)
            waiting = self._ask(groups, self._box)
        if waiting:
            self._closed.clear()
            threading.Thread(target=self._wait, args=(waiting, self._box), daemon=True).start()
        return Pending([group.future for group in groups])

    def _learn(self, box: BallotBox, *, before: int) -> None:
        """Fit the model to all votes of other runs and of earlier steps."""
        if self._judge is None:
            return
        scored = [row for row in box.scored(before) if self._is_asked_here(row.ballot)]
        groups = dict(self._taught_elsewhere)
        for row in scored:
            if row.by == "votes":
                self._judge.look_at(row.ballot.samples, box.samples)
                groups[row.ballot.key] = dict(row.values)
        self._judge.learn(groups, scored)

    @cached_property
    def _taught_elsewhere(self) -> dict[str, dict[str, float]]:
        """What the model learns from other runs: the key of a ballot -> sample -> its score, where the samples are."""
        assert self._judge
        groups = {}
        for key, votes in self._known.items():
            ballot = votes[0].ballot
            values = values_of(ballot, votes)
            for other in self._others:
                is_there = all((other.samples / name).exists() for name in ballot.samples)
                if values and is_there and self._is_asked_here(ballot):
                    self._judge.look_at(ballot.samples, other.samples)
                    groups[key] = values
        return groups

    def _is_asked_here(self, ballot: Ballot) -> bool:
        return (ballot.question, ballot.how) == (self.question, self.how)

    def _group(self, samples: Sequence[Sample], rows: Sequence[int], box: BallotBox) -> _Group:
        """A group with its ballot, and what the model expects."""
        first = samples[rows[0]]
        names = [box.keep(samples[row].output, what=f"the output of row {row} (reward 'human-vote')") for row in rows]
        sources = [box.keep(image, what="a source picture") for image in first.prompt.images]
        choices = tuple(sorted(set(names)))
        key = key_of(self.question, self.how, first.prompt.text, choices, sources)
        asks: tuple[Asked, ...] = (choices,)
        if self.how == "pairs":
            asks = pairs_of(choices, self.pairs or len(choices), key=key)
        ballot = Ballot(
            key=key,
            step=self._step,
            place=first.group,
            prompt=first.prompt.text.encode(errors="replace").decode(),
            sources=tuple(sources),
            question=self.question,
            how=self.how,
            samples=choices,
            asks=asks,
            until=time.time() + 60 * self.wait_minutes,
        )
        expected = {}
        if self._judge:
            self._judge.look_at(choices, box.samples)
            expected = self._judge.expected(choices)
        return _Group(rows=rows, names=names, ballot=ballot, expected=expected)

    def _ask(self, groups: Sequence[_Group], box: BallotBox) -> list[_Group]:
        """Score what needs no people, and ask about the rest, which is returned."""
        undecided = []
        for group in groups:
            values = values_of(group.ballot, self._known.get(group.ballot.key, ()))
            if len(group.ballot.samples) == 1:
                self._settle(group, box, "sameness", {group.names[0]: usual_mean(group.ballot)})
            elif values is not None:
                self._settle(group, box, "votes", values)
            else:
                undecided.append(group)
        ballots = [group.ballot for group in undecided]
        asked = measuring = {ballot.key for ballot in ballots}
        if self._judge:
            asked, measuring = self._judge.chosen(ballots, self.ask)
        waiting = []
        for group in undecided:
            group.drawn = group.ballot.key in measuring
            if group.ballot.key in asked:
                box.ask(group.ballot)
                waiting.append(group)
            else:
                shift = usual_mean(group.ballot) - 0.5
                values = {name: rate + shift for name, rate in group.expected.items()}
                self._settle(group, box, "model", values)
        return waiting

    def _settle(self, group: _Group, box: BallotBox, by: By, values: Mapping[str, float]) -> None:
        """Note how a group got its scores, and hand them out."""
        box.score(Scored(ballot=group.ballot, by=by, values=values, expected=group.expected, drawn=group.drawn))
        box.withdraw(group.ballot)
        group.finish(values)

    def _wait(self, groups: Sequence[_Group], box: BallotBox) -> None:
        """Until people have answered or the time is over."""
        grace = 0.0  # where all are answered already
        try:
            while not self._is_over(groups, box, grace=grace):
                grace = GRACE
                if self._closed.wait(_PAUSE):
                    return
        except GrpokitError as error:
            _fail(groups, error)
        except Exception as error:  # or the run would wait for ever
            _fail(groups, RewardError(f"it could not count the votes: {error_line(error)}."))
        finally:
            self._waits("")

    def _is_over(self, groups: Sequence[_Group], box: BallotBox, *, grace: float) -> bool:
        """Whether the wait is over; then the votes are counted, and all groups have their scores."""
        if all(group.future.cancelled() for group in groups):  # the step has failed for another reason
            return True
        with box.lock:
            votes = by_ballot(box.votes())
            own = [votes.get(group.ballot.key, []) for group in groups]
            values = [values_of(group.ballot, some) for group, some in zip(groups, own, strict=True)]
            missing = values.count(None)
            if missing and ENDING.is_set():
                raise RewardError(f"the run was asked to end while {plural(missing, 'group')} waited for votes.")
            if missing:
                unanswered = 0  # of all processes
                for ballot in box.waiting():
                    unanswered += bool(open_asks(ballot, votes.get(ballot.key, ())))
                self._waits(f"votes on {plural(unanswered, 'group')} (grpokit vote {box.run})")
                is_early = time.time() < groups[0].ballot.until
            else:
                last = max(vote.time for some in own for vote in some)
                is_early = abs(time.time() - last) < grace  # negative where a clock was set back
            if is_early:
                return False
            if not votes and self._step == 1:
                raise RewardError(
                    f"nobody voted on the first step within {self.wait_minutes:g} minutes. Open the page with `grpokit "
                    f"vote {box.run}`, or give people more time: wait_minutes."
                )
            for group, some in zip(groups, values, strict=True):
                self._settle(group, box, "nobody" if some is None else "votes", some or {})
        return True

    def close(self) -> None:
        """Wait for nobody any more; the votes stay."""
        self._closed.set()

    def state_dict(self) -> dict[str, Any]:
        """The model of the voter, with what it has learned so far."""
        if self._judge is None or self._box is None:
            return {"step": self._step}
        self._learn(self._box, before=self._step + 1)
        return {"step": self._step} | self._judge.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a result of `state_dict`."""
        self._step = state["step"]
        if self._judge and "groups" in state:
            self._judge.load_state_dict(state)

    def export(self, folder: Path, *, name: str) -> None:
        """Write the voter's taste as a package with a reward of its own."""
        judge = self._judge
        if judge is None or judge.taste is None:
            raise UsageError(
                "human-vote has no taste to export: train with model: pixels, clip or lpips, until people have "
                "preferred one sample to another."
            )
        facts = {"question": self.question, "answers": self.how, "groups": judge.groups}
        options = dict(self._options)
        for own in ("device", "weights_path"):  # of this machine
            options.pop(own, None)
        write_package(judge.taste, folder, name, facts=facts, options=options)


def _box_of(file: Path) -> BallotBox:
    """The votes of another run."""
    if not file.is_file() or file.name != VOTES:
        raise UsageError(f"human-vote: there is no file {VOTES} of a run at {file} (looked in {Path.cwd()}).")
    return BallotBox(file.parent)


def _place(ballot: Ballot) -> tuple[int, int, str]:
    """Stands for a group of a run."""
    return ballot.step, ballot.place, ballot.key


def _unscored(rows: int) -> Pending:
    answer: Future[Portion] = Future()
    answer.set_result(Portion(rows=range(rows), values=[math.nan] * rows))
    return Pending([answer] if rows else [])


def _fail(groups: Sequence[_Group], error: GrpokitError) -> None:
    for group in groups:
        group.finish({}, error)
