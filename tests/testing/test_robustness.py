"""The ladder: every rung catches the reward that is wrong there and no other, and grades are the numbers they say."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops

import broken_rewards as broken
from command_line import Call
from grpokit import Prompt, RewardError, RewardSpec, Sample, registry
from grpokit.testing import Climb, LadderReport, ladder, ladder_checks, outcomes
from grpokit.testing.robustness import adversarial
from grpokit.testing.robustness.grades import GRADED_ONLY, Attack, Fall, Section

DOCS = Path(__file__).parent.parent.parent / "docs"
PICTURES, TEXTS = frozenset({"image"}), frozenset({"text"})

# What rewards that need no weights cannot pass; each is a known weakness on the page about conformance.
SHIPPED: dict[str, tuple[dict[str, Any], set[str]]] = {
    "ssim": ({}, set()),
    "mse": ({}, set()),
    "structure": ({}, set()),
    "ocr": ({"threads": 1}, set()),
    "exact-match": ({}, set()),
    "contains": ({}, {"ladder-extra-text"}),
    "numeric-answer": ({}, {"ladder-extra-text"}),
    "format": ({"pattern": "[0-9]+"}, set()),
    "length": ({"maximum": 9}, set()),
    "jpeg-size": ({}, set()),
    "box-iou": ({}, set()),
    "box-format": ({}, set()),
    "ring": ({}, set()),
}


def climb(reward: Any, accepts: frozenset[str], bounds: tuple[float | None, float | None] = (None, None)) -> Climb:
    return Climb(reward, spec=RewardSpec(name="x", factory="x:x", accepts=accepts, range=bounds))


def states(found: Climb) -> dict[str, str]:
    return {o.name: o.state for o in outcomes(ladder_checks(found))}


def failed(found: Climb) -> dict[str, str]:
    return {o.name: o.message for o in outcomes(ladder_checks(found)) if o.failed}


@pytest.mark.parametrize(("name", "reward"), broken.PICTURES, ids=[name for name, _ in broken.PICTURES])
def test_only_the_right_rung_of_pictures_catches_a_broken_reward(name: str, reward: Any) -> None:
    found = failed(climb(reward, PICTURES))
    assert set(found) == {name}, found
    assert re.match(r"Expected .*; got .*\. Usual cause: .*\.$", found[name], re.DOTALL)


@pytest.mark.parametrize(("name", "reward"), broken.TEXTS, ids=[name for name, _ in broken.TEXTS])
def test_only_the_right_rung_of_texts_catches_a_broken_reward(name: str, reward: Any) -> None:
    found = failed(climb(reward, TEXTS))
    assert set(found) == {name}, found


def test_every_rung_has_a_reward_that_it_alone_catches() -> None:
    alone = {name for name, _ in (*broken.PICTURES, *broken.TEXTS)}
    assert {check.name for check in ladder_checks(climb(broken.mse, PICTURES | TEXTS))} == alone


def test_a_good_reward_of_each_kind() -> None:
    compares = dict.fromkeys(["ladder-identical", "ladder-blur", "ladder-noise", "ladder-jpeg", "ladder-shift"], "ok")
    words = ["ladder-letters", "ladder-blank", "ladder-extra-text"]
    for reward in (broken.mse, broken.to_source):
        assert states(climb(reward, PICTURES)) == compares | dict.fromkeys(words, "not checked")
    assert states(climb(broken.likeness, TEXTS)) == dict.fromkeys(words, "ok")
    assert states(climb(broken.brightness, PICTURES)) == dict.fromkeys([*compares, *words], "not checked")


def test_what_a_reward_reads_is_found_by_swapping_it() -> None:
    def reads(reward: Any) -> Any:
        return climb(reward, PICTURES).report.sections[0].reads

    def caption_length(samples: Any) -> list[float]:
        return [len(s.prompt.text) * x for s, x in zip(samples, broken.brightness(samples), strict=True)]

    assert reads(broken.mse) == ("target picture",)
    assert reads(broken.to_source) == ("source picture",)
    assert reads(broken.brightness) == ()
    assert reads(caption_length) == ("prompt text",)
    assert reads(lambda s: [a + b for a, b in zip(broken.mse(s), broken.to_source(s), strict=True)]) == (
        "target picture",
        "source picture",
    )


def test_a_reward_without_a_reference_is_graded_and_not_failed() -> None:
    """Brightness by hand: a white frame adds light, blur and shift hardly move it, a mean colour is as bright."""
    (section, words) = climb(broken.brightness, PICTURES).report.sections
    assert words.note == "does not read the quoted text from pictures"
    attacks = {attack.name: attack for attack in section.attacks}
    assert "another photograph" not in attacks  # no photograph was asked for
    assert attacks["flat mean colour"].grade == "E"  # as bright as the photograph
    assert attacks["in a white frame"].reaches > 1.5
    assert attacks["in a white frame"].grade == "E"


def test_a_reward_that_gives_everything_the_same_score_has_no_scale() -> None:
    report = climb(lambda samples: [0.5] * len(samples), PICTURES).report
    assert report.grade == ""
    assert "no honest scale" in report.overall
    assert {fall.ordered for fall in report.sections[0].falls} == {0.5}
    assert {fall.grade for fall in report.sections[0].falls} == {"D"}


def test_shares_of_the_honest_scale_by_hand() -> None:
    """Places with the target's letter: 0 is none of six, as in the last misspelt word."""
    report = climb(broken.likeness, TEXTS).report
    reached = {attack.name: attack.reaches for attack in report.sections[0].attacks}
    assert reached == pytest.approx(
        {
            "blank": 0.0,
            "many times": 6 / 139,  # 20 words of 6 letters and 19 spaces; the first is in its place
            "letters in another order": 0.0,  # as in oktpce
            "in a long text": 0.0,
            "the prompt repeated": 1 / 15,  # the e of Write is the fifth letter, as in all three words
        }
    )
    assert report.sections[0].falls == [Fall(name="wrong letters", ordered=1.0)]
    assert report.overall.startswith("very hard to fool (A): the best attack, 'the prompt repeated', reaches 0.07 of")


