"""vlm-judge against a server on this machine."""

import itertools
import json
import math
import pickle
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from PIL import Image

from grpokit import Prompt, RewardError, Sample, UsageError, create
from grpokit_judge import calls
from grpokit_judge.reward import VLMJudge

KEY = "sk-very-secret-0123456789"


def sample(gray=128, text="a cat", **other):
    picture = gray if gray is None or isinstance(gray, str) else Image.new("RGB", (8, 8), (gray,) * 3)
    return Sample(prompt=Prompt(text=text, **other), output=picture, group=0)


def reward(judge, **params):
    return VLMJudge(**{"url": judge.url, "model": "eye", "backoff": 0.01, **params})


def saying(words):
    return lambda request: words


def test_each_picture_gets_the_rating_of_its_own_request(judge):
    """Answers come back in another order than they were asked for."""
    judge.script = [0.2, 0.1]
    scores = reward(judge)([sample(gray) for gray in (0, 51, 102, 204, 255)])
    assert scores == pytest.approx([0.0, 0.2, 0.4, 0.8, 1.0])
    assert judge.most_working > 1
    request = judge.requests[0]
    assert request.path == "/v1/chat/completions"
    assert "Authorization" not in request.headers
    assert {name: request.body[name] for name in ("model", "max_tokens", "temperature")} == {
        "model": "eye", "max_tokens": 256, "temperature": 0.0
    }  # fmt: skip
    assert "Prompt: a cat\n" in request.text


def test_fields_of_the_template_are_replaced_once(judge):
    template = '{"asked": "{prompt}", "wanted": "{target}"}'
    reward(judge, template=template)([sample(text="show {target}", target="a {prompt}")])
    assert judge.requests[0].text == '{"asked": "show {target}", "wanted": "a {prompt}"}'


def test_a_picture_as_target_is_the_second_picture(judge):
    target = Image.new("RGB", (4, 6), "red")
    [score] = reward(judge, template="Compare with {target}.")([sample(255, text="", target=target)])
    assert score == 1.0
    assert judge.requests[0].text == "Compare with the second picture."
    assert [picture.size for picture in judge.requests[0].pictures] == [(8, 8), (4, 6)]
    reward(judge)([sample(target=target)])
    assert len(judge.requests[1].pictures) == 1  # which the template does not ask for


def test_pictures_are_sent_without_loss_and_not_too_large(judge):
    large = Image.effect_noise((300, 100), 80).convert("RGB")
    small = large.resize((60, 20))
    reward(judge, concurrency=1, max_side=60)(
        [sample(), *(Sample(prompt=Prompt(text="x"), output=p, group=0) for p in (small, large))]
    )
    sent = [request.pictures[0] for request in judge.requests]
    assert sent[1].tobytes() == small.tobytes()
    assert sent[2].size == (60, 20)


def test_what_cannot_be_asked_is_nan_and_costs_no_request(judge):
    scores = reward(judge, template="{prompt} {target}")(
        [sample(text=" ", target="x"), sample(target=None), sample(None, target="x"), sample(255, target="x")]
    )
    assert [math.isnan(x) for x in scores] == [True, True, True, False]
    assert len(judge.requests) == 1
    with pytest.raises(RewardError, match=r"PIL.Image.Image as the output of row 1 \(reward 'vlm-judge'\), got str"):
        reward(judge)([sample(), sample("words")])


