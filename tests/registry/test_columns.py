from __future__ import annotations

import ast
import asyncio
import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import foreign_rewards
import small_runs
from grpokit import PluginError, Prompt, Sample, Trainer, UsageError, create
from grpokit.config import schema
from grpokit.config.evaluation import EvaluationConfig
from grpokit.registry import columns, of_samples
from grpokit.rewards.terms import as_terms
from grpokit.rewards.worker_pool import PooledReward
from grpokit.run_folder import rollout_record
from grpokit.runs.rescore import rescore
from grpokit_toy.lm import END, ToyLM, sum_prompts

NAN = math.nan


def sample(output: Any, *, target: Any = None, info: Any = None, images: Any = (), **meta: Any) -> Sample:
    prompt = Prompt("What?", target=target, images=images, meta=meta)
    return Sample(prompt=prompt, output=output, group=0, info=info or {})


SUMS = {"data_source": "sums"}
VERL = {"data_source": "sums", "extra_info": {"split": "train"}}
TURNS = [{"role": role, "content": "4"} for role in ("user", "assistant", "tool", "assistant")]
BLACK, WHITE = (Image.new("RGB", (8, 8), colour) for colour in ("black", "white"))


@pytest.mark.parametrize(
    ("name", "params", "samples", "expected"),
    [
        ("length", {}, [sample("four", messages=None), sample("")], [4, 0]),
        ("accuracy", {}, [sample("4", solution="4"), sample("5", solution="4"), sample("5")], [1, 0, NAN]),
        ("accuracy", {}, [sample("4", target="4"), sample("5", target="4")], [1, 0]),
        ("accuracy", {}, [sample("4", solution="4", target="5")], [1]),
        ("tagged", {}, [sample(""), sample("<answer>4</answer>"), sample("4")], [0, 1, 0]),
        ("correctness", {}, [sample("4", answer="4"), sample("5", answer="4")], [2, 0]),
        ("correctness", {}, [sample("4", answer="4", messages=[{"role": "user", "content": "?"}])], [2]),
        ("answers_in_kwargs", {}, [sample("4", answer="4"), sample("5", answer="4")], [1, 0]),
        ("answers_in_kwargs", {}, [sample("4", target="4"), sample("5", target="4")], [1, 0]),
        ("warming_up", {}, [sample("4", info={"training_step": 3}), sample("5", info={"training_step": 3})], [2, 2]),
        ("warming_up", {}, [sample("4")], [0]),
        ("awaited", {}, [sample("four"), sample("")], [4, 0]),
        (
            "get_overlong",
            {"max_completion_len": 2, "soft_punish_cache": 4},
            [sample("a", info={"token_ids": np.arange(3)}), sample("b", info={"token_ids": [1]})],
            [-0.25, 0],
        ),
        ("near", {}, [sample("abc", difficulty=3), sample("ab", difficulty=4)], [3.5, 0.5]),
        ("near", {"threshold": 1}, [sample("abc", difficulty=3), sample("ab", difficulty=4)], [3.5, 4.5]),
        ("near", {}, [sample("abc", difficulty=3, bonus=1), sample("ab", difficulty=4, bonus=2)], [4, 2]),
        ("near", {"bonus": 0}, [sample("abc", difficulty=3, bonus=1)], [3]),
        ("seen", {}, [sample("a", images=[BLACK, WHITE]), sample("b", images=[BLACK])], [2, 1]),
        ("stripped", {}, [sample("4 ", target="5", messages=TURNS[:1]), sample("5", target="5")], [1, 0]),
        ("defaulted", {}, [sample("4", target="4"), sample("5", target="4")], [1, 0]),
        ("labelled", {}, [sample("5", target="4"), sample("6", target="4")], [1, 0]),
        ("compared", {"label": ""}, [sample("4", target="4"), sample("5", target="4")], [1, 0]),
        ("gathered", {}, [sample("4", target="4"), sample("5", target="4")], [1, 0]),
        ("answered", {}, [sample("It is 4.", info={"messages": TURNS})], [3]),
        ("compute_score", {}, [sample("4", target="4", **VERL), sample("5", target="4", **VERL)], [1, 0]),
        ("gsm8k", {"format_score": 0.1}, [sample("4", ground_truth="4"), sample("5", ground_truth="4")], [1, 0.1]),
        ("compute_score_batch", {}, [sample("4", target="4", **SUMS), sample("5", target="4", **SUMS)], [1, 0]),
        ("several", {"device": "cpu", "score_dict": {"a": 1, "b": 0.5}}, [sample(BLACK), sample(WHITE)], [12, 12]),
        ("in_state", {}, [sample("Yes.")], [1]),
        ("polite", {}, [sample("Sorry."), sample("Yes.")], [0, 1]),
        ("judged", {}, [sample("4", target="4"), sample("5", target="4")], [1, 0]),
        ("file_size", {}, [sample(BLACK, least=0), sample(WHITE, least=10**6)], [1, 0]),
        ("brightness", {}, [sample(BLACK), sample(WHITE)], [0, 1]),
        ("of_samples", {}, [sample("four"), sample("")], [4, 0]),
    ],
)
def test_a_function_of_another_trainer_works_as_it_is(
    name: str, params: dict[str, Any], samples: list[Sample], expected: list[float]
) -> None:
    reward = create("reward", f"foreign_rewards:{name}", params)
    assert reward(samples) == pytest.approx(expected, nan_ok=True)
    assert reward(samples) == pytest.approx(expected, nan_ok=True)  # what it learned about the function holds
    assert reward([]) == []
    if not name.startswith(("get_", "file_", "several")):
        assert reward.__name__ == name
        (term,) = as_terms([partial(getattr(foreign_rewards, name), **params)])
        assert term.name == name
        assert term.reward(samples) == pytest.approx(expected, nan_ok=True)  # type: ignore[operator]