def test_grades_at_their_limits() -> None:
    assert [Attack(name="x", reaches=x).grade for x in (-1, 0.2, 0.21, 0.4, 0.6, 0.8, 0.81)] == list("AABBCDE")
    assert [Attack(name="x", reaches=x, shows=True).grade for x in (0.9, 1.02, 1.1, 1.2, 1.5, 1.6)] == list("AABCDE")
    assert [Fall(name="x", ordered=x).grade for x in (1.0, 0.95, 0.9, 0.8, 0.5, 0.49)] == list("ABBCDE")
    attacks = [Attack(name="sharpened", reaches=0.9, shows=True), Attack(name="flat", reaches=0.1)]
    report = LadderReport(sections=[Section(name="photographs", attacks=attacks)])
    assert report.overall == "very hard to fool (A): the best attack, 'flat', reaches 0.10 of the honest scale"
    worse = LadderReport(sections=[Section(name="x", attacks=[*attacks, Attack(name="tint", reaches=1.2, shows=True)])])
    assert worse.overall == "can be fooled (C): the best attack, 'tint', reaches 1.20 of the honest scale"


def test_the_report_line_by_line() -> None:
    attacks = [
        Attack(name="sharpened", reaches=1.2, shows=True),
        Attack(name="flat", reaches=0.1),
        Attack(name="in a frame", reaches=0.5, shows=True),
        Attack(name="noise", reaches=0.3),
    ]
    pictures = Section(name="photographs", falls=[Fall(name="blur", ordered=0.95)], attacks=attacks)
    lines = [
        "photographs: reads the output alone; graded only",
        "  B  blur         0.95 of the pairs in order",
        "  A  flat         0.10 of the honest scale",
        "  B  noise        0.30 of the honest scale",
        "  decorations, graded by what they gain above 1:",
        "  C  sharpened    1.20 of the honest scale",
        "  A  in a frame   0.50 of the honest scale",
        "drawn words: reads no words",
        "can be fooled (C): the best attack, 'sharpened', reaches 1.20 of the honest scale" + GRADED_ONLY,
        "pairs in order: how often the less distorted of two rungs scores more (1 is always, 0.5 a coin)",
        "honest scale: 1 is the score of the right output, 0 that of the worst rung, or of an example's worse side",
    ]
    words = Section(name="drawn words", note="reads no words")
    assert str(LadderReport(sections=[pictures, words])).splitlines() == lines
    judged = replace(pictures, reads=["target picture"], problems={"ladder-blur": None})
    lines[0] = "photographs: reads the target picture"
    lines[8] = lines[8].removesuffix(GRADED_ONLY)
    assert str(LadderReport(sections=[judged, words])).splitlines() == lines
    assert str(LadderReport(sections=[words])) == "drawn words: reads no words"
    assert str(LadderReport(sections=[])) == "not climbed: there is no ladder for its outputs"


