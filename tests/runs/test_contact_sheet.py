"""The contact sheet: where each picture stands, and captions of any length and script."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from grpokit import Prompt, Sample
from grpokit.runs.contact_sheet import contact_sheet


def samples(texts: list[str], colour: str, count: int = 2, size: tuple[int, int] = (64, 32)) -> list[Sample]:
    return [
        Sample(prompt=Prompt(text=text), output=Image.new("RGB", size, colour), group=group)
        for group, text in enumerate(texts)
        for _ in range(count)
    ]


def colours(row: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The strong colours that follow each other in a row of pixels."""
    strong = [pixel for pixel in row if max(pixel) == 255 and min(pixel) == 0]
    return [pixel for i, pixel in enumerate(strong) if i == 0 or pixel != strong[i - 1]]


def test_rows_are_prompts_and_titles_stand_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    contact_sheet({"before": samples(["a", "b"], "red"), "after": samples(["a", "b"], "blue")}, path)
    with Image.open(path) as sheet:
        rows = [
            colours([sheet.getpixel((x, y)) for x in range(sheet.width)])  # type: ignore[misc]
            for y in range(sheet.height)
        ]
    pictures = [bool(row) for row in rows]
    assert [row for row in rows if row] == [[(255, 0, 0), (0, 0, 255)]] * (2 * 96)  # 64 x 32 made three times larger
    assert sum(now and not before for before, now in zip([False, *pictures], pictures, strict=False)) == 2


@pytest.mark.parametrize("text", ["x" * 5000, "words " * 500, "кот на стене", "猫", "", "a\nb\x00c"])
def test_captions_of_any_length_and_script(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sheet.png"
    contact_sheet({"": samples([text], "red", size=(900, 300))}, path)
    with Image.open(path) as sheet:
        assert sheet.height <= 192 + 3 * 20 + 3 * 8


def test_texts_have_no_sheet_and_many_prompts_have_one_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    contact_sheet({"": samples([str(n) for n in range(200)], "red", count=1, size=(8, 8))}, path)
    with Image.open(path) as sheet:
        assert sheet.height < 65 * (192 + 8 + 20 + 8)
    contact_sheet({"": [Sample(prompt=Prompt(text="a"), output="b", group=0)]}, path)
    assert not path.exists()
