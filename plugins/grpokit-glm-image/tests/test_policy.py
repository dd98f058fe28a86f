"""glm-image-ar: the contract, its numbers against the stock model and pipeline, and what training changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL.Image import Image
from torch import Tensor

from grpokit import Ask, Decisions, Prompt, Rollout, Sample, Trainer, UsageError, objectives
from grpokit.sampling import derive_seeds
from grpokit_check import outcomes, policy_checks
from grpokit_glm_image.policy import GlmImageAR
from grpokit_glm_image.tiny import tiny_pipeline
from teaching import assert_teaches

PROMPTS = [Prompt(text=text) for text in ("cat", 'a red "CAT" sign', "two dogs on a much longer prompt")]
QUICK = {"steps": 1, "guidance": 1.0}
ADAPTER = {"r": 4}


def build(**options: Any) -> GlmImageAR:
    defaults: dict[str, Any] = {"size": (64, 96), "decode": QUICK, "eval_decode": QUICK}
    return GlmImageAR("tiny", **defaults | options)


def drawn(policy: GlmImageAR, group: int = 4, prompts: Sequence[Prompt] = PROMPTS, **options: Any) -> Rollout:
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(prompts), group_size=group)
    return policy.rollout(prompts, group, seeds=seeds, **options)


def scored(policy: GlmImageAR, rollout: Rollout, **ask: Any) -> Decisions:
    return policy.logprobs(rollout, slice(0, rollout.mask.shape[1]), ask=Ask(**ask))


OF_WEIGHTS = {"ratio-is-one", "logprobs-repeat", "gradient", "reference", "save-load", "evaluate", "frequencies"}


@pytest.mark.slow
@pytest.mark.usefixtures("small_draft")
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (
            {"lora": ADAPTER, "train_tokens": "large", "top_p": 0.9, "size": (96, 64), "merge_adapter": False},
            lambda name: name != "frequencies",  # of a few trained tokens it would need many samples
        ),
        ({"gradient_checkpointing": True, "eval_temperature": 0, "top_p": 0.9}, OF_WEIGHTS.__contains__),
    ],
    ids=["an adapter", "all weights"],
)
def test_contract(options: dict[str, Any], wanted: Callable[[str], bool]) -> None:
    policy = build(**options)

    def decode(rollout: Rollout) -> list[Image]:
        return [sample.output for sample in policy.decoded(rollout)]

    checks = policy_checks(
        lambda: build(**options), PROMPTS[:2], decode=decode, makes="image", module="grpokit_glm_image.plugin"
    )
    found = list(outcomes(check for check in checks if wanted(check.name)))
    assert len(found) >= len(OF_WEIGHTS)
    assert not [outcome for outcome in found if outcome.state == "failed"]


def stock_inputs(pipe: Any, texts: Sequence[str], size: tuple[int, int]) -> Any:
    messages = [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in texts]
    prompts = [pipe.processor.apply_chat_template(message, tokenize=False) for message in messages]
    height, width = size
    return pipe.processor(text=prompts, padding=True, target_h=height, target_w=width, return_tensors="pt")


@pytest.mark.parametrize("size", [(64, 96), pytest.param((96, 64), marks=pytest.mark.slow)], ids=str)
def test_log_probs_are_those_of_the_stock_model_while_it_samples(size: tuple[int, int]) -> None:
    """A ragged batch, drawn by `generate` with its own positions, scored by the policy."""
    pipe, policy = tiny_pipeline(), build(size=size, temperature=0.9)
    inputs = stock_inputs(pipe, [prompt.text for prompt in PROMPTS], size)
    count = policy.target.count
    torch.manual_seed(0)
    out = pipe.vision_language_encoder.generate(
        **inputs,
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=True,
        temperature=0.9,
        top_p=1.0,
        top_k=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    tokens = out.sequences[:, inputs["input_ids"].shape[1] :]
    stock = torch.stack(out.scores, 1).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    assert stock.std() > 0.5  # the choices are not uniform, so that a wrong position would show
    rollout = drawn(policy, group=1)
    trace = replace(rollout.trace, per_row=dict(rollout.trace.per_row) | {"tokens": tokens})
    logprobs = scored(policy, replace(rollout, trace=trace)).logprobs.detach()
    assert (logprobs - stock).abs().max() < 1e-4


def test_the_likeliest_tokens_are_those_of_the_stock_model() -> None:
    pipe, policy = tiny_pipeline(), build(eval_temperature=0)
    inputs = stock_inputs(pipe, [PROMPTS[1].text], (64, 96))
    count = policy.target.count
    stock = pipe.vision_language_encoder.generate(
        **inputs, max_new_tokens=count, min_new_tokens=count, do_sample=False, temperature=None, top_p=None, top_k=None
    )
    rollout = drawn(policy, group=2, prompts=PROMPTS[1:2], evaluate=True)
    assert torch.equal(rollout.trace.per_row["tokens"], stock[:, inputs["input_ids"].shape[1] :].expand(2, -1))


def test_a_rollout_knows_no_token_but_codes() -> None:
    rollout = drawn(build(temperature=5.0), group=8)
    tokens = rollout.trace.per_row["tokens"]
    assert tokens.max() < 64
    assert len(tokens.unique()) == 64


@pytest.mark.usefixtures("small_draft")
@pytest.mark.parametrize("part", ["draft", "large", "both"])
def test_only_the_tokens_that_train_are_decisions(part: str) -> None:
    """Their log-probs are the same whichever others train."""
    policy, whole = build(train_tokens=part), build()
    rollout, every = drawn(policy), drawn(whole)
    here = whole.target.part(part)
    assert rollout.mask.shape[1] == rollout.max_decisions == here.stop - here.start
    if part != "large":  # where a group shares its draft
        assert torch.equal(rollout.trace.per_row["tokens"], every.trace.per_row["tokens"])
    trace = replace(every.trace, per_row=dict(every.trace.per_row) | {"tokens": rollout.trace.per_row["tokens"]})
    same = replace(every, trace=trace)
    assert torch.allclose(scored(policy, rollout).logprobs, scored(whole, same).logprobs[:, here], atol=1e-5)


@pytest.mark.usefixtures("small_draft")
def test_the_large_grids_of_a_group_share_a_draft_where_they_alone_train() -> None:
    """Then a group's rewards differ by decisions alone; an evaluation draws as the model does."""
    policy = build(train_tokens="large", eval_temperature=0.7)
    before = policy.target.part("large").start
    drafts = drawn(policy).trace.per_row["tokens"][:, :before].view(len(PROMPTS), 4, before)
    assert torch.equal(drafts, drafts[:, :1].expand(-1, 4, -1))
    assert len(drafts[:, 0].unique(dim=0)) == len(PROMPTS)
    evaluated = drawn(policy, evaluate=True)
    assert len(evaluated.trace.per_row["tokens"][:, :before].unique(dim=0)) == 4 * len(PROMPTS)
    assert torch.allclose(scored(policy, evaluated).logprobs, evaluated.old.logprobs, rtol=0, atol=1e-4)
    alone = drawn(policy, group=1, prompts=PROMPTS[:1]).trace.per_row["tokens"][:, :before]
    assert torch.equal(alone[0], drafts[0, 0])