def test_without_scikit_image_the_photographs_are_not_climbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skimage", None)
    for reward in (broken.mse, broken.ocr()):
        found = {o.name: o for o in outcomes(ladder_checks(climb(reward, PICTURES)))}
        assert found["ladder-blur"].state == "not checked"
        assert found["ladder-blur"].message == "not climbed: pip install 'grpokit[check]'"
    assert found["ladder-letters"].ok  # drawn words need nothing
    assert "pip install 'grpokit[check]'" in ladder(broken.mse).overall


def test_a_check_that_does_not_apply_is_a_skipped_test_and_no_passed_one(tmp_path: Path) -> None:
    file = tmp_path / "test_zero.py"
    file.write_text(
        "from grpokit.testing import Climb, ladder_checks, parametrize_with_checks\n"
        "def zero(samples):\n    return [0.0] * len(samples)\n"
        "@parametrize_with_checks(ladder_checks(Climb(zero, accepts={'text'})))\n"
        "def test_zero(check):\n    check()\n"
    )
    words = ["-m", "pytest", "-rs", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file)]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert re.search(r"SKIPPED \[3\] .*does not compare with the target", done.stdout), done.stdout
    assert re.search(r"=== 3 skipped in", done.stdout), done.stdout


def test_a_reward_that_refuses_or_breaks() -> None:
    def refuses(samples: Any) -> list[float]:
        raise RewardError("Expected a sound.")

    def breaks(samples: Any) -> list[float]:
        raise ZeroDivisionError("oh")

    def breaks_on_attacks(samples: Any) -> list[float]:
        if len(samples) > 6:
            raise ZeroDivisionError("oh")
        return broken.likeness(samples)

    for reward, said in ((refuses, "Expected a sound."), (breaks, "ZeroDivisionError: oh")):
        messages = {(o.state, o.message) for o in outcomes(ladder_checks(climb(reward, TEXTS)))}
        assert messages == {("not checked", f"does not score the built-in texts ({said})")}
    found = failed(climb(breaks_on_attacks, TEXTS))
    assert set(found) == {"ladder-letters", "ladder-blank", "ladder-extra-text"}
    assert "got ZeroDivisionError: oh" in found["ladder-blank"]


def test_examples_are_attacked_where_the_built_in_texts_say_nothing() -> None:
    """Long answers pay: the better side has 10 letters, the worse 0; twenty copies have 219."""
    better, worse = {"output": "abcdefghij", "prompt": "?"}, {"output": "", "prompt": "?"}
    spec = RewardSpec(name="x", factory="x:x", accepts=TEXTS, examples=[(better, worse)])
    report = ladder(lambda samples: [float(len(s.output)) for s in samples], spec=spec)
    reached = {attack.name: attack.reaches for attack in report.sections[0].attacks}
    assert reached["many times"] == 21.9
    assert reached["blank"] == 0.1
    assert report.grade == "E"
    assert "its spec's examples were attacked" in str(report)