def test_an_empty_text_does_not_make_texts_messages() -> None:
    """`completion[0]` fails on an empty text, and would be a message that equals nothing."""

    def begins_with_4(completions: list[Any], **_: Any) -> list[float]:
        return [float(completion[0] == "4") for completion in completions]

    reward = of_samples(begins_with_4)
    with pytest.raises(IndexError):
        reward([sample("4"), sample("")])
    assert reward([sample("4"), sample("5")]) == [1, 0]


def lengths(completions: Sequence[Sample], *, factor: float = 1.0) -> list[float]:
    """A name alone says nothing."""
    return [factor * len(s.output) for s in completions]


def any_arguments(*args: Any, **kwargs: Any) -> list[float]:
    return [float(len(s.output)) for s in args[0]]


@pytest.mark.parametrize("reward", [lengths, any_arguments, len, partial(lengths, factor=2.0)])
def test_a_reward_of_samples_stays_as_it_is(reward: Any) -> None:
    assert of_samples(reward) is reward
    columned = of_samples(foreign_rewards.length)
    assert of_samples(columned) is columned


async def meets_the_others(completion: str, answer: asyncio.Event, **kwargs: Any) -> float:
    """Ends once the last row has begun."""
    if completion == "last":
        answer.set()
    await asyncio.wait_for(answer.wait(), timeout=5)
    return 1.0


def test_async_rows_run_together_also_beside_a_notebooks_event_loop() -> None:
    reward = of_samples(meets_the_others)

    def score() -> Any:
        event = asyncio.Event()
        return reward([sample(output, answer=event) for output in ("first", "middle", "last")])

    async def notebook() -> Any:
        return score()

    assert score() == asyncio.run(notebook()) == [1.0, 1.0, 1.0]


async def leaves(completion: str, **kwargs: Any) -> float:
    if completion == "exit":
        sys.exit("that is all")
    return 1.0


def test_an_exit_of_an_async_function_ends_no_event_loop() -> None:
    reward = of_samples(leaves)
    with pytest.raises(SystemExit, match="that is all"):
        reward([sample("exit"), sample("stay")])
    assert reward([sample("stay")]) == [1.0]


def indexes(completions, facts, **kwargs):  # type: ignore[no-untyped-def]
    return [len(c) + x["least"] for c, x in zip(completions, facts, strict=True)]