@pytest.mark.parametrize(
    ("words", "params", "wanted"),
    [
        ('{"rating": 7}', {}, 0.7),
        ('First {"rating": 2}, but then {"why": {"x": 1}, "rating": "8/10"}.', {}, 0.8),
        ('```json\n{"score": 3}\n```', {"rating_key": "score", "low": 1, "high": 5}, 0.5),
        ("Score: 2 at first. Score: 4.5", {"pattern": r"Score: ([0-9.]+)", "high": 5}, 0.9),
        ('{"rating": 0}', {}, 0.0),
        ('{"rating": "8 out of 10."}', {}, 0.8),
        ("Score: 4.5.", {"pattern": "Score: ([0-9.]+)", "high": 5}, 0.9),
        ("I'd give it a 10 out of 10, not 3.", {"pattern": r"(\d+ out of \d+)"}, 1.0),
        ('<think>maybe {"rating": 2}</think>{"rating": 8}', {}, 0.8),
        ('maybe {"rating": 2}</think> <b>{"rating": "**8**"}</b>', {}, 0.8),  # the template has opened the thought
        ('<think>maybe {"rating": 2}', {}, None),
        ('<think>maybe {"rating": 2}</think> I cannot say.', {}, None),
        ("<think>Score: 2", {"pattern": r"Score: (\d+)"}, None),
        ("Score: −5", {"pattern": r"Score: (\S+)", "low": -10}, 0.25),
        *(
            ("Score: −5", {"pattern": rf"Score: ({minus}[0-9])", "low": -10}, 0.25)
            for minus in ("-", "−", "[-−]?", "[−-]?")
        ),
        ('{"rating": −5}', {"low": -10}, 0.25),
        ("Score: .5", {"pattern": r"Score: (\S+)", "high": 1}, 0.5),
        ("Score: 9 of 10. Score: -3.", {"pattern": r"Score: (-?\d+)"}, None),
        ('{"why": "sharp\nbut dark", "rating": 8}', {}, 0.8),
        ('{"rating": 8/10, "why": "ratio: 4/5, fine"}', {}, 0.8),
        ('{"result": {"why": "fine", "rating": 8}}', {}, 0.8),
        ('{"form": {"rating": 3}, "colour": {"rating": 8}}', {}, None),
        ('{"rating": {"rating": 8}}', {}, None),
        ('{"rating": "80%"}', {"high": 100}, 0.8),
        ('{"rating": "4/5"}', {}, None),
        ('{"rating": 4/5}', {}, None),
        ('{"rating": "4 of 5"}', {}, None),
        ('{"rating": "8%"}', {}, None),
        ('{"rating": "8°"}', {}, None),
        ('{"rating": "$8"}', {}, None),
        ('{"rating": "8 stars"}', {}, None),
        ('{"rating": "7 1/2"}', {}, None),
        (r'{"rating": "\\frac{4}{5}"}', {}, None),
        ("Score: 8/10.", {"pattern": r"Score: (\d+)"}, 0.8),
        ("Score: **8** out of 10", {"pattern": r"Score: \**(\d+)"}, 0.8),
        ("Score: 8, for 3 of 5 things are there.", {"pattern": r"Score: (\d+)"}, 0.8),
        ("Score: 8\n2. The colours - 3", {"pattern": r"Score: (\d+)"}, 0.8),
        ("Score: 4.5", {"pattern": r"Score: (\d)"}, 0.45),  # the whole number
        ("[[8]] 4/5", {"pattern": r"\[\[(\d+)\]\]"}, 0.8),
        *(
            (f"Score: {rating}", {"pattern": r"Score: \**(\d)"}, None)
            for rating in ("4/5", "**4**/5", "4 out of 5", "4 of 5", "4%", "4 percent", "4 stars", "4°", "4px", "42")
        ),
        *(
            (f"Score: {rating}", {"pattern": r"Score: (\d)"}, None)
            for rating in ("4,5", "4-5", "4 – 6", "4 to 6", "4 1/2", "4½", "4:5", "4⭐", "4 ★", "4 (out of 5)")
        ),
        ('{"rating": "1_0"}', {}, None),
        ("I'd give it a 10 out of 10, not 3.", {}, None),
        ('{"rating": -1}', {}, None),
        ('{"rating": 11}', {}, None),
        ('{"rating": true}', {}, None),
        ('{"rating": NaN}', {}, None),
        ('{"rating": {}', {}, None),
        ("ten", {}, None),
        ("", {}, None),
    ],
)
def test_ratings(judge, words, params, wanted):
    judge.script = [saying(words)]
    if wanted is not None:
        assert reward(judge, **params)([sample()]) == pytest.approx([wanted])
        return
    with pytest.warns(UserWarning, match="vlm-judge: 1 of 1 answer had no rating from 0 to 10, such as"):
        assert math.isnan(reward(judge, **params)([sample()])[0])


def test_an_answer_that_was_cut_has_no_rating(judge):
    """The 1 may have been a 10, and the 7 was not its last word."""
    cut = {"finish_reason": "length", "message": {"content": "Score: 7, no, Score: 1"}}
    judge.script = [(200, {}, json.dumps({"choices": [cut]}))]
    eye = reward(judge, pattern=r"Score: (\d+)")
    with pytest.warns(UserWarning, match="1 of 1 answer had no rating"):
        assert math.isnan(eye([sample()])[0])
    judge.script = [(200, {}, json.dumps({"choices": [{**cut, "finish_reason": "stop"}]}))]
    assert eye([sample()]) == [0.1]


