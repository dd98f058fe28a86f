"""toy-flow: the policy contract for Gaussian decisions, its task and its start, and that it learns."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from grpokit import CheckpointError, Prompt, Sample, Trainer, UsageError, create, evaluate, objectives
from grpokit.builtin.more_objectives import NFT
from grpokit.config import presets
from grpokit.divergence import kl_divergence
from grpokit.runs import build, build_rewards
from grpokit.sampling import derive_seeds
from grpokit.types import Rollout, Seeds
from grpokit_toy.flow import ToyFlow, draw_points, on_ring, prompt_radius, ring_prompts

SAMPLERS = ["flow-sde", "dance-sde", "cps"]
HELD = {"kl": "velocity", "kl_coef": 0.03}


def seeds(prompts: int = 3, group_size: int = 4, *, seed: int = 1, stream: str = "train") -> Seeds:
    return derive_seeds(seed, stream=stream, step=0, prompts=prompts, group_size=group_size)


def draw(policy: ToyFlow, prompts: int = 3, group_size: int = 4, **settings) -> Rollout:
    return policy.rollout(ring_prompts(limit=prompts), group_size, seeds=seeds(prompts, group_size), **settings)


def whole(rollout: Rollout) -> slice:
    return slice(0, rollout.mask.shape[1])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_ratio_is_one_and_steps_are_decisions(sampler: str) -> None:
    policy = ToyFlow(sampler=sampler)
    rollout = draw(policy)
    assert rollout.mask.shape == (12, 9 if sampler == "cps" else 10)  # the last step of CPS has no noise
    assert bool(rollout.mask.all())
    assert rollout.max_decisions == rollout.mask.shape[1]
    assert rollout.action_dims == 2
    new = policy.logprobs(rollout, whole(rollout))
    assert new.logprobs.requires_grad
    assert (new.logprobs - rollout.old.logprobs).abs().max() < 1e-4
    assert new.mean.shape == (*rollout.mask.shape, 2)
    assert new.std.shape == (*rollout.mask.shape, 1)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_density_is_that_of_mean_and_std_per_dimension(sampler: str) -> None:
    policy = ToyFlow(sampler=sampler)
    rollout = draw(policy)
    new = policy.logprobs(rollout, whole(rollout))
    there = rollout.trace.per_row["latents"][:, 1 : 1 + rollout.mask.shape[1]]
    normal = torch.distributions.Normal(new.mean, new.std)
    torch.testing.assert_close(new.logprobs, normal.log_prob(there).sum(-1) / rollout.action_dims)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_draws_follow_the_stated_gaussians(sampler: str) -> None:
    policy = ToyFlow(sampler=sampler, steps=4)
    rollout = draw(policy, 4, 250)
    new = policy.logprobs(rollout, whole(rollout))
    z = (rollout.trace.per_row["latents"][:, 1 : 1 + rollout.mask.shape[1]] - new.mean) / new.std  # [B, T, 2]
    assert z.mean((0, 2)).abs().max() < 0.1
    assert (z.std((0, 2)) - 1).abs().max() < 0.1
    assert z.flatten(1).T.corrcoef().fill_diagonal_(0).abs().max() < 0.15  # fresh noise in every step and dimension


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_slices_partition_time_and_agree_with_the_whole(sampler: str) -> None:
    policy = ToyFlow(sampler=sampler)
    rollout = draw(policy)
    slices = policy.slices(rollout)
    assert [i for s in slices for i in range(s.start, s.stop)] == list(range(rollout.mask.shape[1]))
    assert all(s.stop - s.start == 1 for s in slices)
    every = policy.logprobs(rollout, whole(rollout))
    for steps in [*slices, slice(2, 5), slice(3, None)]:
        part, expected = policy.logprobs(rollout, steps), every.select(decisions=steps)
        torch.testing.assert_close(part.logprobs, expected.logprobs, atol=1e-5, rtol=0)
        torch.testing.assert_close(part.mean, expected.mean, atol=1e-6, rtol=0)
        torch.testing.assert_close(part.std, expected.std)


def test_the_output_is_the_end_of_the_stored_path() -> None:
    for policy in (ToyFlow(), ToyFlow(sampler="cps")):
        for rollout in (draw(policy), draw(policy, evaluate=True)):
            ends = rollout.trace.per_row["latents"][:, -1].tolist()
            assert [s.output for s in rollout.samples] == [tuple(end) for end in ends]


def test_a_point_that_is_nowhere_has_no_score() -> None:
    policy = ToyFlow()
    policy.net.layers[0].weight.data[:] = math.inf
    found = evaluate(policy, {"ring": on_ring}, ring_prompts("eval", limit=2), samples_per_prompt=3)
    assert [sample.output for sample in found.samples] == [None] * 6
    assert found.scores.matrix.isnan().all()


def test_the_last_step_of_cps_gives_the_clean_estimate() -> None:
    policy = ToyFlow(sampler="cps", steps=5)
    rollout = draw(policy)
    before, after = rollout.trace.per_row["latents"][:, -2], rollout.trace.per_row["latents"][:, -1]
    radius = rollout.trace.per_group["radius"][rollout.group_index]
    with torch.no_grad():
        v = policy.net(before, torch.full((12,), 0.2), radius)
    torch.testing.assert_close(after, before - 0.2 * v, atol=1e-5, rtol=0)


def test_copies_are_of_the_finished_points() -> None:
    """Every score by its formula; the points are the ODE's, and a group shares levels but no start."""
    policy = ToyFlow(matching={"times": 3, "weight": "t"}, shared_noise=True)
    rollout = draw(policy)
    trace, new = rollout.trace.per_row, policy.logprobs(rollout, whole(rollout))
    x0, noise, t = trace["latents"][:, -1:], trace["noise"], trace["levels"]
    assert (rollout.mask.shape, t.shape) == ((12, 3), (12, 3))
    assert torch.equal((3 * t).ceil(), torch.tensor([3.0, 2.0, 1.0]).expand(12, 3))
    assert [len(part.unique(dim=0)) for part in (t, trace["latents"][:, 0])] == [3, 12]
    radius = rollout.trace.per_group["radius"][rollout.group_index][:, None].expand(12, 3)
    with torch.no_grad():
        v = policy.net((1 - t[..., None]) * x0 + t[..., None] * noise, t, radius)
    expected = -t * (v - (noise - x0)).square().mean(-1)
    torch.testing.assert_close(rollout.old.logprobs, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(new.logprobs, expected, atol=1e-6, rtol=0)
    evaluated = draw(ToyFlow(eval_steps=10), evaluate=True).trace.per_row["latents"]
    torch.testing.assert_close(trace["latents"], evaluated)


@pytest.mark.slow
@pytest.mark.parametrize("objective", [objectives.GRPO(clip_range=0.1, **HELD), NFT(beta=0.1, **HELD)])
def test_it_learns_from_copies(objective: objectives.Objective) -> None:
    trainer = Trainer(
        ToyFlow(matching={"times": 10, "weight": "t"}), {"ring": on_ring}, ring_prompts(), steps=40,
        prompts_per_step=16, group_size=32, micro_batch_size=512, minibatches=4, learning_rate=3e-3, warmup_steps=10,
        device="cpu", objective=objective,
    )  # fmt: skip
    reports = list(trainer)
    assert sum(report.metrics["reward"] for report in reports[-5:]) / 5 > 0.35  # 0.2 at the start
    assert max(report.metrics["logprob_diff/max"] for report in reports) < 1e-4


def test_rows_are_independent_and_batches_change_nothing() -> None:
    policy = ToyFlow()
    rollout = draw(policy)
    new = policy.logprobs(rollout, whole(rollout)).logprobs
    rows = torch.tensor([9, 2])
    alone = policy.logprobs(rollout.select(rows), whole(rollout)).logprobs
    torch.testing.assert_close(alone, new[rows], atol=1e-5, rtol=0)
    both = seeds()
    second = Seeds(row=both.row[4:8], group=both.group[1:2], group_ids=both.group_ids[1:2])
    apart = policy.rollout(ring_prompts()[1:2], 4, seeds=second)
    latents = rollout.trace.per_row["latents"]
    torch.testing.assert_close(apart.trace.per_row["latents"], latents[4:8], atol=1e-5, rtol=0)


def test_groups_out_of_order_keep_their_prompts() -> None:
    policy = ToyFlow()
    backwards = Seeds(row=seeds().row, group=seeds().group, group_ids=torch.tensor([7, 5, 3]))
    rollout = policy.rollout(ring_prompts(limit=3), 4, seeds=backwards)
    assert (policy.logprobs(rollout, whole(rollout)).logprobs - rollout.old.logprobs).abs().max() < 1e-4


def test_draws_depend_on_the_seeds_alone() -> None:
    policy = ToyFlow()
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    first, second = draw(policy), draw(policy)
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(first.trace.per_row["latents"], second.trace.per_row["latents"])
    other = policy.rollout(ring_prompts(limit=3), 4, seeds=seeds(seed=2))
    assert not torch.isclose(first.trace.per_row["latents"], other.trace.per_row["latents"]).any()


def test_evaluation_follows_the_ode_and_decides_nothing() -> None:
    found = [
        draw(ToyFlow(sampler=sampler, noise=noise, steps=steps, eval_steps=7, shared_noise=shared), evaluate=True)
        for sampler, noise, steps, shared in (("flow-sde", 0.7, 10, False), ("cps", 0.3, 4, True))
    ]
    first = found[0].trace.per_row["latents"]
    assert first.shape == (12, 8, 2)
    assert torch.equal(first, found[1].trace.per_row["latents"])  # no sampler's noise in it
    assert found[0].mask.shape == (12, 0)
    assert ToyFlow().slices(found[0]) == []
    assert ToyFlow().logprobs(found[0], slice(0, 0)).logprobs.shape == (12, 0)
    with torch.no_grad():
        radius = found[0].trace.per_group["radius"][found[0].group_index]
        v = ToyFlow().net(first[:, 0], torch.ones(12), radius)
    torch.testing.assert_close(first[:, 1], first[:, 0] - v / 7, atol=1e-6, rtol=0)


def test_a_group_can_share_its_start() -> None:
    latents = draw(ToyFlow(shared_noise=True)).trace.per_row["latents"].unflatten(0, (3, 4))
    assert bool((latents[:, :, 0] == latents[:, :1, 0]).all())
    assert len(latents[:, 0, 0].unique(dim=0)) == 3
    assert len(latents[:, :, 1].flatten(0, 1).unique(dim=0)) == 12
    own = draw(ToyFlow()).trace.per_row["latents"]
    assert len(own[:, 0].unique(dim=0)) == 12


def test_latents_are_scored_in_the_dtype_that_they_are_stored_in() -> None:
    for dtype, stored in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
        policy = ToyFlow()
        policy.net.to(dtype)
        rollout = draw(policy)
        assert rollout.trace.per_row["latents"].dtype == rollout.old.logprobs.dtype == stored
        new = policy.logprobs(rollout, whole(rollout))
        assert new.mean.dtype == stored
        assert (new.logprobs - rollout.old.logprobs).abs().max() < (1e-12 if dtype == torch.float64 else 1e-4)


def test_under_autocast_the_step_stays_in_fp32() -> None:
    policy = ToyFlow()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rollout = draw(policy)
        new = policy.logprobs(rollout, whole(rollout))
    assert new.logprobs.dtype == new.mean.dtype == torch.float32
    assert (new.logprobs - rollout.old.logprobs).abs().max() < 1e-2


def shift(policy: ToyFlow, by: float = 0.05) -> None:
    with torch.no_grad():
        policy.net.layers[-1].bias += by


def test_the_reference_is_frozen_and_restored() -> None:
    policy = ToyFlow()
    rollout = draw(policy)
    before = policy.logprobs(rollout, whole(rollout)).logprobs
    with policy.reference():
        pass
    net = policy.net
    shift(policy)
    with policy.reference():
        inside = policy.logprobs(rollout, whole(rollout))
    assert not inside.logprobs.requires_grad
    assert policy.net is net
    assert torch.equal(inside.logprobs, before)
    assert not torch.isclose(policy.logprobs(rollout, whole(rollout)).logprobs, before).any()


def test_the_exact_kl_by_hand() -> None:
    """A shift of v by c moves every mean by v_coef * c, so the KL per dimension is (v_coef c)^2 / (2 std^2)."""
    policy = ToyFlow(steps=4)
    rollout = draw(policy)
    with policy.reference():
        reference = policy.logprobs(rollout, whole(rollout))
    new = policy.logprobs(rollout, whole(rollout))
    assert kl_divergence(new, reference, rollout.mask, "gaussian").abs().max() < 1e-6
    shift(policy, 0.05)
    kl = kl_divergence(policy.logprobs(rollout, whole(rollout)), reference, rollout.mask, "gaussian")
    expected = (policy.decided.v_coef * 0.05 / policy.decided.std).square() / 2
    torch.testing.assert_close(kl, expected[:, 0].float().expand_as(kl), atol=1e-6, rtol=1e-3)


def test_save_and_load(tmp_path: Path) -> None:
    policy = ToyFlow()
    shift(policy)
    save_file(policy.state_dict(), tmp_path / "policy.safetensors")
    for other in (ToyFlow(weights=tmp_path / "policy.safetensors"), ToyFlow()):
        other.load_state_dict(policy.state_dict())
        assert draw(other).samples == draw(policy).samples
    resumed = ToyFlow()
    start = copy.deepcopy(resumed.net.state_dict())
    resumed.load_state_dict(policy.state_dict())
    with resumed.reference():
        assert all(torch.equal(x, start[name]) for name, x in resumed.net.state_dict().items())


def test_an_average_that_is_not_wanted_is_left_out() -> None:
    matching = {"times": 2}
    state = ToyFlow(matching=matching, old_ema={"decay": 0.5}).state_dict()
    policy = ToyFlow(matching=matching)
    policy.load_state_dict(state)
    assert all(torch.equal(state[name], own) for name, own in policy.state_dict().items())


def test_bad_weights_are_named(tmp_path: Path) -> None:
    file = tmp_path / "policy.safetensors"
    with pytest.raises(UsageError, match="No weights at"):
        ToyFlow(weights=file)
    file.write_bytes(b"torn")
    with pytest.raises(UsageError, match="not a readable safetensors file"):
        ToyFlow(weights=file)
    with pytest.raises(CheckpointError, match=r"^does not fit this policy"):
        ToyFlow().load_state_dict(create("policy", "toy-lm").state_dict())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise": 0}, "needs a noise above 0"),
        ({"sampler": "flowsde"}, "The sampler must be 'flow-sde'"),
        ({"sampler": "cps", "noise": 1.5}, "at most 1, got 1.5"),
        ({"noise": -1}, "at least 0, got -1"),
        ({"steps": 0}, "at least 1 step, got 0"),
        ({"eval_steps": 0}, "at least 1 step, got 0"),
        ({"sampler": "cps", "steps": 1}, "no step with noise"),
        ({"matching": {"times": 2}, "noise": 0.7}, "Set noise: null, or leave out matching"),
        ({"matching": {"wieght": "t"}}, "matching has no key 'wieght'"),
    ],
)
def test_bad_settings(settings: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ToyFlow(**settings)


def test_prompts_name_radii_and_splits_share_none() -> None:
    train, held_out = ({prompt_radius(p) for p in ring_prompts(split)} for split in ("train", "eval"))
    assert (len(train), len(held_out), train & held_out) == (45, 16, set())
    assert min(train | held_out) == 0.7
    assert max(train | held_out) == 1.3
    assert prompt_radius(Prompt(text="please, a ring of radius 2")) == 2.0
    with pytest.raises(UsageError, match="splits train, eval; got 'test'"):
        ring_prompts("test")
    for text in ("", "a ring", "a ring of radius 0.0"):
        with pytest.raises(UsageError, match="name a radius above 0"):
            ToyFlow().rollout([Prompt(text=text)], 2, seeds=seeds(1, 2))


def point(*output: float, group: int = 0) -> Sample:
    return Sample(prompt=Prompt(text="a ring of radius 1.0"), output=output, group=group)


def test_rewards_by_hand() -> None:
    points = [point(1.0, 0.0), point(0.0, -1.14), point(0.6, 0.61), point(0.5, 0.5), point(0.0, 0.0)]
    assert on_ring(points) == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert on_ring(points, width=0.142) == [1.0, 1.0, 0.0, 0.0, 0.0]
    with pytest.raises(UsageError, match="points \\(x, y\\); got str 'text'"):
        on_ring([Sample(prompt=Prompt(text="a ring of radius 1.0"), output="text", group=0)])


def test_the_picture() -> None:
    picture = draw_points([(1.0, 1.0)], 1.0, size=80)
    assert picture.size == (80, 80)
    assert picture.getpixel((60, 20)) == (0, 0, 128)  # y points up
    assert picture.getpixel((60, 60)) == (255, 255, 255)


def gradient(policy: ToyFlow, prompts: int, micro: int) -> dict[str, torch.Tensor]:
    """The gradient of a trainer's first update, before any clipping."""
    found: dict[str, torch.Tensor] = {}
    trainer = Trainer(
        policy,
        {"near": lambda samples: [-math.hypot(*s.output) for s in samples]},
        ring_prompts(limit=prompts),
        prompts_per_step=prompts,
        group_size=4,
        micro_batch_size=micro,
        max_grad_norm=None,
        objective=objectives.GRPO(kl="gaussian", kl_coef=0.1),
        device="cpu",
    )
    shift(policy)  # off the reference, so that the KL has a gradient
    for name, p in policy.net.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, name=name: found.update({name: p.grad.clone()}))
    trainer.step()
    return found


