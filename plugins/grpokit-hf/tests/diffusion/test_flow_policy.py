"""FlowPolicy on a small network: the contract, windows, the shared path, and exact numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_family import TinyFamily
from torch import Tensor

from grpokit import Ask, Prompt, Rollout, Trainer, UsageError
from grpokit.builtin.image_rewards import brightness
from grpokit.builtin.more_objectives import NFT
from grpokit.objectives import GRPO, Loss, Objective
from grpokit.sampling import derive_seeds, normals
from grpokit.settings import Precision
from grpokit_check import outcomes, policy_checks
from grpokit_hf.diffusion.flow_policy import FlowPolicy
from grpokit_hf.diffusion.settings import FlowSettings

PROMPTS = [Prompt(text=text) for text in ("0.5", "-1", "2")]


def build(**options: Any) -> FlowPolicy:
    return FlowPolicy(TinyFamily(), FlowSettings(**{"size": (32, 32), "steps": 6, "eval_steps": 4} | options))


def drawn(policy: FlowPolicy, *, group: int = 4, step: int = 0, evaluate: bool = False) -> Rollout:
    seeds = derive_seeds(1, stream="train", step=step, prompts=len(PROMPTS), group_size=group)
    return policy.rollout(PROMPTS, group, seeds=seeds, evaluate=evaluate)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"lora": {"r": 2}, "window": {"width": 2}, "guidance": 2.0, "ema": {"decay": 0.5}, "rows": 3},
        {"sampler": "cps", "shared_noise": False, "window": {"width": 3, "start": "sliding", "every": 1}},
        {"sampler": "ode", "matching": {"times": 3, "weight": "t"}, "lora": {"r": 2}, "guidance": 2.0, "rows": 3},
    ],
    ids=str,
)
def test_contract(options: dict[str, Any]) -> None:
    checks = policy_checks(lambda: build(**options), PROMPTS, makes="image")
    failures = [outcome for outcome in outcomes(checks) if outcome.state == "failed"]
    assert not failures, failures


class Counted(TinyFamily):
    """Notes how many rows each pass of the transformer has."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[int] = []

    def velocity(self, latents: Tensor, time: Tensor, condition: Tensor, *, guidance: float) -> Tensor:
        self.passes.append(len(latents))
        return super().velocity(latents, time, condition, guidance=guidance)


def test_what_comes_before_the_window_is_computed_once_for_a_group() -> None:
    """A window that has slid by two steps: two passes of one row, then the window's and the rest's with all rows."""
    family = Counted()
    window = {"width": 2, "start": "sliding", "every": 1}
    policy = FlowPolicy(family, FlowSettings(size=(32, 32), steps=6, eval_steps=4, window=window))
    rollout = drawn(policy, step=2)
    assert family.passes == [1, 1, 4, 4, 4, 4] * len(PROMPTS)
    latents = rollout.trace.per_row["latents"]
    assert latents.shape == (12, 3, 2, 4, 4)  # the window's starts and its end
    assert torch.equal(latents[0, 0], latents[3, 0])
    assert not torch.equal(latents[0, 1], latents[3, 1])
    family.passes.clear()
    policy.logprobs(rollout, slice(0, 1))
    assert family.passes == [4] * len(PROMPTS)