def test_a_reward_of_groups_climbs_too() -> None:
    def ranked(samples: Any) -> list[float]:
        scores = broken.mse(samples)
        groups = [[x for x, o in zip(scores, samples, strict=True) if o.group == s.group] for s in samples]
        return [x - sum(g) / len(g) for x, g in zip(scores, groups, strict=True)]

    assert not failed(climb(ranked, PICTURES))
    assert states(climb(ranked, PICTURES))["ladder-blur"] == "ok"


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_rewards_pass_what_is_no_known_weakness(name: str) -> None:
    params, known = SHIPPED[name]
    spec = registry.find("reward", name)[1]
    assert isinstance(spec, RewardSpec)
    found = Climb(registry.create("reward", name, params), spec=spec)
    assert not failed(found)
    assert (
        {name for name, state in states(found).items() if state == "expected failure"}
        == known
        == set(spec.expected_failures)
    )
    page = (DOCS / "conformance.md").read_text(encoding="utf-8")
    assert not known or f"`{name}`" in page.partition("## Known weaknesses")[2]


def test_the_rungs_themselves() -> None:
    photos = adversarial.photographs()
    assert [photo.size for photo in photos] == [(192, 192), (192, 128), (192, 128), (192, 128)]
    for distortion in adversarial.DISTORTIONS:
        first, again = (distortion.apply(photos[1], distortion.levels[1]) for _ in range(2))
        assert ImageChops.difference(first, again).getbbox() is None  # no draw without a seed
        assert ImageChops.difference(first, photos[1]).getbbox() is not None
    shift = adversarial.DISTORTIONS[3].apply(photos[1], 4)
    assert shift.getpixel((50, 60)) == photos[1].getpixel((46, 56))
    assert adversarial.WORDS[0].misspelt() == ["POIKET", "POIDET", "PRIDET", "PRIDAT", "BRIDAT", "BRIDAS"]
    assert all(
        not set(word.right) & set(word.wrong) for word in (*adversarial.WORDS, *adversarial.TEXTS, *adversarial.NUMBERS)
    )


def test_the_ladder_of_a_function_finds_what_it_accepts() -> None:
    assert [s.name for s in ladder(broken.likeness).sections] == ["texts"]
    assert [s.name for s in ladder(broken.mse).sections] == ["photographs", "drawn words"]


def test_a_source_picture_alone_is_enough() -> None:
    picture = Image.new("RGB", (8, 8), "red")
    sample = Sample(prompt=Prompt(text="", image=picture), output=picture, group=0)
    assert broken.to_source([sample]) == [0.0]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("box-iou",), 0, ["its spec's examples were attacked", "box-iou: all 13 checks passed, 4 not checked"]),
        (("contains",), 0, ["'in a long text'", "fooled at once (E)", "all 14 checks passed, 1 expected failure"]),
        (("exact-match",), 0, ["very hard to fool (A)", "exact-match: all 15 checks passed"]),
        (("broken_rewards:mse",), 0, ["photographs: reads the target picture", "the best attack, 'flat mean colour'"]),
        (("broken_rewards:first_letter",), 1, ["IndexError: string index out of range (broken_rewards.py"]),
        (
            ("broken_rewards:brightness",),
            0,
            ["output alone; graded only", "of the honest scale (graded only: it fails no"],
        ),
        (
            ("jpeg-size",),
            0,
            ["E flat mean colour", "graded only: it fails no check", "jpeg-size: all 11 checks passed"],
        ),
        (("ring",), 0, ["not climbed: there is no ladder for its outputs"]),
    ],
)
def test_the_command_prints_the_report(call: Call, words: tuple[str, ...], code: int, said: list[str]) -> None:
    done = call("check", *words)
    text = " ".join(done.out.split())
    assert done.code == code, done.out + done.err
    for part in said:
        assert part in text or part.replace("'in a long text'", "in a long text") in text, done.out
