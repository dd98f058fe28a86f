"""Jobs, cards, and how parts and works add up."""

from __future__ import annotations

from typing import Any

import pytest

from grpokit import UsageError
from grpokit.config import presets
from grpokit.errors import PluginError
from grpokit.settings import TrainerSettings
from grpokit_plan import Job, Needs, Part, Work
from grpokit_plan.cards import CARDS, USABLE, Card, by_name, recognised
from grpokit_plan.estimate import Estimate, needs_of

GIB = 2**30
ROUND = Card(name="round", memory=10 * GIB, bandwidth=1e12, bf16=100e12, fp32=10e12)


def estimate(*parts: Part, works: tuple[Work, ...] = ()) -> Estimate:
    return Estimate(card=ROUND, needs=Needs(parts=parts, works=works))


def job(**settings: object) -> Job:
    return Job.of(TrainerSettings(**settings), reference=False, prompt_tokens=None)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"group_size": 8, "micro_batch_size": 8}, (8, 1)),
        ({"group_size": 8, "micro_batch_size": 20}, (16, 2)),  # whole groups
        ({"group_size": 8, "micro_batch_size": 3}, (3, 1)),
        ({"group_size": 8, "micro_batch_size": 64, "prompts_per_step": 2}, (16, 2)),  # no more than there are
        ({"group_size": 8, "micro_batch_size": 64, "micro_batch_tokens": 500}, (5, 1)),
        ({"group_size": 8, "micro_batch_size": 64, "micro_batch_tokens": 50}, (1, 1)),  # a longer row goes alone
    ],
)
def test_rows_and_prompts_of_a_micro_batch_of_rows_of_100(
    settings: dict[str, object], expected: tuple[int, int]
) -> None:
    assert job(**settings).micro_batch(100) == expected


def test_passes_by_hand() -> None:
    """Five rows by two are three passes; where there is one update, no weight has changed before it."""
    five = job(prompts_per_step=1, group_size=5, micro_batch_size=2)
    assert five.micro_batches(10) == 3
    assert not five.old_pass(exact=False)
    twice = job(prompts_per_step=2, group_size=5, updates_per_rollout=2)
    assert [twice.old_pass(exact=exact) for exact in (False, True)] == [True, False]


def test_drawing_in_parts() -> None:
    parts = job(prompts_per_step=4, group_size=8, rollout_batch_size=12)
    assert (parts.rollout_rows, parts.rollout_prompts, parts.rollout_calls) == (8, 1, 4)
    assert job(rollout_batch_size=999).rollout_rows == 32


@pytest.mark.parametrize("moments", ["train", ("sampling",), ()])
def test_a_part_is_there_in_moments_that_a_step_has(moments: Any) -> None:
    with pytest.raises(PluginError, match=r"part 'cache' is there in .* some of rollout, decode, score, train"):
        Part(name="cache", bytes=1, moments=moments)


