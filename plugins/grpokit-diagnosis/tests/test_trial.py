"""The parts of a trial: what is taken away, what it is worth, and the colours."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest
import trial_rewards
from PIL import Image

from grpokit import Prompt, RewardTerm, Sample
from grpokit.rewards.terms import Reward
from grpokit_diagnosis.trial.heat_map import LOWERS, RAISES, cells_of, overlay, tried_cells
from grpokit_diagnosis.trial.measure import CHANCE, REPEATS, Scorer, Tried, try_whole, without_parts
from grpokit_diagnosis.trial.parts import MOST_WORDS, DividedPicture, DividedText, Square, divide, squares_of, words_of
from grpokit_diagnosis.trial.sentences import about_parts, figure, name_of


def ignore(scored: int, planned: int) -> None:
    assert scored <= planned


def taken_apart(reward: Reward, output: Image.Image | str, *, squares: int = 8, batch_size: int = 32) -> Tried:
    scorer = Scorer(RewardTerm(name="reward", reward=reward), batch_size, ignore)
    sample = Sample(prompt=Prompt(""), output=output, group=0)
    (scores,) = try_whole(scorer, [[sample]])
    return without_parts(scorer, Tried(where="it", sample=sample, scores=scores), [], divide(output, squares))


def four_fields() -> Image.Image:
    """White, 60 % gray and twice black: the middle colour is (0 + 0) / 2 or the gray's neighbour."""
    picture = Image.new("RGB", (160, 160))
    picture.paste((255, 255, 255), (0, 0, 80, 80))
    picture.paste((153, 153, 153), (80, 0, 160, 80))
    return picture


@pytest.mark.parametrize("batch_size", [1, 2, 7, 1000])
def test_a_square_is_worth_what_it_adds(batch_size: int) -> None:
    picture = four_fields()
    tried = taken_apart(trial_rewards.quarter, picture, batch_size=batch_size)
    divided = tried.divided
    assert isinstance(divided, DividedPicture)
    assert tried.score == pytest.approx(1.0)
    colour = divided.colour[0] / 255
    assert 0 <= colour <= 0.6
    for square, change in zip(divided.parts, tried.changes, strict=True):
        width = max(0, min(square.right, 80) - square.left)
        height = max(0, min(square.bottom, 80) - square.top)
        assert change == pytest.approx(width * height / 80**2 * (1 - colour)), square
    assert tried.empty == pytest.approx(colour)
    assert tried.repeatable
    assert tried.chance == 0


def test_the_map_is_empty_where_the_reward_does_not_look() -> None:
    """Half a square of the second grid reaches out of the quarter; beyond it there is nothing."""
    tried = taken_apart(trial_rewards.quarter, four_fields())
    cells = tried_cells(tried)
    outside = 80 + 160 / 8 / 2
    right = [place for place, left in enumerate(cells.columns[:-1]) if left >= outside]
    below = [place for place, top in enumerate(cells.rows[:-1]) if top >= outside]
    assert len(right) == len(below) == 7
    assert not cells.values[:, right].any()
    assert not cells.values[below].any()
    inside = cells.values[:8, :8]
    assert (inside > 0).all()


def test_the_two_grids_cover_each_place_twice() -> None:
    squares = squares_of((300, 200), 6)
    count = np.zeros((200, 300))
    for square in squares:
        count[square.top : square.bottom, square.left : square.right] += 1
    assert (count == 2).all()
    assert sum(square.right - square.left == square.bottom - square.top == 50 for square in squares) == 24 + 15


@pytest.mark.parametrize("size", [(1, 1), (1, 900), (900, 1), (3, 2), (7, 640)])
def test_pictures_of_any_shape_are_divided(size: tuple[int, int]) -> None:
    count = np.zeros((size[1], size[0]))
    for square in squares_of(size, 8):
        assert square.right > square.left
        assert square.bottom > square.top
        count[square.top : square.bottom, square.left : square.right] += 1
    assert count.min() >= 1
    tried = taken_apart(trial_rewards.constant, Image.new("RGB", size, "red"))
    assert overlay(tried.sample.output, tried_cells(tried), 0.0).size[0] >= 1


def test_the_cover_is_the_middle_colour() -> None:
    sign = Image.new("RGB", (100, 50), (240, 230, 200))
    sign.paste((120, 10, 10), (10, 10, 30, 40))
    divided = DividedPicture(sign, 4)
    assert divided.colour == (240, 230, 200)
    ink = next(i for i, square in enumerate(divided.parts) if square.box == (0, 0, 25, 25))
    pixels = np.asarray(divided.without(ink))
    assert (pixels[:25, :25] == (240, 230, 200)).all()
    assert (pixels[30, 20] == (120, 10, 10)).all()
    assert np.asarray(sign)[20, 20].tolist() == [120, 10, 10]  # the picture itself stays


def test_cells_have_the_mean_of_their_squares() -> None:
    squares = [Square(0, 0, 2, 2), Square(1, 0, 3, 2), Square(3, 0, 4, 2)]
    cells = cells_of(squares, [1.0, 3.0, float("nan")], (4, 2))
    assert list(cells.columns) == [0, 1, 2, 3, 4]
    assert cells.values[0, :3].tolist() == [1.0, 2.0, 3.0]
    assert np.isnan(cells.values[0, 3])


