"""Micro-batches: their bounds, what they leave out, and that any cutting gives one gradient."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from grpokit import Prompt, Trainer, UsageError, objectives
from grpokit.processes.team import Team
from grpokit.sampling import derive_seeds
from grpokit.training.micro_batches import Cut, Limit, cuts
from grpokit.training.minibatches import FixedLogprobs, Signal, minibatch
from grpokit.training.rollout_parts import gather_rows
from grpokit.types import Rollout, row_lengths
from tiny_policies import TinyTokens, digit_sum

PROMPTS = [str(i) for i in range(12)]


def ragged(lengths: torch.Tensor, width: int) -> torch.Tensor:
    return torch.arange(width) < lengths[:, None]


@pytest.mark.parametrize(
    ("by", "size", "tokens", "ends"),
    [
        ("group", 32, None, [0, 10]),
        ("length", 3, None, [0, 4, 10]),
        ("group", 5, 24, [0, 3, 6, 10]),
        ("group", 32, 64, [0, 10]),  # one or two groups
        ("group", 8, None, [0, 5, 6, 10]),
        ("length", 32, 24, [0, 10]),
        ("length", 32, 1, [0, 5, 10]),  # every row by itself
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_every_decision_is_scored_once_within_the_bounds(
    by: str, size: int, tokens: int | None, ends: list, packed: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(6).repeat(4)
    mask = ragged(torch.randint(0, 9, (24,), generator=generator), 10)
    mask[groups == 1, 3:] = False  # a short group after a long one
    mask &= torch.rand(24, 10, generator=generator) < 0.8  # with gaps
    mask[:, 5] = False  # nobody decides there
    slices = [slice(a, b) for a, b in itertools.pairwise(ends)]
    scored = torch.zeros(24, 10, dtype=torch.int64)
    for cut in cuts(groups, mask, slices, Limit(rows=size, tokens=tokens), by=by, packed=packed):
        assert len(cut.rows) <= size
        lengths = row_lengths(mask[cut.rows])
        for s, positions in zip(cut.slices, cut.passes, strict=True):
            assert mask[cut.rows, s].any()
            own = int((lengths.clamp(max=s.stop) - s.start).clamp(min=0).sum())
            assert positions == (own if packed else len(cut.rows) * (s.stop - s.start))
            assert tokens is None or len(cut.rows) == 1 or positions <= tokens
            scored[cut.rows, s] += 1
        if cut.slices:
            assert mask[cut.rows, cut.slices[-1].stop - 1].any()
    assert int(scored.max()) == 1
    assert bool((scored[mask] == 1).all())


@pytest.mark.parametrize(
    ("lengths", "tokens", "expected"), [([1, 8, 1], 16, [[0, 1], [2]]), ([8, 8, 1, 1, 1], 8, [[0], [1], [2, 3, 4]])]
)
def test_a_pass_is_as_wide_as_its_longest_row(lengths: list[int], tokens: int, expected: list[list[int]]) -> None:
    mask = ragged(torch.tensor(lengths), 8)
    parts = cuts(torch.arange(len(lengths)), mask, [slice(0, 8)], Limit(rows=32, tokens=tokens))
    assert [cut.rows.tolist() for cut in parts] == expected


@pytest.mark.parametrize(
    ("tokens", "expected"), [(None, [[0, 1, 2, 3, 4]]), (92, [[0, 1, 2, 3, 4]]), (91, [[0, 1, 2, 3], [4]])]
)
def test_packed_rows_count_with_their_own_lengths(tokens: int | None, expected: list[list[int]]) -> None:
    """One long row among short ones: padded, 320 positions for 92 decisions."""
    mask = ragged(torch.tensor([64, 7, 7, 7, 7]), 64)
    parts = cuts(torch.zeros(5), mask, [slice(0, 64)], Limit(rows=32, tokens=tokens), packed=True)
    assert [cut.rows.tolist() for cut in parts] == expected
    assert [cut.passes for cut in parts] == [(int(mask[rows].sum()),) for rows in expected]
    padded = cuts(torch.zeros(5), mask, [slice(0, 64)], Limit(rows=32))
    assert per_decision(padded, mask) == pytest.approx(320 / 92)


def per_decision(parts: list[Cut], mask: torch.Tensor) -> float:
    return sum(sum(cut.passes) for cut in parts) / int(mask.sum())


def test_what_padding_costs() -> None:
    """512 rows with log-normal lengths up to 1,024, in micro-batches of 8: positions scored per decision."""
    draws = torch.randn(512, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lengths = (5.5 + 0.8 * draws).exp().round().clamp(1, 1024).long()
    groups, mask = torch.arange(64).repeat_interleave(8), ragged(lengths, 1024)
    whole = [slice(0, 1024)]
    assert 512 * 1024 / int(mask.sum()) == pytest.approx(3.32, abs=0.01)  # without cutting slices short
    assert per_decision(cuts(groups, mask, whole, Limit(rows=8)), mask) == pytest.approx(2.34, abs=0.01)
    assert per_decision(cuts(groups, mask, whole, Limit(rows=8), by="length"), mask) == pytest.approx(1.022, abs=0.001)
    by_tokens = cuts(groups, mask, whole, Limit(rows=512, tokens=8192), by="length")
    assert per_decision(by_tokens, mask) == pytest.approx(1.065, abs=0.001)
    assert len(by_tokens) == 22  # not 64: short rows go together in large numbers


def gradient(**options) -> torch.Tensor:
    policy = options.pop("policy", TinyTokens)(dtype=torch.float64, slices=options.pop("slices", 1))
    trainer = Trainer(
        policy, [digit_sum], PROMPTS, max_grad_norm=None, device="cpu",
        objective=objectives.GSPO(clip_range=0.2, kl_coef=0.1, entropy_coef=0.1), **options,
    )  # fmt: skip
    seen: list[torch.Tensor] = []
    trainer.updates.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.cat([p.grad.flatten() for p in trainer.updates.parameters]))
    )
    trainer.step()
    return torch.cat(seen)


class ByLength(TinyTokens):
    cut_by = "length"


class ByOneGroup(TinyTokens):
    cut_by = "one group"


class Packs(TinyTokens):
    packs = True


@pytest.mark.parametrize("policy", [TinyTokens, ByLength, ByOneGroup, Packs])
@pytest.mark.parametrize(("size", "tokens", "slices"), [(32, 9, 1), (3, None, 3), (5, 4, 1), (32, 20, 2)])
def test_any_cutting_gives_the_gradient_of_one_batch(policy: type, size: int, tokens: int | None, slices: int) -> None:
    whole = gradient(micro_batch_size=32)
    parts = gradient(policy=policy, micro_batch_size=size, micro_batch_tokens=tokens, slices=slices)
    assert (whole - parts).norm() / whole.norm() < 1e-12


def test_a_policy_that_pads_scores_hardly_more_than_was_decided() -> None:
    reports = [
        Trainer(policy(), [digit_sum], PROMPTS, micro_batch_size=4, device="cpu").step()
        for policy in (TinyTokens, ByLength)
    ]
    lengths = reports[0].rollout.mask.sum(-1)
    assert lengths.unique().numel() > 3  # ragged, or nothing is compared
    in_groups = [4 * int(part.max()) for group in lengths.split(8) for part in group.sort(descending=True)[0].split(4)]
    by_length = [4 * int(part.max()) for part in lengths.sort(descending=True)[0].split(4)]
    assert [report.metrics["positions_per_decision"] for report in reports] == pytest.approx(
        [sum(in_groups) / int(lengths.sum()), sum(by_length) / int(lengths.sum())]
    )


def test_a_policy_that_packs_scores_what_was_decided() -> None:
    def step(policy: TinyTokens, tokens: int | None = None) -> tuple[float, int, Rollout]:
        options = {"micro_batch_size": 64, "micro_batch_tokens": tokens, "device": "cpu"}
        report = Trainer(policy, [digit_sum], PROMPTS, **options).step()
        return report.metrics["positions_per_decision"], len(policy.scored), report.rollout

    ratio, count, rollout = step(Packs())
    assert (ratio, count, rollout.lengths.unique().numel() > 3) == (1, 1, True)
    half = int(rollout.lengths.sum()) // 2 + 7
    assert step(Packs(), tokens=half)[:2] == (1, 2)
    ratio, count, _ = step(TinyTokens(), tokens=half)
    assert (ratio > 1.4, count) == (True, 4)


def test_an_unknown_way_of_cutting_is_refused() -> None:
    class ByName(TinyTokens):
        cut_by = "name"

    with pytest.raises(UsageError, match="cut_by must be 'group' or 'one group' or 'length', got 'name'"):
        Trainer(ByName(), [digit_sum], PROMPTS, device="cpu")


def test_a_policy_need_not_be_a_subclass() -> None:
    class Own(nn.Module):  # has the methods of the contract and nothing optional
        rollout, logprobs, slices = TinyTokens.rollout, TinyTokens.logprobs, TinyTokens.slices
        reference, modules, logits = TinyTokens.reference, TinyTokens.modules, TinyTokens.logits
        state_dict, load_state_dict = TinyTokens.state_dict, TinyTokens.load_state_dict

    own = Own()
    vars(own).update({k: v for k, v in vars(TinyTokens()).items() if k != "net"})
    own.net = TinyTokens().net
    norm = Trainer(own, [digit_sum], PROMPTS, device="cpu").step().metrics["grad_norm"]
    assert norm == Trainer(TinyTokens(), [digit_sum], PROMPTS, device="cpu").step().metrics["grad_norm"]


def test_a_batch_takes_all_of_its_tensors_to_another_device() -> None:
    seeds = derive_seeds(0, stream="train", step=0, prompts=2, group_size=3)
    rollout = TinyTokens().rollout([Prompt(text="1"), Prompt(text="2")], 3, seeds=seeds)
    fixed = FixedLogprobs(old=rollout.old, reference=rollout.old, entropy=torch.rand(6, 4))
    whole, rows = gather_rows(rollout, Team(), torch.device("cpu"))
    batch = minibatch(
        whole, fixed, Signal.of(torch.arange(6.0)), torch.arange(6), rows,
        reduction="token_mean", before_updates=True, filler=None,
    )  # fmt: skip
    there = batch.to("meta")
    for name, value in {**vars(there), "logprobs": there.old.logprobs, "theirs": there.reference.logprobs}.items():
        if isinstance(value, torch.Tensor) and name != "numbers":  # which are facts for the CPU
            assert value.device.type == "meta", name