def test_pictures_are_made_again_with_the_noise_of_their_own_group() -> None:
    policy = build()
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(PROMPTS), group_size=2)
    rollout = policy.rollout(PROMPTS, 2, seeds=replace(seeds, group_ids=seeds.group_ids.flip(0)))
    again = policy.decoded(rollout)
    assert [s.output.tobytes() for s in again] == [s.output.tobytes() for s in rollout.samples]
    assert len({s.output.tobytes() for s in again}) == len(again)


@pytest.mark.usefixtures("small_draft")
def test_an_update_raises_the_log_probs_of_rewarded_tokens_and_leaves_the_base() -> None:
    policy = build(lora=ADAPTER, train_tokens="large")
    before = {name: p.clone() for name, p in policy.model.named_parameters() if not p.requires_grad}
    rollout = drawn(policy)
    old = scored(policy, rollout).logprobs.detach()
    with policy.reference():
        base = scored(policy, rollout).logprobs.detach()
    assert torch.allclose(base, old, atol=1e-6)  # an adapter begins as zero

    def mean_code(samples: Sequence[Sample]) -> list[float]:
        return [float(sum(row)) for row in rollout.trace.per_row["tokens"].tolist()]

    trainer = Trainer(
        policy,
        [mean_code],
        PROMPTS,
        objective=objectives.GRPO(kl_coef=0.1),
        prompts_per_step=3,
        group_size=4,
        learning_rate=1e-2,
        progress=False,
    )
    report = trainer.step()
    new = scored(policy, report.rollout).logprobs.detach()
    change = (new - report.rollout.old.logprobs).sum(1)
    assert (change * report.advantages.cpu()).sum() > 0
    frozen = {name: p for name, p in policy.model.named_parameters() if not p.requires_grad}
    assert all(torch.equal(frozen[name], value) for name, value in before.items())
    with policy.reference():
        assert torch.equal(scored(policy, rollout).logprobs.detach(), base)


