"""Seeds that are never used twice, and draws whose frequencies are those of the distribution."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import torch

from command_line import Call, config
from grpokit import Trainer, evaluate
from grpokit.sampling import derive_seeds, mix, prompt_indices, sample_categorical, uniforms
from grpokit.types import Seeds
from tiny_policies import BatchesSeen, TinyTokens, digit_sum

PROMPTS = [str(i) for i in range(12)]


def numbers(seeds: Seeds) -> list[int]:
    return [*seeds.row.tolist(), *seeds.group.tolist()]


def test_no_seed_is_used_twice() -> None:
    """Whatever differs (seed, stream, step, prompt, sample, a row or its group), so does the seed."""
    sizes = {"prompts": 3, "group_size": 4}
    used = [
        number
        for seed in (0, 1)
        for stream in ("train", "evaluate", "sample")
        for step in (0, 1)
        for attempt in (0, 1, 2)
        for number in numbers(derive_seeds(seed, stream=stream, step=step, attempt=attempt, **sizes))
    ]
    assert len(set(used)) == len(used) == 2 * 3 * 2 * 3 * (12 + 3)
    assert used[:13:4] == [mix(0, 0, 0, p, i) for p, i in ((0, 0), (1, 0), (2, 0), (0, -1))]  # of the first attempt
    two, three = (derive_seeds(0, stream="train", step=1, prompts=p, group_size=g) for p, g in ((2, 4), (3, 5)))
    assert two.row.reshape(2, 4).tolist() == three.row.reshape(3, 5)[:2, :4].tolist()  # more only adds


def test_a_run_its_evaluation_and_samples_share_no_seed(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    policy, drawn = BatchesSeen(), []
    trainer = Trainer(policy, [digit_sum], PROMPTS, prompts_per_step=4, group_size=4, seed=7, device="cpu")
    trainer.step()
    trainer.step()
    evaluate(policy, [digit_sum], PROMPTS[:4], samples_per_prompt=4, seed=7)
    rollout = TinyTokens.rollout

    def watched(self, prompts, group_size, *, seeds, evaluate=False):
        drawn.append(seeds)
        return rollout(self, prompts, group_size, seeds=seeds, evaluate=evaluate)

    monkeypatch.setattr(TinyTokens, "rollout", watched)
    assert call("sample", config(tmp_path), "-n", 4).code == 0  # of the seed 7, too
    used = [number for seeds in (*policy.seeds, *drawn) for number in numbers(seeds)]
    assert len(set(used)) == len(used) == 4 * (16 + 4)
    assert policy.evaluated == [False, False, True]  # each with its own settings of the policy
    steps = [seeds.group_ids.tolist() for seeds in policy.seeds[:2]]
    assert steps == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_frequencies_are_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05])
    draws = uniforms(torch.arange(20_000), 1)[:, 0]
    tokens, logprobs = sample_categorical(probabilities.log().expand(20_000, 5), draws)
    frequencies = tokens.bincount(minlength=5) / 20_000
    assert frequencies.tolist() == pytest.approx(probabilities.tolist(), abs=0.014)  # four standard deviations
    assert frequencies[1] == 0
    torch.testing.assert_close(logprobs, probabilities.log()[tokens])


def test_draws_at_the_edges_stay_among_the_tokens_that_can_be_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]]).expand(3, 4)
    tokens, _ = sample_categorical(logits, torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64))
    assert tokens.tolist() == [1, 2, 2]


def test_a_rare_token_keeps_its_probability() -> None:
    """Of 1e-9, which a running sum in fp32 would lose."""
    tokens, _ = sample_categorical(
        torch.tensor([[0.0, math.log(1e-9)]]), torch.tensor([1 - 5e-10], dtype=torch.float64)
    )
    assert tokens.tolist() == [1]


def test_uniforms_of_seeds_and_columns_are_not_alike() -> None:
    draws = uniforms(torch.arange(400), 400)
    assert len(draws.unique()) == 400 * 400
    centred = draws - draws.mean(dim=0)
    spread = torch.corrcoef(centred.T) - torch.eye(400, dtype=torch.float64)
    assert spread.abs().max() < 0.3  # of 80,000 pairs of columns; 0.05 is one standard deviation


def stream(seed: int, steps: int, per_step: int, total: int) -> list[int]:
    return [i for step in range(steps) for i in prompt_indices(seed, step, per_step=per_step, total=total)]


@pytest.mark.parametrize(("total", "per_step"), [(1, 1), (4, 2), (5, 3), (7, 7), (3, 8), (10, 4)])
def test_every_epoch_is_a_permutation(total: int, per_step: int) -> None:
    drawn = stream(3, 3 * total, per_step, total)
    assert len(drawn) == 3 * total * per_step
    for start in range(0, len(drawn), total):
        assert sorted(drawn[start : start + total]) == list(range(total))


def test_order_is_a_pure_function_of_seed_and_step() -> None:
    forwards = [prompt_indices(1, step, per_step=3, total=10) for step in range(40)]
    backwards = [prompt_indices(1, step, per_step=3, total=10) for step in reversed(range(40))]
    assert forwards == backwards[::-1]  # also when asked in another order, as after a resume
    assert prompt_indices(1, 1000, per_step=3, total=10) == prompt_indices(1, 1000, per_step=3, total=10)


def test_order_does_not_depend_on_how_it_is_cut() -> None:
    assert stream(9, 12, 2, 8) == stream(9, 6, 4, 8) == stream(9, 3, 8, 8)


def test_order_differs_between_epochs_and_seeds() -> None:
    epochs = [tuple(prompt_indices(1, step, per_step=20, total=20)) for step in range(20)]
    seeds = [tuple(prompt_indices(seed, 0, per_step=20, total=20)) for seed in range(20)]
    assert len(set(epochs)) == len(set(seeds)) == 20
    assert len(set(epochs) & set(seeds)) == 1  # (seed 1, epoch 0) is in both


def test_every_prompt_comes_first_equally_often() -> None:
    first = Counter(prompt_indices(seed, 0, per_step=1, total=5)[0] for seed in range(2000))
    # binomial: 400 expected, standard deviation sqrt(2000 * 0.2 * 0.8) = 17.9
    assert all(abs(first[i] - 400) < 4.5 * 17.9 for i in range(5))
