"""A taste learns a simulated voter, knows how sure it is, and survives as a state, a file and a package."""

import json
import math
import os
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from PIL import Image

from grpokit import Prompt, RewardError, RunError, Sample, UsageError
from grpokit_likeness.features import features
from grpokit_likeness.logistic import chance
from grpokit_vote.answers import right_share
from grpokit_vote.ballots import Ballot, Scored
from grpokit_vote.taste import Taste, TasteReward, write_package

COUNT, GROUP = 600, 8


def _picture(rng):
    """Two random colours in bands, with some noise."""
    colours = rng.integers(0, 256, (2, 3))
    bands = colours.repeat(16, axis=0)[:, None].repeat(32, axis=1) + rng.normal(0, 20, (32, 32, 1))
    return Image.fromarray(bands.clip(0, 255).astype(np.uint8))


def _liking(picture):
    """Of one who likes dark blue."""
    red, green, blue = np.asarray(picture).mean((0, 1)) / 255
    return blue - 0.7 * (red + green)


@pytest.fixture(scope="module")
def pictures():
    rng = np.random.default_rng(0)
    return {f"{number:03d}": _picture(rng) for number in range(COUNT)}


@pytest.fixture(scope="module")
def vectors(pictures):
    return dict(zip(pictures, features("pixels", reward="test")(list(pictures.values())), strict=True))


@pytest.fixture(scope="module")
def liking(pictures):
    return {name: _liking(picture) for name, picture in pictures.items()}


def _groups(liking, *, how, count, noise=0.0, seed=0, start=0):
    """Votes on groups of pictures: the best, or an order of all; noise is Gumbel's, so that chances are logistic."""
    rng = np.random.default_rng(seed)
    names = list(liking)[start:]
    groups = []
    for _ in range(count):
        members = rng.choice(names, GROUP, replace=False).tolist()
        felt = {name: liking[name] + noise * rng.gumbel() for name in members}
        best = max(felt, key=felt.get)
        groups.append(felt if how == "order" else {name: float(name == best) for name in members})
    return groups


def _agreement(taste, vectors, groups):
    shares = []
    for group in groups:
        rates = taste.win_rates(np.stack([vectors[name] for name in group]))
        shares.append(_right_share(dict(zip(group, rates, strict=True)), group))
    return np.mean(shares)


def _right_share(expected, values, *, drawn=True):
    ballot = Ballot(key="k", step=1, place=0, prompt="", question="", how="best", samples=(), asks=(), until=0)
    return right_share(Scored(ballot=ballot, by="votes", values=values, expected=expected, drawn=drawn))


@pytest.mark.parametrize(("how", "expected"), [("best", 0.9), ("order", 0.95)])
def test_votes_on_few_groups_order_others(vectors, liking, how, expected):
    held_out = _groups(liking, how="order", count=40, seed=1, start=400)
    agreements = []
    for count in (5, 20, 80):
        taste = Taste.fit(_groups(dict(list(liking.items())[:400]), how=how, count=count), vectors, kind="pixels")
        agreements.append(_agreement(taste, vectors, held_out))
    assert agreements == sorted(agreements)
    assert agreements[0] > 0.75
    assert agreements[-1] > expected


def test_doubt_is_how_often_a_noisy_voter_contradicts(vectors, liking):
    noise = 0.2
    groups = _groups(dict(list(liking.items())[:400]), how="order", count=60, noise=noise)
    taste = Taste.fit(groups, vectors, kind="pixels")
    held_out = _groups(liking, how="order", count=200, noise=noise, seed=2, start=400)
    doubt = np.mean([taste.doubt(np.stack([vectors[name] for name in group])) for group in held_out])
    assert doubt == pytest.approx(1 - _agreement(taste, vectors, held_out), abs=0.06)
    assert 0.1 < doubt < 0.4


def test_doubt_falls_with_votes_and_stays_with_a_voter_at_random(vectors, liking):
    group = np.stack(list(vectors.values())[:GROUP])
    few, many = (_groups(liking, how="order", count=count) for count in (3, 100))
    random = _groups(dict.fromkeys(liking, 0.0), how="best", count=100, noise=1.0)
    doubts = [Taste.fit(groups, vectors, kind="pixels").doubt(group) for groups in (few, many, random)]
    assert doubts[1] < doubts[0] / 1.5 < 0.3
    assert doubts[2] > 0.3