def test_the_colours() -> None:
    squares = [Square(0, 0, 100, 100), Square(100, 0, 200, 100), Square(200, 0, 300, 100)]
    pixels = np.asarray(overlay(Image.new("RGB", (300, 100), "white"), cells_of(squares, [2, 0, -2], (300, 100)), 2.0))
    up, idle, down = pixels[50, 50].astype(int), pixels[50, 150].astype(int), pixels[50, 250].astype(int)
    assert len({*idle}) == 1  # gray
    assert np.abs(up - np.array(RAISES)).max() < 45
    assert np.abs(down - np.array(LOWERS)).max() < 45


@pytest.mark.parametrize(
    ("text", "index", "rest"),
    [
        ("the answer is 12", 1, "the is 12"),
        ("the answer is 12", 3, "the answer is"),
        ("one\ntwo\nthree", 1, "one\nthree"),
        ("one", 0, ""),
        (" one ", 0, " "),
        ("今天好", 1, "今好"),
        ("hi 👩‍🚀 there", 1, "hi there"),
    ],
)
def test_a_word_is_left_out(text: str, index: int, rest: str) -> None:
    assert DividedText(text).without(index) == rest


def test_a_long_text_is_left_out_in_runs() -> None:
    text = " ".join(f"word{i}" for i in range(3 * MOST_WORDS - 1))
    parts = words_of(text)
    assert len(parts) == MOST_WORDS
    assert text[parts[0].start : parts[0].end] == "word0 word1 word2"
    assert parts[-1].end == len(text)
    assert words_of(" \n") == []


def test_a_word_that_lowers_the_score() -> None:
    tried = taken_apart(trial_rewards.shouts, "ab CD")
    assert tried.score == -0.5
    assert tried.changes == [-0.5 - -1.0, -0.5 - 0.0]
    assert about_parts(tried)[0] == "Worth most is “ab”: +0.5000. “CD” lowers the score most: −0.5000."


def test_words_without_which_there_is_no_score() -> None:
    tried = taken_apart(trial_rewards.needs_all, "a cat please")
    assert tried.changes[:2] == [0.0, 0.0]
    assert np.isnan(tried.changes[2])
    lines = about_parts(tried)
    assert "Without 1 of 3 words there was no score at all." in lines
    assert any("not polite" in line for line in lines)


@pytest.mark.parametrize(
    ("reward", "output", "words"),
    [
        (trial_rewards.constant, Image.new("RGB", (40, 40), "red"), "Nothing changes the score"),
        (trial_rewards.constant, "a cat", "Nothing changes the score"),
        (trial_rewards.any_of_two, "a cat or dog", "No single word changes the score, only all of them together."),
        (trial_rewards.constant, "", "The text has no words to leave out."),
    ],
)
def test_nothing_changes_the_score(reward: Reward, output: Image.Image | str, words: str) -> None:
    tried = taken_apart(reward, output)
    assert tried.largest == 0
    assert about_parts(tried)[0].startswith(words)


def test_a_reward_that_is_noise_has_no_map() -> None:
    tried = taken_apart(trial_rewards.noise, Image.new("RGB", (80, 80), "red"))
    assert not tried.repeatable
    assert len(tried.scores) >= REPEATS
    assert tried.chance == pytest.approx(CHANCE * statistics.stdev(tried.scores))
    assert tried.largest == 0
    lines = " ".join(about_parts(tried))
    assert "No single square changes the score by more than the reward's own noise." in lines
    assert "The reward is not repeatable" in lines


def test_chance_is_seldom_larger() -> None:
    """Fewer than one in twenty maps of noise alone shows a square."""
    draws = random.Random(1)
    shown = 0
    for _ in range(400):
        scores = [draws.gauss(0, 1) for _ in range(REPEATS)]
        mean = statistics.fmean(scores)
        limit = CHANCE * statistics.stdev(scores)
        shown += any(abs(mean - draws.gauss(0, 1)) > limit for _ in range(145))
    assert shown <= 20


def test_what_is_larger_than_noise_is_shown() -> None:
    tried = taken_apart(trial_rewards.noisy_quarter, four_fields())
    assert not tried.repeatable
    assert tried.chance < 0.003
    counted = tried.counted
    for part, change in zip(tried.divided.parts, counted, strict=True) if tried.divided else ():
        assert isinstance(part, Square)
        assert bool(change) == (part.left < 80 and part.top < 80), part


def test_calls_have_the_size_that_was_asked() -> None:
    trial_rewards.CALLS.clear()
    taken_apart(trial_rewards.quarter, four_fields(), batch_size=20)
    assert max(trial_rewards.CALLS) == 20
    assert sum(trial_rewards.CALLS) == 2 + 145 + 8 + 1  # twice as it is, the squares, once in each call, all covered


@pytest.mark.parametrize(
    ("box", "name"),
    [
        ((0, 0, 20, 20), "top left"),
        ((40, 40, 60, 60), "middle"),
        ((40, 80, 60, 100), "bottom"),
        ((80, 40, 100, 60), "right"),
        ((0, 0, 100, 100), "middle"),
    ],
)
def test_where_a_square_lies(box: tuple[int, int, int, int], name: str) -> None:
    divided = DividedPicture(Image.new("RGB", (100, 100)), 5)
    divided.parts = [Square(*box)]
    assert name_of(divided, 0) == name


def test_figures() -> None:
    texts = [figure(value) for value in (float("nan"), -0.0, 1e-9, 12345678.0)]
    assert texts == [
        "no score",
        "0",
        "1.0e−09",
        "1.2e+07",
    ]
