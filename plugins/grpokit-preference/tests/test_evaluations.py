"""The evaluation `preference` on tiny models of the real classes."""

import json
from collections import Counter

import pytest

from command_line import Call
from grpokit.builtin.quotes import quotations
from grpokit_preference.evaluations import prompts


def test_prompts_of_each_subject():
    found = prompts()
    assert Counter(prompt.meta["subject"] for prompt in found) == dict.fromkeys(
        ("people", "animals", "places", "things"), 5
    )
    assert len({prompt.text for prompt in found}) == 20
    assert not any(quotations(prompt.text) for prompt in found)


@pytest.mark.slow
def test_the_command(tiny, call: Call):
    words = [
        f"rewards.{place}.{key}={value}"
        for place, name in enumerate(("pickscore", "hpsv2"))
        for key, value in tiny.params[name].items()
    ]
    done = call("evaluate", "glm-glyph", "--with", "preference", *words, "samples=1", "--limit", 6, "--json")
    answer = json.loads(done.out)
    assert set(answer["before"]) == {"pickscore", "hpsv2"}
    assert set(answer["by"]) == {"subject people", "subject animals"}
    assert f"model: {tiny.params['pickscore']['model']}" in answer["scored_by"]["pickscore"]
    means = {part: own["before"]["hpsv2"]["mean"] for part, own in answer["by"].items()}
    whole = (5 * means["subject people"] + means["subject animals"]) / 6
    assert answer["before"]["hpsv2"]["mean"] == pytest.approx(whole)
    refused = call("evaluate", "toy-lm", "--with", "preference")
    assert "evaluation preference, line 5: rewards.0: The reward 'pickscore' scores pictures" in refused.err