def test_one_pair_by_hand():
    """The one feature that varies is 1 and -1 when standardised, so that the one comparison has the difference 2."""
    vectors = {"a": np.array([4.0, 7.0]), "b": np.array([1.0, 7.0])}
    taste = Taste.fit([{"a": 1.0, "b": 0.0}], vectors, kind="pixels")
    assert taste.mean.tolist() == [2.5, 7.0]
    assert taste.scale.tolist() == [1.5, 1.0]  # the second is constant
    weight = taste.weights[0]
    assert weight == pytest.approx(2 * (1 - chance(2 * weight)))  # the prior's precision is half of two features
    assert taste.weights[1] == 0.0
    slope = chance(2 * weight) * (1 - chance(2 * weight))
    np.testing.assert_allclose(taste.precision, [[1 + 4 * slope, 0], [0, 1]])
    moderated = float(chance(2 * weight / math.sqrt(1 + math.pi / 8 * 4 / (1 + 4 * slope))))
    both = np.stack([vectors["a"], vectors["b"]])
    assert taste.utility(both).tolist() == pytest.approx([weight, -weight])
    assert taste.win_rates(both).tolist() == pytest.approx([moderated, 1 - moderated])
    assert taste.doubt(both) == pytest.approx(1 - moderated)


def test_ties_alone_teach_nothing(vectors):
    group = dict.fromkeys(list(vectors)[:GROUP], 0.0)
    taste = Taste.fit([group], vectors, kind="pixels")
    table = np.stack([vectors[name] for name in group])
    assert not taste.weights.any()
    assert taste.win_rates(table).tolist() == [0.5] * GROUP
    assert taste.doubt(table) == 0.5


def test_two_random_pictures_differ_by_about_two_nats_before_a_vote(vectors):
    names = list(vectors)
    taste = Taste.fit([dict.fromkeys(names, 0.0)], vectors, kind="pixels")
    one, other = (np.stack([vectors[name] for name in half]) for half in (names[:300], names[300:]))
    differences = (one - other) / taste.scale
    variances = np.einsum("nf,fg,ng->n", differences, np.linalg.inv(taste.precision), differences)
    assert math.sqrt(variances.mean()) == pytest.approx(2.0, abs=0.1)


def test_the_same_votes_give_the_same_bits_in_any_order(vectors, liking):
    groups = _groups(liking, how="best", count=10)
    turned = [dict(reversed(group.items())) for group in reversed(groups)]
    one, other = (Taste.fit(each, vectors, kind="pixels") for each in (groups, turned))
    assert np.array_equal(one.weights, other.weights)
    assert np.array_equal(one.precision, other.precision)


def test_a_state_and_a_file_are_the_same_taste(vectors, liking, tmp_path):
    taste = Taste.fit(_groups(liking, how="best", count=10), vectors, kind="pixels")
    taste.save(tmp_path / "taste.safetensors")
    table = np.stack(list(vectors.values())[:GROUP])
    for again in (Taste.of_state(taste.state_dict()), Taste.load(tmp_path / "taste.safetensors")):
        assert again.kind == "pixels"
        assert np.array_equal(again.utility(table), taste.utility(table))
        assert np.array_equal(again.win_rates(table), taste.win_rates(table))


@pytest.mark.parametrize("content", [None, b"", b"not a taste", b"\x02\0\0\0\0\0\0\0{}"])
def test_another_file_is_refused(tmp_path, content):
    file = tmp_path / "taste.safetensors"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=r"taste\.safetensors is not a voter's taste"):
        Taste.load(file)


def test_the_share_of_right_pairs_by_hand():
    expected = {"a": 0.9, "b": 0.5, "c": 0.5, "d": 0.1}
    assert _right_share(expected, {"a": 3, "b": 2, "c": 1, "d": 0}) == 5.5 / 6
    assert _right_share(expected, {"a": 0, "b": 0, "c": 0, "d": 1}) == 0.0
    assert _right_share(expected, dict.fromkeys("abcd", 1.0)) is None
    assert _right_share({}, {"a": 3, "b": 2}) is None
    assert _right_share(expected, {"a": 3, "b": 2}, drawn=False) is None  # it was asked for the model's doubts