def test_the_vision_tower_never_trains() -> None:
    for policy in (build(), build(lora=ADAPTER)):
        trained = [name for name, p in policy.model.named_parameters() if p.requires_grad]
        assert trained
        assert not [name for name in trained if "visual" in name or "vqmodel" in name]
    kinds = {name.split(".lora_")[0].rpartition(".")[2] for name in trained}
    assert kinds == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"}


def test_gradients_are_those_of_the_dense_pass() -> None:
    policy, pipe = build(), tiny_pipeline()
    rollout = drawn(policy, group=2, prompts=PROMPTS[:1])
    weights = torch.linspace(-1, 1, rollout.mask.numel()).view(rollout.mask.shape)
    (scored(policy, rollout).logprobs * weights).sum().backward()
    ar, prompt = pipe.vision_language_encoder, rollout.trace.per_group["prompt"]
    tokens = rollout.trace.per_row["tokens"]
    ids = torch.cat([prompt.expand(2, -1), tokens[:, :-1]], 1)
    positions = rollout.trace.per_group["positions"].transpose(1, 2).transpose(0, 1).expand(-1, 2, -1)
    logits = ar(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=tokens.shape[1]).logits
    logits[..., 64:] = -torch.inf
    (logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0] * weights).sum().backward()
    dense = {name: p.grad for name, p in ar.named_parameters() if p.grad is not None}
    own = {name: p.grad for name, p in policy.model.named_parameters() if p.grad is not None}
    assert set(own) == set(dense)

    def difference(name: str) -> Tensor:
        return (own[name] - dense[name]).norm() / dense[name].norm()

    assert max(difference(name) for name in own) < 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_tokens": "small"}, "train_tokens must be 'draft' or 'large' or 'both', got 'small'"),
        ({"temperature": 0}, "temperature must be above 0"),
        ({"eval_temperature": -1}, "eval_temperature must be 0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1"),
        ({"eval_top_p": 0}, "eval_top_p must be above 0"),
        ({"edits": True, "train_tokens": "draft"}, "an edit has none"),
        ({"edits": True, "decode": {"tokens": "draft"}}, "^decode: tokens is 'draft', and an edit has no draft"),
        ({"eval_decode": {"size": (64, 288)}}, "^eval_decode: size is 64 x 288, and .* the shape of 64 x 96"),
        ({"decode": {"step": 3}}, r"^decode has no key 'step' \(did you mean 'steps'\?\)"),
        ({"lora": {"rank": 4}}, "lora has no key 'rank'"),
        ({"size": (64, 100)}, "multiples of 32"),
    ],
    ids=str,
)
def test_bad_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(**options)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (Prompt(text=" "), "The prompt is empty"),
        (Prompt(text="a <|image|> b"), "token of the model's own"),
        (Prompt(text="word " * 3000), "Shorten the prompt"),
        (Prompt(text=f'a sign "{1024 * "é"}"'), "2,048 bytes in quotes"),
    ],
    ids=["empty", "special token", "long", "long quote"],
)
def test_bad_prompts(prompt: Prompt, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build().check([prompt])


@pytest.mark.usefixtures("small_draft")
def test_a_given_pipeline_still_draws_by_itself() -> None:
    """With the adapter that a policy has put into it, beside another policy; without the adapter as before."""
    pipe = tiny_pipeline()
    pipe.set_progress_bar_config(disable=True)

    def drawn_by_pipe() -> bytes:
        seed = torch.Generator().manual_seed(0)
        return pipe("a cat", height=64, width=96, num_inference_steps=1, generator=seed).images[0].tobytes()

    before = drawn_by_pipe()
    policy, other = GlmImageAR(pipe, size=(64, 96), decode=QUICK, lora=ADAPTER), build(size=(64, 64))
    for each in (policy, other):
        rollout = drawn(each, group=2)
        assert (scored(each, rollout).logprobs - rollout.old.logprobs).abs().max() < 1e-4
    assert drawn_by_pipe() == before
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
    assert drawn_by_pipe() != before
    with policy.model.disable_adapter():
        assert drawn_by_pipe() == before


def test_exported_adapters_are_teachers_around_one_base(tmp_path: Path) -> None:
    assert_teaches(build, PROMPTS, tmp_path)
