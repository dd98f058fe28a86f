"""Scenes: a phrase names one shape, a box is tight, no scene is in two splits, and all of it follows from numbers."""

import zlib

import numpy as np
import pytest
from PIL import Image

from grpokit import Prompt, Sample, UsageError
from grpokit_grounding import scenes
from grpokit_grounding.scenes import COLOURS, FORMS, RELATIONS, Shape

HELD_OUT = 337184846
"""The checksum of the held-out phrases and targets: another one would make earlier numbers incomparable."""


def coloured(image):
    """Pixels that are far from the background, whose noise stays within 40 levels."""
    return np.abs(np.asarray(image, dtype=int) - 232).max(-1) > 60


def shape(form="circle", colour="red", *, x=2, y=2, side=12):
    return Shape(form=form, colour=colour, x=x, y=y, side=side)


def crop(form, colour, width, height, *, around=0):
    """A crop that a form fills, with `around` pixels of background on all sides."""
    pixels = np.full((height + 2 * around, width + 2 * around, 3), 232, dtype=np.uint8)
    inner = pixels[around : around + height, around : around + width]
    inner[scenes.mask(form, width, height)] = COLOURS[colour]
    return Image.fromarray(pixels)


def fit(phrase, *crops):
    return scenes.fits([Sample(prompt=Prompt(text=phrase), output=each, group=0) for each in crops])


def test_a_phrase_names_one_shape_and_every_kind_of_phrase_comes():
    kinds = {"plain": 0, "relation": 0, "size": 0}
    for scene in scenes.scenes("train", 500):
        assert scenes.matching(scene.phrase, scene.shapes) == [scene.target]
        assert 2 <= len(scene.shapes) <= 4
        relation = any(f" {name} the " in scene.phrase for name in RELATIONS)
        kinds["relation" if relation else "size" if "est " in scene.phrase else "plain"] += 1
        # by hand: only a plain phrase whose colour and form are unique goes without a comparison
        alike = sum((s.colour, s.form) == (scene.target.colour, scene.target.form) for s in scene.shapes)
        assert (alike > 1) == relation
    assert min(kinds.values()) > 20, kinds


def test_what_phrases_mean_by_hand():
    left, right, cross = shape(x=2), shape(x=40, side=20), shape("cross", "blue", x=20, y=4)
    everything = [left, right, cross]
    for phrase, expected in (
        ("the red circle", [left, right]),
        ("the red circle left of the cross", [left]),
        ("the red circle right of the cross", [right]),
        ("the red circle above the cross", []),
        ("the largest circle", [right]),
        ("the smallest circle", [left]),
        ("the cross", [cross]),
        ("the green circle", []),
    ):
        assert scenes.matching(phrase, everything) == expected, phrase
    nearly = [shape(side=12), shape(x=40, side=14)]  # two pixels more are not clearly larger
    assert scenes.matching("the largest circle", nearly) == nearly[::-1]
    assert scenes.phrases(left, [left, right]) == []  # alike, and nothing stands between them


def test_boxes_touch_the_pixels_on_all_four_sides():
    for scene in scenes.scenes("train", 60):
        drawn = coloured(scenes.picture(scene))
        for x1, y1, x2, y2 in (each.box for each in scene.shapes):
            inside = drawn[y1:y2, x1:x2]
            assert all(edge.any() for edge in (inside[0], inside[-1], inside[:, 0], inside[:, -1]))
            drawn[y1:y2, x1:x2] = False
        assert not drawn.any()  # nothing lies outside of the boxes


@pytest.mark.slow
def test_no_scene_is_in_two_splits():
    found = {split: {s.shapes for s in scenes.scenes(split, 2000)} for split in scenes.SPLITS}
    assert len(found["eval"]) == 167
    assert not found["eval"] & found["train"]
    assert not (found["eval"] | found["train"]) & found["pretrain"]
    pictures = [{each.tobytes() for each in map(scenes.picture, scenes.scenes(s, 167))} for s in scenes.SPLITS]
    assert len(set.union(*pictures)) == sum(map(len, pictures))


def test_the_same_scenes_every_time():
    scenes.picture.cache_clear()
    first = scenes.prompts("eval", 20)
    scenes.picture.cache_clear()
    again = scenes.prompts("eval")
    assert [(p.text, p.target, p.image.tobytes()) for p in first] == [
        (p.text, p.target, p.image.tobytes()) for p in again[:20]
    ]
    assert zlib.crc32(repr([(p.text, p.target) for p in again]).encode()) == HELD_OUT
    assert (first[0].image.size, first[0].image.mode) == ((64, 64), "RGB")


def test_an_unknown_split():
    with pytest.raises(UsageError, match=r"no split 'test' of scenes: train, eval, pretrain\.$"):
        next(scenes.scenes("test"))


@pytest.mark.parametrize("form", FORMS)
def test_a_crop_fits_best_where_it_is_tight(form):
    tight, blue = (crop(form, colour, 16, 16) for colour in ("red", "blue"))
    loose = crop(form, "red", 16, 16, around=4)
    scores = fit(f"the red {form}", tight, loose, blue)
    assert scores[0] == 1.0
    assert scores[2] == 0.0
    assert 0 < scores[1] < 0.5  # (16 / 24)^2, at most
    assert fit(f"the largest {form}", tight, blue) == [1.0, 1.0]  # of any colour


def test_fits_by_hand():
    square = crop("square", "red", 12, 12, around=6)  # 144 of 24 x 24 pixels
    assert fit("the red square", square) == [144 / 576]
    assert fit("the red square left of the cross", square.crop((6, 6, 18, 24))) == [144 / (12 * 18)]
    assert fit("the red square", square.crop((6, 6, 16, 18))) == [0.0]  # 10 pixels wide: too narrow to tell
    assert fit("the red cross", crop("square", "red", 12, 12)) == [80 / 144]  # a cross of bars 4 wide: 2 x 48 - 16
    assert np.isnan(fit("a cup", square)[0])
