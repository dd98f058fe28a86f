"""Completions of an engine: its log-probs, new adapters, and what goes wrong there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_server import MODEL, Served, served

from grpokit import Correction, RunError, Sample, Trainer, UsageError
from grpokit.advantages import centred
from grpokit.data import as_prompts
from grpokit.divergence import correction_weights
from grpokit.objectives import DrGRPO
from grpokit.sampling import derive_seeds
from grpokit_lm.engines import refuse_ignored_adapter
from grpokit_lm.policy import CausalLMPolicy
from grpokit_lm.tasks.arithmetic import prompts

SHORT = {"model": MODEL, "dtype": "float32", "max_new_tokens": 12, "lora": {"r": 4}}
SEEDS = derive_seeds(1, stream="train", step=0, prompts=1, group_size=1)
PROMPTS = [prompt.text for prompt in list(prompts(split="train"))[:8]]


@pytest.fixture
def server() -> Iterator[Served]:
    with served() as own:
        yield own


def policy_of(server: Served, **options: Any) -> CausalLMPolicy:
    return CausalLMPolicy(**{**SHORT, "engine": {"url": server.url, "concurrency": 4, "retries": 1}, **options})


def odd(samples: list[Sample]) -> list[float]:
    """The share of odd digits among all characters."""
    return [sum(c in "13579" for c in sample.output) / max(1, len(sample.output)) for sample in samples]


def trainer_of(policy: CausalLMPolicy, reward: Any = odd, prompts: list[str] = PROMPTS, **options: Any) -> Trainer:
    sizes = {"steps": 3, "prompts_per_step": 2, "group_size": 4, "learning_rate": 5e-3, "device": "cpu"}
    return Trainer(policy, [reward], prompts, progress=False, **{**sizes, **options})


def test_a_rollout_is_the_engine_s_and_scores_as_it_says(server: Served) -> None:
    policy = policy_of(server)
    texts, seeds = as_prompts(PROMPTS[:2]), derive_seeds(1, stream="train", step=0, prompts=2, group_size=3)
    rollout = policy.rollout(texts, 3, seeds=seeds)
    assert not rollout.exact
    assert rollout.version == 0
    assert len({body["seed"] for body in server.asked}) == 6
    again = policy.logprobs(rollout, slice(0, rollout.mask.shape[1])).logprobs.detach()
    assert float((again - rollout.old.logprobs)[rollout.mask].abs().max()) < 1e-4
    assert torch.equal(policy.rollout(texts, 3, seeds=seeds).trace.per_row["tokens"], rollout.trace.per_row["tokens"])


def test_each_update_reaches_the_engine_under_a_new_name(server: Served) -> None:
    policy = policy_of(server)
    trainer = trainer_of(policy, correction=Correction())
    reports = [trainer.step() for _ in range(3)]
    names = [*dict.fromkeys(body["model"] for body in server.asked)]
    assert [name.rpartition("-")[2] for name in names] == ["1", "2", "3"]
    assert [*server.adapters] == names[-2:]
    assert any(bool(x.any()) for name, x in server.weights(names[-1]).items() if "lora_B" in name)
    assert all(report.metrics["logprob_diff/mean"] < 1e-4 for report in reports)


def test_weights_that_were_loaded_reach_the_engine(server: Served) -> None:
    """Also where they have the version that it knows."""
    policy, texts = policy_of(server), as_prompts(PROMPTS[:1])
    policy.rollout(texts, 1, seeds=SEEDS)
    policy.load_state_dict({name: x.detach() + 0.1 for name, x in policy.state_dict().items()})
    policy.updated(0)
    rollout = policy.rollout(texts, 1, seeds=SEEDS)
    again = policy.logprobs(rollout, slice(0, rollout.mask.shape[1])).logprobs.detach()
    assert float((again - rollout.old.logprobs)[rollout.mask].abs().max()) < 1e-4


def test_an_engine_that_ignores_the_adapter_is_noticed(server: Served) -> None:
    trainer = trainer_of(policy_of(server), max_logprob_diff=10.0)
    trainer.step()
    server.ignores_adapters = True
    with pytest.raises(RunError, match="The engine ignores the adapter: its log-probs differ from the base model's by"):
        trainer.step()


@pytest.mark.slow
def test_an_engine_with_log_probs_from_before_the_temperature_is_noticed(server: Served) -> None:
    server.states_raw = True
    trainer_of(policy_of(server)).step()  # at the temperature 1 they are the same
    for temperature in (0.7, 1.3):
        message = "states log-probs from before the temperature: they differ .* by .*e-0[5-9] on average, and .* by 0"
        with pytest.raises(RunError, match=message):
            trainer_of(policy_of(server, temperature=temperature)).step()
    server.states_raw, server.sharpness = False, 1.3
    trainer_of(policy_of(server, temperature=1.6), max_logprob_diff=10.0).step()  # biased, which a correction weighs


@pytest.mark.slow
def test_the_engine_draws_the_next_step_while_this_one_learns(server: Served) -> None:
    """The log-probs of each rollout are those of the adapter before the latest update."""
    server.delay = 0.05
    trainer = trainer_of(policy_of(server), max_policy_lag=1, steps=3, correction=Correction())
    reports = [trainer.step() for _ in range(3)]
    assert [report.rollout.version for report in reports] == [0, 0, 1]
    assert len(server.asked) == 3 * 8
    assert all(report.metrics["logprob_diff/mean"] > 1e-4 for report in reports[1:])


@pytest.mark.slow
def test_one_that_ignores_the_adapter_is_noticed_one_step_later(server: Served) -> None:
    trainer = trainer_of(policy_of(server), max_policy_lag=1, max_logprob_diff=10.0, steps=9)
    server.ignores_adapters = True
    reports = [trainer.step() for _ in range(2)]  # both of the first weights, whose adapter changes nothing
    assert [report.rollout.version for report in reports] == [0, 0]
    with pytest.raises(RunError, match="The engine ignores the adapter"):
        trainer.step()


def test_an_engine_that_only_rounds_is_not_accused() -> None:
    draw = torch.Generator().manual_seed(0)
    policy = torch.randn(8, 40, generator=draw)
    mask = torch.ones(8, 40, dtype=torch.bool)
    for gap in (1e-6, 1e-3, 1e-2, 1.0):
        base = policy + gap * torch.randn(8, 40, generator=draw)
        for _ in range(50):
            refuse_ignored_adapter(policy + 0.01 * torch.randn(8, 40, generator=draw), policy, base, mask)
    with pytest.raises(RunError, match="ignores the adapter"):
        refuse_ignored_adapter(base + 0.01 * torch.randn(8, 40, generator=draw), policy, base, mask)


def test_a_busy_server_is_asked_again_and_one_that_is_gone_ends_in_words(server: Served) -> None:
    policy = policy_of(server)
    texts, seeds = as_prompts(PROMPTS[:1]), derive_seeds(1, stream="train", step=0, prompts=1, group_size=2)
    server.failures = 1
    assert policy.rollout(texts, 2, seeds=seeds).rows == 2
    server.failures = 100
    with pytest.raises(RunError, match=r"gave no answer in 2 attempts; the last time: HTTP 503 .*busy"):
        policy.rollout(texts, 2, seeds=seeds)
    server.failures = 0
    server.unload(next(iter(server.adapters)))
    with pytest.raises(RunError, match=r"The engine refused /v1/completions: HTTP 404 .*does not exist"):
        policy.rollout(texts, 2, seeds=seeds)


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"data": null}', b'"\xff"'])
def test_an_address_of_something_else(answer: bytes, server: Served) -> None:
    server.odd["/v1/models"] = answer
    with pytest.raises(UsageError, match=r"/v1/models gives no list of models, as vLLM's server does, but .*: url"):
        policy_of(server)


@pytest.mark.parametrize(
    ("tokens", "logprobs", "message"),
    [
        ("[1, 2]", "[-0.5, NaN]", "states the log-prob nan for a token that it drew; expected a finite number up to 0"),
        ("[1, 2]", "[-0.5, -Infinity]", "states the log-prob -inf"),
        ("[1, 2]", "[0.5, -1]", "states the log-prob 0.5"),
        ("[1, -3]", "[-1, -1]", "drew token -3, and the policy's model has 265 tokens"),
        ("[1, 2.5]", "[-1, -1]", "gave no token ids with log-probs"),
        ("[1]", "[-1, -1]", "gave 1 tokens and 2 log-probs"),
        ('["\xff"]', "[-1]", "gave no token ids with log-probs"),
        ("[1]", '["\\u001b"]', r"gave no token ids with log-probs \(could not convert string to float: '\\x1b'\)"),
    ],
)
def test_completions_that_are_none(tokens: str, logprobs: str, message: str, server: Served) -> None:
    policy = policy_of(server)
    choice = f'{{"token_ids": {tokens}, "logprobs": {{"token_logprobs": {logprobs}, "top_logprobs": []}}}}'
    server.odd["/v1/completions"] = f'{{"choices": [{choice}]}}'.encode("latin-1")
    with pytest.raises(RunError, match=f"The engine at http.*{message}"):
        policy.rollout(as_prompts(PROMPTS[:1]), 1, seeds=SEEDS)


def test_a_key_goes_to_the_engine_alone(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as other:
        server.odd["/v1/models"] = f"{other.url}/v1/models"
        monkeypatch.setenv("ENGINE_KEY", "a secret\n")
        with pytest.raises(RunError, match=rf"refused /v1/models: HTTP 302 .*, which points to {other.url}/v1/models"):
            policy_of(server, engine={"url": server.url, "api_key_env": "ENGINE_KEY"})
    for answer in (b'{"\\u001b a secret": 1}', b'{"data": [{"id": "a secret"}, {"id": "\\u001b"}]}'):
        server.odd["/v1/models"] = answer
        with pytest.raises(UsageError, match=r"\*\*\*") as error:
            policy_of(server, engine={"url": server.url, "api_key_env": "ENGINE_KEY"})
        assert "secret" not in str(error.value)
        assert str(error.value).isprintable()
    monkeypatch.setenv("ENGINE_KEY", "a secret \u20ac")
    with pytest.raises(UsageError, match="variable ENGINE_KEY has characters that cannot be sent") as error:
        policy_of(server, engine={"url": server.url, "api_key_env": "ENGINE_KEY"})
    assert "secret" not in str(error.value)


def test_an_engine_that_is_slow_keeps_no_program_from_ending(server: Served) -> None:
    """As after a second Ctrl-C: only daemons wait for the answer."""
    policy = policy_of(server)
    server.delay = 30.0
    pending = policy.begin(as_prompts(PROMPTS[:1]), 1, seeds=SEEDS)
    assert pending is not None
    waiting = [thread for thread in threading.enumerate() if thread.name == "engine"]
    assert [thread.daemon for thread in waiting] == [True]
    pending.cancel()


def test_what_an_engine_cannot_do(server: Served, tmp_path: Path) -> None:
    for options, message in (
        ({"lora": None}, "engine needs lora"),
        ({"top_p": 0.9}, "add top_k, such as 50, or leave both out"),
        ({"engine": {"url": server.url, "model": "other"}}, f"serves {MODEL}, not 'other'"),
        ({"engine": {}}, "engine needs the server's url"),
        ({"engine": {"url": "gpu-2"}}, "url must be an address"),
        ({"engine": {"url": server.url, "port": 3}}, "engine has no key 'port'"),
        ({"engine": {"url": server.url, "api_key_env": "NO_SUCH_KEY"}}, "environment variable NO_SUCH_KEY"),
    ):
        with pytest.raises(UsageError, match=message):
            policy_of(server, **options)
    with pytest.raises(RunError, match="gave no answer in 2 attempts"):
        policy_of(server, engine={"url": "http://127.0.0.1:9", "retries": 1})


@pytest.mark.slow
def test_weights_make_up_for_an_engine_that_draws_from_another_distribution(server: Served) -> None:
    """How often the likeliest first token is drawn: weighted as a correction does, as often as the policy would."""
    server.sharpness = 1.6
    policy, count = policy_of(server, max_new_tokens=1, temperature=3.0), 300
    rollout = policy.rollout(as_prompts(PROMPTS[:1]), count, seeds=derive_seeds(
        1, stream="train", step=0, prompts=1, group_size=count))  # fmt: skip
    tokens = rollout.trace.per_row["tokens"][:, 0]
    likeliest = tokens.mode().values
    own = policy.logprobs(rollout, slice(0, 1)).logprobs.detach()
    drawn = (tokens == likeliest).double()
    weights = correction_weights(Correction(high=100.0), own, rollout.old.logprobs, rollout.mask)[:, 0].double()
    exact = float(own[tokens == likeliest][0, 0].exp())
    biased, weighted = (
        (float(x.mean()) - exact) / (float(x.std()) / count**0.5) for x in (drawn, drawn * weights)
    )  # in standard errors
    assert biased > 6
    assert abs(weighted) < 3


def learned(seed: int, engine: dict[str, Any] | None, correction: Correction | None) -> float:
    """The expected reward of a run whose optimum lies inside: one token, a value for each digit, an entropy bonus."""
    values = {digit: i / 9 for i, digit in enumerate("3718502946")}

    def value(samples: list[Sample]) -> list[float]:
        return [values.get(sample.output[:1], 0.0) for sample in samples]

    options = {"model": MODEL, "dtype": "float32", "max_new_tokens": 1, "ignore_eos": True, "temperature": 3.0}
    policy = CausalLMPolicy(**options, lora={"r": 4}, engine=engine)
    trainer = trainer_of(
        policy,
        value,
        PROMPTS[:1],
        advantage=centred,
        objective=DrGRPO(entropy_coef=0.1),
        correction=correction,
        seed=seed,
        steps=100,
        prompts_per_step=1,
        group_size=64,
        micro_batch_size=64,
        schedule="cosine",
        max_logprob_diff=100.0,
        max_zero_std_steps=None,
    )
    for _ in trainer:
        pass
    prompt = policy.encoder.encode(as_prompts(PROMPTS[:1])[0]).tokens
    with torch.no_grad():
        chances = policy.model(input_ids=prompt[None]).logits[0, -1].div(3.0).softmax(-1)
    decode = policy.loaded.tokenizer.decode
    texts = [decode([token], skip_special_tokens=True)[:1] for token in range(len(chances))]
    return float(chances @ torch.tensor([values.get(text, 0.0) for text in texts]))


@pytest.mark.very_slow
def test_a_run_with_a_biased_engine_learns_the_same_if_corrected(server: Served) -> None:
    server.sharpness = 1.3
    engine = {"url": server.url, "concurrency": 1}
    own, corrected, biased = (
        sum(learned(seed, *how) for seed in range(2)) / 2
        for how in ((None, None), (engine, Correction(high=100.0)), (engine, None))
    )
    assert biased < own - 0.09
    assert abs(corrected - own) < 0.01  # three standard errors of two seeds each
