"""Prompts from text, JSON lines and datasets; pictures by number; the order in which training meets them."""

from __future__ import annotations

import io
import json
import os
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from grpokit import DataError, Prompt, UsageError
from grpokit.config import schema
from grpokit.data import as_prompts, check_pictures, hold_out, read_dataset, read_prompts
from grpokit.images import check_whole, open_picture, to_rgb


def picture(path: Path, grey: int, size: tuple[int, int] = (3, 2)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, grey).save(path)
    return path


def png(grey: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (3, 2), grey).save(file, "PNG")
    return file.getvalue()


def grey(image: Any) -> int:
    return int(image.getpixel((0, 0)))


def texts(prompts: Sequence[Prompt]) -> list[str]:
    return [p.text for p in prompts]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text('a sign "one"\n\n  a sign "two"  \n', encoding="utf-8")
    return path


# --- text ----------------------------------------------------------------------------------------------------------


def test_text(file: Path) -> None:
    prompts = read_prompts(file)
    assert texts(prompts) == ['a sign "one"', 'a sign "two"']
    assert (prompts[0].image, prompts[0].target, dict(prompts[0].meta)) == (None, None, {})
    assert texts(prompts[:1]) == ['a sign "one"']
    assert prompts[-1] == prompts[1]
    with pytest.raises(IndexError):
        prompts[2]


def test_pictures_are_named_by_line_numbers_from_one(file: Path, tmp_path: Path) -> None:
    """An empty line counts, so that a file's line numbers are an editor's."""
    picture(tmp_path / "t/1.png", 10)
    picture(tmp_path / "t/0003.JPG", 200)
    picture(tmp_path / "t/2.png", 99)  # of the empty line
    picture(tmp_path / "s/01.webp", 20)
    picture(tmp_path / "s/3.jpeg", 30)
    (tmp_path / "t/notes.txt").write_text("not a picture")
    (tmp_path / "t/1.txt").write_text("not a picture")
    first, second = read_prompts(file, targets=tmp_path / "t", images=tmp_path / "s")
    assert [grey(p) for p in (first.target, second.target)] == [10, 200]
    assert first.image is not None
    assert first.image.size == (3, 2)
    assert second.image is not None
    assert abs(grey(second.image) - 30) <= 1


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ["1.png"],
            ["prompts.txt, line 3, has no picture in", "expected 3.png (or .jpg, .jpeg", "has 1 numbered picture."],
        ),
        (["0.png", "1.png", "2.png"], ["line 3", "3 numbered pictures", "starts at 1, but there is a file for 0"]),
        (["1.png", "3.bmp"], ["line 3", "expected 3.png"]),
        (["a.png"], ["line 1", "0 numbered pictures"]),
    ],
)
@pytest.mark.parametrize("role", ["targets", "images"])
def test_missing_picture(file: Path, tmp_path: Path, names: list[str], words: list[str], role: str) -> None:
    for name in names:
        picture(tmp_path / "t" / name, 0)
    with pytest.raises(DataError) as caught:
        read_prompts(file, **{role: tmp_path / "t"})
    for word in [*words, str(tmp_path / "t")]:
        assert word in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("role", ["targets", "images"])
@pytest.mark.parametrize("spare", ["0.png", "4.png"])
def test_a_picture_without_a_line_is_told(file: Path, tmp_path: Path, role: str, spare: str) -> None:
    """A line may have been taken out of the prompts."""
    for name in ("1.png", "3.png", spare):
        picture(tmp_path / "t" / name, 0)
    with pytest.warns(UserWarning, match=rf"1 picture in .*t has no prompt: the first is {spare}, and .* 1 to 3\."):
        assert len(read_prompts(file, **{role: tmp_path / "t"})) == 2
    file.write_text("\n")
    with pytest.raises(DataError, match="holds no prompt"):
        read_prompts(file, **{role: tmp_path / "t"})


def test_two_pictures_for_one_line(file: Path, tmp_path: Path) -> None:
    picture(tmp_path / "t/1.png", 0)
    picture(tmp_path / "t/001.jpg", 0)
    with pytest.raises(DataError, match=r"Both .*001\.jpg and .*1\.png are for line 1; keep one\."):
        read_prompts(file, targets=tmp_path / "t")