def test_evaluation_follows_the_ode() -> None:
    """Euler's steps, written out."""
    policy, family = build(guidance=1.5), TinyFamily()
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(PROMPTS), group_size=4)
    rollout = drawn(policy, evaluate=True)
    assert rollout.old.logprobs.shape == (12, 0)
    start = normals(seeds.row, 32, start=2**40).float().unflatten(1, (2, 4, 4))
    for row in (0, 5, 11):
        x, condition = start[row : row + 1], torch.tensor(float(PROMPTS[row // 4].text))
        for k in range(4):
            with torch.no_grad():
                x = x - 0.25 * family.velocity(x, torch.tensor(1 - k / 4), condition, guidance=1.5)
        drawn_again = rollout.samples[row].output
        assert drawn_again.tobytes() == family.pictures(x, (32, 32))[0].tobytes()


def test_the_steps_of_a_window_have_their_own_weights() -> None:
    """A window at the third step: 2.25 times the std of Flow-SDE at t = 4/6 and 3/6."""
    rollout = drawn(build(step_weight="tempflow", window={"width": 2, "start": "sliding", "every": 1}), step=2)
    stds = [0.7 * (t / (1 - t) / 6) ** 0.5 for t in (4 / 6, 3 / 6)]
    assert rollout.weights is not None
    assert rollout.weights.tolist() == [pytest.approx([2.25 * std for std in stds])] * 12
    assert drawn(build(window={"width": 2})).weights is None


def test_every_row_has_the_weights_of_its_own_window() -> None:
    policy = build(step_weight="tempflow", window={"width": 2, "start": "random", "share": 1.0})
    rollout = drawn(policy, group=2, step=1)
    windows = rollout.trace.per_group["steps"]
    assert windows.tolist() == [[3, 4], [4, 5], [1, 2]]
    rows = [policy._weights[windows[row // 2]].tolist() for row in range(6)]  # [K] -> [T]
    assert rollout.weights.tolist() == [pytest.approx(row) for row in rows]


def test_a_weight_multiplies_the_gradient_of_the_policy_loss() -> None:
    """Six even steps: guard's weights are all 6; micro-batches and calls of the rollout change nothing."""
    norms = []
    for step_weight, options in (
        ("none", {}),
        ("guard", {}),
        ("guard", {"micro_batch_size": 3, "rollout_batch_size": 4}),
    ):
        trainer = Trainer(
            build(step_weight=step_weight),
            [brightness],
            PROMPTS,
            prompts_per_step=2,
            group_size=4,
            device="cpu",
            **options,
        )
        norms.append(trainer.step().metrics["grad_norm"])
    assert norms[1:] == [pytest.approx(6 * norms[0], rel=1e-5)] * 2


def test_the_gaussian_is_that_of_the_sampler() -> None:
    """Mean and std of the second step by the formula of Flow-SDE, at t = 5/6 with D = 1/6."""
    policy, family = build(noise=0.9), TinyFamily()
    rollout = drawn(policy)
    view = policy.logprobs(rollout, slice(1, 2), ask=Ask(moments=True))
    t, d = 5 / 6, 1 / 6
    g = 0.9 * (t / (1 - t)) ** 0.5
    x = rollout.trace.per_row["latents"][:4, 1]
    v = family.velocity(x, torch.tensor(t), torch.tensor(0.5), guidance=1.0)
    mean = x * (1 - g**2 * d / (2 * t)) - v * (1 + g**2 * (1 - t) / (2 * t)) * d
    assert view.mean is not None
    assert view.std is not None
    torch.testing.assert_close(view.mean[:4, 0], mean, atol=1e-6, rtol=0)
    assert float(view.std[0]) == pytest.approx(g * d**0.5, abs=1e-6)


def test_a_copy_is_scored_by_its_velocity() -> None:
    """The first group's second copy, written out: its latent, level, noise and score."""
    policy, family = build(matching={"times": 3, "weight": "t^2"}, guidance=1.5), TinyFamily()
    rollout = drawn(policy)
    x0, seeds = rollout.trace.per_row["latents"][:4, 0], rollout.trace.per_row["seeds"][:4]
    steps = rollout.trace.per_group["steps"][0].tolist()
    assert [step // 333 for step in steps] == [0, 1, 2]  # of a thousand, one in each third
    t = torch.tensor(1 - steps[1] / 1000)
    noise = normals(seeds, 32, start=2**40 + 2 * 32).float().unflatten(1, (2, 4, 4))
    with torch.no_grad():
        v = family.velocity((1 - t) * x0 + t * noise, t, torch.tensor(0.5), guidance=1.5)
    score = -(t**2) * (v - (noise - x0)).square().flatten(1).mean(1)
    torch.testing.assert_close(rollout.old.logprobs[:4, 1], score)
    assert rollout.old.target is None  # which would be the latents once more
    view = policy.logprobs(rollout, slice(1, 2), ask=Ask(moments=True))
    assert view.mean is not None
    torch.testing.assert_close(view.logprobs[:4, 0], score)
    torch.testing.assert_close(view.mean[:4, 0], (1 - t) * x0 + t * noise - t * v, atol=1e-5, rtol=0)
    assert family.pictures(x0, (32, 32))[0].tobytes() == rollout.samples[0].output.tobytes()
    assert len({picture.output.tobytes() for picture in rollout.samples[:4]}) == 4  # shared_noise is for steps


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "precision"),
    [
        (GRPO(clip_range=1e-5, kl="velocity", kl_coef=0.1), "bf16"),
        (GRPO(clip_range=1e-5, kl="velocity", kl_coef=0.1), "no"),
        (NFT(kl="velocity", kl_coef=0.1), "bf16"),
        (NFT(kl="velocity", kl_coef=0.1), "no"),
    ],
)
def test_training_on_copies(objective: Objective, precision: Precision) -> None:
    """The ratio starts at exactly 1 where old scores are those of the pass; the reward rises."""
    policy = build(matching={"times": 3, "weight": "t"})
    trainer = Trainer(
        policy, [brightness], PROMPTS, objective=objective, steps=30, prompts_per_step=3, group_size=8,
        micro_batch_size=12, updates_per_rollout=2, learning_rate=1e-2, mixed_precision=precision, device="cpu",
    )  # fmt: skip
    reports = list(trainer)
    assert (
        sum(report.metrics["reward"] for report in reports[-5:])
        > sum(report.metrics["reward"] for report in reports[:5]) + 0.25
    )
    assert all(report.metrics["logprob_diff/max"] < (1e-5 if precision == "no" else 0.1) for report in reports)


def test_nft_on_steps() -> None:
    with pytest.raises(UsageError, match=r"decisions are tokens or denoising steps\. Give a flow policy matching"):
        Trainer(build(), [brightness], PROMPTS, objective=NFT(), steps=1, group_size=4, device="cpu").step()


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_training_with_a_guarded_ratio_and_a_penalty_on_velocities(precision: Precision) -> None:
    """In the first update the ratio is 1 and the penalty 0, also where the old means come from a pass of their own."""
    policy, found = build(window={"width": 2}), []

    class Noted(GRPO):
        def __call__(self, *args: Any, **options: Any) -> Loss:
            found.append(super().__call__(*args, **options))
            return found[-1]

    trainer = Trainer(
        policy, [brightness], PROMPTS, objective=Noted(ratio="guard", kl="velocity", kl_coef=1e-3), steps=1,
        prompts_per_step=3, group_size=4, micro_batch_size=12, updates_per_rollout=2, learning_rate=1e-3,
        mixed_precision=precision, device="cpu",
    )  # fmt: skip
    trainer.step()
    first, second = found[:6], found[6:]  # of three groups and two steps each
    for loss in first:
        torch.testing.assert_close(loss.stats["ratio"], torch.ones(4, 1), atol=1e-7, rtol=0)
        assert loss.stats["kl"].abs().max() < 1e-9
    assert len(second) == 6
    for loss in second:
        assert (loss.stats["ratio"] - 1).abs().max() > 1e-5
        assert loss.stats["kl"].min() > 1e-9


def test_evaluations_draw_with_the_average() -> None:
    """With decay 0 that is the live policy; with a decay near 1 it is still the start. A saved one is there again."""
    before = [sample.output for sample in drawn(build(), evaluate=True).samples]
    pictures = {}
    for decay in (0.0, 0.5, 0.9999999):
        policy = build(ema={"decay": decay})
        with torch.no_grad():
            for p in policy.model.parameters():
                p.add_(0.5)
        policy.updated(1)
        pictures[decay] = [sample.output.tobytes() for sample in drawn(policy, evaluate=True).samples]
        again = build(ema={"decay": decay})
        again.load_state_dict(policy.state_dict())
        assert pictures[decay] == [sample.output.tobytes() for sample in drawn(again, evaluate=True).samples]
    assert len(set(map(tuple, pictures.values()))) == 3
    live = build()
    with torch.no_grad():
        for p in live.model.parameters():
            p.add_(0.5)
    assert pictures[0.0] == [sample.output.tobytes() for sample in drawn(live, evaluate=True).samples]
    assert pictures[0.9999999] == [picture.tobytes() for picture in before]


@pytest.mark.parametrize("options", [{}, {"lora": {"r": 2}}], ids=str)
def test_a_reference_that_moves_to_the_policy(options: dict[str, Any]) -> None:
    """Every two updates it is where the policy is, and stays there; a saved one is there again."""
    policy = build(reference_ema={"decay": 0, "every": 2}, **options)
    rollout = drawn(policy)
    whole = slice(0, rollout.max_decisions)

    def scored(by: Any) -> torch.Tensor:
        with torch.no_grad(), by.reference():
            return by.logprobs(rollout, whole).logprobs

    live = [scored(policy)]
    assert policy.reference_moves
    for version in (1, 2, 3):
        with torch.no_grad():
            for p in policy.model.parameters():
                if p.requires_grad:
                    p.add_(0.1)
            live.append(policy.logprobs(rollout, whole).logprobs)
        policy.updated(version)
        torch.testing.assert_close(scored(policy), live[2 * (version // 2)])
    assert (live[2] - live[0]).abs().max() > 1e-2
    again = build(reference_ema={"decay": 0, "every": 2}, **options)
    with again.reference():
        pass
    again.load_state_dict(policy.state_dict())
    torch.testing.assert_close(scored(again), live[2])


def test_the_scale_of_an_adapter_is_alpha_by_the_rank() -> None:
    policy = build(lora={"r": 2, "alpha": 6})
    assert policy.model.get_submodule("base_model.model.to_q").scaling == {"default": 3.0}


@pytest.mark.parametrize("options", [{}, {"lora": {"r": 2}}], ids=str)
def test_a_transformer_with_an_adapter_is_refused(options: dict[str, Any]) -> None:
    """It would train along, or hide the layers that are to be adapted."""
    family = TinyFamily()
    FlowPolicy(family, FlowSettings(size=(32, 32), lora={"r": 2}))
    with pytest.raises(UsageError, match="Painter has an adapter in it, maybe of an earlier policy"):
        FlowPolicy(family, FlowSettings(size=(32, 32), **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": {"width": 7}}, "width is 7, and only 6 steps of the schedule can be decisions"),
        ({"window": {"width": 6}, "sampler": "cps"}, "only 5 steps"),
        ({"window": {"wide": 2}}, "window has no key 'wide'"),
        ({"window": {}}, r"window needs the key 'width', as in \{width: 2\}"),
        ({"matching": {}, "window": {"width": 2}, "noise": 0.7}, "Set window: null and noise: null, or leave out"),
        ({"matching": {}, "step_weight": "guard"}, "Set step_weight: none, or leave out matching"),
        ({"matching": {}, "sampler": "cps"}, "drawn by the ODE, and decisions are noised copies.*Set sampler: ode, or"),
        ({"matching": {"weight": "t2"}}, "matching: weight must be 'uniform' or 't' or"),
        ({"matching": {"num_train_timesteps": 2}}, r"did you mean 'times'.*It has: times, weight, share"),
        ({"matching": 4}, "matching must be a mapping, or None, got 4"),
        ({"size": (32, 33)}, "positive multiples of 8"),
        ({"eval_size": 64}, "eval_size must be a list of whole numbers, or None, got 64"),
        ({"noise": 0.0}, "needs a noise above 0"),
        ({"sampler": "cps", "steps": 1}, "has no step with noise"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"guidance": -1.0}, "guidance must be at least 0, or None, got -1"),
        ({"eval_guidance": float("nan")}, "eval_guidance must be a finite number, or None, got nan"),
        ({"rows": -1}, "rows must be at least 1, or None, got -1. rows: the most pictures in one pass"),
        ({"rows": 0}, "got 0"),
        ({"ema": {"decay": 2}}, "ema: decay"),
        ({"lora": {"adapter": "./nowhere"}}, "adapter: './nowhere' does not exist"),
        ({"lora": {"targets": ["to_k"]}}, "no linear layer of Painter is called 'to_k'"),
    ],
    ids=str,
)
def test_settings_that_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(**options)


@pytest.mark.parametrize("options", [{}, {"sampler": "ode"}, {"matching": {"times": 3}}], ids=str)
def test_the_reference_may_have_guidance_of_its_own(options: dict[str, Any]) -> None:
    """It is then the start as if it drew with that guidance, and outside of it nothing has changed."""
    policy = build(lora={"r": 2}, reference_guidance=3.0, **options)
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.constant_(parameter, 0.2)
    rollout = drawn(policy)
    steps = slice(0, rollout.mask.shape[1])
    with torch.no_grad():
        before = policy.logprobs(rollout, steps)
        with policy.reference():
            held = policy.logprobs(rollout, steps)
        after = policy.logprobs(rollout, steps)
        expected = build(guidance=3.0, **options).logprobs(rollout, steps)
        unguided = build(**options).logprobs(rollout, steps)
    torch.testing.assert_close(held.mean, expected.mean, rtol=0, atol=1e-6)
    assert torch.equal(before.mean, after.mean)
    assert torch.equal(drawn(policy).old.mean, rollout.old.mean)
    assert float((held.mean - unguided.mean).abs().max()) > 1e-3
    assert float((before.mean - unguided.mean).abs().max()) > 1e-3


def test_copies_of_a_group_may_share_their_noise() -> None:
    """At each level the copies less their samples' part are the same inside a group, and differ between groups."""
    policy = build(matching={"times": 2, "weight": "uniform", "shared_noise": True})
    rollout = drawn(policy)
    view = policy.logprobs(rollout, slice(0, 2))
    torch.testing.assert_close(view.logprobs.detach(), rollout.old.logprobs, atol=1e-6, rtol=0)
    seeds = rollout.trace.per_row["seeds"]
    assert [len(set(seeds[group * 4 :][:4].tolist())) for group in range(3)] == [1, 1, 1]
    assert len(set(seeds.tolist())) == 3
    starts = rollout.trace.per_row["latents"][:, 0]
    assert len({tuple(start.flatten().tolist()) for start in starts}) == 12


def test_training_samples_come_from_the_average() -> None:
    """At step n its decay is min(0.1 n, 0.5), by hand, whatever `ema` is. A saved one is there again."""
    policy = build(matching={"times": 2}, lora={"r": 2}, old_ema={"decay": 0.5, "ramp": 0.1}, ema={"decay": 0.9})
    live = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}
    expected = {name: p.detach().clone() for name, p in live.items()}
    for step in (1, 2, 9):
        with torch.no_grad():
            for p in live.values():
                p.add_(0.1 * step)
        policy.updated(step)
        decay = min(0.1 * step, 0.5)
        expected = {name: decay * x + (1 - decay) * live[name].detach() for name, x in expected.items()}
    for name, x in expected.items():
        torch.testing.assert_close(policy.state_dict()[f"old/{name}"], x, rtol=0, atol=1e-6)
    alone = build(matching={"times": 2}, lora={"r": 2})
    for name, p in alone.model.named_parameters():
        if p.requires_grad:
            p.data.copy_(policy.state_dict()[f"old/{name}"])
    rollout, other = drawn(policy), drawn(alone)
    assert rollout.averaged
    torch.testing.assert_close(rollout.old.mean, other.old.mean, rtol=1e-5, atol=1e-5)  # the twin's layers may round
    again = build(matching={"times": 2}, lora={"r": 2}, old_ema={"decay": 0.5, "ramp": 0.1}, ema={"decay": 0.9})
    again.load_state_dict(policy.state_dict())
    assert torch.equal(drawn(again).old.mean, rollout.old.mean)
    assert again.state_dict()["old_version"] == 9
