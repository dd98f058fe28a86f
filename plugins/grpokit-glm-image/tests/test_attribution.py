"""Attribution: the analysis of variance on known grids, and a policy whose two causes are known."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_family import TinyFamily

from command_line import Call, config, rows
from grpokit import Decisions, Policy, Prompt, Rollout, Sample, Seeds, UsageError
from grpokit.sampling import uniforms
from grpokit_glm_image.attribution import attribute, two_way
from grpokit_hf.diffusion.flow_policy import FlowPolicy
from grpokit_hf.diffusion.settings import FlowSettings

Reward = Callable[[Sequence[Sample]], list[float]]


def grid(row: float, group: float, both: float, *, prompts: int = 4000) -> torch.Tensor:
    """Scores of a random-effects model with these standard deviations: 3 by 4 for each prompt."""
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    effects = row * normal(prompts, 3, 1) + group * normal(prompts, 1, 4) + both * normal(prompts, 3, 4)
    return 5 * normal(prompts, 1, 1) + effects


@pytest.mark.parametrize("stds", [(2.0, 1.0, 0.5), (0.0, 1.0, 1.0), (1.0, 0.0, 0.0)])
def test_shares_are_those_of_the_model(stds: tuple[float, float, float]) -> None:
    variances = [std**2 for std in stds]
    shares = two_way(grid(*stds))
    expected = [variance / sum(variances) for variance in variances]
    assert [shares.row, shares.group, shares.both] == pytest.approx(expected, abs=0.02)
    assert shares.variance == pytest.approx(sum(variances), rel=0.05)


def test_a_table_by_hand() -> None:
    """Scores 1 2 / 3 8: mean squares 16, 9 and 4, so the components are (16 - 4) / 2 = 6, (9 - 4) / 2 = 2.5 and 4."""
    shares = two_way(torch.tensor([[[1.0, 2.0], [3.0, 8.0]]]))
    assert shares.variance == pytest.approx(12.5)
    assert (shares.row, shares.group, shares.both) == pytest.approx((6 / 12.5, 2.5 / 12.5, 4 / 12.5))


def test_prompts_without_a_score_and_rewards_that_never_differ() -> None:
    scores = torch.tensor([[[1.0, 2.0], [3.0, float("nan")]], [[1.0, 1.0], [1.0, 1.0]]])
    shares = two_way(scores)
    assert (shares.prompts, shares.variance, shares.row) == (1, 0.0, 0.0)
    assert two_way(scores[:1]).prompts == 0


class TwoHalves(Policy):
    """Its first number follows from the row's seed, its second from the group's."""

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        own = uniforms(seeds.row, 1)[:, 0].tolist()
        shared = uniforms(seeds.group, 1)[:, 0].repeat_interleave(group_size).tolist()
        groups = seeds.group_ids.repeat_interleave(group_size)
        samples = [
            Sample(prompt=prompts[row // group_size], output=f"{a} {b}", group=int(groups[row]))
            for row, (a, b) in enumerate(zip(own, shared, strict=True))
        ]
        nothing = torch.zeros(len(samples), 0)
        return Rollout(
            samples=samples, groups=groups, old=Decisions(logprobs=nothing), mask=nothing.bool(), max_decisions=1
        )

    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        raise NotImplementedError

    def reference(self) -> Any:
        raise NotImplementedError

    def modules(self) -> dict[str, torch.nn.Module]:
        return {"nothing": torch.nn.Identity()}

    def state_dict(self) -> Any:
        raise NotImplementedError

    def load_state_dict(self, state: Any) -> None:
        raise NotImplementedError


def test_each_half_is_named_for_what_it_alone_moves() -> None:
    def number(place: int) -> Reward:
        return lambda samples: [float(sample.output.split()[place]) for sample in samples]

    shares = attribute(TwoHalves(), {"row": number(0), "group": number(1)}, ["a", "b", "c"])
    assert shares["row"].row > 0.9
    assert shares["group"].group > 0.9
    assert 0.3 < shares["reward"].row < 0.7


def first(samples: Sequence[Sample]) -> list[float]:
    return [float(sample.output.getpixel((0, 0))) for sample in samples]


def test_a_policy_that_draws_for_each_row_alone() -> None:
    """An evaluation of FlowPolicy starts every row from noise of its own, and a group shares nothing."""
    policy = FlowPolicy(TinyFamily(), FlowSettings(size=(32, 32), steps=2, eval_steps=2))
    shares = attribute(policy, {"first": first}, [Prompt(text="1"), Prompt(text="2")], row_seeds=3, group_seeds=2)
    assert shares["first"].row == pytest.approx(1.0)
    assert shares["reward"] == shares["first"]
    with pytest.raises(UsageError, match="at least 2 seeds of each kind, got 3 by 1"):
        attribute(policy, {"first": first}, ["1"], row_seeds=3, group_seeds=1)


@pytest.mark.usefixtures("drawn")
def test_the_command(call: Call, tmp_path: Path) -> None:
    """This policy draws every digit from its row's seed, and a group shares nothing."""
    config(tmp_path, trainer__steps=1)
    assert call("train", "c.yaml").code == 0
    done = call("attribute", "out", "--rows", 3, "--groups", 2, "--limit", 2)
    assert (done.code, done.err) == (0, "drawing and scoring 12 samples of 2 held-out prompts ...\n")
    header, *lines = [re.split(r"\s{2,}", line.strip()) for line in done.out.splitlines()]
    assert header[:4] == ["reward", "own draws", "shared draws", "both"]
    assert {name: parts[:3] for name, *parts in lines}["digit_sum"] == ["100%", "0%", "0%"]
    (kept,) = rows(Path("out/attribution.jsonl"))
    assert (kept["step"], kept["shares"]["digit_sum"]["row"]) == (1, pytest.approx(1))
    assert "What moves the rewards" in Path("out/report.html").read_text()
    (checkpoint,) = Path("out/checkpoints").glob("*1")
    assert call("attribute", checkpoint, "--rows", 3, "--groups", 2, "--limit", 2).code == 0
    assert len(rows(Path("out/attribution.jsonl"))) == 1
    assert call("attribute", "out", "--groups", 1).code == 2
    done = call("attribute", "c.yaml", "eval={}")
    assert "The config names no held-out prompts. Set eval.prompts or eval.fraction." in done.err


def test_conformance(call: Call) -> None:
    assert call("check", "attribute").code == 0