@pytest.fixture
def taste_file(vectors, liking, tmp_path):
    file = tmp_path / "taste.safetensors"
    Taste.fit(_groups(liking, how="order", count=40), vectors, kind="pixels").save(file)
    return file


def _samples(*outputs):
    return [Sample(prompt=Prompt(text=""), output=output, group=0) for output in outputs]


def test_the_reward_likes_what_the_voter_likes(taste_file):
    colours = ["navy", "gray", "orange"]
    scores = TasteReward(taste_file)(_samples(*[Image.new("RGB", (20, 20), colour) for colour in colours]))
    assert scores == sorted(scores, reverse=True)
    assert all(math.isfinite(score) for score in scores)


def test_the_reward_says_that_a_text_is_no_picture(taste_file):
    with pytest.raises(RewardError, match="row 1, got str"):
        TasteReward(taste_file)(_samples(Image.new("RGB", (4, 4)), "blue"))


@pytest.mark.parametrize("name", ["My-taste", "my_taste", "3d", "-a", "a-", "a--b", "", "a/b", "a" * 41])
def test_a_package_needs_a_name_that_pip_takes(taste_file, tmp_path, name):
    with pytest.raises(UsageError, match="small letters, digits and single hyphens"):
        write_package(Taste.load(taste_file), tmp_path / "package", name, facts={})
    assert not (tmp_path / "package").exists()


@pytest.mark.parametrize(("kind", "extra"), [("pixels", ""), ("clip", "[clip]"), ("lpips", "[lpips]")])
def test_a_package_brings_the_packages_of_its_features(tmp_path, kind, extra):
    taste = Taste(kind=kind, weights=np.ones(1), mean=np.ones(1), scale=np.ones(1), precision=np.eye(1))
    write_package(taste, tmp_path / "my-taste", "my-taste", facts={"votes": "12"})
    project = tomllib.loads((tmp_path / "my-taste/pyproject.toml").read_text())["project"]
    assert project["dependencies"] == [f"grpokit-vote{extra}~=0.1.0"]
    assert "- votes: 12" in (tmp_path / "my-taste/README.md").read_text()


def test_a_package_is_never_written_over_another_one(taste_file, tmp_path):
    taste = Taste.load(taste_file)
    write_package(taste, tmp_path / "my-taste", "my-taste", facts={"votes": "12"})
    with pytest.raises(RunError, match="my-taste cannot be written"):
        write_package(taste, tmp_path / "my-taste", "my-taste", facts={"votes": "13"})
    assert "- votes: 12" in (tmp_path / "my-taste/README.md").read_text()
    assert [place.name for place in tmp_path.glob("*my-taste*")] == ["my-taste"]


_SCORE = """
import json
from PIL import Image
from grpokit import Prompt, Sample, registry

reward = registry.create("reward", "my-taste", {})
pictures = [Image.new("RGB", (20, 20), colour) for colour in ("navy", "gray", "orange")]
print(json.dumps(reward([Sample(prompt=Prompt(text=""), output=picture, group=0) for picture in pictures])))
"""


@pytest.mark.slow
def test_a_package_is_installed_and_used_by_its_name(taste_file, tmp_path):
    taste = Taste.load(taste_file)
    package, installed = tmp_path / "my-taste", tmp_path / "installed"
    write_package(taste, package, "my-taste", facts={"question": "Which is nicer?", "votes": "40"})
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", installed, package], check=True, capture_output=True, timeout=120)
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    told = subprocess.run(
        [sys.executable, "-c", _SCORE],
        env=os.environ | {"PYTHONPATH": path, "GRPOKIT_STRICT": "1"},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    colours = [Image.new("RGB", (20, 20), colour) for colour in ("navy", "gray", "orange")]
    assert json.loads(told.stdout) == pytest.approx(TasteReward(taste_file)(_samples(*colours)))
