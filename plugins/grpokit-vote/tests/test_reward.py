"""`human-vote` asks people, waits for them, and gives a run what they answered."""

import json
import math
import shutil
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from voter import SimulatedVoter, blueness

from grpokit import Prompt, RewardError, RewardTerm, Sample, UsageError
from grpokit.config.presets import read_config
from grpokit.rewards.remote import ENDING
from grpokit.rewards.scoring import Scoring, join_scores, score_samples
from grpokit.runs.export import export_reward
from grpokit.runs.replay import replay
from grpokit.runs.train import Watcher, train
from grpokit_vote import ballots
from grpokit_vote import reward as reward_module
from grpokit_vote.ballots import BallotBox
from grpokit_vote.reward import HumanVote

GROUP = 4


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch):
    monkeypatch.setattr(reward_module, "GRACE", 0.0)
    monkeypatch.setattr(reward_module, "_PAUSE", 0.01)


@pytest.fixture
def voter(tmp_path):
    """Starts simulated voters, and ends them with the test."""
    voters = []

    def start(folder=tmp_path, taste=blueness, most=10**6):
        voters.append(SimulatedVoter(folder, taste, most))
        voters[-1].start()
        return voters[-1]

    yield start
    for each in voters:
        each.over.set()
        each.join()


def _picture(blue, red=0):
    return Image.new("RGB", (8, 8), (red, 0, blue))


def _samples(*groups, prompt="a sea"):
    return [
        Sample(prompt=Prompt(text=f"{prompt} {number}"), output=output, group=number)
        for number, group in enumerate(groups)
        for output in group
    ]


def _asks(folder, **settings):
    reward = HumanVote(**settings)
    reward.begin(folder, lambda words: None)
    return reward


def _score(reward, samples, step=1):
    term = RewardTerm(name="vote", reward=reward)
    scores = join_scores([term], [Scoring([term], samples, step=step).result()])
    return scores.matrix[:, 0].tolist()


BLUES = [_picture(blue) for blue in (40, 250, 90, 10)]


@pytest.mark.parametrize(
    ("how", "expected"),
    [("best", [0, 1, 0, 0]), ("best-worst", [0.5, 1, 0.5, 0]), ("stars", [0.25, 1, 0.75, 0])],
)
def test_answers_become_scores(tmp_path, voter, how, expected):
    voter()
    assert _score(_asks(tmp_path, how=how), _samples(BLUES)) == expected


def test_pairs_become_strengths_in_the_order_of_the_voter(tmp_path, voter):
    alice = voter()
    scores = _score(_asks(tmp_path, how="pairs", pairs=6), _samples(BLUES))
    assert np.argsort(scores).tolist() == [3, 0, 2, 1]
    assert alice.given == 6


def test_equal_samples_are_one_choice_and_a_group_of_them_asks_nobody(tmp_path, voter):
    alice = voter()
    twice = [BLUES[1], BLUES[0], BLUES[1], BLUES[0]]
    scores = _score(_asks(tmp_path), _samples(twice, [BLUES[0]] * GROUP))
    assert scores == [1, 0, 1, 0, 1, 1, 1, 1]  # of each group one choice is best, if it has only one
    assert alice.given == 1


def test_nothing_is_asked_twice_not_even_in_another_order_or_by_another_reward(tmp_path, voter):
    alice = voter()
    first = _score(_asks(tmp_path), _samples(BLUES))
    again = _score(_asks(tmp_path), _samples(BLUES[::-1]), step=2)
    assert again == first[::-1]
    assert alice.given == 1
    _score(_asks(tmp_path, question="Which is calmer?"), _samples(BLUES))
    assert alice.given == 2


def test_votes_of_another_run_answer_for_it(tmp_path, voter):
    alice = voter(tmp_path / "one")
    _score(_asks(tmp_path / "one"), _samples(BLUES))
    other = _asks(tmp_path / "two", votes=str(tmp_path / "one" / "votes.jsonl"))
    assert _score(other, _samples(BLUES)) == [0, 1, 0, 0]
    assert alice.given == 1
    assert BallotBox(tmp_path / "two").scored()[0].by == "votes"


def test_votes_that_another_run_gets_meanwhile_wait_for_the_next_start(tmp_path, voter):
    voter(tmp_path / "one")
    voter(tmp_path / "two")
    first = _asks(tmp_path / "one")
    _score(first, _samples(BLUES))
    other = _asks(tmp_path / "two", model="pixels", votes=str(tmp_path / "one" / "votes.jsonl"))
    groups = _random_groups(2, 0)
    _score(other, _samples(groups[0], prompt="x"))
    _score(first, _samples(groups[1], prompt="y"), step=2)
    _score(other, _samples(BLUES[:3], prompt="z"), step=2)
    assert other.state_dict()["groups"] == 3