@pytest.mark.parametrize(
    ("name", "samples", "words"),
    [
        ("near", [sample("a", level=1, topic="x")], r"the column 'difficulty', .* their columns are: level, topic"),
        ("near", [sample("a")], "their columns are: none"),
        ("accuracy", [sample("a", result="4")], r"'solution', .*: result\. .*data\.columns\.target"),
        ("length", [sample(BLACK)], "length scores a text, and got Image"),
        ("brightness", [sample("white")], "brightness scores a picture, and got str"),
    ],
)
def test_what_the_samples_lack_is_one_message(name: str, samples: list[Sample], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        create("reward", f"foreign_rewards:{name}")(samples)


def test_a_mistake_of_the_function_is_shown() -> None:
    with pytest.raises(TypeError, match="string indices must be integers"):
        of_samples(indexes)([sample("a", facts="a text")])


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("in_environments", {}, "takes `environments`, which only TRL's trainer has"),
        ("get_overlong", {}, "needs the parameter 'max_completion_len'"),
        ("gsm8k", {"formt_score": 1}, "no parameter 'formt_score'.*format_score"),
        ("gsm8k", {"solution_str": "x"}, "no parameter 'solution_str'"),
        ("near", {"threshold": "two"}, "threshold must be a whole number, got 'two'"),
    ],
)
def test_what_cannot_be_built_is_refused(name: str, params: dict[str, Any], words: str) -> None:
    with pytest.raises(PluginError, match=words):
        create("reward", f"foreign_rewards:{name}", params)


def test_tokens_that_no_policy_tells_are_named() -> None:
    reward = create("reward", "foreign_rewards:get_overlong", {"max_completion_len": 2, "soft_punish_cache": 4})
    with pytest.raises(UsageError, match="this policy does not tell them"):
        reward([sample("a")])


def test_it_works_in_a_worker_process() -> None:
    with_workers = PooledReward("foreign_rewards:correctness", {}, workers=2)
    try:
        assert with_workers([sample("4", answer="4"), sample("5", answer="4")]) == [2, 0]
    finally:
        with_workers.close()


def test_the_file_needs_no_other_and_no_new_python() -> None:
    source = Path(columns.__file__).read_text()
    names = set()
    for node in ast.walk(ast.parse(source, feature_version=(3, 8))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            names.add(node.module)
    assert names - sys.stdlib_module_names == {"numpy"}  # in the body of a function


def digits(completions, completion_ids, trainer_state, **kwargs):  # type: ignore[no-untyped-def]
    """How many characters are digits, with the tokens and the step to look at."""
    global_steps.append(trainer_state.global_step)
    assert [len(c) for c in completions] == [sum(token != END for token in ids) for ids in completion_ids]
    return [sum(c.isdigit() for c in completion) / 40 for completion in completions]


global_steps: list[int] = []


def test_a_text_policy_learns_from_a_function_of_trl() -> None:
    global_steps.clear()
    trainer = Trainer(
        ToyLM(), [digits], sum_prompts("train"), steps=12, prompts_per_step=4, group_size=8, learning_rate=2e-3, seed=0
    )
    rewards = [float(trainer.step().metrics["reward"]) for _ in range(12)]
    assert global_steps == list(range(12))
    assert sum(rewards[-3:]) > sum(rewards[:3]) + 2


def test_a_run_records_what_it_did_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    changes = {"policy": {"use": "toy-lm"}, "data": {"use": "grpokit_toy.lm:sum_prompts"}, "eval": {"fraction": 0.001}}
    rewards = [{"use": "foreign_rewards:warming_up"}, {"use": "foreign_rewards:answers_in_kwargs"}]
    small_runs.train("run", **changes, rewards=rewards, trainer__steps=2, run__record=True)
    first, second = (small_runs.rows(rollout_record.folder_of(Path("run"), step) / "samples.jsonl") for step in (1, 2))
    assert [row["scores"]["warming_up"] for row in [*first, *second]] == [0.0] * 8 + [1.0] * 8
    assert {*first[0]["info"]} == {"finish", "tokens"}
    rescored = rescore(Path("run"), schema.validate(EvaluationConfig, f"rewards: [{{use: {rewards[0]['use']!r}}}]", ""))
    assert rescored.scores[2].matrix[:, 0].tolist() == [1.0] * 8
