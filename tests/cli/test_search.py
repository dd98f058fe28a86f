"""`grpokit plugins --search`: the words that people use find what they mean, installed or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Call
from distributions import announcing, distribution


def found(call: Call, *words: str) -> list[tuple[str, str]]:
    return [(row["kind"], row["name"]) for row in json.loads(call("plugins", "--search", *words, "--json").out)]


MEANT = [
    ("text in pictures", "ocr"),
    ("Text on Images", "ocr"),
    ("aesthetics", "aesthetic"),
    ("math", "numeric-answer"),
    ("similar photo", "lpips"),
    ("human preference", "pickscore"),
    ("bounding box", "box-iou"),
    ("length of the text", "length"),
    ("LAION", "aesthetic"),
]


@pytest.mark.parametrize(("words", "first"), MEANT)
def test_people_find_what_they_mean(call: Call, words: str, first: str) -> None:
    rewards = [name for kind, name in found(call, *words.split()) if kind == "reward"]
    assert rewards[0] == first


@pytest.mark.usefixtures("core_alone")
@pytest.mark.parametrize(("words", "first"), MEANT)
def test_people_find_what_they_have_not_installed(call: Call, words: str, first: str) -> None:
    assert ("reward", first) in found(call, *words.split())


def test_all_words_count_and_those_that_most_have_where_nothing_has_all(call: Call) -> None:
    both, one = set(found(call, "picture", "quotes")), set(found(call, "picture"))
    assert both == {("reward", "ocr"), ("policy", "toy-glyph")}
    assert both < one
    assert set(found(call, "ocr", "zebra")) == set(found(call, "ocr"))
    assert "1 of 2 words" in call("plugins", "--search", "ocr", "zebra").out


def test_nothing_found_names_the_nearest_and_the_way_to_ones_own(call: Call) -> None:
    done = call("plugins", "--search", "lpps")
    assert (done.code, done.err) == (0, "")
    assert "did you mean 'lpips'?" in done.out
    assert "grpokit new reward NAME" in done.out
    assert found(call, "face") == []  # no reward for faces, though some load from Hugging Face
    assert ("policy", "hf-lm") in found(call, "hugging", "face")


def test_a_search_of_a_kind(call: Call) -> None:
    rows = json.loads(call("plugins", "--search", "text", "--kind", "statistic", "--json").out)
    assert {"text-length", "text-area"} <= {row["name"] for row in rows}
    assert {row["kind"] for row in rows} == {"reward"}
    done = call("plugins", "--kind", "rewards")
    assert done.code == 2
    assert "did you mean 'reward'?" in done.err


@pytest.mark.parametrize(
    ("module", "state"),
    [
        ("", "announces nothing"),
        ("import no_such_module\n", "broken"),
        (announcing("Reward", "api=1, name='iris'"), "ok"),
    ],
)
def test_installed_packages_are_found_by_their_keywords_and_summaries(
    site: Path, call: Call, module: str, state: str
) -> None:
    distribution(site, "grpokit-iris", "iris", module, keywords="grpokit-plugin, irises", summary="How blue eyes are.")
    if state == "announces nothing":
        (site / "grpokit_iris-1.0.dist-info/entry_points.txt").unlink()
    distribution(site, "other-iris", "unlike", "", keywords="irises", summary="No plugin.")
    (site / "other_iris-1.0.dist-info/entry_points.txt").unlink()
    (row,) = json.loads(call("plugins", "--search", "irises", "--json").out)
    assert (row["package"], row["version"], row["state"]) == ("grpokit-iris", "1.0", state)
    said = call("plugins", "--search", "irises").out
    assert ("no entry point" in said) == (state == "announces nothing")
    assert ("No module named 'no_such_module'" in said) == (state == "broken")
    if state != "ok":
        assert json.loads(call("plugins", "--search", "blue", "eyes", "--json").out) == [row]