def test_a_missing_file_of_votes_is_told_at_once(tmp_path):
    with pytest.raises(UsageError, match=r"there is no file votes.jsonl of a run"):
        HumanVote(votes=str(tmp_path / "none.jsonl"))


def test_groups_without_an_answer_in_time_are_unscored_and_a_late_vote_counts_the_next_time(tmp_path, voter):
    alice = voter(most=1)
    samples = _samples(BLUES, [_picture(blue, 200) for blue in (1, 2, 3, 4)])
    scores = _score(_asks(tmp_path, wait_minutes=0.005), samples)
    assert scores[:GROUP] == [0, 1, 0, 0]
    assert all(map(math.isnan, scores[GROUP:]))
    box = BallotBox(tmp_path)
    assert [row.by for row in box.scored()] == ["votes", "nobody"]
    given_up, waits = box.find(box.scored()[1].ballot.key)
    assert not waits
    alice.vote(given_up)
    scores = _score(_asks(tmp_path, wait_minutes=0.005), samples)
    assert scores == [0, 1, 0, 0, 0, 0, 0, 1]
    assert alice.given == 2


def test_a_first_step_without_any_vote_stops(tmp_path):
    with pytest.raises(RewardError, match=r"nobody voted on the first step within 0.005 minutes"):
        _score(_asks(tmp_path, wait_minutes=0.005), _samples(BLUES))
    scores = _score(_asks(tmp_path, wait_minutes=0.005), _samples(BLUES), step=2)
    assert all(map(math.isnan, scores))


def test_a_process_whose_groups_nobody_reached_in_the_first_step_does_not_stop_the_others(tmp_path, voter):
    alice = voter()
    _score(_asks(tmp_path), _samples(BLUES))
    alice.most = alice.given
    scores = _score(_asks(tmp_path, wait_minutes=0.005), _samples(BLUES[:3]))  # of another process
    assert all(map(math.isnan, scores))


def test_a_clock_that_was_set_back_delays_nothing(tmp_path, voter, monkeypatch):
    alice = voter()
    _score(_asks(tmp_path), _samples(BLUES))
    monkeypatch.setattr(reward_module, "GRACE", 0.01)
    now = time.time
    monkeypatch.setattr(ballots.time, "time", lambda: now() + 3600)  # of the page
    alice.most = 0
    vote = alice.vote
    waits = threading.Timer(0.1, lambda: vote(alice.box.waiting()[0]))
    monkeypatch.setattr(reward_module, "time", SimpleNamespace(time=now))
    waits.start()
    begin = time.monotonic()
    assert _score(_asks(tmp_path), _samples(BLUES[:3]), step=2) == [0, 1, 0]
    assert time.monotonic() - begin < 10


def test_two_rewards_with_one_question_and_other_answers_are_both_noted(tmp_path, voter):
    voter()
    for how in ("best", "stars"):
        _score(_asks(tmp_path, how=how), _samples(BLUES))
    assert {row.ballot.how for row in BallotBox(tmp_path).scored()} == {"best", "stars"}


def test_a_picture_is_named_by_its_pixels_and_not_by_how_its_file_is_packed(tmp_path):
    box = BallotBox(tmp_path)
    box.prepare()
    name = box.keep(BLUES[0], what="a picture")
    BLUES[0].save(tmp_path / "packed.png", compress_level=9)
    assert (tmp_path / "packed.png").read_bytes() != (box.samples / name).read_bytes()
    assert box.keep(Image.open(tmp_path / "packed.png"), what="a picture") == name


@pytest.mark.parametrize(("how", "mean"), [("best", 0.25), ("best-worst", 0.5), ("pairs", 0.0)])
def test_the_mean_of_a_group_is_the_same_whoever_scores_it(tmp_path, voter, how, mean):
    """Else the curve of the reward would move for reasons that have nothing to do with the samples."""
    alice = voter()
    alone = _asks(tmp_path, how=how)
    assert np.mean(_score(alone, _samples(BLUES))) == pytest.approx(mean, abs=1e-9)
    model = _asks(tmp_path, how=how, model="pixels", ask=0.25)
    for step in range(2, 8):
        groups = [[_picture(blue + step, red) for blue in (10, 60, 110, 160)] for red in (0, 40, 80, 120)]
        scores = np.reshape(_score(model, _samples(*groups, prompt=str(step)), step=step), (-1, GROUP))
        assert scores.mean(1) == pytest.approx([mean] * 4, abs=1e-9)
    assert any(row.by == "model" for row in alice.box.scored())


