"""The ladders: each check catches the reward that is wrong there and no other, and grades follow the numbers."""

from __future__ import annotations

import functools
import math
import re
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import broken_rewards as broken
import pytest
from PIL import ImageChops

from command_line import Call
from grpokit import Prompt, RewardError, RewardSpec, Sample
from grpokit_check import Check, LadderReport, ladder, outcomes, reward_checks
from grpokit_check.robustness import ladder_outputs
from grpokit_check.robustness.grades import Attack, Drop, Section
from grpokit_check.robustness.ladder import ladder_checks

DOCS = Path(__file__).parents[3] / "docs"
PICTURES, TEXTS = frozenset({"image"}), frozenset({"text"})


def report_of(reward: Any, accepts: frozenset[str]) -> LadderReport:
    return ladder(reward, spec=RewardSpec(api=1, name="x", factory="x:x", accepts=accepts))


def checks_of(reward: Any, accepts: frozenset[str]) -> Iterator[Check]:
    return ladder_checks(functools.cache(lambda: report_of(reward, accepts)), accepts)


def states(reward: Any, accepts: frozenset[str]) -> dict[str, str]:
    return {o.name: o.state for o in outcomes(checks_of(reward, accepts))}


def failed(reward: Any, accepts: frozenset[str]) -> dict[str, str]:
    return {o.name: o.message for o in outcomes(checks_of(reward, accepts)) if o.failed}


def picture(name: str, reward: Any) -> Any:
    takes_seconds = name in {"ladder-letters", "ladder-extra-text"}  # an engine reads them
    return pytest.param(name, reward, id=name, marks=pytest.mark.slow if takes_seconds else ())


@pytest.mark.parametrize(("name", "reward"), [picture(name, reward) for name, reward in broken.PICTURES])
def test_only_the_right_check_of_pictures_catches_a_broken_reward(name: str, reward: Any) -> None:
    found = failed(reward, PICTURES)
    assert set(found) == {name}, found
    assert re.match(r"Expected .*; got .*\. Usual cause: .*\.$", found[name], re.DOTALL)


@pytest.mark.parametrize(("name", "reward"), broken.TEXTS, ids=[name for name, _ in broken.TEXTS])
def test_only_the_right_check_of_texts_catches_a_broken_reward(name: str, reward: Any) -> None:
    found = failed(reward, TEXTS)
    assert set(found) == {name}, found


def test_every_check_has_a_reward_that_it_alone_catches() -> None:
    alone = {name for name, _ in (*broken.PICTURES, *broken.TEXTS)}
    assert {check.name for check in checks_of(broken.mse, PICTURES | TEXTS)} == alone


def test_a_good_reward_of_each_kind() -> None:
    compares = dict.fromkeys(["ladder-identical", "ladder-blur", "ladder-noise", "ladder-jpeg", "ladder-shift"], "ok")
    words = ["ladder-letters", "ladder-blank", "ladder-extra-text"]
    for reward in (broken.mse, broken.to_source):
        assert states(reward, PICTURES) == compares | dict.fromkeys(words, "not checked")
    assert states(broken.likeness, TEXTS) == dict.fromkeys(words, "ok")
    assert states(broken.brightness, PICTURES) == dict.fromkeys([*compares, *words], "not checked")


def test_what_a_reward_reads_is_found_by_swapping_it() -> None:
    def reads(reward: Any) -> Any:
        return report_of(reward, PICTURES).sections[0].reads

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


def test_a_reward_that_compares_with_nothing_is_measured_and_not_graded() -> None:
    """No picture is the right one for brightness, so there is no scale; what it scores is shown."""
    report = report_of(broken.brightness, PICTURES)
    pictures, words = report.sections
    assert words.note == "does not read the quoted text from pictures"
    assert not pictures.drops
    assert not pictures.attacks
    assert report.grade == ""
    assert "another photograph" not in pictures.scores  # no photograph was asked for
    photos = ladder_outputs.photographs()
    bright = broken.brightness([Sample(prompt=Prompt(text=""), output=photo, group=0) for photo in photos])
    assert pictures.scores["the photographs"] == pytest.approx(sum(bright) / 4)
    assert pictures.scores["in a white frame"] > pictures.scores["the photographs"] + 0.1
    assert pictures.scores["flat mean colour"] == pytest.approx(pictures.scores["the photographs"], abs=0.01)
    assert "honest scale" not in str(report)


@pytest.mark.parametrize("accepts", [PICTURES, TEXTS])
def test_a_reward_that_gives_everything_the_same_score_is_not_graded(accepts: frozenset[str]) -> None:
    examples = [({"output": "{}", "target": "{}"}, {"output": "x", "target": "{}"})]
    spec = RewardSpec(api=1, name="x", factory="x:x", accepts=accepts, examples=examples if accepts == TEXTS else ())
    report = ladder(lambda samples: [0.5] * len(samples), spec=spec)
    assert report.grade == ""
    assert "nothing is graded" in report.overall
    assert not any(section.drops or section.attacks for section in report.sections)


