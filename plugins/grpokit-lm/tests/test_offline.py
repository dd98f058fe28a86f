"""vLLM's offline engine, by a module that stands in for it; and what engines say of truncated distributions."""

from __future__ import annotations

import multiprocessing
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_server import Served, served
from huggingface_hub import constants
from test_engine import MODEL, PROMPTS, SHORT, trainer_of

from grpokit import Correction, Rollout, RunError, UsageError
from grpokit.data import as_prompts
from grpokit.sampling import derive_seeds
from grpokit_hf.models.sources import folder_of
from grpokit_lm.engines.engine import Engine
from grpokit_lm.engines.protocol import Answer
from grpokit_lm.engines.server import Server, ServerSettings
from grpokit_lm.policy import CausalLMPolicy

TRUNCATED = {"top_k": 6, "top_p": 0.9, "min_p": 0.01, "temperature": 2.0}


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "stand_in"))
    import vllm

    yield vllm
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


def offline(**options: Any) -> CausalLMPolicy:
    engine = {"offline": True, **options.pop("engine", {})}
    return CausalLMPolicy(**{**SHORT, **options}, engine=engine)


def drawn(policy: CausalLMPolicy, group_size: int = 3) -> Rollout:
    seeds = derive_seeds(1, stream="train", step=0, prompts=2, group_size=group_size)
    return policy.rollout(as_prompts(PROMPTS[:2]), group_size, seeds=seeds)


def gap(policy: CausalLMPolicy, rollout: Rollout) -> float:
    """The largest difference between the log-probs of an engine and the policy's."""
    again = policy.logprobs(rollout, slice(0, rollout.mask.shape[1])).logprobs.detach()
    return float((again - rollout.old.logprobs)[rollout.mask].abs().max())


def test_it_draws_what_a_server_draws_and_says_the_same(vllm: Any) -> None:
    policy = offline(max_prompt_tokens=40)
    rollout = drawn(policy)
    assert not rollout.exact
    assert gap(policy, rollout) < 1e-4
    with served() as server:
        there = drawn(CausalLMPolicy(**SHORT, engine={"url": server.url}))
    assert torch.equal(rollout.trace.per_row["tokens"], there.trace.per_row["tokens"])
    assert torch.equal(rollout.old.logprobs, there.old.logprobs)
    (engine,) = vllm.LLM.started
    given = engine.arguments
    assert Path(given.pop("model")).joinpath("config.json").is_file()
    assert Path(given.pop("tokenizer")).joinpath("tokenizer.json").is_file()
    assert given == {
        "dtype": "float32",
        "revision": None,
        "tokenizer_revision": None,
        "trust_remote_code": False,
        "quantization": None,
        "gpu_memory_utilization": 0.3,
        "max_model_len": 52,
        "enforce_eager": False,
        "enable_lora": True,
        "max_lora_rank": 8,
        "max_loras": 1,
        "enable_sleep_mode": False,
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": 20,
    }
    assert engine.called == 1  # for all rows together