def test_held_out_samples_are_not_asked(tmp_path):
    scores = score_samples([RewardTerm(name="vote", reward=_asks(tmp_path))], _samples(BLUES))
    assert scores.matrix.isnan().all()
    assert BallotBox(tmp_path).waiting() == []


def test_without_a_folder_it_says_so():
    with pytest.raises(UsageError, match=r"here nobody can be asked"):
        _score(HumanVote(), _samples(BLUES))


def test_a_run_that_is_asked_to_end_does_not_wait(tmp_path):
    threading.Timer(0.2, ENDING.set).start()
    try:
        with pytest.raises(RewardError, match=r"asked to end while 1 group waited"):
            _score(_asks(tmp_path), _samples(BLUES))
    finally:
        ENDING.clear()
    assert len(BallotBox(tmp_path).waiting()) == 1  # people may still answer, for a resumed run


def test_a_run_that_is_asked_to_end_before_it_asks_stops_whatever_a_failure_means(tmp_path):
    term = RewardTerm(name="vote", reward=_asks(tmp_path), on_error="skip", skip_limit=1.0)
    ENDING.set()
    try:
        with pytest.raises(RewardError, match=r"^Reward 'vote': the run was asked to end"):
            Scoring([term], _samples(BLUES), step=1).result()
    finally:
        ENDING.clear()


def test_an_answer_can_be_taken_back_until_all_are_counted(tmp_path, voter, monkeypatch):
    monkeypatch.setattr(reward_module, "GRACE", 0.3)
    scores = []
    run = threading.Thread(target=lambda: scores.extend(_score(_asks(tmp_path), _samples(BLUES, BLUES[:3]))))
    alice = SimulatedVoter(tmp_path, blueness)
    run.start()
    while len(alice.box.waiting()) < 2:
        time.sleep(0.01)
    first, second = alice.box.waiting()
    alice.taste = lambda file: -blueness(file)
    alice.vote(first)
    with alice.box.lock:
        alice.box.take_back(alice.box.votes()[0])
    alice.taste = blueness
    alice.vote(first)
    alice.vote(second)
    run.join()
    assert scores == [0, 1, 0, 0, 0, 1, 0]


def test_texts_are_asked_and_a_model_refuses_them(tmp_path, voter):
    voter(taste=lambda file: len(file.read_text()))
    texts = ["short", "a longer one", "mid", "the very longest of all"]
    assert _score(_asks(tmp_path), _samples(texts)) == [0, 0, 0, 1]
    with pytest.raises(UsageError, match=r"looks at pictures"):
        _score(_asks(tmp_path, model="pixels"), _samples(texts), step=2)


def test_a_share_needs_a_model():
    with pytest.raises(UsageError, match=r"needs a model"):
        HumanVote(ask=0.3)


def _random_groups(count, seed):
    rng = np.random.default_rng(seed)
    return [[Image.new("RGB", (8, 8), tuple(rng.integers(0, 256, 3).tolist())) for _ in range(6)] for _ in range(count)]


def test_a_model_answers_for_all_but_the_share_and_is_trusted_only_while_it_is_right(tmp_path, voter):
    alice = voter()
    reward = _asks(tmp_path, how="best-worst", model="pixels", ask=0.25)
    asked = []
    for step in range(1, 20):
        if step == 9:
            alice.taste = lambda file: -blueness(file)  # a change of mind
        given = alice.given
        _score(reward, _samples(*_random_groups(4, step), prompt=str(step)), step=step)
        asked.append(alice.given - given)
    assert asked[:8] == [4, 4, 4, 4, 1, 1, 1, 1]  # it has to be measured on ten groups before it answers
    all_again = asked.index(4, 8)
    assert asked[all_again : all_again + 3] == [4, 4, 4]


def test_a_model_that_answers_for_nobody_is_measured_on_all_groups(tmp_path, voter):
    voter()
    reward = _asks(tmp_path, how="best-worst", model="pixels")
    for step in range(1, 6):
        _score(reward, _samples(*_random_groups(4, step), prompt=str(step)), step=step)
    assert all(row.drawn for row in BallotBox(tmp_path).scored())


def _run(folder, *overrides, **options):
    config, _ = read_config(
        "toy-glyph",
        [
            "rewards=[{use: human-vote, model: pixels, how: best-worst, ask: 0.5}]",
            f"run.dir={folder}",
            "run.save_every=2",
            "run.record=true",
            "eval.every=0",
            "trainer.steps=6",
            "trainer.prompts_per_step=4",
            "trainer.group_size=4",
            "trainer.minibatches=1",
            *overrides,
        ],
    )
    return train(config, **options)