def test_examples_without_a_difference_have_no_scale() -> None:
    def needs_its_target(samples: Any) -> list[float]:
        return [0.5 if s.prompt.target == "{}" else math.nan for s in samples]

    example = ({"output": "{}", "target": "{}"}, {"output": "x", "target": "{}"})
    spec = RewardSpec(api=1, name="x", factory="x:x", accepts=TEXTS, examples=[example])
    report = ladder(needs_its_target, spec=spec)
    assert report.grade == ""
    assert report.overall.endswith("scores more than the worse one, so there is no honest scale")


def test_a_reward_that_distortions_do_not_lower_has_no_scale() -> None:
    """It reads the caption, so attacks could be graded; but most distorted photographs are brighter."""

    def caption_length(samples: Any) -> list[float]:
        return [len(s.prompt.text) * x for s, x in zip(samples, broken.brightness(samples), strict=True)]

    report = report_of(caption_length, PICTURES)
    assert report.sections[0].reads == ("prompt text",)
    assert report.grade == ""
    assert report.overall.startswith("not graded: distortions do not lower its scores, so there is no honest scale")


@pytest.mark.parametrize(("good", "accepts", "check"), [
    (broken.mse, PICTURES, "ladder-identical"),
    (broken.likeness, TEXTS, "ladder-letters"),
])  # fmt: skip
def test_a_reward_of_the_wrong_sign_is_told_so(good: Any, accepts: frozenset[str], check: str) -> None:
    def inverted(samples: Any) -> list[float]:
        return [-x for x in good(samples)]

    report = report_of(inverted, accepts)
    assert report.overall.startswith("not graded: its scores are inverted: negate them")
    problems = {name: str(problem) for section in report.sections for name, problem in section.problems.items()}
    assert list(problems) == [check]
    assert "it is inverted: negate it" in problems[check]


def test_a_text_reward_that_needs_no_target_is_not_graded() -> None:
    """`{}` is valid JSON, whatever was asked: that no attack scores says nothing of how hard it is to fool."""

    def valid_json(samples: Any) -> list[float]:
        return [float(s.output in ("{}", "[]")) for s in samples]

    spec = RewardSpec(api=1, name="x", factory="x:x", accepts=TEXTS, examples=[({"output": "{}"}, {"output": "{"})])
    report = ladder(valid_json, spec=spec)
    assert report.grade == ""
    assert "compares with nothing" in report.overall
    assert report.sections[0].scores["the better sides"] == 1
    assert report.sections[0].scores["in a long text"] == 0


def test_shares_of_the_honest_scale_by_hand() -> None:
    """Places with the target's letter: 0 is none of six, as in the last misspelt word."""
    report = report_of(broken.likeness, TEXTS)
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
    assert report.sections[0].drops == [Drop(name="wrong letters", ordered=1.0)]
    assert report.overall.startswith("very hard to fool (A): the best attack, 'the prompt repeated', reaches 0.07 of")


def test_grades_at_their_limits() -> None:
    assert [Attack(name="x", reaches=x).grade for x in (-1, 0.2, 0.21, 0.4, 0.6, 0.8, 0.81)] == list("AABBCDE")
    assert [Attack(name="x", reaches=x, shows=True).grade for x in (0.9, 1.02, 1.1, 1.2, 1.5, 1.6)] == list("AABCDE")
    assert [Drop(name="x", ordered=x).grade for x in (1.0, 0.95, 0.9, 0.8, 0.5, 0.49)] == list("ABBCDE")
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
    pictures = Section(
        name="photographs", reads=["prompt text"], drops=[Drop(name="blur", ordered=0.95)], attacks=attacks
    )
    lines = [
        "photographs: reads the prompt text",
        "  B  blur         0.95 of the pairs in order",
        "  A  flat         0.10 of the honest scale",
        "  B  noise        0.30 of the honest scale",
        "  decorations, graded by what they gain above 1:",
        "  C  sharpened    1.20 of the honest scale",
        "  A  in a frame   0.50 of the honest scale",
        "drawn words: reads no words",
        "can be fooled (C): the best attack, 'sharpened', reaches 1.20 of the honest scale",
        "pairs in order: how often the less distorted of two outputs scores more (1 is always, 0.5 a coin)",
        "honest scale: 1 is the score of the right output, 0 that of the most distorted, or of an example's worse side",
    ]
    words = Section(name="drawn words", note="reads no words")
    assert str(LadderReport(sections=[pictures, words])).splitlines() == lines
    assert str(LadderReport(sections=[words])) == "drawn words: reads no words"
    assert str(LadderReport(sections=[])) == "not graded: there is no ladder for outputs of this kind"
    brightness = Section(name="photographs", scores={"the photographs": 0.5}, note="reads the output alone")
    assert str(LadderReport(sections=[brightness])).splitlines() == [
        "photographs: reads the output alone; mean scores:",
        "  the photographs        0.5",
    ]


