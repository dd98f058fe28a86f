"""`reference-likeness` in steps by hand and in whole runs, and `reference-nearness`."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from drawn import begun, picture, samples, trains, weights, write_references, write_signs
from PIL import Image

from grpokit import Prompt, RewardError, RunError, Sample, UsageError
from grpokit.runs.replay import replay
from grpokit.runs.train import Watcher
from grpokit_likeness.features import features
from grpokit_likeness.head import Head, right_share
from grpokit_likeness.references import distances, read_references
from grpokit_likeness.reward import ReferenceLikeness, ReferenceNearness
from several import together

PIXELS = features("pixels", reward="test")


@pytest.fixture
def references(tmp_path):
    return write_references(tmp_path / "mine")


@pytest.fixture
def signs(tmp_path):
    return write_signs(tmp_path / "signs")


def _step(reward, step, warn=None, **drawn):
    """Score and learn from a step in one process; returns the scores and the metrics."""
    scores = reward(samples(step, **drawn))
    return scores, reward.learn([reward.lesson()], warn or pytest.fail)


def _vectors(step, **drawn):
    return PIXELS([sample.output for sample in samples(step, **drawn)])


def test_each_step_is_scored_by_a_head_that_knows_the_steps_before_it(references):
    reward = begun(references, past=2, ridge=0.3)
    parted = read_references(references, PIXELS, held_out=0.2, reward="test")
    assert _step(reward, 1) == ([0.0] * 8, {})
    for step in (2, 3, 4):
        scores, metrics = _step(reward, step)
        drawn = [_vectors(earlier) for earlier in (step - 2, step - 1) if earlier > 0]
        head = Head.fit(parted.training, np.concatenate(drawn), ridge=0.3)
        assert scores == head.logits(_vectors(step)).tolist()
        assert metrics["told_training"] == right_share(head.logits(parted.training), np.array(scores))
        assert metrics["told_held_out"] == right_share(head.logits(parted.held_out), np.array(scores))
    assert np.mean(np.diff(np.reshape(scores, (2, 4)), axis=1) > 0) > 0.6  # more blue is more like the references


def test_the_head_never_sees_the_references_that_are_held_out(references, tmp_path):
    """Other held-out references give the same scores and other measures."""
    one, other = begun(references), begun(references)
    blues = [picture(seed, 0.1) for seed in range(4)]
    other._references = type(other._references)(
        training=one._references.training, held_out=PIXELS(blues), digest=one._references.digest
    )
    for step in (1, 2, 3):
        (scores, metrics), (again, others) = _step(one, step), _step(other, step)
        assert scores == again
    assert metrics["told_held_out"] > 0.9 > others["told_held_out"]
    assert metrics["told_training"] == others["told_training"]


def test_processes_have_one_head_whoever_drew_what(references):
    alone, first, second, idle = (begun(references) for _ in range(4))
    for step in (1, 2, 3):
        whole = alone(samples(step, (0, 1, 2)))
        parts = first(samples(step, (0, 1))) + second(samples(step, (2,)))
        assert parts == whole
        lessons = [each.lesson() for each in (first, second, idle)]
        metrics = alone.learn([alone.lesson()], pytest.fail)
        assert [each.learn(lessons, pytest.fail) for each in (first, second, idle)] == [metrics] * 3
    states = [each.state_dict() for each in (alone, first, second, idle)]
    vectors = [state.pop("vectors") for state in states]
    assert states.count(states[0]) == 4
    assert all(torch.equal(vectors[0], each) for each in vectors)


def test_of_a_group_that_was_drawn_twice_the_last_time_counts(references):
    once, twice = begun(references), begun(references)
    twice(samples(1, (0, 1)))
    twice(samples(1, (1,), blue=0.4))
    once(samples(1, (0,)) + samples(1, (1,), blue=0.4))
    for reward in (once, twice):
        reward.learn([reward.lesson()], pytest.fail)
    assert torch.equal(once.state_dict()["vectors"], twice.state_dict()["vectors"])


def test_a_step_that_failed_leaves_nothing(references):
    reward = begun(references)
    _step(reward, 1)
    before = reward.state_dict()
    reward(samples(2, (0, 1, 2), blue=0.6))
    reward.load_state_dict(before)
    reward(samples(2, (0,)))
    reward.learn([reward.lesson()], pytest.fail)
    assert reward.state_dict()["rows"] == [8, 4]


def test_a_state_goes_on_bit_by_bit_and_only_with_the_same_references(references, tmp_path):
    whole, cut = begun(references, past=2), begun(references, past=2)
    for step in (1, 2, 3):
        _step(whole, step)
    state = whole.state_dict()
    plain = json.loads(json.dumps({key: value for key, value in state.items() if key != "vectors"}))
    cut.load_state_dict(plain | {"vectors": state["vectors"].clone()})
    for step in (4, 5):
        assert _step(cut, step) == _step(whole, step)
    with pytest.raises(UsageError, match="not those that the run has begun with"):
        begun(write_references(tmp_path / "others", blue=0.7)).load_state_dict(state)
    fresh = begun(references)
    fresh.load_state_dict(begun(references).state_dict())
    assert _step(fresh, 1)[0] == [0.0] * 8


def test_a_step_in_which_it_was_not_asked_teaches_nothing(references):
    reward = begun(references)
    assert reward.learn([reward.lesson()], pytest.fail) == {}
    assert _step(reward, 7)[0] == [0.0] * 8


def test_without_a_training_step_nothing_is_scored_and_without_a_run_it_says_so(references):
    assert all(map(math.isnan, ReferenceLikeness(references=references)(samples(None))))
    with pytest.raises(UsageError, match="learns while a run trains"):
        ReferenceLikeness(references=references)(samples(1))
    with pytest.raises(RewardError, match="output of row 0"):
        begun(references)([Sample(prompt=Prompt(text="a"), output="a text", group=0, info={"training_step": 1})])


def test_copies_are_counted_and_warned_of_once(references):
    """Of each group two of four pictures are references, whose every pixel is a level brighter."""
    reward, warnings = begun(references), []
    copies = [Image.fromarray(np.asarray(picture(seed, 0.8)) + np.uint8(1)) for seed in range(20)]
    gaps = distances(PIXELS(copies), reward._references.training)
    copies = [copies[place] for place in gaps.min(1).argsort()[:4]]
    for step in (1, 2, 3):
        drawn = samples(step)
        for place, copy in zip((0, 1, 4, 5), copies, strict=True):
            drawn[place] = Sample(
                prompt=drawn[place].prompt, output=copy, group=drawn[place].group, info=drawn[place].info
            )
        reward(drawn)
        metrics = reward.learn([reward.lesson()], warnings.append)
    assert metrics["copies"] == 0.5
    assert metrics["covered"] >= 4 / 16
    assert len(warnings) == 1
    assert warnings[0].startswith("reference-likeness: 50% of the step's pictures are nearer")


def test_references_known_by_heart_are_warned_of_once(references):
    """The policy draws from the population of the references, so only their noise tells them apart."""
    reward, warnings = begun(references, ridge=0.01), []
    shares = []
    for step in range(1, 16):
        _, metrics = _step(reward, step, warn=warnings.append, groups=range(8), blue=0.725)
        shares.append((metrics.get("told_training"), metrics.get("told_held_out")))
    assert np.mean(shares[1:], axis=0)[0] > 0.8 > np.mean(shares[1:], axis=0)[1]
    assert len(warnings) == 1
    assert "by heart" in warnings[0]


def test_a_head_that_tells_unseen_references_too_is_not_warned_of(references):
    reward = begun(references)
    for step in range(1, 16):
        _step(reward, step)


def _rows(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if "reference-likeness" in key and "seconds" not in key} for row in rows]


def test_a_resumed_run_has_the_same_scores_and_weights_and_is_replayed(tmp_path, signs):
    trains(tmp_path / "whole", signs)
    with pytest.raises(RunError):
        trains(tmp_path / "cut", signs, "run.save_every=2", watcher=Watcher(step=_stop))
    for place in (tmp_path / "cut" / "checkpoints").glob("step_00000[45]"):  # what a kill would have left
        shutil.rmtree(place)
    trains(tmp_path / "cut", signs, "run.save_every=2", resume=True)
    whole, cut = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(cut[name], whole[name]) for name in whole)
    assert _rows(tmp_path / "cut") == _rows(tmp_path / "whole")
    assert len({row["rewards/reference-likeness/told_held_out"] for row in _rows(tmp_path / "whole")[1:]}) > 2
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "cut").rglob("*") if file.is_file()}
    assert replay(tmp_path / "cut", 5).equal
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "cut").rglob("*") if file.is_file()} == before
    assert "the head tells held-out references" in (tmp_path / "cut" / "report.html").read_text()


def _stop(report):
    if report.step == 5:
        raise RunError("the machine is gone")


def test_a_record_is_not_scored_again_by_a_head_that_learns(call, tmp_path, signs):
    trains(tmp_path / "run", signs, "trainer.steps=2")
    said = []
    for reward in ("reference-likeness", "reference-nearness"):
        said.append(call("evaluate", "run/rollouts", "--reward", reward, f"{reward}.references=signs"))
    assert [each.code for each in said] == [2, 0]
    assert "learns while a run trains" in said[0].err
    assert "32 samples of 2 steps scored again, 0 of them could not be scored" in said[1].out


def test_what_it_taught_is_measured_without_it(tmp_path, signs, call):
    """It scores only while a run trains, which is said, and is no fault."""
    trains(tmp_path / "run", signs, "trainer.steps=2", "run.save_every=2")
    asked = ("evaluate", tmp_path / "run", "--limit", "4")
    done = call(*asked, "--taught")
    assert done.code == 0
    assert "reference-likeness scored no sample of after" in done.err
    assert call(*asked).code == 2


def test_worker_processes_are_refused(tmp_path, signs):
    workers = f"rewards=[{{use: reference-likeness, references: '{signs}', workers: 2}}]"
    with pytest.raises(UsageError, match="leave out workers"):
        trains(tmp_path / "run", signs, workers)
    assert not (tmp_path / "run").exists()  # before a model is loaded and an evaluation drawn


@pytest.mark.slow
def test_two_processes_have_the_head_of_one(tmp_path, signs):
    """The policy's own gradients are added in another order, in float32."""
    trains(tmp_path / "alone", signs)
    assert together(2, trains, tmp_path / "both", signs) == [None, None]
    for one, other in zip(_rows(tmp_path / "alone"), _rows(tmp_path / "both"), strict=True):
        assert one == pytest.approx(other, abs=1e-4)