@pytest.mark.slow
@pytest.mark.parametrize("filler", ["{", '{"a": '])
def test_a_judge_that_babbles_costs_no_time(judge, filler):
    """10 MB are not read, and of a long answer the rating at the end counts."""
    judge.script = [(200, {}, "{" * 10_000_000), saying(filler * 100_000 + '{"rating": 5}')]
    start = time.monotonic()
    assert reward(judge, backoff=0.01)([sample()]) == [0.5]
    assert len(judge.requests) == 2
    assert time.monotonic() - start < 5


def test_no_rating_at_all_stops_the_run_and_quotes_an_answer(judge):
    judge.script = [saying("I cannot see pictures.")] * 2
    with pytest.raises(
        RewardError, match=r"2 of 2 answers had no rating .* such as 'I cannot see pictures\.'\. Ask for"
    ):
        reward(judge)([sample(), sample()])


def test_a_judge_that_draws_its_answers_is_asked_again(judge):
    """Also where `extra` says so."""
    for params in ({"temperature": 0.7}, {"extra": {"temperature": 0.7}}):
        judge.script = [saying("hm")] * 2
        judge.requests.clear()
        eye = reward(judge, **params)
        assert eye([sample(255)]) == [1.0]
        assert len(judge.requests) == eye.usage.answers == 3


@pytest.mark.parametrize("state", [408, 429, 500, 503])
def test_tries_again_with_growing_pauses(judge, state):
    judge.script = [(state, {}, "{}")] * 3
    eye = reward(judge, backoff=0.05)
    assert eye([sample(255)]) == [1.0]
    times = [request.time for request in judge.requests]
    pauses = [b - a for a, b in itertools.pairwise(times)]
    assert len(pauses) == eye.usage.retries == 3
    for pause, least in zip(pauses, (0.05, 0.1, 0.2), strict=True):
        assert least <= pause < least + 0.5


def test_a_timeout_and_what_is_no_json_are_tried_again(judge):
    judge.script = [0.6, (200, {}, "<html>"), (200, {}, "[]"), (200, {}, "[" * 100_000)]
    eye = reward(judge, timeout=0.2)
    assert eye([sample(255)]) == [1.0]
    assert eye.usage.retries == 4


def test_an_error_that_comes_as_an_answer_is_tried_again_and_named(judge):
    """A service may report so that the one behind it is overloaded."""
    busy = (200, {}, '{"error": {"message": "the provider is busy", "code": 502}}')
    judge.script = [busy]
    assert reward(judge)([sample(255)]) == [1.0]
    judge.script = [busy] * 2
    with pytest.raises(RewardError, match="in 2 tries; the last time: an answer with an error: the provider is busy"):
        reward(judge, retries=1)([sample()])


@pytest.mark.usefixtures("default_signals")
def test_ctrl_c_does_not_wait_for_answers(judge):
    judge.script = [8.0] * 20
    timer = threading.Timer(0.5, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT])
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        reward(judge, timeout=30)([sample()] * 20)
    assert time.monotonic() - start < 5
    assert len(judge.requests) <= 8
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "vlm-judge")  # nor does the exit


def test_waits_as_long_as_the_server_asks(judge):
    judge.script = [(429, {"Retry-After": "0.4"}, "{}"), (429, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, "{}")]
    assert reward(judge)([sample(255)]) == [1.0]
    first, second, third = (request.time for request in judge.requests)
    assert second - first >= 0.4 > third - second


def test_no_server_makes_it_wait_for_ever(judge, monkeypatch):
    monkeypatch.setattr(calls, "LONGEST_WAIT", 0.2)
    judge.script = [(429, {"Retry-After": "3600"}, "{}")]
    assert reward(judge)([sample(255)]) == [1.0]
    first, second = (request.time for request in judge.requests)
    assert 0.2 <= second - first < 5


def refusing(state, code, words="this request was filtered by our policy"):
    return (state, {}, json.dumps({"error": {"code": code, "message": words}}))


