"""vlm-checklist and the evaluation `checklist`, against a server on this machine; the numbers by hand."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from command_line import Call
from grpokit import DataError, Prompt, RewardError, Sample, UsageError
from grpokit.data import read_prompts
from grpokit_judge.checklist import VLMChecklist, probability, unscorable
from grpokit_judge.evaluations import prompts

GENEVAL = {  # a line of GenEval 2's file, as its README has it
    "prompt": "four white bicycles in front of three plastic cows",
    "atom_count": 7,
    "vqa_list": [["How many bicycles are in the image?", "four"], ["Are the bicycles white?", "Yes"]],
    "skills": ["count", "attribute"],
}


def sample(pairs, output=None, text="four white bicycles"):
    picture = Image.new("RGB", (8, 8), "white") if output is None else output
    return Sample(prompt=Prompt(text=text, meta={"vqa_list": pairs}), output=picture, group=0)


def likely(**tokens):
    """An answer of the server whose first token has these probabilities."""
    top = [{"token": token, "logprob": math.log(p)} for token, p in tokens.items()]
    word = next(iter(tokens))
    first = {"token": word, "top_logprobs": top}
    return json.dumps({"choices": [{"message": {"content": word}, "logprobs": {"content": [first]}}]})


def answering(judge, answers):
    """Let the server answer each question with probabilities of tokens, or with words."""

    def respond(request):
        judge.texts.append(request.text)
        return answers[request.text.removesuffix(" Answer in one word.")]

    judge.texts = []
    judge.script = [respond] * 100


@pytest.fixture
def checklist(judge):
    return lambda **params: VLMChecklist(url=judge.url, model="eye", **params)


def test_means_over_probabilities_of_the_right_answers(judge, checklist):
    pairs = [["How many bicycles are in the image?", "four"], ["Are the bicycles white?", "Yes"]]
    raw = [
        likely(four=0.5, **{"4": 0.25, " Four": 0.05, "five": 0.2}),  # 0.8, in any form
        likely(No=0.5, Yes=0.2, yes=0.25),  # 0.45
    ]
    for mean, wanted in (("geometric", math.sqrt(0.8 * 0.45)), ("arithmetic", 0.625)):
        judge.script = [(200, {}, text) for text in raw]
        assert checklist(mean=mean, concurrency=1)([sample(pairs)]) == pytest.approx([wanted])
    request = judge.requests[0]
    assert request.text == "How many bicycles are in the image? Answer in one word."
    assert len(request.pictures) == 1
    assert {name: request.body[name] for name in ("max_tokens", "temperature", "logprobs", "top_logprobs")} == {
        "max_tokens": 1, "temperature": 0.0, "logprobs": True, "top_logprobs": 20
    }  # fmt: skip
    judge.script = [(200, {}, raw[0]), (200, {}, likely(No=1.0))]
    assert checklist(concurrency=1)([sample(pairs)]) == [0.0]  # one answer that is out of the question


def test_a_server_without_probabilities_gives_right_or_wrong(judge, checklist):
    pairs = [["How many?", "two"], ["Is it red?", "Yes"], ["Is it big?", "No"]]
    answering(judge, {"How many?": "2", "Is it red?": "Yes.", "Is it big?": "Yes"})
    with pytest.raises(
        RewardError, match=r"^vlm-checklist: logprobs is set, and the server's answer has no log-probs .* at 0, or take"
    ):
        checklist()([sample(pairs)])
    judge.script = [(200, {}, likely(Yes=1.0).replace(json.dumps([{"token": "Yes", "logprob": 0.0}]), "[]"))]
    with pytest.raises(RewardError, match="the server's answer has no log-probs"):  # and not a score of 0
        checklist()([sample([["Is it red?", "Yes"]])])
    answering(judge, {"How many?": "2", "Is it red?": "Yes.", "Is it big?": "Yes"})
    judge.requests.clear()
    ask = checklist(mean="arithmetic", logprobs=0)
    assert ask([sample(pairs), sample([["Is it red?", "Yes"]])]) == pytest.approx([2 / 3, 1])
    assert "logprobs" not in judge.requests[0].body
    assert Counter(judge.texts)["Is it red? Answer in one word."] == 2


def test_what_cannot_be_scored(judge, checklist):
    answering(judge, {"Is it red?": "Yes", "Is it odd?": "", "Is it deep?": "<think>"})
    red, odd, deep = ["Is it red?", "Yes"], ["Is it odd?", "No"], ["Is it deep?", "Yes"]
    rows = [sample([red]), sample([]), sample([red, odd]), sample([deep])]
    with pytest.warns(
        UserWarning, match="2 of 4 answers had no answer, .* If the judge thinks first, raise max_tokens"
    ):
        found = checklist(logprobs=0)([*rows, Sample(prompt=Prompt(text="x"), output=1, group=0)])
    assert [math.isnan(score) for score in found] == [False, True, True, True, True]
    assert unscorable(Prompt(text="x")) == "it has no questions in the column vqa_list"
    with pytest.raises(DataError, match=r'vqa_list: expected pairs such as \[\["Is there a cat\?", "Yes"\]\], got'):
        unscorable(Prompt(text="x", meta={"vqa_list": ["Is there a cat?"]}))
    with pytest.raises(UsageError, match="mean must be one of geometric, arithmetic, got 'harmonic'"):
        checklist(mean="harmonic")
    with pytest.raises(RewardError, match=r"as the output of row 0 \(reward 'vlm-checklist'\), got str"):
        checklist()([sample([red], "words")])


@pytest.mark.parametrize(
    ("answer", "right", "wanted"),
    [
        ("Two", "two", 1),
        ("2", "two", 1),
        ("two", "2", 1),
        ("3", "two", 0),
        ("yes!", "Yes", 1),
        ("40", "forty", 0),
        ("Yes, all three cows are.", "Yes", 1),
        ("No, but yes for one.", "Yes", 0),
        ("```\nYes\n```", "Yes", 1),
        ("**Yes**, they are.", "Yes", 1),
        (r"\boxed{\text{Yes}}", "Yes", 1),
        ("Not one.", "no", 0),
        ("2.5", "two", 0),
        ("light blue walls", "light blue", 1),
        ("light", "light blue", 0),
    ],
)
def test_forms_of_an_answer(answer, right, wanted):
    assert probability({"choices": [{"message": {"content": answer}}]}, right, logprobs=False) == wanted


@pytest.mark.parametrize(
    ("tokens", "right", "wanted"),
    [
        ([{"**": 0.9, "No": 0.1}, {"Yes": 0.7, "No": 0.3}, {"**": 1.0}], "Yes", 0.7),
        ([{"Y": 0.6, "Yes": 0.3, "No": 0.1}, {"es": 0.8, "up": 0.2}], "Yes", 0.3 + 0.6 * 0.8),
        ([{"Y": 0.6, "Yes": 0.3, "No": 0.1}, {"es": 0.8}], "No", 0.1),
        ([{"t": 0.9, "two": 0.1}, {"en": 0.6, "wo": 0.4}], "two", 0.1 + 0.9 * 0.4),
        ([{"light": 0.9, "blue": 0.1}, {" blue": 0.5, " green": 0.5}], "light blue", 0.45),
        ([{"Y": 0.6, "Yes": 0.3}], "Yes", None),  # it was cut, so that nobody knows how it goes on
        ([{"**": 1.0}], "Yes", None),
    ],
)
def test_an_answer_in_several_tokens(tokens, right, wanted):
    content = []
    for chances in tokens:
        top = [{"token": token, "logprob": math.log(chance)} for token, chance in chances.items()]
        content.append({"token": max(chances, key=chances.get), "top_logprobs": top})
    words = "".join(each["token"] for each in content)
    answer = {"choices": [{"message": {"content": words}, "logprobs": {"content": content}}]}
    assert probability(answer, right, logprobs=True) == (wanted if wanted is None else pytest.approx(wanted))


def test_the_shipped_prompts_and_geneval2s_own_file(tmp_path: Path):
    (tmp_path / "geneval2_data.jsonl").write_text(json.dumps(GENEVAL) + "\n")
    [own] = read_prompts(tmp_path / "geneval2_data.jsonl")
    assert (own.text, own.meta["vqa_list"], own.meta["atom_count"]) == (GENEVAL["prompt"], GENEVAL["vqa_list"], 7)
    shipped = prompts()
    assert len(shipped) == 20
    for prompt in shipped:
        assert unscorable(prompt) == ""
        assert len(prompt.meta["vqa_list"]) == len(prompt.meta["skills"]) >= prompt.meta["atom_count"]
    assert {skill for p in shipped for skill in p.meta["skills"]} == {
        "object",
        "count",
        "attribute",
        "position",
        "verb",
    }


@pytest.mark.slow
def test_the_command(judge, call: Call, tmp_path: Path):
    """glm-glyph draws no bicycles; a judge that says Yes to everything is right about all but the counts."""
    (tmp_path / "geneval2_data.jsonl").write_text(json.dumps(GENEVAL) + "\n")
    judge.script = [lambda request: "Yes"] * 1000
    words = ["evaluate", "glm-glyph", "--with", "checklist", "--json"]
    where = [f"rewards.0.url={judge.url}", "rewards.0.model=eye", "rewards.0.logprobs=0", "rewards.0.mean=arithmetic"]
    answer = json.loads(call(*words, *where, "--limit", 2).out)
    assert answer["before"]["soft-tifa"]["mean"] == pytest.approx((1 + 2 / 3) / 2)
    assert answer["scored_by"]["soft-tifa"] == (
        f"{{use: vlm-checklist, mean: arithmetic, url: '{judge.url}', model: eye, logprobs: 0}}"
    )
    answer = json.loads(call(*words, *where, "data={prompts: geneval2_data.jsonl}").out)
    assert answer["by"]["atom_count 7"]["before"]["soft-tifa"]["mean"] == 0.5
    alone = call(*words)
    assert (alone.code, alone.out) == (2, "")
    assert "error: evaluation checklist, line 7: rewards.0: The reward 'vlm-checklist' needs the parameter" in alone.err
