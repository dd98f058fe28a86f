"""Which pictures teach and which are held out, and what is wrong with a folder."""

import shutil

import numpy as np
import pytest
from drawn import picture, write_references
from PIL import Image

from grpokit import DataError, UsageError
from grpokit_likeness.features import features
from grpokit_likeness.references import distances, read_references

PIXELS = features("pixels", reward="test")


def _read(folder, held_out=0.2):
    return read_references(folder, PIXELS, held_out=held_out, reward="reference-likeness")


def test_a_share_is_held_out_whatever_the_files_are_called(tmp_path):
    references = _read(write_references(tmp_path / "mine"))
    assert references.training.shape == (16, 60)
    assert references.held_out.shape == (4, 60)
    (tmp_path / "renamed").mkdir()
    for i, file in enumerate(sorted((tmp_path / "mine").iterdir(), reverse=True)):
        shutil.copy(file, tmp_path / "renamed" / f"{i:03d}.png")
    renamed = _read(tmp_path / "renamed")
    assert renamed.digest == references.digest
    assert np.array_equal(renamed.held_out, references.held_out)
    both = {row.tobytes() for row in np.concatenate([references.training, references.held_out])}
    assert both == {row.tobytes() for row in PIXELS([picture(seed, 0.8) for seed in range(20)])}


def test_a_picture_that_lies_there_twice_is_not_on_both_sides(tmp_path):
    references = _read(write_references(tmp_path / "mine"))
    for file in list((tmp_path / "mine").iterdir()):
        Image.open(file).save(file.with_name(f"again-{file.name}"), compress_level=9)
    again = _read(tmp_path / "mine")
    assert again.digest == references.digest
    assert np.array_equal(again.training, references.training)


def test_at_least_one_is_held_out(tmp_path):
    references = _read(write_references(tmp_path / "mine", count=5), held_out=0.0)
    assert (len(references.training), len(references.held_out)) == (4, 1)
    assert references.digest != _read(tmp_path / "mine", held_out=0.4).digest


def test_what_is_no_picture_is_left_alone(tmp_path):
    references = _read(write_references(tmp_path / "mine"))
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    (tmp_path / "mine" / "._1.png").write_bytes(b"of macOS")
    (tmp_path / "mine" / "older").mkdir()
    assert _read(tmp_path / "mine").digest == references.digest


@pytest.mark.parametrize(("count", "held_out"), [(3, 0.2), (5, 0.9)])
def test_too_few_are_refused(tmp_path, count, held_out):
    with pytest.raises(UsageError, match=rf"has {count} different pictures"):
        _read(write_references(tmp_path / "mine", count=count), held_out=held_out)


def test_a_missing_folder_and_a_damaged_picture_are_named(tmp_path):
    with pytest.raises(UsageError, match=r"no folder of references at .*nowhere"):
        _read(tmp_path / "nowhere")
    write_references(tmp_path / "mine")
    (tmp_path / "mine" / "0.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"0\.png cannot be read"):
        _read(tmp_path / "mine")


def test_pictures_of_other_kinds_are_named_where_too_few_are_left(tmp_path):
    (tmp_path / "mine").mkdir()
    for seed in range(6):
        picture(seed, 0.8).save(tmp_path / "mine" / f"{seed}.bmp")
    with pytest.raises(
        UsageError, match=r"has 0 different pictures .*0\.bmp, .* and 1 more are pictures of other kinds"
    ):
        _read(tmp_path / "mine")


def test_a_photograph_of_any_size_is_read_and_no_picture_is_kept(tmp_path):
    """Features are made of one picture after the other; a phone's photographs have 48 million pixels."""
    write_references(tmp_path / "mine")
    Image.new("RGB", (8000, 6000), "navy").save(tmp_path / "mine" / "photograph.png")
    at_once = []

    def counting(pictures):
        at_once.append(len(pictures))
        return PIXELS(pictures)

    references = read_references(tmp_path / "mine", counting, held_out=0.2, reward="reference-likeness")
    assert len(references.training) + len(references.held_out) == 21
    assert at_once == [1] * 21


def test_distances_by_hand():
    gaps = distances(np.array([[0.0, 0.0], [3.0, 4.0]]), np.array([[0.0, 0.0], [0.0, 4.0], [3.0, 0.0]]))
    assert gaps.tolist() == [[0.0, 4.0, 3.0], [5.0, 3.0, 4.0]]