def _last(folder):
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


def _weights(folder, step):
    return torch.tensor(list((folder / "checkpoints" / f"step_{step:06d}" / "policy.safetensors").read_bytes()))


def test_a_resumed_run_has_the_same_votes_scores_and_weights(tmp_path, voter):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    alice = voter(whole)
    _run(whole)
    (tmp_path / "whole" / "checkpoints").rename(tmp_path / "kept")
    bob = voter(cut)

    def stop(report):
        if report.step == 5:
            raise RuntimeError("the machine is gone")

    with pytest.raises(RuntimeError):
        _run(cut, watcher=Watcher(step=stop))
    for place in (cut / "checkpoints").glob("step_00000[45]"):  # what a kill would have left
        shutil.rmtree(place)
    given = bob.given
    _run(cut, resume=True)
    assert bob.given == alice.given
    assert given <= bob.given
    assert [row.values for row in BallotBox(cut).scored()] == [row.values for row in BallotBox(whole).scored()]
    (tmp_path / "kept").rename(tmp_path / "whole" / "checkpoints")
    assert torch.equal(_weights(cut, 6), _weights(whole, 6))


def test_a_replay_repeats_the_scores_asks_nobody_and_changes_nothing(tmp_path, voter):
    folder = tmp_path / "run"
    voter(folder, most=5)
    _run(folder, "rewards=[{use: human-vote, model: pixels, wait_minutes: 0.02}]", "trainer.steps=2")
    assert [row.by for row in BallotBox(folder).scored()][4:] == ["votes", "nobody", "nobody", "nobody"]
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}
    assert replay(folder, 2).equal
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()} == before


def test_groups_that_are_drawn_again_for_want_of_a_preference_are_kept_and_replayed(tmp_path, voter):
    folder = tmp_path / "run"
    alice = voter(folder)
    prefers = alice.vote

    def vote(ballot, asked=()):
        if int(ballot.key, 16) % 2:
            return prefers(ballot, asked)
        alice.given += 1
        return alice.box.vote(ballot, None, voter="simulated")

    alice.vote = vote
    _run(folder, "trainer.steps=2", "trainer.dynamic_sampling=3")
    assert len(BallotBox(folder).scored()) == alice.given > 8
    assert replay(folder, 2).equal


def test_a_run_killed_before_its_first_checkpoint_keeps_the_votes(tmp_path, voter):
    folder = tmp_path / "run"
    alice = voter(folder)

    def stop(report):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(folder, watcher=Watcher(step=stop))
    assert not (folder / "checkpoints").exists()
    given = alice.given
    assert given == 4
    _run(folder, "trainer.steps=1", resume=True, force=True)
    assert alice.given == given


def test_a_run_says_that_it_waits_and_how_its_groups_were_scored(tmp_path, voter):
    folder, words = tmp_path / "run", []

    def waiting(word):
        words.append(word)
        if word and not words[:-1]:
            voter(folder)

    _run(folder, "trainer.steps=1", watcher=Watcher(waiting=waiting))
    assert words[0].startswith("votes on 4 groups")
    assert words[-1] == ""
    assert not (folder / "waiting.txt").exists()
    page = (folder / "report.html").read_text()
    assert "Of 4 groups: 4 by votes." in page


def test_a_run_that_is_stopped_while_it_waits_is_saved_and_goes_on(tmp_path, voter):
    folder = tmp_path / "run"
    alice = voter(folder, most=6)  # of the 4 groups of each step

    def waiting(words):
        if alice.given == 6 and words:
            ENDING.set()

    with pytest.raises(RewardError, match=r"(?s)asked to end while 2 groups waited.*step_000001; continue with"):
        _run(folder, watcher=Watcher(waiting=waiting))
    assert json.loads((folder / "end.json").read_text())["state"] == "stopped"
    bob = voter(folder)
    _run(folder, resume=True)
    votes = [vote.ballot.key for vote in bob.box.votes()]
    assert len(set(votes)) == len(votes) == 6 + bob.given


def test_the_taste_of_a_run_is_exported_from_its_checkpoint(tmp_path, voter):
    folder = tmp_path / "run"
    voter(folder)
    _run(folder)
    config, _ = read_config(folder)
    export_reward(config, folder / "checkpoints" / "step_000006", "human-vote", tmp_path / "my-taste")
    assert (tmp_path / "my-taste" / "pyproject.toml").exists()
    with pytest.raises(UsageError, match="has no reward 'nothing'"):
        export_reward(config, folder / "checkpoints" / "step_000006", "nothing", tmp_path / "else")