@pytest.mark.parametrize(
    "refusal",
    [
        refusing(400, "content_filter"),
        refusing(422, "invalid_image"),
        refusing(400, "moderation_blocked", "no"),
        refusing(403, "", "Your input was flagged by moderation"),
        refusing(400, "DataInspectionFailed", "Input data may contain inappropriate content"),
        refusing(400, "content_policy_violation", "no"),
        (200, {}, '{"error": {"code": 403, "message": "flagged"}}'),
        (200, {}, '{"choices": [{"message": {"content": "Score: 1"}, "finish_reason": "content_filter"}]}'),
    ],
    ids=["filter", "image", "blocked", "flagged", "inspection", "violation", "error in an answer", "an answer"],
)
def test_a_picture_that_the_host_refuses_costs_its_row(judge, refusal):
    """Its error has numbers in it, which are no rating."""
    judge.script = [refusal, saying("Score: 8"), saying("Score: 4")]
    eye = reward(judge, pattern="([0-9]+)", high=500, concurrency=1)
    with pytest.warns(UserWarning, match="vlm-judge: 1 of 3 answers had no rating"):
        scores = eye([sample()] * 3)
    assert math.isnan(scores[0])
    assert scores[1:] == [8 / 500, 4 / 500]
    assert len(judge.requests) == 3
    judge.script = [refusal] * 2
    with pytest.raises(RewardError, match=r"2 of 2 answers had no rating .* (service refuses what|Ask for)"):
        eye([sample()] * 2)


