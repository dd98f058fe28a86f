"""The arithmetic of a transformer's needs, against numbers computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grpokit_hf.plan.transformer import Sizes, TokenWork
from grpokit_plan import Job, Needs, Work
from grpokit_plan.cards import by_name
from grpokit_plan.estimate import Estimate

GIB, MIB = 2**30, 2**20

# 40 layers of hidden size 4096, 32 heads and 2 key-value heads of 128, MLP 13,696; all six projections under LoRA
GLM = Sizes(
    layers=40,
    hidden=4096,
    mlp=13_696,
    heads=32,
    attention=4096,
    keys=256,
    vocabulary=16_512,
    matrices=8_158_000_000,
    active=8_158_000_000,
    stored=2 * 8_914_788_352,
    wide=0,
    width=2,
    adapted=8_158_000_000,
    adapter=190_382_080,
    ranks=40 * 6 * 64,
)
JOB = Job(prompts=4, group_size=8, micro_batch_size=4, rollout_rows=32)


def work(job: Job = JOB, sizes: Sizes = GLM, **changes: object) -> TokenWork:
    return replace(TokenWork(sizes=sizes, job=job, prompt=100, new=1281), **changes)


def memory(plan: TokenWork, name: str, moment: str) -> float:
    return sum(part.bytes for part in plan.parts() if part.name == name and moment in part.moments)


def seconds(works: list[Work], card: str = "H100") -> float:
    estimate = Estimate(card=by_name(card), needs=Needs(parts=(), works=tuple(works)))
    return sum(estimate.seconds().values())


def test_a_token_of_the_cache_takes_two_numbers_per_layer_and_width_of_keys() -> None:
    assert work().cache_per_token() == 2 * 40 * 256 * 2 == 40 * 1024
    one = work(replace(JOB, prompts=1, rollout_rows=1))
    assert one.cache() / MIB == pytest.approx(54, abs=0.1)  # 1,381 tokens
    assert work().cache() == 40 * 1024 * (4 * 100 + 32 * 1281)  # a prompt once for its group
    assert work(sizes=replace(GLM, width=4)).cache_per_token() == 80 * 1024
    assert work(replace(JOB, mixed_precision="bf16"), replace(GLM, width=4)).cache_per_token() == 40 * 1024


def test_an_adapter_takes_16_bytes_per_weight_in_all() -> None:
    parts = ("adapter", "optimizer", "gradients")
    assert sum(memory(work(), name, "train") for name in parts) / GIB == pytest.approx(2.84, abs=0.005)
    assert memory(work(), "gradients", "rollout") == 0


def test_what_checkpointing_stores_and_what_one_layer_keeps() -> None:
    plan = work(replace(JOB, group_size=2, micro_batch_size=1), checkpointing=True)
    stored, one_layer = 2 * 4096 * 40 * 1381, (24 + 12) * 4096 * 1381  # at least, of one sample
    assert stored / GIB == pytest.approx(0.42, abs=0.005)
    assert stored + one_layer < memory(plan, "activations", "train") < stored + 2 * one_layer
    assert memory(work(checkpointing=False), "activations", "train") > 20 * memory(plan, "activations", "train")


def test_a_forward_pass_of_a_sample_takes_23_tflop() -> None:
    one = work(replace(JOB, prompts=1, group_size=2, micro_batch_size=1), new=1281)
    assert one.forward() / 2 == pytest.approx(23.3e12, rel=0.005)


@pytest.mark.parametrize(
    ("checkpointing", "adapted", "times"),
    [(False, True, 2), (True, True, 3), (False, False, 3), (True, False, 4)],  # 4, 6, 6 and 8 FLOP per weight
)
def test_training_takes_whole_forward_passes(checkpointing: bool, adapted: bool, times: int) -> None:
    sizes = GLM if adapted else replace(GLM, adapter=0, adapted=0, ranks=0, trained=8_914_788_352)
    plan = work(sizes=sizes, checkpointing=checkpointing, head_trains=not adapted)
    assert plan.trained() / plan.forward() == pytest.approx(times, rel=0.07)


@pytest.mark.parametrize(("rows", "milliseconds"), [(1, 11.3), (8, 11.4), (16, 11.5), (32, 11.7), (64, 12.1)])
def test_decoding_takes_what_it_reads_and_43_kernels_a_layer(rows: int, milliseconds: float) -> None:
    plan = work(replace(JOB, prompts=max(1, rows // 8), rollout_rows=rows))
    token = replace(plan.rollout()[1], times=1)
    assert token.bytes == pytest.approx(16.45e9 + rows * 40960 * 1281 / 2, rel=0.005)
    # 16.45 GB at 70 % of 3.35 TB/s are 7.0 ms, and 40 layers of 43 kernels of 2.5 microseconds 4.3 ms.
    assert 1000 * seconds([token]) == pytest.approx(milliseconds, abs=0.06)


def test_a_small_model_is_bound_by_starting_kernels() -> None:
    small = replace(GLM, layers=10, matrices=1000, active=1000)
    token = replace(work(sizes=small).rollout()[1], times=1, flop=0, bytes=0)
    assert seconds([token]) == pytest.approx(430 * 2.5e-6)
    assert seconds([replace(token, captured=False)]) == pytest.approx(430 * 5e-6)


@pytest.mark.parametrize(("top_p", "kernels"), [(False, 50), (True, 75)])
def test_the_draw_of_a_token_is_outside_the_graph(top_p: bool, kernels: int) -> None:
    draws = work(top_p=top_p).rollout()[2]
    assert (draws.kernels, draws.captured, draws.times) == (kernels, False, 1281)
    assert seconds([draws]) == pytest.approx(1281 * kernels * 5e-6)


def test_only_the_tokens_that_are_scored_count_in_training() -> None:
    draft = work(decisions=256, scored=256)
    assert draft.forward() < 0.28 * work().forward()
    assert draft.rollout() == work().rollout()


def test_a_prompt_is_read_in_each_of_its_micro_batches() -> None:
    whole, halves = (work(replace(JOB, micro_batch_size=size), prompt=1000) for size in (8, 4))
    assert halves.forward() > whole.forward()
    assert memory(whole, "activations", "train") < 2 * memory(halves, "activations", "train")


@pytest.mark.parametrize(
    ("changes", "phases"),
    [
        ({}, ["rollout", "train", "optimizer"]),
        ({"reference": True}, ["rollout", "reference", "train", "optimizer"]),
        ({"updates": 2}, ["rollout", "old", "train", "optimizer"]),  # in bf16 the sampler's log-probs will not do
        ({"entropy": True}, ["rollout", "old", "train", "optimizer"]),
    ],
)
def test_passes_without_gradient(changes: dict[str, object], phases: list[str]) -> None:
    plan = work(replace(JOB, **changes))
    assert list(dict.fromkeys(each.phase for each in plan.works())) == phases
    assert bool(memory(plan, "logits", "score")) == (len(phases) > 3)


def test_in_fp32_the_old_logprobs_are_those_of_the_rollout() -> None:
    plan = work(replace(JOB, updates=2), replace(GLM, width=4))
    assert "old" not in [each.phase for each in plan.works()]
    assert {each.dtype for each in plan.works() if each.flop} == {"fp32"}


def test_weights_for_drawing() -> None:
    amp = replace(JOB, mixed_precision="bf16")
    assert work().drawing_weights() == 2 * 8_158_000_000  # merged
    assert work(amp, replace(GLM, width=4)).drawing_weights() == 2 * (8_158_000_000 + 16_512 * 4096)
    assert work(sizes=replace(GLM, adapted=0)).drawing_weights() == 0
    assert work(sizes=replace(GLM, width=0.516)).drawing_weights() == 0  # quantised ones are used as they are


def test_an_adapter_that_is_not_merged_takes_kernels_in_place_of_memory() -> None:
    beside = replace(work(), merged=False)
    assert beside.drawing_weights() == 0
    step, merged = beside.rollout()[1], work().rollout()[1]
    assert step.kernels == merged.kernels + 40 * 36
    assert step.bytes == merged.bytes + 4 * GLM.adapter
    amp = replace(work(replace(JOB, mixed_precision="bf16"), replace(GLM, width=4)), merged=False)
    assert amp.drawing_weights() == 2 * 16_512 * 4096  # of the head alone
