"""diffusers-flow on a quantised base: the contract, which parts are rounded, and the adapter on the full base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_edits import EVERY, prompts_of

from grpokit import Rollout, UsageError
from grpokit.sampling import derive_seeds
from grpokit_check import outcomes, policy_checks
from grpokit_diffusers.policy import DiffusersFlow
from grpokit_diffusers.tiny import tiny_pipeline
from grpokit_hf.models.quantized import quantise

PROMPTS = prompts_of("tiny-sd3")
BITS = ("4bit", pytest.param("8bit", marks=pytest.mark.slow))
OF_WEIGHTS = {"ratio-is-one", "batch-size", "slices", "gaussian", "gradient", "reference", "save-load"}


def build(model: Any = "tiny-sd3", quantization: Any = None, **options: Any) -> DiffusersFlow:
    if quantization is not None:
        pytest.importorskip("bitsandbytes")
    defaults: dict[str, Any] = {"size": (32, 64), "steps": 4, "eval_steps": 3, "lora": {"r": 4}}
    return DiffusersFlow(model, quantization=quantization, **defaults | options)


def drawn(policy: DiffusersFlow, model: str = "tiny-sd3") -> Rollout:
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(PROMPTS), group_size=2)
    return policy.rollout(prompts_of(model), 2, seeds=seeds)


def trained(quantization: str) -> DiffusersFlow:
    """A policy whose adapter has learnt something."""
    policy = build(quantization=quantization)
    torch.manual_seed(3)
    for name, p in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.1)
    return policy


@pytest.mark.slow
@pytest.mark.parametrize("quantization", BITS)
def test_contract(quantization: str) -> None:
    checks = policy_checks(
        lambda: build(quantization=quantization, guidance=2.0, window={"width": 2}, ema={"decay": 0.9}),
        PROMPTS,
        group_size=2,
        makes="image",
        module="grpokit_diffusers.plugin",
    )
    found = list(outcomes(check for check in checks if check.name in OF_WEIGHTS))
    assert len(found) == len(OF_WEIGHTS)
    assert not [outcome for outcome in found if outcome.state == "failed"]


@pytest.mark.parametrize("quantization", BITS)
@pytest.mark.parametrize("model", EVERY)
def test_ratios_are_one_in_every_family(model: str, quantization: str) -> None:
    """Log-probs right after a rollout are the rollout's, also those of a row alone."""
    policy = build(model, quantization)
    assert any(not p.is_floating_point() for p in policy.model.parameters())
    rollout = drawn(policy, model)
    again = policy.logprobs(rollout, slice(0, 4)).logprobs.detach()
    assert float((again - rollout.old.logprobs).abs().max()) < 1e-5
    one = policy.logprobs(rollout.select(torch.tensor([3])), slice(0, 4)).logprobs.detach()
    assert float((one - again[3:]).abs().max()) < 1e-5


def test_the_transformer_and_text_encoders_are_rounded_and_no_autoencoder() -> None:
    policy = build(quantization="4bit")
    for name, part in policy.pipeline.components.items():
        if isinstance(part, torch.nn.Module):
            assert any(p.dtype == torch.uint8 for p in part.parameters()) == (name != "vae"), name


@pytest.mark.parametrize(("quantization", "away"), [("4bit", (0.01, 0.3)), ("8bit", (1e-3, 0.03))])
def test_an_adapter_works_on_the_full_base(quantization: str, away: tuple[float, float], tmp_path: Path) -> None:
    """`away`: of its velocities from those that it was trained on, as a share. It does more than the rounding."""
    policy = trained(quantization)
    card = policy.export(tmp_path)["usage"]
    assert f"# The adapter was trained on a base of {quantization[0]} bits. " in card
    rollout = drawn(policy)
    stock = tiny_pipeline("tiny-sd3")
    stock.load_lora_weights(tmp_path)
    velocities = {}
    for name, each in (("trained", policy), ("full", build()), ("base", build(quantization=quantization))):
        if name == "full":
            each.family.transformer = stock.transformer
        x, condition = rollout.trace.per_row["latents"][:2, 0], each.family.condition(PROMPTS[0], (32, 64), {})
        with torch.no_grad():
            velocities[name] = each.family.velocity(x, torch.tensor(500.0), condition, guidance=1.0)
    norm = velocities["trained"].norm()
    off, learnt = (float((velocities[name] - velocities["trained"]).norm() / norm) for name in ("full", "base"))
    assert away[0] < off < away[1]
    assert learnt > off


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"quantization '4bit' is for frozen weights: .* Add an adapter with lora"):
        build(quantization="4bit", lora=None)
    with pytest.raises(UsageError, match="quantization is for models that are loaded by name; a pipeline object is"):
        build(tiny_pipeline("tiny-sd3"), "8bit")
    policy = build(quantization="8bit")
    with pytest.raises(UsageError, match=r"cannot be merged into a quantised base\. Leave out --merge"):
        policy.export(tmp_path, merge=True)
    given = tiny_pipeline("tiny-sd3")
    quantise(given.transformer.requires_grad_(False), "8bit", device="cpu")
    with pytest.raises(UsageError, match=r"has quantised weights \(such as 'transformer_blocks"):
        build(given, lora=None)
    assert drawn(build(given)).rows == 4
