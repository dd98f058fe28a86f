"""How well a cheap decode ranks pictures is measured on pictures of the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpokit import Prompt, RewardTerm, create
from grpokit_glm_image.decodes import compare, main
from grpokit_glm_image.policy import GlmImageAR

pytestmark = pytest.mark.usefixtures("small_draft")
PROMPTS = [Prompt(text=text) for text in ("a cat", "two dogs")]


def compared(**options: Any) -> Any:
    policy = GlmImageAR("tiny", size=(64, 96), eval_decode={"steps": 2, "guidance": 1.0}, **options)
    terms = [
        RewardTerm(name="bright", reward=create("reward", "brightness")),
        RewardTerm(name="flat", reward=create("reward", "jpeg-size"), weight=0.5),
    ]
    return compare(policy, terms, PROMPTS, group_size=6)


def test_equal_settings_rank_alike() -> None:
    found = compared(decode={"steps": 2, "guidance": 1.0})
    assert [each.name for each in found.agreements] == ["bright", "flat", "reward"]
    assert all((each.tau, each.groups) == (1.0, 2) for each in found.agreements)
    assert all(each.training == each.evaluation for each in found.agreements)


def test_another_decode_of_the_same_tokens_ranks_otherwise() -> None:
    few, draft = (compared(decode=decode) for decode in ({"steps": 1}, {"steps": 1, "tokens": "draft"}))
    assert few.agreements[0].training != few.agreements[0].evaluation
    assert few.agreements[0].tau > 0.5  # of a random decoder, too, a step tells most about two
    assert abs(draft.agreements[0].tau) < few.agreements[0].tau  # the random drafts have nothing to do with it


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["glm-image-tiny", "--prompts", "1", "--count", "3", "policy.decode.steps=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["training", "evaluation", "tau", "groups"]
    assert [line.split()[0] for line in lines[1:3]] == ["brightness", "reward"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["glm-image-tiny", "--count", "1"], "an order needs two samples"),
        (["glm-image-tiny", "policy.decode.stps=2"], "decode has no key 'stps' (did you mean 'steps'?)"),
        (["glm-image-tiny", "policy.edits=true"], "has no picture to edit"),
        (["toy-lm"], "The policy must be glm-image-ar, and 'toy-lm' is another."),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_a_reward_that_fails_is_no_bad_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "failing_reward.py").write_text("def score(samples):\n    return [1 / 0 for _ in samples]\n")
    words = ["--prompts", "1", "--count", "2", "policy.decode.steps=1", "rewards=[{use: 'failing_reward:score'}]"]
    assert main(["glm-image-tiny", *words]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
