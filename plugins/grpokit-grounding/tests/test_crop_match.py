"""crop-match: the crop is that of the answer, cut by hand, and whatever matches it scores nothing else."""

import math

import numpy as np
import pytest
from PIL import Image

import grpokit
from grpokit import PluginError, Prompt, RewardError, Sample, UsageError
from grpokit_check import parametrize_with_checks, reward_checks
from grpokit_grounding.crop_match import CropMatch
from grpokit_grounding.plugin import grpokit_rewards

SPECS = {spec.name: spec for spec in grpokit_rewards()}

# Pixel (x, y) has the red value 10 y + x, so that a crop's values say where it was cut.
NUMBERED = Image.fromarray(np.stack([np.add.outer(10 * np.arange(8), np.arange(10))] * 3, -1).astype(np.uint8))
HALVES = Image.fromarray(np.repeat(np.uint8([[[255] * 3] * 4 + [[0] * 3] * 4]), 8, 0))  # left white, right black


def brightness(samples):
    """The mean of a crop, in [0, 1]."""
    return [float(np.asarray(sample.output).mean()) / 255 for sample in samples]


def first_and_last(samples):
    """100 times a crop's first pixel, and its last."""
    found = [np.asarray(sample.output)[..., 0] for sample in samples]
    return [100.0 * pixels[0, 0] + pixels[-1, -1] for pixels in found]


def wide(samples, *, than):
    return [float(sample.output.width > than) for sample in samples]


def one_too_few(samples):
    return [1.0] * (len(samples) - 1)


def sample(box, *, image=HALVES, target=None, text="<answer>{}</answer>"):
    return Sample(prompt=Prompt(text="the cup", image=image, target=target), output=text.format(box), group=0)


def reward(function=brightness, **params):
    return CropMatch(match=f"test_crop_match:{function.__name__}", **params)


def test_the_crop_is_the_answers_and_not_the_targets():
    """MedGround-R1's published code scores the target's crop, so that all answers of a group have one score."""
    boxes = ([0, 0, 4, 8], [4, 0, 8, 8], [2, 0, 6, 8], [0, 0, 8, 2], [3, 0, 7, 8])
    scores = reward()([sample(box, target=[0, 0, 4, 8]) for box in boxes])
    assert scores == [1.0, 0.0, 0.5, 0.5, 0.25]  # it follows the answer,
    for target in ([4, 0, 8, 8], [1, 1, 2, 2], None, "no box at all"):
        assert reward()([sample(box, target=target) for box in boxes]) == scores  # and nothing of the target


@pytest.mark.parametrize(
    ("box", "exclusive", "inclusive"),
    [
        ([2, 3, 5, 7], (32, 64), (32, 75)),
        ([0, 0, 10, 8], (0, 79), (0, 79)),  # inclusive: the edges lie one outside, and are clipped
        ([-5, -5, 2, 1], (0, 1), (0, 12)),
        ([8, 6, 30, 30], (68, 79), (68, 79)),
        ([2.6, 3.2, 4.1, 4.0], (32, 34), (32, 45)),  # a pixel that is covered in part belongs to it
        ([2, 1, 3, 4.5], (12, 42), (12, 53)),
        ([3, 3, 3, 3], None, (33, 33)),
        ([10, 0, 12, 8], None, None),  # right of the picture
        ([0, 8, 10, 9], None, None),  # below
        ([-3, -3, 0, 0], None, (0, 0)),
        ([-3, -3, -1, -1], None, None),
    ],
)
def test_crops_by_hand(box, exclusive, inclusive):
    for edges, expected in (("exclusive", exclusive), ("inclusive", inclusive)):
        (score,) = reward(first_and_last, edges=edges)([sample(box, image=NUMBERED)])
        assert score == (0.0 if expected is None else 100 * expected[0] + expected[1]), edges


def test_coordinates_of_another_scale():
    (score,) = reward(first_and_last, scale=1000)([sample([200, 375, 500, 875], image=NUMBERED)])
    assert score == 100 * 32 + 64  # the picture is 10 x 8: [2, 3, 5, 7]
    with pytest.warns(UserWarning, match="crop-match: of 8 boxes in answers 8 cannot be right"):
        reward(first_and_last)([sample([200, 375, 500, 875], image=NUMBERED)] * 8)


def test_answers_without_a_box_score_zero_and_prompts_without_a_picture_nothing():
    rows = [
        sample("the cup"),
        sample([0, 0, 4, 8]),
        sample([0, 0, 4, 8], image=None),
        sample("", text="no answer"),
        sample([4, 4, 0, 0]),
    ]
    scores = reward()(rows)
    assert scores[:2] + scores[3:] == [0.0, 1.0, 0.0, 0.0]
    assert math.isnan(scores[2])
    assert reward(one_too_few)([rows[0], rows[3]]) == [0.0, 0.0]  # with nothing to match, nobody is asked
    assert (
        SPECS["crop-match"].unscorable == "grpokit.rewards.missing_inputs:source"
    )  # so a run knows it before it begins


def test_what_matches_is_any_reward_with_its_parameters():
    rows = [sample([0, 0, 4, 8]), sample([0, 0, 6, 8])]
    assert reward(wide, match_params={"than": 4})(rows) == [0.0, 1.0]
    built = grpokit.create("reward", "crop-match", {"match": "test_crop_match:brightness"})
    assert built(rows) == [1.0, pytest.approx(4 / 6)]
    by_name = grpokit.create("reward", "crop-match", {"match": "pixel-diversity"})
    assert by_name([rows[0], sample([4, 0, 8, 8])])[0] > 0


def test_what_is_refused():
    with pytest.raises(PluginError, match="clip-scor"):
        CropMatch(match="clip-scor")
    with pytest.raises(PluginError, match="needs the parameter 'than'"):
        reward(wide)
    with pytest.raises(PluginError, match="needs the parameter 'match'"):
        grpokit.create("reward", "crop-match")
    for scale in (0, -1, math.nan):
        with pytest.raises(UsageError, match="crop-match: scale must be above 0"):
            reward(scale=scale)
    with pytest.raises(UsageError, match="crop-match: edges must be"):
        reward(edges="open")
    with pytest.raises(RewardError, match="match gave 1 scores for 2 crops"):
        reward(one_too_few)([sample([0, 0, 4, 8])] * 2)
    with pytest.raises(RewardError, match=r"a text as the output of row 0 \(reward 'crop-match'\)"):
        reward()([Sample(prompt=Prompt(text="the cup", image=HALVES), output=HALVES, group=0)])
    assert SPECS["crop-match"].accepts == {"text"}


PARAMS = {"match": "grpokit_grounding.scenes:fits"}


def rows_of_scenes():
    prompts = grpokit_prompts()
    boxes = ([5, 5, 30, 30], [0, 0, 64, 64], [20, 30, 44, 61], None)
    return [sample_of(prompt, box, group) for group, prompt in enumerate(prompts) for box in boxes]


def grpokit_prompts():
    from grpokit_grounding.scenes import prompts

    return [*prompts("eval", 3), Prompt(text="the red circle")]


def sample_of(prompt, box, group):
    return Sample(prompt=prompt, output=f"<think>there</think><answer>{box}</answer>", group=group)


@parametrize_with_checks(
    reward_checks(
        CropMatch(**PARAMS),
        rows_of_scenes(),
        spec=SPECS["crop-match"],
        params=PARAMS,
        module="grpokit_grounding.plugin",
    )
)
def test_conformance(check):
    check()
