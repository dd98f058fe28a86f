"""The votes of another run: what people answered there is not asked again, and teaches the model of the voter."""

from __future__ import annotations

from pathlib import Path

from grpokit import UsageError
from grpokit_vote.answers import values_of
from grpokit_vote.ballots import Ballot, by_ballot, read_lines, samples_of, votes_of
from grpokit_vote.judge import Learned


class OtherVotes:
    """A file `votes.jsonl`, with the samples of its run beside it.

    Raises:
        UsageError: there is no such file.
    """

    def __init__(self, file: Path) -> None:
        if not file.is_file():
            raise UsageError(f"human-vote: there is no file of votes {file} (looked in {Path.cwd()}).")
        self._votes = by_ballot(votes_of(read_lines(file)))
        self._samples = samples_of(file.parent)

    def values(self, ballot: Ballot) -> dict[str, float] | None:
        """The scores of a ballot's samples; None where it was not answered."""
        return values_of(ballot, self._votes.get(ballot.key, ()))

    def learned(self, question: str, how: str) -> dict[str, Learned]:
        """What was answered to a question, by ballot, as far as the samples are there."""
        groups = {}
        for key, votes in self._votes.items():
            first = votes[0]
            if (first.question, first.how) != (question, how):
                continue
            ballot = Ballot(
                key=key,
                step=0,
                place=0,
                prompt=first.prompt,
                sources=(),
                question=question,
                how=how,
                samples=first.samples,
                pairs=[vote.pair for vote in votes if vote.pair],
                until=0.0,
            )
            values = values_of(ballot, votes)
            if values and all((self._samples / name).is_file() for name in ballot.samples):
                groups[key] = Learned(values=values, folder=self._samples)
        return groups
