"""vlm-ranking against a server on this machine, by hand."""

import json
import math

import pytest
from PIL import Image, ImageStat

from grpokit import Prompt, Sample, UsageError
from grpokit_judge.checklist import VLMChecklist
from grpokit_judge.ranking import VLMRanking


def samples(*greys, group=0, **prompt):
    asked = Prompt(text="a cat", **prompt)
    return [
        Sample(prompt=asked, output=None if grey is None else Image.new("RGB", (8, 8), (grey,) * 3), group=group)
        for grey in greys
    ]


def brightest(request):
    """The numbers of the pictures, from bright to dark."""
    light = [ImageStat.Stat(picture).mean[0] for picture in request.pictures]
    return json.dumps({"ranking": [i + 1 for i in sorted(range(len(light)), key=light.__getitem__, reverse=True)]})


def always(*order):
    return lambda request: json.dumps({"ranking": order})


@pytest.fixture
def rank(judge):
    return lambda **params: VLMRanking(url=judge.url, model="eye", backoff=0.01, concurrency=1, **params)


def test_each_group_is_ranked_by_itself(judge, rank):
    """Rows of two groups in any order; a sample without output and one alone in its group have no rank."""
    rows = samples(10, 200, None, 90, 50) + samples(30, 20, group=4) + samples(7, group=9)
    mixed = [rows[i] for i in (5, 0, 1, 7, 2, 3, 6, 4)]
    judge.script = [brightest] * 4
    scores = rank()(mixed)
    assert [-1.0 if math.isnan(score) else score for score in scores] == pytest.approx(
        [1, 0, 1, -1, -1, 2 / 3, 0, 1 / 3]
    )
    assert [len(request.pictures) for request in judge.requests] == [2, 2, 4, 4]
    first, second = (request.body["messages"][0]["content"] for request in judge.requests[2:])
    labels = [part["text"] for part in first[1:] if part["type"] == "text"]
    assert labels == ["Number 1:", "Number 2:", "Number 3:", "Number 4:"]
    assert [p["image_url"] for p in first[2::2]] == [p["image_url"] for p in second[2::2]][::-1]


def test_a_judge_that_prefers_a_place_says_nothing(judge, rank):
    judge.script = [always(1, 2, 3)] * 2
    assert rank()(samples(1, 2, 3)) == [0.5, 0.5, 0.5]
    judge.script = [always(1, 2, 3)]
    assert rank(both_orders=False)(samples(1, 2, 3)) == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    "words", ['{"ranking": ["2", "3", "1"]}', '{"ranking": "2 > 3 > 1"}', '{"result": {"ranking": [2, 3, 1]}}']
)
def test_forms_of_a_ranking(judge, rank, words):
    judge.script = [lambda request: words]
    assert rank(both_orders=False)(samples(1, 2, 3)) == [0.0, 1.0, 0.5]


@pytest.mark.parametrize("order", [(1, 2), (1, 2, 2), (0, 1, 2), (1.0, 2, 3), (True, 2, 3), "321", ("a", 1, 2)])
def test_an_answer_that_does_not_rank_all_pictures(judge, rank, order):
    judge.script = [always(2, 1, 3), lambda request: json.dumps({"ranking": order})]
    with pytest.warns(UserWarning, match="vlm-ranking: 1 of 2 answers had no ranking of all pictures, such as"):
        assert all(map(math.isnan, rank()(samples(1, 2, 3))))


def test_an_answer_that_was_cut_ranks_nothing(judge, rank):
    cut = {"finish_reason": "length", "message": {"content": '{"ranking": [1, 2]}'}}
    judge.script = [(200, {}, json.dumps({"choices": [cut]})), lambda request: '<think>{"ranking": [1, 2]}']
    with pytest.raises(Exception, match="2 of 2 answers had no ranking of all pictures"):
        rank()(samples(1, 2))


def test_edits_come_with_their_source(judge, rank):
    source = Image.effect_noise((16, 24), 80).convert("RGB")
    judge.script = [always(2, 1)] * 2
    rank()(samples(1, 2, images=[source]))
    assert "You compare edits of the first picture." in judge.requests[0].text
    assert [picture.size for picture in judge.requests[0].pictures] == [(16, 24), (8, 8), (8, 8)]
    assert judge.requests[0].pictures[0].tobytes() == source.tobytes()


@pytest.mark.parametrize(
    ("kind", "template", "field"),
    [(VLMRanking, "{prompt} {target}", "target"), (VLMChecklist, "{source}: {prompt}", "source")],
)
def test_a_field_that_the_reward_does_not_fill_in_is_refused(kind, template, field):
    """It would reach the judge as it stands, or leave every sample unscored."""
    with pytest.raises(UsageError, match=f"{kind.name}: the template has .{field}., which this reward does not"):
        kind(url="http://localhost:1/v1", model="eye", template=template)