def test_a_pause_is_not_made_up_for(monkeypatch):
    """Five requests at 600 a minute take .4 s, also after ten seconds in which there were none."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(calls, "time", SimpleNamespace(monotonic=lambda: clock.now))
    stop = SimpleNamespace(wait=lambda seconds: setattr(clock, "now", clock.now + seconds))
    pace = calls.Pace(600)
    pace.wait(stop)
    clock.now = 10.0
    for _ in range(5):
        pace.wait(stop)
    assert clock.now == pytest.approx(10.4)


def test_when_all_tries_fail_the_run_stops_and_no_other_request_waits(judge):
    judge.script = [(503, {}, '{"error": {"message": "too  busy"}}')] * 50
    start = time.monotonic()
    with pytest.raises(RewardError) as caught:
        reward(judge, retries=2, concurrency=2)([sample()] * 10)
    assert str(caught.value) == (
        f"vlm-judge: {judge.url}/chat/completions gave no answer in 3 tries; the last time: HTTP 503 Service "
        "Unavailable: too busy. Check that the server runs and is not overloaded. Lower concurrency or "
        "requests_per_minute, or raise retries or timeout. on_error: skip leaves such groups out."
    )
    assert len(judge.requests) <= 6
    assert time.monotonic() - start < 5
    with pytest.raises(
        RewardError, match=r"http://127.0.0.1:9/v1/chat/completions gave no answer in 1 tries; .*refused"
    ):
        VLMJudge(url="http://127.0.0.1:9/v1/", model="eye", retries=0)([sample()])


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (401, "It wants a key: put it into an environment variable and give its name as api_key_env."),
        (404, "Check url, which ends before /chat/completions, mostly in /v1, and the name of the model."),
        (400, "Check model, template and extra; a model must take pictures."),
        (302, "It points to http://127.0.0.1:9/elsewhere: give that as url."),
    ],
)
def test_a_refusal_says_what_to_do_at_once(judge, state, said):
    judge.script = [(state, {"Location": "http://127.0.0.1:9/elsewhere"}, '{"error": "no"}')]
    with pytest.raises(RewardError) as caught:
        reward(judge)([sample()])
    assert str(caught.value).endswith(f": no). {said}")
    assert len(judge.requests) == 1


def test_the_key_comes_from_the_environment_and_is_nowhere_else(judge, monkeypatch, capsys):
    monkeypatch.setenv("JUDGE_KEY", f"{KEY}\n")
    eye = reward(judge, api_key_env="JUDGE_KEY", concurrency=1)
    judge.script = [
        (200, {}, None) and saying('{"rating": 5}'),
        (401, {}, f'{{"error": {{"message": "Incorrect API key provided: {KEY}"}}}}'),
    ]
    assert eye([sample()]) == [0.5]
    assert judge.requests[0].headers["Authorization"] == f"Bearer {KEY}"
    with pytest.raises(
        RewardError, match=r"provided: \*\*\*\)\. Check the key in the environment variable JUDGE_KEY"
    ) as e:
        eye([sample()])
    eye.usage.show(now=True)
    held = f"{vars(eye)} {eye.caller} {eye.usage} {e.getrepr(style='long')} {capsys.readouterr()}"
    assert KEY not in held
    assert KEY.encode() not in pickle.dumps([eye.fields, eye.template, eye.caller.url, eye.caller.api_key_env])
    judge.script = [
        saying(f"no rating, but {KEY}"),
        (302, {"Location": f"http://x/?key={KEY}"}, ""),
        *[(200, {}, json.dumps({"error": "x" * 262 + KEY}))] * 6,
    ]
    with pytest.warns(UserWarning, match=r"such as 'no rating, but \*\*\*'"):
        eye([sample()])
    with pytest.raises(RewardError, match=r"It points to http://x/\?key=\*\*\*: give"):
        eye([sample()])
    with pytest.raises(RewardError, match=r"an answer with an error: x+\*\*\*\. Check") as e:
        eye([sample()])
    assert KEY[:5] not in str(e.value)
    monkeypatch.setenv("JUDGE_KEY", "one\ntwo")
    with pytest.raises(UsageError, match="has characters that cannot be sent") as bad:
        eye([sample()])
    assert "two" not in str(bad.value)


def test_a_redirect_does_not_carry_the_key_away(judge, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    judge.script = [(307, {"Location": f"{judge.url}/stolen"}, "")]
    with pytest.raises(RewardError, match="It points to"):
        reward(judge, api_key_env="JUDGE_KEY")([sample()])
    assert [request.path for request in judge.requests] == ["/v1/chat/completions"]


def test_concurrency_and_rate_are_limited(judge):
    judge.script = [0.05] * 8
    reward(judge, concurrency=3)([sample()] * 8)
    assert judge.most_working == 3
    judge.requests.clear()
    judge.script = [(500, {}, "{}")]  # a new try has to wait its turn, too
    reward(judge, requests_per_minute=600)([sample()] * 4)
    times = sorted(request.time for request in judge.requests)
    assert len(times) == 5
    assert times[-1] - times[0] >= 0.38  # four gaps of 0.1 s, and as much as a thread may start late


def test_tokens_and_cost_are_counted_and_shown(judge, capsys, at_exit):
    eye = reward(judge, input_price=2.5, output_price=10.0)
    judge.script = [saying("?"), (500, {}, "{}")]
    with pytest.warns(UserWarning, match="1 of 4 answers had no rating"):
        eye([sample()] * 4)
    assert (eye.usage.answers, eye.usage.input_tokens, eye.usage.output_tokens) == (4, 400, 28)
    assert eye.usage.cost == pytest.approx((400 * 2.5 + 28 * 10) / 1e6)
    assert capsys.readouterr().err == ""
    line = "grpokit-judge: 4 answers, 400 tokens in, 28 out, cost 0.0013, 1 sent again, 1 without a rating\n"
    ((show, options),) = at_exit
    show(**options)
    assert capsys.readouterr().err == line
    eye.usage.every = 0.0
    eye([sample()])
    assert capsys.readouterr().err.startswith("grpokit-judge: 5 answers, 500 tokens in, 35 out, cost 0.0016, ")


def test_a_server_that_counts_no_tokens(judge):
    judge.script = [
        (200, {}, '{"choices": [{"message": {"content": [{"type": "text", "text": "{\\"rating\\": 5}"}]}}]}')
    ]
    eye = reward(judge)
    assert eye([sample()]) == [0.5]
    assert str(eye.usage) == "1 answer, 0 tokens in, 0 out, 1 without a count of tokens"


def test_max_cost_needs_a_server_that_counts_tokens(judge):
    """Or it would never be reached."""
    judge.script = [(200, {}, '{"choices": [{"message": {"content": "{\\"rating\\": 5}"}}]}')]
    with pytest.raises(
        RewardError, match=r"^vlm-judge: max_cost cannot be kept, since the server's answers do not say"
    ):
        reward(judge, input_price=1.0, output_price=1.0, max_cost=1.0)([sample()])


def test_max_cost_stops_before_more_is_spent(judge):
    eye = reward(judge, input_price=1e4, output_price=0.0, max_cost=2.0, concurrency=1)  # 1.0 each
    assert len(eye([sample()] * 2)) == 2
    with pytest.raises(RewardError, match=r"^vlm-judge: 2\.0000 of max_cost = 2 is spent \(2 answers, 200 tokens in"):
        eye([sample()])
    assert len(judge.requests) == 2


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"url": "localhost:8000"},
            r"must be an address such as http://localhost:8000/v1, got 'localhost:8000'",
        ),
        (
            {"url": "http://host:port/v1"},
            r"must be an address such as http://localhost:8000/v1, got 'http://host:port/v1'",
        ),
        ({"url": "http://host:70000/v1"}, r"must be an address such as"),
        ({"url": "http://[::1/v1"}, r"must be an address such as"),
        ({"url": "http://host/v1 "}, r"must be an address such as"),
        ({"url": "http://host/v1\n"}, r"must be an address such as"),
        ({"url": "http://me:pass@host/v1"}, r"the url has a user, a password, a query or a fragment in it\. It is"),
        ({"url": "http://me:pass@ho st/v1"}, r"the url has a user, a password, a query or a fragment in it\. It is"),
        ({"url": "http://host/v1?key=pass"}, r"the url has a user, a password, a query or a fragment in it\. It is"),
        ({"url": "http://host/v1#pass"}, r"the url has a user, a password, a query or a fragment in it\. It is"),
        ({"model": " "}, r"model is empty; expected the server's name of a model"),
        ({"extra": {"stream": True}}, r"extra has 'stream', which the judge sets by itself"),
        ({"api_key_env": "sk-pass@word"}, r"api_key_env is not the name of an environment variable"),
        (
            {"template": "Rate it."},
            r"expected a template with \{prompt\} or \{target\} or \{source\} in it",
        ),
        ({"low": 5, "high": 5}, r"expected low below high, got 5 and 5"),
        ({"pattern": "("}, r"the pattern '\(' is no regular expression"),
        ({"pattern": "[0-9]"}, r"expected a pattern with one group, the number, .* with 0\."),
        ({"api_key_env": "NO_SUCH_KEY"}, r"the environment variable 'NO_SUCH_KEY' is not set\. Put the key there"),
        ({"max_cost": 1.0}, r"max_cost needs input_price and output_price"),
        ({"concurrency": 0}, r"concurrency must be at least 1, got 0"),
        ({"retries": -1}, r"retries must be at least 0, got -1"),
        ({"timeout": 0}, r"timeout must be above 0, got 0"),
        ({"requests_per_minute": 0}, r"requests_per_minute must be above 0, got 0"),
    ],
)
def test_parameters_that_cannot_be_used(changed, said):
    with pytest.raises(UsageError, match=said) as caught:
        VLMJudge(**{"url": "http://localhost:8000/v1", "model": "eye", **changed})
    assert "pass@" not in str(caught.value)


def test_fields_of_the_request_can_be_left_out_and_added(judge):
    params = {"max_tokens": None, "temperature": None, "extra": {"seed": 3, "max_completion_tokens": 9}}
    create("reward", "vlm-judge", {"url": f"{judge.url}/chat/completions", "model": "eye", **params})([sample()])
    assert judge.requests[0].path == "/v1/chat/completions"
    assert {name: x for name, x in judge.requests[0].body.items() if name != "messages"} == {
        "model": "eye", "seed": 3, "max_completion_tokens": 9
    }  # fmt: skip


def picture(seed):
    return Image.effect_noise((16 + 8 * seed, 24), 80).convert("RGB")


def test_a_judge_sees_the_sources_of_an_edit(judge):
    """The result, then what it was made from, then the target; by default also, where a prompt brings pictures."""
    result, first, second, target = (picture(seed) for seed in range(4))
    edit = Sample(prompt=Prompt(text="add snow", images=[first, second], target=target), output=result, group=0)
    reward(judge, template="{prompt}: {source} -> {target}")([edit])
    assert judge.requests[0].text == "add snow: the second and third pictures -> the fourth picture"
    sent = [each.tobytes() for each in judge.requests[0].pictures]
    assert sent == [each.tobytes() for each in (result, first, second, target)]
    one = Sample(prompt=Prompt(text="add snow", images=[first]), output=result, group=0)
    plain = Sample(prompt=Prompt(text="add snow"), output=result, group=0)
    for asked in (one, plain):
        reward(judge)([asked])
    edits, texts = judge.requests[1:]
    assert "made from the second picture" in edits.text
    assert "Instruction: add snow\n" in edits.text
    assert [len(request.pictures) for request in (edits, texts)] == [2, 1]
    assert math.isnan(reward(judge, template="{source}")([plain])[0])
    many = Sample(prompt=Prompt(text="add snow", images=[first] * 11), output=result, group=0)
    reward(judge, template="{source}")([many])
    assert judge.requests[-1].text.endswith("ninth, tenth, 11th and 12th pictures")
    judge.requests.pop()
    assert len(judge.requests) == 3


def thinking(*tokens, cut=False, words=None):
    """An answer in these tokens; one with a mapping has probabilities of what might stand in its place.

    `words` are the answer's where its tokens are written otherwise.
    """
    content = []
    for token in tokens:
        chances = token if isinstance(token, dict) else {token: 1.0}
        top = [{"token": each, "logprob": math.log(chance)} for each, chance in chances.items()]
        content.append({"token": next(iter(chances)), "top_logprobs": top})
    words = words or "".join(each["token"] for each in content)
    reason = "length" if cut else "stop"
    choice = {"message": {"content": words}, "logprobs": {"content": content}, "finish_reason": reason}
    return (200, {}, json.dumps({"choices": [choice]}))


def test_the_expected_rating_by_log_probs(judge):
    """Of 4, 5 and 3 with .5, .3 and .1, by hand: (2 + 1.5 + .3) / .9, on a scale from 1 to 5. No other tokens count."""
    chances = {"4": 0.5, " 5": 0.3, "3": 0.1, "9": 0.05, "good": 0.05}
    expected = ((0.5 * 4 + 0.3 * 5 + 0.1 * 3) / 0.9 - 1) / 4
    eye = reward(judge, logprobs=20, low=1, high=5, concurrency=1)
    before = ("<think>", '{"rating": ', {"1": 1.0}, "}", "</think>", '{"rating"', ":", " ")
    for answer in (
        thinking('{"rating": ', chances, "}"),
        thinking(*before, chances, "}"),
        thinking('{"rating": "', chances, '"}'),
        thinking('{"rating": "', chances, '/5"}'),
        thinking('{"rating": "**', chances, '**"}', "<|im_end|>"),
        thinking("bytes:\\xf0\\x9f", "\ufffd ", '{"rating": ', chances, "}", words='\U0001f600 {"rating": 4}'),
    ):
        judge.script = [answer]
        assert eye([sample()]) == pytest.approx([expected])
    body = judge.requests[0].body
    assert (body["logprobs"], body["top_logprobs"]) == (True, 20)
    assert "a whole number from 1 (bad) to 5 (perfect)" in judge.requests[0].text
    judge.script = [thinking("Score: ", chances, ".")]
    assert reward(judge, logprobs=5, low=0, high=5, pattern=r"Score: (\d)")([sample()]) == pytest.approx(
        [(0.5 * 4 + 0.3 * 5 + 0.1 * 3) / 0.9 / 5]
    )


@pytest.mark.parametrize(
    "answer",
    [
        thinking('{"rating": ', {"4": 1.0}, cut=True),
        thinking("<think>", '{"rating": ', {"4": 1.0}, "}"),
        thinking('{"rating": ', {"4": 0.5, "1": 0.5}, "2", "}"),
        thinking('{"rating": ', {"4": 0.5, "1": 0.5}, ".", "5", "}"),
        thinking("four"),
    ],
    ids=["cut", "an open thought", "two digits", "a fraction", "no rating"],
)
def test_an_expected_rating_needs_a_rating(judge, answer):
    judge.script = [answer]
    with pytest.warns(UserWarning, match="1 of 1 answer had no rating from 1 to 5"):
        assert math.isnan(reward(judge, logprobs=20, low=1, high=5)([sample()])[0])


def test_a_judge_without_log_probs_stops_the_run(judge):
    judge.script = [saying('{"rating": 4}')]
    with pytest.raises(
        RewardError, match=r"logprobs is set, and the server's answer has no log-probs .* Leave logprobs at 0, or take"
    ):
        reward(judge, logprobs=20, low=1, high=5)([sample()])
    for content in ([], [{"token": '{"rating": 4}', "top_logprobs": []}]):
        choice = {"message": {"content": '{"rating": 4}'}, "logprobs": {"content": content}}
        judge.script = [(200, {}, json.dumps({"choices": [choice]}))]
        with pytest.raises(RewardError, match="the server's answer has no log-probs"):
            reward(judge, logprobs=20, low=1, high=5)([sample()])
    with pytest.raises(
        UsageError, match="logprobs needs ratings of one digit, such as low: 1 and high: 5; got 0 to 10"
    ):
        reward(judge, logprobs=20)