class OneSlice(ToyFlow):
    def slices(self, rollout: Rollout) -> list[slice]:
        return [whole(rollout)]


@pytest.mark.parametrize("sampler", ["flow-sde", "cps"])
def test_step_slices_and_micro_batches_add_up(sampler: str) -> None:
    policies = [ToyFlow(sampler=sampler), OneSlice(sampler=sampler)]
    for policy in policies:
        policy.net.double()
    sliced, at_once = gradient(policies[0], 3, 3), gradient(policies[1], 3, 64)
    assert max(float(g.abs().max()) for g in at_once.values()) > 1e-3
    for name, g in at_once.items():
        assert (sliced[name] - g).abs().max() < 1e-10


def test_the_start_is_a_blob_that_does_not_listen() -> None:
    found = evaluate(ToyFlow(), {"ring": on_ring}, ring_prompts("eval"), samples_per_prompt=64)
    assert 0.17 < found.summary.means["ring"] < 0.27
    points = torch.tensor([s.output for s in found.samples])
    assert points.mean(0).abs().max() < 0.1
    assert (points.std(0) - 0.7).abs().max() < 0.1


def test_the_preset_reads_and_builds() -> None:
    config, _ = presets.read_config("toy-flow")
    assert isinstance(build.policy(config), ToyFlow)
    assert [term.name for term in build_rewards.rewards(config)] == ["ring"]


@pytest.mark.slow
def test_it_learns_the_ring(tmp_path: Path) -> None:
    """The run of the preset, cut short."""
    config, _ = presets.read_config("toy-flow", ["trainer.steps=70"])
    policy, rewards = build.policy(config), build_rewards.rewards(config)
    before = evaluate(policy, rewards, ring_prompts("eval"), samples_per_prompt=32, batch_size=512)
    trainer = build.trainer(config, {"": policy}, rewards, ring_prompts())
    reports = list(trainer)
    after = evaluate(policy, rewards, ring_prompts("eval"), samples_per_prompt=32, batch_size=512)
    assert after.summary.means["ring"] > before.summary.means["ring"] + 0.3
    assert max(r.metrics["logprob_diff/max"] for r in reports) < 1e-4
    assert reports[-1].metrics["kl"] > 0.01