def test_it_reads_the_files_of_the_hub_s_cache_that_the_policy_has_read(
    vllm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "a" * 40
    repository = tmp_path / "models--org--sums"
    for folder in ("refs", "snapshots"):
        (repository / folder).mkdir(parents=True)
    (repository / "refs/v2").write_text(commit)
    shutil.copytree(folder_of(MODEL), repository / "snapshots" / commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    offline(model="org/sums", revision="v2", local_files_only=True)
    (engine,) = vllm.LLM.started
    assert {engine.arguments["model"], engine.arguments["tokenizer"]} == {str(repository / "snapshots" / commit)}
    assert engine.arguments["revision"] == "v2"


@pytest.mark.parametrize("where", ["server", pytest.param("offline", marks=pytest.mark.slow)])
def test_the_tokens_that_a_truncation_left_come_with_the_completion(where: str, vllm: Any) -> None:
    with served() as server:
        policy = offline(**TRUNCATED) if where == "offline" else _at(server, **TRUNCATED)
        rollout = drawn(policy, 8)
        sets = [set(kept.tolist()) for kept in rollout.trace.per_row["kept"][rollout.mask]]
        assert {1} < {*map(len, sets)}
        assert max(map(len, sets)) == 6
        tokens = rollout.trace.per_row["tokens"][rollout.mask].tolist()
        assert all(token in kept for token, kept in zip(tokens, sets, strict=True))
        assert gap(policy, rollout) < 1e-4
        del rollout.trace.per_row["kept"]
        assert gap(policy, rollout) > 0.1
        evaluated = policy.rollout(
            as_prompts(PROMPTS[:1]),
            1,
            evaluate=True,
            seeds=derive_seeds(1, stream="evaluate", step=0, prompts=1, group_size=1),
        )
        assert "kept" not in evaluated.trace.per_row  # nobody scores these again


def test_tokens_as_likely_as_the_last_one_stay_too() -> None:
    with served() as server:
        engine = Engine(Server(ServerSettings(url=server.url), base=MODEL), vocabulary=20)
    places = [{3: -0.5, 5: -1.0, 7: -1.0, 9: -9999.0}, {3: -0.7, 5: -0.7, 6: -9999.0, 7: -9999.0}]
    kept = engine.kept(Answer(tokens=[7, 11], logprobs=[-1.0, -0.7], likeliest=places), 2)
    assert [set(ids) for ids in kept.tolist()] == [{3, 5, 7}, {3, 5, 11}]
    assert kept.shape == (2, 2 + 8 + 1)


def test_log_probs_from_before_a_truncation_are_refused() -> None:
    message = "states log-probs of tokens that top_k 6 leaves out: they are those before sampling"
    with served(states_raw=True) as server, pytest.raises(RunError, match=message):
        drawn(_at(server, **TRUNCATED))


def test_top_k_may_be_larger_than_the_vocabulary() -> None:
    with served() as server:
        policy = _at(server, top_k=1000)
        assert gap(policy, drawn(policy)) < 1e-4
        assert {body["logprobs"] for body in server.asked} == {265}


def _at(server: Served, **options: Any) -> CausalLMPolicy:
    return CausalLMPolicy(**{**SHORT, **options}, engine={"url": server.url, "concurrency": 4, "retries": 0})


@pytest.mark.slow
def test_a_run_with_it_uses_each_update(vllm: Any) -> None:
    trainer = trainer_of(offline(), correction=Correction())
    reports = [trainer.step() for _ in range(2)]
    assert all(report.metrics["logprob_diff/mean"] < 1e-4 for report in reports)
    served = vllm.LLM.started[0].served
    assert [name.rpartition("-")[2] for name in served.adapters] == ["1", "2"]
    served.ignores_adapters = True
    with pytest.raises(RunError, match="The engine ignores the adapter"):
        trainer.step()


@pytest.mark.slow
def test_it_sleeps_while_the_run_learns(vllm: Any) -> None:
    trainer = trainer_of(offline(engine={"sleep": True}))
    (engine,) = vllm.LLM.started
    assert engine.asleep
    for naps in (1, 2):
        trainer.step()
        assert (engine.asleep, engine.naps) == (True, naps)
    engine.wake_up = lambda: 1 / 0
    with pytest.raises(RunError, match="vLLM failed while it woke up: division by zero"):
        trainer.step()
    ahead = trainer_of(offline(engine={"sleep": True}), max_policy_lag=1)
    with pytest.raises(UsageError, match="memory back while the run learns, and trainer: max_policy_lag"):
        ahead.step()


@pytest.mark.slow
def test_it_draws_the_next_step_while_this_one_learns(vllm: Any) -> None:
    trainer = trainer_of(offline(), max_policy_lag=1, steps=3, correction=Correction())
    reports = [trainer.step() for _ in range(3)]
    assert [report.rollout.version for report in reports] == [0, 0, 1]
    assert all(report.metrics["logprob_diff/mean"] > 1e-4 for report in reports[1:])


def test_what_it_cannot_do(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, message in (
        ({"lora": {"r": 600}}, "vLLM takes adapters of r up to 512, and lora has r 600"),
        ({"lora": {"r": 4, "dora": True}}, "vLLM takes no DoRA adapters"),
        ({"engine": {"gpu_memory_utilization": 0.99}}, "vLLM does not start: Free memory on device is less than"),
        ({"engine": {"gpu_memory_utilization": 1.5}}, "gpu_memory_utilization"),
        ({"engine": {"options": {"model": "x"}}}, "options may not have model; use engine: model"),
        ({"engine": {"options": {"enable_sleep_mode": True}}}, "may not have enable_sleep_mode; use engine: sleep"),
        ({"engine": {"options": {"enable_lora": False}}}, "may not have enable_lora; it is always on"),
        (
            {"engine": {"options": {"max_lorars": 2}}},
            "vLLM does not start: .* unexpected keyword argument 'max_lorars'",
        ),
        ({"engine": {"url": "http://gpu-2:8000"}}, "engine has no key 'url'"),
        ({"engine": {"offline": False}}, "engine needs the server's url, .*, or offline: true"),
    ):
        with pytest.raises(UsageError, match=message):
            offline(**options)
    few = offline(top_k=20, engine={"options": {"max_logprobs": 5}})
    with pytest.raises(RunError, match="vLLM failed while it drew: Requested sample logprobs of 28"):
        drawn(few)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="offline is for a run in one process"):
        offline()


def test_a_failure_while_it_draws_is_what_the_run_says(vllm: Any) -> None:
    trainer = trainer_of(offline(engine={"sleep": True, "options": {"max_logprobs": 5}}, top_k=20))
    (engine,) = vllm.LLM.started
    engine.sleep = lambda level: 1 / 0  # as one that has died would
    with pytest.raises(RunError, match="vLLM failed while it drew: Requested sample logprobs of 28"):
        trainer.step()


@pytest.mark.slow
def test_a_process_of_vllm_that_dies_ends_the_wait(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))

    def die(*_: Any, **__: Any) -> None:
        process.kill()
        time.sleep(60)

    monkeypatch.setattr(vllm.LLM, "generate", die)
    monkeypatch.setattr(vllm.LLM, "started_processes", lambda self: process.start())
    with pytest.raises(RunError, match="A process of vLLM ended while it drew, with exit code -9"):
        drawn(offline())


def test_without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs vLLM, which is not installed: pip install vllm"):
        CausalLMPolicy(MODEL, lora={"r": 4}, engine={"offline": True})
