"""Digests of prompts: every part counts, and every process has the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from grpokit.data import digests, read_prompts
from grpokit.data.digests import digest


@pytest.mark.parametrize("part", ["text", "target", "target's pixels", "image's pixels", "meta"])
def test_every_part_of_a_prompt_counts(part: str, tmp_path: Path) -> None:
    def write(grey: dict[str, int], text: str = "a", target: Any = 3, level: int = 1) -> list[tuple[str, ...]]:
        for name in ("target", "image"):
            Image.new("L", (4, 4), grey.get(name, 0)).save(tmp_path / f"{name}.png")
        row = {"prompt": text, "target": target, "image": "image.png", "level": level}
        (tmp_path / "x.jsonl").write_text(json.dumps(row))
        found = digests(read_prompts(tmp_path / "x.jsonl"))
        return list(zip(*found.values(), strict=True))

    picture = "target.png" if part == "target's pixels" else 3
    change: dict[str, Any] = {
        "text": {"text": "b"},
        "target": {"target": 4},
        "target's pixels": {"grey": {"target": 9}, "target": picture},
        "image's pixels": {"grey": {"image": 9}},
        "meta": {"level": 2},
    }[part]
    before = write({}, target=picture)
    assert write({}, target=picture) == before
    ((*same, last),) = ([*zip(before[0], write(**{"grey": {}, "target": picture} | change)[0], strict=True)],)
    changed = [a != b for a, b in (*same, last)]
    assert changed == [part in ("text", "meta"), part.startswith("target"), part.startswith("image")]


class Opaque:
    """Its text holds an address."""


def test_digests_are_the_same_in_every_process_and_tell_values_apart() -> None:
    assert digest(Opaque()) == digest(Opaque())
    assert digest({"a": [1, "x", None, True, 2.5], "b": b"y"}) == "fd073bb2bcc800e2"
    values = ["1", 1, 1.0, True, None, ["1"], ["1", ""], {"1": None}, b"1", Image.new("L", (1, 1), 1)]
    assert len({digest(value) for value in values}) == len(values)