def test_missing_file_and_folder(file: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"The text file .*no\.txt does not exist \(looked in "):
        read_prompts(tmp_path / "no.txt")
    with pytest.raises(DataError, match=r"file https://x\.org/no\.txt does not exist .* It is an address: download it"):
        read_prompts(Path("https://x.org/no.txt"))
    with pytest.raises(DataError, match=r"There is no folder .*pictures \(looked in "):
        read_prompts(file, targets=tmp_path / "pictures")
    with pytest.raises(DataError, match="is a folder without metadata"):
        read_prompts(tmp_path)


@pytest.mark.parametrize("name", ["pipe", "endless"])
@pytest.mark.parametrize("read", [read_prompts, schema.load_config])
def test_what_is_no_regular_file(tmp_path: Path, name: str, read: Callable[[Path], Any]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    with pytest.raises(UsageError, match=rf"{name}.* it is not a regular file"):
        read(tmp_path / name)


def test_a_text_that_is_too_long(tmp_path: Path) -> None:
    with (tmp_path / "p.txt").open("wb") as sparse:
        sparse.truncate(2**30 + 1)
    for read, most in ((read_prompts, 1024), (schema.load_config, 1)):
        with pytest.raises(UsageError, match=rf"p\.txt cannot be read as UTF-8 text: it is longer than {most} MiB"):
            read(tmp_path / "p.txt")


@pytest.mark.parametrize("content", ["", "\n", "  \n\t\n"])
def test_no_prompt(tmp_path: Path, content: str) -> None:
    (tmp_path / "p.txt").write_text(content)
    with pytest.raises(DataError, match=r"p\.txt holds no prompt"):
        read_prompts(tmp_path / "p.txt")


@pytest.mark.parametrize("content", [b"caf\xe9\n", "né\n".encode("utf-16")])
def test_not_utf8(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.txt").write_bytes(content)
    with pytest.raises(DataError, match=r"p\.txt cannot be read as UTF-8 text"):
        read_prompts(tmp_path / "p.txt")


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read as UTF-8 text: embedded null byte"):
        read_prompts(tmp_path / "p\0.txt")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xef\xbb\xbfone\ntwo", ["one", "two"]),  # a byte-order mark
        (b"one\r\ntwo\r\n", ["one", "two"]),
        ('é "字" 🙂\n'.encode(), ['é "字" 🙂']),
        ("one\u2028still one\x0b\x85\ntwo\n".encode(), ["one\u2028still one", "two"]),  # no line ends for an editor
    ],
)
def test_bytes(tmp_path: Path, content: bytes, expected: list[str]) -> None:
    (tmp_path / "p.txt").write_bytes(content)
    assert texts(read_prompts(tmp_path / "p.txt")) == expected


# --- pictures ------------------------------------------------------------------------------------------------------


def test_a_file_that_is_no_picture_is_found_at_once(file: Path, tmp_path: Path) -> None:
    picture(tmp_path / "t/1.png", 5)
    (tmp_path / "t/3.png").write_text("hello")
    with pytest.raises(
        DataError, match=r"prompts\.txt, line 3: .*3\.png cannot be read as a picture: its content is not"
    ):
        read_prompts(file, targets=tmp_path / "t")


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp"])
def test_a_picture_cut_off_behind_its_header_is_an_error_on_access(file: Path, tmp_path: Path, suffix: str) -> None:
    picture(tmp_path / "t/1.png", 5)
    place = tmp_path / f"t/3.{suffix}"
    Image.effect_noise((64, 64), 90).save(place)
    prompts = read_prompts(file, targets=tmp_path / "t")
    check_pictures(prompts, None)
    place.write_bytes(place.read_bytes()[:-100])
    assert grey(prompts[0].target) == 5
    for read in (check_pictures, list):
        with pytest.raises(DataError, match=rf"prompts\.txt, line 3: .*3\.{suffix} cannot be read as a picture"):
            read(prompts)