def test_a_check_that_does_not_apply_is_a_skipped_test() -> None:
    """pytest skips a test that raises unittest's SkipTest."""
    check = next(checks_of(lambda samples: [0.0] * len(samples), TEXTS))
    with pytest.raises(unittest.SkipTest, match="compares no built-in text"):
        check()


def test_a_reward_that_refuses_or_breaks() -> None:
    def refuses(samples: Any) -> list[float]:
        raise RewardError("Expected a sound.")

    def breaks(samples: Any) -> list[float]:
        raise ZeroDivisionError("oh")

    def breaks_on_attacks(samples: Any) -> list[float]:
        if len(samples) > 6:
            raise ZeroDivisionError("oh")
        return broken.likeness(samples)

    for reward, said in ((refuses, "RewardError: Expected a sound"), (breaks, "ZeroDivisionError: oh")):
        messages = {(o.state, o.message) for o in outcomes(checks_of(reward, TEXTS))}
        assert messages == {("not checked", f"does not score the built-in texts ({said})")}
    found = failed(breaks_on_attacks, TEXTS)
    assert set(found) == {"ladder-letters", "ladder-blank", "ladder-extra-text"}
    assert "got ZeroDivisionError: oh" in found["ladder-blank"]


def test_examples_are_attacked_where_the_built_in_texts_say_nothing() -> None:
    """Long answers to a wanted length pay: the better side has 10 letters, the worse 0; twenty copies have 219."""
    better, worse = ({"output": x, "prompt": "?", "target": 10} for x in ("abcdefghij", ""))
    spec = RewardSpec(api=1, name="x", factory="x:x", accepts=TEXTS, examples=[(better, worse)])
    report = ladder(lambda samples: [len(s.output) / s.prompt.target for s in samples], spec=spec)
    reached = {attack.name: attack.reaches for attack in report.sections[0].attacks}
    assert reached["many times"] == 21.9
    assert reached["blank"] == 0.1
    assert report.grade == "E"
    assert str(report).startswith("texts: reads the target; does not score the built-in texts")
    assert "the examples of its spec were attacked" in str(report)


def test_a_reward_of_whole_groups() -> None:
    def ranked(samples: Any) -> list[float]:
        scores = broken.mse(samples)
        groups = [[x for x, o in zip(scores, samples, strict=True) if o.group == s.group] for s in samples]
        return [x - sum(g) / len(g) for x, g in zip(scores, groups, strict=True)]

    assert not failed(ranked, PICTURES)
    assert states(ranked, PICTURES)["ladder-blur"] == "ok"


def test_the_distorted_pictures_and_misspelt_words() -> None:
    photos = ladder_outputs.photographs()
    assert [photo.size for photo in photos] == [(192, 192), (192, 128), (192, 128), (192, 128)]
    for distortion in ladder_outputs.DISTORTIONS:
        first, again = (distortion.apply(photos[1], distortion.levels[1]) for _ in range(2))
        assert ImageChops.difference(first, again).getbbox() is None  # no draw without a seed
        assert ImageChops.difference(first, photos[1]).getbbox() is not None
    shift = ladder_outputs.DISTORTIONS[3].apply(photos[1], 4)
    assert shift.getpixel((50, 60)) == photos[1].getpixel((46, 56))
    assert ladder_outputs.WORDS[0].misspelt() == ["POIKET", "POIDET", "PRIDET", "PRIDAT", "BRIDAT", "BRIDAS"]
    assert all(
        not set(word.right) & set(word.wrong)
        for word in (*ladder_outputs.WORDS, *ladder_outputs.TEXTS, *ladder_outputs.NUMBERS)
    )


def test_the_ladder_of_a_function_finds_what_it_accepts() -> None:
    assert [s.name for s in ladder(broken.likeness).sections] == ["texts"]
    assert [s.name for s in ladder(broken.mse).sections] == ["photographs", "drawn words"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [(None, "it returned a NoneType"), (0.5, "it returned a float"), ([None] * 6, "it gave nothing")],
    ids=str,
)
def test_a_reward_of_pictures_with_a_wrong_answer_is_checked_on_pictures(answer: Any, words: str) -> None:
    def reward(samples: Any) -> Any:
        broken.brightness(samples)  # raises for texts
        return answer

    numbers = next(outcomes(reward_checks(reward, ladder=False)))
    assert words in numbers.message


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("box-iou",), 0, ["the examples of its spec were attacked", "box-iou: all 14 checks passed, 4 not checked"]),
        (("contains",), 0, ["'in a long text'", "fooled at once (E)", "all 15 checks passed, 1 expected failure"]),
        (("broken_rewards:first_letter",), 1, ["IndexError: string index out of range (broken_rewards.py"]),
        (
            ("broken_rewards:brightness",),
            0,
            ["reads only the output, so there is no right picture and nothing is graded; mean scores:"],
        ),
    ],
)
def test_the_command_prints_the_report(call: Call, words: tuple[str, ...], code: int, said: list[str]) -> None:
    done = call("check", *words)
    text = " ".join(done.out.split())
    assert done.code == code, done.out + done.err
    for part in said:
        assert part in text or part.replace("'in a long text'", "in a long text") in text, done.out