def test_memory_is_summed_by_moment_and_the_largest_counts() -> None:
    plan = estimate(
        Part(name="weights", bytes=6 * GIB),
        Part(name="cache", bytes=3 * GIB, moments=("rollout",)),
        Part(name="logits", bytes=1 * GIB, moments=("train", "score")),
        Part(name="logits", bytes=GIB // 2, moments=("train",)),
    )
    assert plan.moments == ["rollout", "score", "train"]  # nothing is special about decode
    assert plan.sums() == {"rollout": 9 * GIB, "score": 7 * GIB, "train": 7.5 * GIB}
    assert plan.peak == ("rollout", 9 * GIB)
    assert plan.fits


@pytest.mark.parametrize(("share", "fits"), [(USABLE, True), (USABLE + 0.01, False)])
def test_a_part_of_the_card_stays_free(share: float, fits: bool) -> None:
    assert estimate(Part(name="weights", bytes=share * ROUND.memory)).fits == fits


@pytest.mark.parametrize(
    ("rewards", "bytes"),
    [
        ("[{use: pickscore}, {use: imagereward, workers: 2}]", 4.1e9 + 2 * 1.9e9),
        ("[{use: brightness}, {use: pickscore, device: cpu}]", 0),
        ("[{use: brightness}, {use: pickscore, placement: {http: 'http://gpu-2:8009'}}]", 0),
    ],
)
def test_models_of_rewards_on_the_same_gpu_count(rewards: str, bytes: float) -> None:
    config, _ = presets.read_config("glm-image-tiny", [f"rewards={rewards}"])
    _, needs = needs_of(config, reference=False)
    assert sum(part.bytes for part in needs.parts if part.name == "rewards") == bytes


@pytest.mark.parametrize(
    ("data", "pictures"),
    [
        ("{prompts: prompts.txt}", False),
        ("{prompts: prompts.txt, images: source_images}", True),
        ("{prompts: edits.jsonl}", True),
        ("{dataset: some/edits}", True),
    ],
)
def test_lines_of_text_bring_no_pictures(data: str, pictures: bool) -> None:
    config, _ = presets.read_config("glm-image-tiny", [f"data={data}", "eval={}"])
    job, _ = needs_of(config, reference=False)
    assert job.pictures == pictures


def test_a_work_takes_as_long_as_the_longest_of_its_three_kinds() -> None:
    works = (
        Work(phase="rollout", flop=45e12, bytes=1, times=2),  # 45e12 / (100e12 * 0.45) = 1 s each
        Work(phase="rollout", bytes=0.7e12, flop=1),  # 0.7e12 / (1e12 * 0.7) = 1 s
        Work(phase="train", flop=45e12, dtype="fp32"),  # ten times as slow
        Work(phase="decode", flop=45e12, mfu=0.9),
        Work(phase="optimizer", kernels=1_000_000),
    )
    assert estimate(works=works).seconds() == pytest.approx({"rollout": 3, "train": 10, "decode": 0.5, "optimizer": 5})


def test_kernels_of_a_graph_add_to_the_rest_and_others_hide_behind_it() -> None:
    some = {"phase": "rollout", "bytes": 0.7e12, "kernels": 100_000}  # 1 s, and 0.25 s or 0.5 s of kernels
    assert estimate(works=(Work(**some, captured=True, times=2),)).seconds() == {"rollout": pytest.approx(2.5)}
    assert estimate(works=(Work(**some),)).seconds() == {"rollout": pytest.approx(1)}


def test_a_card_of_unknown_speed_has_no_times() -> None:
    unknown = Estimate(card=Card(name="x", memory=GIB), needs=Needs(parts=(), works=(Work(phase="train", flop=1),)))
    assert unknown.seconds() == {}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("H100", "H100 80GB"),
        ("nvidia h100 80GB", "H100 80GB"),
        ("80GB", "H100 80GB"),
        ("A100 80GB", "A100 80GB"),
        ("RTX 3090", "RTX 3090"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("5090", "RTX 5090"),
        ("48 GB", "L40S"),
        ("b200", "B200"),
        ("rtx-4090", "RTX 4090"),
        ("24 GB", "RTX 4090"),
        ("A100", "A100 40GB"),
        ("40gb", "A100 40GB"),
        ("h200", "H200 141GB"),
        ("141 GB", "H200 141GB"),
    ],
)
def test_names_of_cards(words: str, name: str) -> None:
    assert by_name(words).name == name


@pytest.mark.parametrize(("words", "gib"), [("22 GB", 22), ("21.5GiB", 21.5), (".5 GB", 0.5)])
def test_a_memory_that_no_card_has(words: str, gib: float) -> None:
    assert by_name(words) == Card(name=words, memory=gib * GIB)


def test_an_unknown_card() -> None:
    with pytest.raises(UsageError, match=r"No card is called 'K80'. Known: 'RTX 3090', 'RTX 4090', 'RTX 5090', "):
        by_name("K80")


@pytest.mark.parametrize(
    ("driver", "gib", "bandwidth"),
    [
        ("NVIDIA H100 80GB HBM3", 79.2, 3.35e12),
        ("NVIDIA A100-SXM4-40GB", 39.4, 1.555e12),
        ("NVIDIA A100-SXM4-80GB", 79.3, 2.039e12),
        ("NVIDIA A100 80GB PCIe", 79.2, None),
        ("NVIDIA GeForce RTX 3090", 23.6, 936e9),
        ("NVIDIA GeForce RTX 3090 Ti", 23.6, None),
        ("NVIDIA RTX A6000", 47.4, 768e9),
        ("NVIDIA L40S", 44.5, 864e9),
        ("NVIDIA B200", 178.4, 8e12),
        ("NVIDIA GeForce RTX 4090", 23.6, 1.008e12),
        ("NVIDIA H100 PCIe", 79.2, None),  # has slower memory than the H100 that is known
        ("NVIDIA H200 NVL", 139.8, None),
        ("NVIDIA GeForce RTX 4090 D", 23.5, None),
        ("Tesla T4", 14.6, None),
    ],
)
def test_this_machines_card(driver: str, gib: float, bandwidth: float | None) -> None:
    card = recognised(driver, gib * GIB)
    assert (card.name, card.memory, card.bandwidth) == (driver, gib * GIB, bandwidth)


def test_every_card_names_its_source() -> None:
    assert [round(card.memory / GIB) for card in CARDS] == [24, 24, 32, 48, 48, 40, 80, 80, 141, 180]
    assert all(card.source and card.bandwidth and card.bf16 and card.fp32 for card in CARDS)