@pytest.mark.parametrize("form", ["JPEG", "MPO", "GIF", "BMP", "TIFF"])
def test_a_picture_that_was_cut_off_is_noticed_in_each_form(form: str) -> None:
    """MPO is a JPEG with several pictures, as cameras and phones write it; the others come in columns of Parquet."""
    whole = io.BytesIO()
    noise = Image.effect_noise((64, 64), 90)
    noise.save(whole, form, **({"save_all": True, "append_images": [noise]} if form == "MPO" else {}))
    check_whole(whole.getvalue(), where="row 1")
    with pytest.raises(DataError, match="row 1 cannot be read as a picture"):
        check_whole(whole.getvalue()[: len(whole.getvalue()) // 3], where="row 1")


def test_only_the_headers_of_pictures_are_read_at_once(file: Path, tmp_path: Path) -> None:
    """4,000 x 4,000 pixels take a tenth of a second to decode, and a header takes less than a millisecond."""
    for i in (1, 3):
        picture(tmp_path / f"t/{i}.png", 9, (4000, 4000))
    start = time.perf_counter()
    for _ in range(20):
        read_prompts(file, targets=tmp_path / "t")
    assert (time.perf_counter() - start) / 40 < 0.01


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp"])
def test_damaged_files_never_escape_as_another_error(tmp_path: Path, suffix: str) -> None:
    """Cut off anywhere, or with a byte changed anywhere: a picture or a DataError."""
    whole = picture(tmp_path / f"whole.{suffix}", 77, (9, 7)).read_bytes()
    damaged = tmp_path / f"damaged.{suffix}"
    refused = 0
    step = max(1, len(whole) // 60)
    for at in range(0, len(whole), step):
        changed = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
        for content in (whole[:at], changed):
            damaged.write_bytes(content)
            try:
                open_picture(damaged)
            except DataError as error:
                assert f"{damaged} cannot be read as a picture" in str(error)  # noqa: PT017
                refused += 1
    assert refused > 20


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_pictures_stand_as_their_exif_notes_say(tmp_path: Path, suffix: str) -> None:
    """A camera writes what its sensor saw, and how to turn it; damaged notes turn nothing."""
    upright = Image.new("L", (20, 40))
    upright.paste(255, (0, 0, 20, 10))  # white on top
    lying = upright.transpose(Image.Transpose.ROTATE_90)
    for name, orientation in (("6", 6), ("1", 1)):
        exif = Image.Exif()
        exif[0x0112] = orientation
        lying.save(tmp_path / f"{name}.{suffix}", exif=exif)
    turned = open_picture(tmp_path / f"6.{suffix}")
    assert (turned.size, open_picture(tmp_path / f"1.{suffix}").size) == ((20, 40), (40, 20))
    assert (turned.convert("L").getpixel((10, 4)) > 250, turned.convert("L").getpixel((10, 30)) < 5) == (True, True)
    assert 0x0112 not in turned.getexif()
    opened = Image.open(tmp_path / f"6.{suffix}")  # as a script does
    prompt = Prompt(text="p", images=[opened], target=opened)
    for picture in (*prompt.images, prompt.target, to_rgb(opened)):
        assert np.array_equal(np.asarray(picture.convert("RGB")), np.asarray(turned.convert("RGB")))
    lying.save(tmp_path / f"damaged.{suffix}", exif=b"Exif\0\0not a TIFF")
    assert open_picture(tmp_path / f"damaged.{suffix}").size == (40, 20)


def test_a_turned_picture_keeps_its_16_bits(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 3
    deep = Image.fromarray(np.array([[1, 300], [40_000, 65_535]], np.uint16))
    deep.save(tmp_path / "1.png", exif=exif)
    assert np.asarray(open_picture(tmp_path / "1.png")).tolist() == [[65_535, 40_000], [300, 1]]


P3 = {b"rXYZ": (0.51512, 0.2412, -0.00105), b"gXYZ": (0.29198, 0.69225, 0.04189), b"bXYZ": (0.1571, 0.06657, 0.78407)}


@pytest.fixture(scope="module")
def wide() -> bytes:
    """The profile of Display P3: sRGB's, with other primaries."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    for tag, primary in P3.items():
        (start,) = struct.unpack_from(">I", profile, profile.index(tag) + 4)
        struct.pack_into(">3i", profile, start + 8, *(round(x * 2**16) for x in primary))
    return bytes(profile)


@pytest.mark.parametrize(
    ("suffix", "mode"), [("png", "RGB"), ("png", "RGBA"), ("png", "P"), ("jpg", "RGB"), ("webp", "RGBA")]
)
def test_pictures_have_the_colours_of_their_profile(tmp_path: Path, wide: bytes, suffix: str, mode: str) -> None:
    path = tmp_path / f"1.{suffix}"
    source = Image.new("RGB", (8, 8), (200, 100, 50)).convert(mode, palette=Image.Palette.ADAPTIVE)
    source.save(path, icc_profile=wide, quality=100)
    with Image.open(path) as opened:
        prompt = Prompt("p", images=[opened], target=opened)
        for seen in (open_picture(path), *prompt.images, prompt.target, to_rgb(opened)):
            assert "icc_profile" not in seen.info
            assert np.abs(np.array(seen.convert("RGB").getpixel((3, 3))) - (215, 93, 31)).max() <= 1


def test_transparency_outlives_a_profile(tmp_path: Path, wide: bytes) -> None:
    source = Image.new("RGB", (2, 1), (200, 100, 50))
    source.putpixel((1, 0), (0, 0, 0))
    source.save(tmp_path / "1.png", icc_profile=wide, transparency=(200, 100, 50))
    assert np.asarray(to_rgb(open_picture(tmp_path / "1.png"))).tolist() == [[[255, 255, 255], [0, 0, 0]]]


def test_a_palette_with_alpha_and_a_profile_is_read_without_a_warning(tmp_path: Path, wide: bytes) -> None:
    source = Image.new("P", (2, 1))
    source.putpalette([200, 100, 50, 0, 0, 0])
    source.putpixel((1, 0), 1)
    source.save(tmp_path / "1.png", icc_profile=wide, transparency=bytes([255, 128]))
    seen = open_picture(tmp_path / "1.png")
    assert seen.getchannel("A").tobytes() == bytes([255, 128])
    assert to_rgb(seen).getpixel((1, 0)) == (127, 127, 127)
    assert to_rgb(seen).getpixel((0, 0)) != (200, 100, 50)


@pytest.mark.parametrize(
    ("mode", "end"), [("RGB", 3), ("RGB", 200), ("L", None), ("LA", None), ("CMYK", None), ("I;16", None)]
)
def test_a_profile_that_does_not_fit_changes_nothing(wide: bytes, mode: str, end: int | None) -> None:
    plain = Image.new(mode, (2, 2), 100 if mode in ("L", "I;16") else (100, 50, 20, 10)[: len(mode)])
    other = plain.copy()
    other.info["icc_profile"] = wide[:end]
    assert np.array_equal(np.asarray(to_rgb(other)), np.asarray(to_rgb(plain)))


@pytest.mark.parametrize(
    ("picture", "levels"),
    [
        (Image.fromarray(np.array([[0, 257, 65_535]], np.uint16)), [0, 1, 255]),
        (Image.merge("LA", [Image.new("L", (3, 1), 100), Image.new("L", (3, 1), 0)]), [255, 255, 255]),
    ],
)
def test_transparent_parts_become_white(picture: Image.Image, levels: list[int]) -> None:
    assert np.asarray(to_rgb(picture))[0, :, 1].tolist() == levels


def test_a_transparent_level_of_16_bits_becomes_white(tmp_path: Path) -> None:
    deep = Image.fromarray(np.array([[0, 257, 65_535]], np.uint16))
    deep.save(tmp_path / "1.png", transparency=257)
    assert np.asarray(to_rgb(open_picture(tmp_path / "1.png")))[0, :, 1].tolist() == [0, 255, 255]


def test_pictures_are_read_whole(tmp_path: Path) -> None:
    path = picture(tmp_path / "1.png", 8)
    opened = open_picture(path)
    path.unlink()
    assert grey(opened) == 8


# --- JSON lines ----------------------------------------------------------------------------------------------------


def test_jsonl(tmp_path: Path) -> None:
    picture(tmp_path / "pics/a.png", 40)
    picture(tmp_path / "b.jpg", 50)
    rows = [
        {"prompt": "one", "target": "text", "level": 3},
        {"prompt": "two", "target": "pics/a.png", "image": "b.jpg"},
        {"prompt": "three", "target": 42},
        {"prompt": "four\u2028five"},
        {"prompt": "both", "images": ["b.jpg", "pics/a.png"]},
    ]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (tmp_path / "p.jsonl").write_text("\ufeff" + "\n\n".join(lines), encoding="utf-8")
    prompts = read_prompts(tmp_path / "p.jsonl")
    assert texts(prompts) == ["one", "two", "three", "four\u2028five", "both"]
    assert (prompts[0].target, dict(prompts[0].meta)) == ("text", {"level": 3})
    assert (grey(prompts[1].target), dict(prompts[1].meta)) == (40, {})
    assert prompts[1].image is not None
    assert abs(grey(prompts[1].image) - 50) <= 1
    assert prompts[2].target == 42
    assert [round(grey(image), -1) for image in prompts[4].images] == [50, 40]
    assert [len(prompt.images) for prompt in prompts] == [0, 1, 0, 0, 2]
    assert prompts.unopened(4).images[1].size == prompts[4].images[1].size
    assert [image.file for image in prompts.row(4).prompt.images] == [tmp_path / "b.jpg", tmp_path / "pics/a.png"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{prompt: 1}", ["p.jsonl, line 3: not JSON", "column 2"]),
        ('{"prompt": "a"', ["line 3: not JSON"]),
        ('{"prompt": "a", "n": ' + "9" * 5000 + "}", ["line 3: not JSON (Exceeds the limit"]),
        ('{"prompt": "a", "x": {"b": 1, "b": 2}}', ["line 3: not JSON (the key 'b' appears twice)"]),
        ('{"prompt": [{"from": "human", "value": "a"}]}', ["line 3 has ShareGPT's messages", "json.load(open("]),
        ("[" * 100_000, ["line 3: not JSON (it is nested too deeply"]),
        ('{"prompt": "a", "image": ""}', ["line 3: source is ''; expected a file name"]),
        ('["a"]', ['line 3: expected an object like {"prompt": ...}', "got '[\"a\"]'"]),
        (
            '{"promt": "a", "x": 1}',
            ["line 3 has the prompt nothing (null); expected a text"],
        ),
        ("{}", ["line 3 has the prompt nothing (null)"]),
        ('{"prompt": 5}', ["line 3 has the prompt 5; expected a text"]),
        ('{"prompt": " "}', ["line 3: the prompt is ' '; expected a text"]),
        ('{"prompt": "a", "image": "no.png"}', ["line 3: source: the file", "no.png does not exist"]),
        ('{"prompt": "a", "image": 7}', ["line 3: source is 7; expected a file name"]),
        ('{"prompt": "a", "images": ["no.png"]}', ["line 3: source: the file", "no.png does not exist"]),
        ('{"prompt": "a", "image": "https://x.org/a.png"}', ["line 3: source is the address 'https://x.org/a.png'"]),
        ('{"prompt": "a", "images": [], "image": "a.png"}', ["line 3 has both image and images"]),
        ('{"prompt": "a", "target": "no.PNG"}', ["line 3: target: the file", "no.PNG does not exist"]),
    ],
)
def test_bad_line(tmp_path: Path, line: str, words: list[str]) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "good"}\n\n' + line + "\n")
    with pytest.raises(DataError) as caught:
        read_prompts(tmp_path / "p.jsonl")
    for word in words:
        assert word in str(caught.value)


def test_empty_jsonl(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("\n")
    with pytest.raises(DataError, match=r"p\.jsonl holds no prompt"):
        read_prompts(tmp_path / "p.jsonl")


NESTED = {"question": "2 + 2", "reward_model": {"style": "rule", "checks": {"truth": "4"}}, "a.b": "5"}


@pytest.mark.parametrize(("target", "value"), [("reward_model.checks.truth", "4"), ("a.b", "5")])
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_column_inside_another(tmp_path: Path, datasets: Any, target: str, value: str, ending: str) -> None:
    if ending == "jsonl":
        (tmp_path / "p.jsonl").write_text(json.dumps(NESTED) + '\n{"question": "3", "reward_model": null}\n')
    else:
        datasets.Dataset.from_list([NESTED]).to_parquet(tmp_path / "p.parquet")
    prompts = read_prompts(tmp_path / f"p.{ending}", columns={"prompt": "question", "target": target})
    assert [prompt.target for prompt in prompts] == [value, None][: len(prompts)]
    with pytest.raises(DataError, match=r"no column 'reward_model.styl' .*'reward_model.style'"):
        read_prompts(tmp_path / f"p.{ending}", columns={"prompt": "question", "target": "reward_model.styl"})


# --- datasets ------------------------------------------------------------------------------------------------------

ROWS = {"prompt": ["one", "two", "three"], "target": ["1", "2", "3"], "level": [7, 8, 9]}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Any:
    module = pytest.importorskip("datasets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        module.disable_progress_bars()
        yield module


@pytest.fixture(scope="module")
def saved(datasets: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With splits, in one split, as JSON lines, as parquet, and one whose columns have other names."""
    folder = tmp_path_factory.mktemp("saved")
    table = datasets.Dataset.from_dict(ROWS)
    datasets.DatasetDict({"train": table, "test": table.select([2])}).save_to_disk(folder / "splits")
    table.save_to_disk(folder / "one")
    (folder / "jsonl").mkdir()
    rows = [dict(zip(ROWS, values, strict=True)) for values in zip(*ROWS.values(), strict=True)]
    (folder / "jsonl/train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "parquet").mkdir()
    table.to_parquet(folder / "parquet/train.parquet")
    features = datasets.Features({"caption": datasets.Value("string"), "source": datasets.Image()})
    pictures = [Image.new("RGB", (4, 4), (grey, 0, 0)) for grey in (11, 22)]
    other = datasets.Dataset.from_dict({"caption": ["x", "y"], "source": pictures}, features=features)
    other.save_to_disk(folder / "other")
    features = datasets.Features(
        {
            "prompt": datasets.Value("string"),
            "image": datasets.List(datasets.Image()),
            "words": datasets.List(datasets.Value("string")),
        }
    )
    several = datasets.Dataset.from_dict(
        {"prompt": ["x", "y"], "image": [pictures, []], "words": [["x"], ["y"]]}, features=features
    )
    several.save_to_disk(folder / "several")
    (folder / "empty").mkdir()
    table.select([]).to_parquet(folder / "empty/train.parquet")
    datasets.Dataset.from_dict({"prompt": ["a", None]}).save_to_disk(folder / "gaps")
    return folder


STORED = png(33)


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        ("image", [{"bytes": STORED, "path": None}]),
        ("images", [[{"path": "x.png", "bytes": STORED}]]),
        ("jpg", [STORED]),
        ("target", [{"bytes": STORED}]),
        ("target", [STORED]),
    ],
)
def test_pictures_that_other_writers_put_into_parquet(
    datasets: Any, tmp_path: Path, column: str, cells: list[Any]
) -> None:
    from pyarrow import parquet, table

    parquet.write_table(table({"prompt": ["a"], column: cells, "other": [b"no picture"]}), tmp_path / "a.parquet")
    [prompt] = read_prompts(tmp_path / "a.parquet")
    seen = prompt.target if column == "target" else prompt.image
    assert (grey(seen), dict(prompt.meta)) == (33, {"other": b"no picture"})


@pytest.mark.parametrize("name", ["splits", "one", "jsonl", "parquet"])
def test_dataset(saved: Path, name: str) -> None:
    prompts = read_dataset(str(saved / name))
    assert texts(prompts) == ROWS["prompt"]
    assert [p.target for p in prompts] == ROWS["target"]
    assert [dict(p.meta) for p in prompts] == [{"level": n} for n in ROWS["level"]]
    assert texts(prompts[1:]) == ["two", "three"]


def test_dataset_split_and_columns(saved: Path) -> None:
    assert texts(read_dataset(str(saved / "splits"), split="test")) == ["three"]
    prompts = read_dataset(str(saved / "other"), columns={"prompt": "caption", "image": "source"})
    assert texts(prompts) == ["x", "y"]
    assert [p.image.getpixel((0, 0)) for p in prompts if p.image is not None] == [(11, 0, 0), (22, 0, 0)]
    assert dict(prompts[0].meta) == {}


def test_dataset_with_subsets(tmp_path: Path) -> None:
    """A dataset's card names them, as on the hub."""
    for name in ("main", "other"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": f"of {name}"}) + "\n")
    subsets = [{"config_name": name, "data_files": f"{name}.jsonl"} for name in ("main", "other")]
    (tmp_path / "README.md").write_text(f"---\nconfigs: {json.dumps(subsets)}\n---\n")
    assert texts(read_dataset(str(tmp_path), subset="other")) == ["of other"]
    with pytest.raises(DataError, match=r"Please pick one among .*main.*other.*`subset`"):
        read_dataset(str(tmp_path))
    with pytest.raises(DataError, match="'third' not found"):
        read_dataset(str(tmp_path), subset="third")


def test_a_column_of_lists_of_pictures(saved: Path) -> None:
    prompts = read_dataset(str(saved / "several"))
    assert [[image.getpixel((0, 0)) for image in prompt.images] for prompt in prompts] == [[(11, 0, 0), (22, 0, 0)], []]
    assert [image.size for image in prompts.unopened(0).images] == [(4, 4)] * 2
    assert [[type(image.file) for image in prompts.row(i).prompt.images] for i in (0, 1)] == [[bytes] * 2, []]


def test_one_column_may_have_two_roles(saved: Path) -> None:
    prompts = read_dataset(str(saved / "one"), columns={"target": "prompt"})
    assert [(p.text, p.target) for p in prompts] == [("one", "one"), ("two", "two"), ("three", "three")]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("one", {"columns": {"prompt": None}}, ["no column 'prompt'", "it has: prompt, target", "`columns: {prompt"]),
        ("other", {"columns": {"target": "source", "image": "source"}}, ["the source picture and the target at once"]),
        ("other", {"columns": {"prompt": "captoin"}}, ["no column 'captoin'", "did you mean 'caption'?"]),
        ("one", {"columns": {"image": "pic"}}, ["no column 'pic' for the image", "it has: prompt, target, level"]),
        ("one", {"columns": {"txt": "prompt"}}, ["`columns` maps prompt, target and image, not 'txt'"]),
        ("splits", {"split": "val"}, ["without a split 'val'", "train, test"]),
        ("one", {"split": "test"}, ["saved without a split 'test'"]),
        ("one", {"subset": "main"}, ["saved without a subset 'main'"]),
        ("jsonl", {"split": "val"}, ["split 'val' cannot be read", "val"]),
        ("empty", {}, ["split 'train' cannot be read", "no data"]),
        ("nowhere", {}, ["nowhere", "cannot be read"]),
    ],
)
def test_wrong_dataset(saved: Path, name: str, options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        read_dataset(str(saved / name), **options)
    for word in words:
        assert word in str(caught.value)


def test_a_row_without_text(saved: Path) -> None:
    with pytest.raises(DataError, match=r"dataset .*gaps, split 'train', row 1 has the prompt nothing \(null\); expe"):
        read_dataset(str(saved / "gaps"))[1]
    for name, column, row in (("one", "level", "7"), ("several", "words", "a list of 1")):
        with pytest.raises(DataError, match=rf"row 0 has the prompt {row}; expected a text.*Name another column"):
            read_dataset(str(saved / name), columns={"prompt": column})[0]


def test_a_dataset_that_is_not_in_the_cache(datasets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"'org/absent', split 'train' cannot be read: .*\. Fetch it on a machine with"):
        read_dataset("org/absent")


def test_datasets_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(DataError, match=r"needs `datasets`\. Run: pip install 'grpokit\[datasets\]'"):
        read_dataset("anything")


# --- lists ---------------------------------------------------------------------------------------------------------


def test_as_prompts() -> None:
    given = Prompt(text="b", target=1)
    assert list(as_prompts(["a", given])) == [Prompt(text="a"), given]
    assert texts(as_prompts(text for text in ("x", "y"))) == ["x", "y"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("a prompt", "Expected a list of prompts, got a str"),
        ({"prompt": "a"}, "Expected a list of prompts, got a dict"),
        ({"a", "b"}, "Expected a list of prompts, got a set"),
        ([Prompt(text="x", image="a.png")], r"the text 'a.png' among its pictures; expected a list of pictures"),  # type: ignore[arg-type]
        ([Prompt(text=5)], r"Prompt 0 is Prompt\(text=5.*; expected a text"),  # type: ignore[arg-type]
        (["a", 5], "Prompt 1 is 5; expected a text, or a grpokit.Prompt"),
        (None, "Expected a list of prompts, got a NoneType"),
    ],
)
def test_no_prompts(given: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        as_prompts(given)


def test_lazy_sequences_stay_lazy(file: Path, saved: Path) -> None:
    for prompts in (read_prompts(file), read_dataset(str(saved / "other"), columns={"prompt": "caption"})):
        assert as_prompts(prompts) is prompts
        train, held = hold_out(prompts, 0.5, 0)
        assert as_prompts(train) is train
        assert sorted([*texts(train), *texts(held)]) == sorted(texts(prompts))


# --- held-out prompts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "fraction", "held"), [(10, 0.2, 2), (7, 0.5, 4), (100, 0.01, 1), (3, 0.6, 2)])
def test_hold_out(total: int, fraction: float, held: int) -> None:
    prompts = as_prompts(map(str, range(total)))
    train, kept = hold_out(prompts, fraction, 5)
    assert (len(train), len(kept)) == (total - held, held)
    assert sorted([*texts(train), *texts(kept)], key=int) == texts(prompts)  # disjoint, and nothing is lost
    again = hold_out(prompts, fraction, 5)
    assert (texts(again[0]), texts(again[1])) == (texts(train), texts(kept))


def test_hold_out_depends_on_the_seed() -> None:
    prompts = as_prompts(map(str, range(50)))
    assert len({tuple(texts(hold_out(prompts, 0.2, seed)[1])) for seed in range(10)}) == 10


@pytest.mark.parametrize(
    ("total", "fraction", "words"),
    [
        (10, 0.01, "Holding out 0.01 of 10 prompts leaves 10 for training and 0 for evaluation"),
        (2, 0.9, "leaves 0 for training and 2 for evaluation"),
    ],
)
def test_nothing_to_hold_out(total: int, fraction: float, words: str) -> None:
    with pytest.raises(DataError, match=words):
        hold_out(as_prompts(map(str, range(total))), fraction, 0)


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_picture_with_too_many_pixels_is_refused_by_its_header(file: Path, tmp_path: Path, datasets: Any) -> None:
    Image.new("1", (9_500, 9_400)).save(tmp_path / "large.png")
    words = r"has 9,500 x 9,400 = 89,300,000 pixels; the limit is 36,000,000\. Make it smaller, or raise the limit: "
    with pytest.raises(DataError, match=rf"^{tmp_path}/large\.png {words}data\.max_pixels in a config, --max-pixels"):
        open_picture(tmp_path / "large.png")
    assert open_picture(tmp_path / "large.png", max_pixels=90_000_000).size == (9_500, 9_400)
    for number in (1, 3):
        picture(tmp_path / f"t/{number}.png", 5, (20, 10))
    assert len(read_prompts(file, targets=tmp_path / "t", max_pixels=200)) == 2
    with pytest.raises(DataError, match=r"prompts\.txt, line 1: .*1\.png has 20 x 10 = 200 pixels; the limit is 199\."):
        read_prompts(file, images=tmp_path / "t", max_pixels=199)
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "target": "t/1.png"}\n')
    with pytest.raises(DataError, match=r"p\.jsonl, line 1: target: .*1\.png has 20 x 10 = 200 pixels"):
        read_prompts(tmp_path / "p.jsonl", max_pixels=199)
    features = datasets.Features({"prompt": datasets.Value("string"), "image": datasets.Image()})
    table = datasets.Dataset.from_dict({"prompt": ["x"], "image": [Image.new("L", (20, 10))]}, features=features)
    table.save_to_disk(tmp_path / "table")
    assert read_dataset(str(tmp_path / "table"), max_pixels=200)[0].image is not None
    with pytest.raises(DataError, match=r"^dataset .*, row 0 has 20 x 10 = 200 pixels; the limit is"):
        read_dataset(str(tmp_path / "table"), max_pixels=199)[0]
