"""Both halves on quantised bases: the contract, the adapter on the full base, the other half's part, and the plans."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from grpokit import Prompt, Rollout, UsageError
from grpokit.sampling import derive_seeds
from grpokit_check import outcomes, policy_checks
from grpokit_glm_image import dit_plan
from grpokit_glm_image import plan as ar_plan
from grpokit_glm_image.dit import GlmImageDiT
from grpokit_glm_image.halves import halves
from grpokit_glm_image.halves import reader as reader_of_both
from grpokit_glm_image.policy import GlmImageAR
from grpokit_glm_image.tiny import tiny_pipeline
from grpokit_glm_image.turns import Half
from grpokit_plan import Job, Needs

pytestmark = pytest.mark.usefixtures("small_draft")
PROMPTS = [Prompt(text=text) for text in ("cat", 'a red "CAT" sign')]
BITS = ("4bit", pytest.param("8bit", marks=pytest.mark.slow))
QUICK = {"steps": 1, "guidance": 1.0}
OPTIONS: dict[Any, dict[str, Any]] = {
    GlmImageAR: {"size": (64, 96), "decode": QUICK, "eval_decode": QUICK, "lora": {"r": 4}},
    GlmImageDiT: {"size": (64, 96), "steps": 3, "eval_steps": 2, "window": {"width": 2}, "lora": {"r": 4}},
}
OF_WEIGHTS = {"ratio-is-one", "logprobs-repeat", "batch-size", "gradient", "reference", "save-load"}
ADAPTERS = {"4bit": {"r": 4, "dora": True}, "8bit": {"r": 4}}


def build(kind: Any, quantization: Any = None, model: Any = "tiny", **options: Any) -> Any:
    if quantization is not None:
        pytest.importorskip("bitsandbytes")
    return kind(model, quantization=quantization, **OPTIONS[kind] | options)


def drawn(policy: Any, group: int = 2) -> Rollout:
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(PROMPTS), group_size=group)
    rollout: Rollout = policy.rollout(PROMPTS, group, seeds=seeds)
    return rollout


def change(policy: Any) -> None:
    """Let the adapter have learnt something."""
    torch.manual_seed(3)
    for name, p in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("quantization", BITS)
@pytest.mark.parametrize("kind", OPTIONS)
def test_contract(kind: Any, quantization: str) -> None:
    checks = policy_checks(
        lambda: build(kind, quantization, lora=ADAPTERS[quantization]),
        PROMPTS,
        group_size=2,
        makes="image",
        module="grpokit_glm_image.plugin",
    )
    found = list(outcomes(check for check in checks if check.name in OF_WEIGHTS))
    assert len(found) >= len(OF_WEIGHTS) - 1
    assert not [outcome for outcome in found if outcome.state == "failed"]


@pytest.mark.parametrize("quantization", BITS)
@pytest.mark.parametrize(("kind", "most"), [(GlmImageAR, 1e-4), (GlmImageDiT, 1e-5)])
def test_ratios_are_one(kind: Any, most: float, quantization: str) -> None:
    """Log-probs right after a rollout, in one batch and of a row alone, with an adapter that has learnt something."""
    policy = build(kind, quantization)
    change(policy)
    rollout = drawn(policy)
    every = slice(0, rollout.mask.shape[1])
    again = policy.logprobs(rollout, every).logprobs.detach()
    assert float((again - rollout.old.logprobs).abs().max()) < most
    one = policy.logprobs(rollout.select(torch.tensor([3])), every).logprobs.detach()
    assert float((one - again[3:]).abs().max()) < most


@pytest.mark.parametrize("quantization", BITS)
def test_both_halves_are_rounded_and_nothing_around_them(quantization: str) -> None:
    policy = build(GlmImageAR, quantization)
    rounded = {torch.uint8, torch.int8}
    for part in (policy.loaded.ar, policy.loaded.pipeline.transformer):
        assert rounded & {p.dtype for p in part.parameters()}
    for part in (policy.loaded.ar.lm_head, policy.loaded.pipeline.vae, policy.loaded.pipeline.text_encoder):
        assert not rounded & {p.dtype for p in part.parameters()}


@pytest.mark.parametrize("quantization", BITS)
def test_a_half_that_has_waited_computes_as_before(quantization: str) -> None:
    policy = build(GlmImageAR, quantization)
    rollout = drawn(policy)
    every = slice(0, rollout.mask.shape[1])
    before = policy.logprobs(rollout, every).logprobs.detach()
    half = Half([policy.loaded.ar], torch.device("cpu"))
    half.leave()
    half.enter()
    assert torch.equal(policy.logprobs(rollout, every).logprobs, before)


@pytest.mark.parametrize(("quantization", "away"), [("4bit", (0.05, 1.0)), ("8bit", (1e-3, 0.1))])
def test_the_exported_adapter_works_on_the_full_base(
    quantization: str, away: tuple[float, float], tmp_path: Path
) -> None:
    """`away`: the distance of its logits from those that it was trained with, as a share."""
    policy = build(GlmImageAR, quantization)
    change(policy)
    card = policy.export(tmp_path)["usage"]
    assert f"# The adapter was trained on a base of {quantization[0]} bits. " in card
    full = PeftModel.from_pretrained(tiny_pipeline().vision_language_encoder.eval(), tmp_path)
    ids = torch.arange(24)[None]
    positions = torch.arange(24).expand(3, 1, 24)
    with torch.no_grad():
        ours, theirs = (m(input_ids=ids, position_ids=positions).logits for m in (policy.model, full))
    assert away[0] < float((ours - theirs).norm() / ours.norm()) < away[1]


def test_a_trained_adapter_goes_on_over_a_quantised_base(tmp_path: Path) -> None:
    for kind in OPTIONS:
        folder = tmp_path / kind.__name__
        folder.mkdir()
        policy = build(kind, "4bit")
        change(policy)
        policy.export(folder)
        again = build(kind, "4bit", lora={"adapter": str(folder)})
        rollout = drawn(policy)
        every = slice(0, rollout.mask.shape[1])
        both = (each.logprobs(rollout, every).logprobs.detach() for each in (policy, again))
        torch.testing.assert_close(*both, rtol=1e-4, atol=1e-4)


def test_both_halves_in_turn_share_a_quantised_model() -> None:
    pytest.importorskip("bitsandbytes")
    own = {name: {"lora": {"r": 4}} for name in ("ar", "dit")}
    policies = halves("tiny", size=(64, 64), quantization="4bit", **own)
    for policy in policies.values():
        rollout = drawn(policy)
        again = policy.logprobs(rollout, slice(0, rollout.mask.shape[1])).logprobs.detach()
        assert float((again - rollout.old.logprobs).abs().max()) < 1e-4


@pytest.mark.parametrize("kind", OPTIONS)
def test_refusals(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"quantization '4bit' is for frozen weights: .* Add an adapter with lora"):
        build(kind, "4bit", lora=None)
    with pytest.raises(UsageError, match="quantization is for models that are loaded by name"):
        build(kind, "4bit", model=tiny_pipeline())
    with pytest.raises(UsageError, match=r"cannot be merged into a quantised base\. Leave out --merge"):
        build(kind, "8bit").export(tmp_path, merge=True)


def test_refusals_of_both_halves() -> None:
    pytest.importorskip("bitsandbytes")
    parameters = {p.name: p.default for p in inspect.signature(halves).parameters.values()} | {"model": "tiny"}
    lora = {"lora": {"r": 4}}
    for own in ({"ar": lora}, {"dit": lora}):
        with pytest.raises(UsageError, match=r"quantization '8bit' is for frozen weights"):
            reader_of_both({**parameters, "quantization": "8bit", **own})
    with pytest.raises(UsageError, match=r"dit: quantization is for both halves\. Set it as policy.quantization"):
        halves("tiny", dit={"quantization": "8bit"})


def planned(kind: Any, module: Any, quantization: str | None, **options: Any) -> Needs:
    defaults = {p.name: p.default for p in inspect.signature(kind).parameters.values()}
    own = {"lora": {"r": 8, "targets": ["q_proj" if kind is GlmImageAR else "to_q"]}, "size": (512, 512)}
    job = Job(prompts=4, group_size=8, micro_batch_size=2, rollout_rows=32)
    needs: Needs = module.plan(
        {**defaults, **own, "local_files_only": True, "quantization": quantization, **options}, job
    )
    return needs


@pytest.mark.parametrize(
    ("quantization", "each"), [(None, 2.0), ("4bit", 0.516), pytest.param("8bit", 1.0, marks=pytest.mark.slow)]
)
def test_the_plan_counts_bytes_of_the_released_model(quantization: str | None, each: float) -> None:
    """8.159 B weights in the layers of one half, 6.795 B in those of the other; the rest stays in bfloat16."""
    writing, painting = 8_158_760_960, 6_795_000_000
    found = {}
    for kind, module in ((GlmImageAR, ar_plan), (GlmImageDiT, dit_plan)):
        needs = planned(kind, module, quantization)
        for part in needs.parts:
            if part.name in ("weights", "decoder", "writing half"):
                found[kind.__name__, part.name] = part.bytes
    ar = 2 * (8_847_155_200 + 67_633_152 - writing) + each * writing
    assert found["GlmImageAR", "weights"] == pytest.approx(ar, rel=0.005)
    assert found["GlmImageDiT", "writing half"] == pytest.approx(ar, rel=0.005)
    dit = 2 * (6_926_882_880 - painting) + each * painting
    assert found["GlmImageDiT", "weights"] == pytest.approx(dit, rel=0.01)
    around = 2 * (406_100_643 + 217_657_472)
    assert found["GlmImageAR", "decoder"] == pytest.approx(dit + around, rel=0.01)


def test_the_plan_refuses_what_the_policy_does_and_names_4_bit_as_a_remedy() -> None:
    for kind, module in ((GlmImageAR, ar_plan), (GlmImageDiT, dit_plan)):
        with pytest.raises(UsageError, match=r"quantization '4bit' is for frozen weights"):
            planned(kind, module, "4bit", lora=None)
        words = {q: [r.words for r in planned(kind, module, q, model="tiny").remedies] for q in (None, "8bit")}
        assert ("policy.quantization=4bit",) in words[None]
        assert ("policy.quantization=4bit",) not in words["8bit"]