def test_nearness_by_hand(references):
    reward = ReferenceNearness(references=references)
    parted = read_references(references, PIXELS, held_out=0.2, reward="test")
    unit = np.median(distances(parted.training, parted.held_out).min(1))
    drawn = samples(None)
    expected = -distances(PIXELS([sample.output for sample in drawn]), parted.held_out).min(1) / unit
    assert reward(drawn) == pytest.approx(expected.tolist(), abs=1e-12)
    files = [picture(seed, 0.8) for seed in range(20)]
    scores = reward([Sample(prompt=Prompt(text="a"), output=output, group=0) for output in files])
    assert scores.count(0.0) == 4  # the held-out ones themselves
    assert np.median([score for score in scores if score]) == pytest.approx(-1, abs=1e-12)
    assert reward([]) == []


def test_references_of_one_colour_have_no_scale(tmp_path):
    (tmp_path / "mine").mkdir()
    for side in range(4, 10):
        Image.new("RGB", (side, side), "navy").save(tmp_path / "mine" / f"{side}.png")
    with pytest.raises(UsageError, match="too much alike"):
        ReferenceNearness(references=str(tmp_path / "mine"))


def test_options_without_a_network_are_refused(references):
    with pytest.raises(UsageError, match="for the features clip and lpips"):
        ReferenceLikeness(references=references, feature_options={"net": "alex"})
