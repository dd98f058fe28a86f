"""hf-lm: the contract on every family, the fast path against the plain one, and what a completion is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from both_paths import compare
from tiny_models import BOS, EOS, FAMILIES, IMAGE, PAD, tiny_model, tiny_tokenizer
from tokenizers import AddedToken
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from grpokit import Ask, PluginError, Prompt, Rollout, Sample, Trainer, UsageError, create, objectives
from grpokit.registry import plugins
from grpokit.sampling import derive_seeds
from grpokit_check import outcomes, policy_checks
from grpokit_lm.plain_path import PlainPath
from grpokit_lm.policy import CausalLMPolicy, _warn_once
from teaching import trained

PROMPTS = [Prompt(text=text) for text in ("hello world, this", "a", "some text")]
ADAPTER = {"r": 4}


def build(family: str = "llama", *, spread: float | None = None, **options: Any) -> CausalLMPolicy:
    """A tiny policy; `spread` is the standard deviation of its weights."""
    defaults: dict[str, Any] = {"max_new_tokens": 12, "chat": False, "stop": ["z"], "stop_tokens": range(0, 250, 8)}
    model = tiny_model(family, **{} if spread is None else {"initializer_range": spread})
    return CausalLMPolicy(model, **{"tokenizer": tiny_tokenizer()} | defaults | options)


def drawn(policy: CausalLMPolicy, group: int = 4, **options: Any) -> Rollout:
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(PROMPTS), group_size=group)
    return policy.rollout(PROMPTS, group, seeds=seeds, **options)


def length(samples: Sequence[Sample]) -> list[float]:
    return [float(len(s.output)) for s in samples]


def vowels(samples: Sequence[Sample]) -> list[float]:
    return [float(s.output.count("e")) - len(s.output) / 9 for s in samples]


def training(policy: CausalLMPolicy, reward: Any, **options: Any) -> Trainer:
    """A trainer of a few steps, held to its reference."""
    sizes = {"prompts_per_step": 3, "group_size": 4, "micro_batch_size": 4, "learning_rate": 1e-3}
    settings = {"objective": objectives.GRPO(kl_coef=0.1), **sizes, **options}
    return Trainer(policy, [reward], PROMPTS, progress=False, **settings)


def everything(rollout: Rollout) -> slice:
    return slice(0, rollout.mask.shape[1])


def texts(rollout: Rollout) -> list[str]:
    rows = zip(rollout.trace.per_row["tokens"].tolist(), rollout.lengths.tolist(), strict=True)
    frame = (PAD, BOS, EOS, *range(EOS + 1, IMAGE))  # the roles of the chat template
    return [tiny_tokenizer().decode([t for t in tokens[:length] if t not in frame]) for tokens, length in rows]


TAGS = ("<think>", "</think>", "<answer>", "</answer>")
BEGINS_THOUGHT = "{% for m in messages %}<user>{{ m['content'] }}<eos>{% endfor %}<assistant>{{ '<think>\\n' }}"


def with_tags() -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(tag, special=True, normalized=False) for tag in TAGS], special_tokens=True)
    return tokenizer


@pytest.mark.parametrize(
    ("options", "written", "seen"),
    [
        ({}, "<think>a</think><answer>5</answer><eos>", "<think>a</think><answer>5</answer>"),
        ({}, "<assistant>5<user><image><pad><bos>", "5<image>"),
        ({"stop_tokens": ["</answer>"]}, "<answer>5</answer>", "<answer>5</answer>"),
        ({"tokenizer": "none"}, "5<user><eos>", "5<user>"),
        ({"chat_template": BEGINS_THOUGHT}, "a</think>5<eos>", "a</think>5"),
        ({"chat_template": BEGINS_THOUGHT, "prepend": "<think>\n"}, "a</think>5<eos>", "<think>\na</think>5"),
    ],
    ids=str,
)
def test_what_rewards_see_of_a_completion(options: dict[str, Any], written: str, seen: str) -> None:
    tokenizer = with_tags()
    if options.get("tokenizer"):
        tokenizer.chat_template = None
    policy = build(**options | {"tokenizer": tokenizer, "chat": None})
    assert policy.encoder.completion(tokenizer(written, add_special_tokens=False)["input_ids"]) == seen


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"chat_template": BEGINS_THOUGHT}, True),
        ({"chat_template": BEGINS_THOUGHT, "chat": False}, False),
        ({"chat_template": BEGINS_THOUGHT, "prepend": ""}, False),
        ({"chat_template": BEGINS_THOUGHT, "prepend": "<think>\n"}, False),
        ({}, False),  # ends in <assistant>, which is the template's own
    ],
    ids=str,
)
@pytest.mark.parametrize("special", [True, False])
def test_a_template_that_begins_the_thought_is_told(
    caplog: pytest.LogCaptureFixture, options: dict[str, Any], *, warned: bool, special: bool
) -> None:
    _warn_once.cache_clear()
    build(**{"chat": None, "tokenizer": with_tags() if special else tiny_tokenizer()} | options)
    assert ('prepend: "<think>\\n"' in caplog.text) == warned


OF_ARCHITECTURES = {"ratio-is-one", "rows-independent", "batch-size"}
OF_SETTINGS = OF_ARCHITECTURES | {
    "scored-is-sampled", "joined", "logprobs-repeat", "mask", "slices", "trimmed", "gradient", "reference", "evaluate",
}  # fmt: skip


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=() if f in ("llama", "gpt2", "qwen2") else pytest.mark.slow) for f in FAMILIES]
)
def test_contract_of_an_architecture(family: str) -> None:
    """`test_both_paths_write_and_score_alike` has the rest."""
    checks = policy_checks(lambda: build(family), PROMPTS[:2], group_size=2, decode=texts, makes="text")
    states = {each.name: each for each in outcomes(check for check in checks if check.name in OF_ARCHITECTURES)}
    assert states.keys() == OF_ARCHITECTURES
    assert not [each for each in states.values() if each.state == "failed"]


@pytest.mark.parametrize(
    ("family", "options"),
    [
        pytest.param("llama", {"lora": ADAPTER}, marks=pytest.mark.slow),
        pytest.param("llama", {"fast": False}, marks=pytest.mark.slow),
        pytest.param("qwen2", {"top_k": 8, "top_p": 0.9, "min_p": 0.02, "temperature": 0.7}, marks=pytest.mark.slow),
        pytest.param("gpt2", {"gradient_checkpointing": True, "eval_temperature": 0}, marks=pytest.mark.slow),
        pytest.param("llama", {"mask_truncated": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_contract(family: str, options: dict[str, Any]) -> None:
    decode = None if options.get("mask_truncated") else texts  # there, a row's length counts what trains only
    checks = policy_checks(
        lambda: build(family, **options), PROMPTS, decode=decode, makes="text", module="grpokit_lm.plugin"
    )
    whole = options == {"lora": ADAPTER}
    found = list(outcomes(check for check in checks if whole or check.name in OF_SETTINGS))
    assert len(found) >= len(OF_SETTINGS)
    assert not [outcome for outcome in found if outcome.state == "failed"]


@pytest.mark.parametrize("family", FAMILIES)
def test_both_paths_write_and_score_alike(family: str) -> None:
    compare(build(family), build(family, fast=False), drawn, least=1e-3)


@pytest.mark.parametrize("missing", [{"pad": False}, {"pad": False, "eos": False}], ids=str)
def test_a_tokenizer_needs_no_pad_token_and_no_end_token(missing: dict[str, bool]) -> None:
    """Nothing is padded with a token; a completion ends where `stop` and `stop_tokens` say."""
    tokenizer = tiny_tokenizer(**missing)
    found, usual = drawn(build(tokenizer=tokenizer)), drawn(build())
    assert [s.output for s in found.samples] == [s.output for s in usual.samples]
    assert tokenizer.pad_token is None


@pytest.mark.parametrize(
    ("family", "cached", "reason"),
    [
        ("bloom", True, "does not work with packed attention"),
        ("gpt-oss", True, "a layer gives its attention 's_aux'"),
        ("diffllama", True, "in writing, log-probs differ by"),  # in scoring they do not
        ("qwen2-moe-window", True, "a layer's mask hides more than the layer is told"),
        ("minimax", False, "cannot write with padding and a cache"),
        ("mamba", False, "cannot write with padding and a cache"),
    ],
)
def test_an_odd_family_is_exact_on_the_path_that_it_allows(family: str, cached: bool, reason: str) -> None:
    policy = build(family, max_new_tokens=20)
    assert isinstance(policy.path, PlainPath)
    assert policy.path.cached == cached
    assert reason in policy.note
    rollout = drawn(policy, group=3)
    scored = policy.logprobs(rollout, everything(rollout)).logprobs.detach()
    own, tokens = tiny_model(family), rollout.trace.per_row["tokens"]
    for row, (length, group) in enumerate(zip(rollout.lengths.tolist(), rollout.group_index.tolist(), strict=True)):
        begin = int(rollout.trace.per_group["prompt_length"][group])
        text = torch.cat([rollout.trace.per_group["prompt"][group, :begin], tokens[row, :length]])
        with torch.no_grad():
            logprobs = own(input_ids=text[None]).logits[0, begin - 1 : -1].log_softmax(-1)
        expected = logprobs.gather(-1, text[begin:, None])[:, 0]
        assert torch.allclose(rollout.old.logprobs[row, :length], expected, rtol=0, atol=2e-5)
        assert torch.allclose(scored[row, :length], expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.nan, r"finite: model\.layers\.1\.mlp\.up_proj\.weight holds NaN or infinity\. Load other weights\."),
        (
            1e38,
            r"finite, though its weights are\. Some may be so large that sums overflow: look where they come from\.",
        ),
    ],
)
def test_weights_without_log_probs_are_refused(weight: float, message: str) -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[:] = weight
    with pytest.raises(UsageError, match=message):
        CausalLMPolicy(model, tokenizer=tiny_tokenizer(), max_new_tokens=4)


def test_train_vision_is_for_models_that_see() -> None:
    with pytest.raises(UsageError, match=r"train_vision is true, and LlamaForCausalLM has no vision tower"):
        CausalLMPolicy(tiny_model("llama"), tokenizer=tiny_tokenizer(), max_new_tokens=4, train_vision=True)


def test_a_model_that_looks_ahead_is_refused() -> None:
    """In a batch it sees the padding."""
    model = tiny_model("llama")
    model.config.is_causal = False
    with pytest.raises(UsageError, match=r"LlamaForCausalLM cannot be trained: .* \(in scoring, log-probs differ by"):
        CausalLMPolicy(model, tokenizer=tiny_tokenizer(), max_new_tokens=4)


def test_a_family_without_packed_attention_takes_the_plain_path_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """A model that ignores which token sees which is noticed by its numbers."""

    class Own(type(tiny_model("llama"))):  # type: ignore[misc]
        def set_attn_implementation(self, name: Any) -> None:
            """Keeps what it has."""

    model = tiny_model("llama")
    model.__class__ = Own
    policy = CausalLMPolicy(model, tokenizer=tiny_tokenizer(), max_new_tokens=4, chat=False)
    assert isinstance(policy.path, PlainPath)
    assert "does not work with packed attention" in policy.note
    assert caplog.messages == [f"{policy.note}; the plain path is used, which is slower."]


def test_completions_end_at_stop_texts_and_may_be_masked_if_cut() -> None:
    policy = build(mask_truncated=True)
    rollout = drawn(policy, group=8)
    finishes = [sample.info["finish"] for sample in rollout.samples]
    assert {"stop", "length"} == set(finishes)
    for sample, length, mask in zip(rollout.samples, rollout.lengths.tolist(), rollout.mask, strict=True):
        ids = sample.info["token_ids"].tolist()
        assert (len(ids), policy.encoder.completion(ids)) == (sample.info["tokens"], sample.output)
        if sample.info["finish"] == "stop":
            assert "z" not in sample.output[:-1]
            assert int(mask.sum()) == length == sample.info["tokens"]
        else:
            assert length == 0
            assert not mask.any()


def test_without_an_end_token_all_completions_are_whole() -> None:
    often = {"stop": [], "stop_tokens": range(250)}
    assert max(drawn(build(**often)).lengths) < 12
    rollout = drawn(build(ignore_eos=True, stop=[], stop_tokens=[]))
    assert rollout.lengths.tolist() == [12] * 12
    assert {sample.info["finish"] for sample in rollout.samples} == {"length"}


class LargestBytes(TorchDispatchMode):
    """Looks at tensors of bytes, such as sets of tokens."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.dtype == torch.uint8:
            self.size = max(self.size, out.numel())
        return out


@pytest.mark.parametrize("fast", [True, False])
def test_sets_of_tokens_take_memory_for_what_was_written(fast: bool) -> None:
    with LargestBytes() as bytes_made:
        rollout = drawn(build(top_p=0.6, max_new_tokens=100, fast=fast))
    kept = rollout.trace.per_row["kept"]
    assert kept.shape[:2] == rollout.mask.shape
    assert rollout.mask.shape[1] < 50
    assert bytes_made.size == kept.numel()


def gradients(policy: CausalLMPolicy, *, count: int = 2, **options: Any) -> list[Tensor]:
    """Of the first steps, on samples of many lengths."""
    trainer = training(policy, vowels, group_size=8, max_grad_norm=None, **options)
    seen: list[Tensor] = []
    trainer.updates.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.cat([p.grad.flatten() for p in trainer.updates.parameters]))
    )
    reports = [trainer.step() for _ in range(count)]
    assert all(len(report.rollout.lengths.unique()) > 6 for report in reports)
    return seen


def assert_both_paths_agree(options: dict[str, Any], **training: Any) -> None:
    """On the gradients of a step's two updates, of an adapter with these options."""
    seen = []
    for fast in (True, False):
        policy = build(fast=fast, lora=ADAPTER, **options)
        sizes = {"micro_batch_size": 4, "updates_per_rollout": 2, "learning_rate": 1e-2}
        seen.append(gradients(policy, count=1, **sizes, **training))
    assert len(seen[0]) == 2
    assert max(float((a - b).norm() / b.norm()) for a, b in zip(*seen, strict=True)) < 1e-4


OBJECTIVES = [
    pytest.param(spec.name, marks=() if spec.name == "gspo" else pytest.mark.slow)
    for plugin in plugins()
    for spec in plugin.specs
    if spec.kind == "objective" and spec.name not in ("nft", "dgpo", "crd", "opd")  # of noised copies, and of teachers
]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_has_the_gradient_of_the_plain_path(objective: str) -> None:
    """Of tokens and of sequences, clipped or not: an adapter held to its moving average, on the decisions of high
    entropy; then off-policy."""
    assert_both_paths_agree(
        {"reference_ema": {"decay": 0.5}},
        objective=create("objective", objective, {"kl_coef": 0.1}),
        modifiers=[create("modifier", "entropy-filter", {"share": 0.4})],
    )


@pytest.mark.slow
@pytest.mark.parametrize("all_tokens", [False, True])
def test_a_teacher_gives_the_gradient_of_the_plain_path(all_tokens: bool, tmp_path: Path) -> None:
    trained(build(lora={"r": 2}), 1).export(tmp_path)
    assert_both_paths_agree(
        {"teachers": {"other": tmp_path}}, objective=create("objective", "opd", {"all_tokens": all_tokens})
    )


def test_distributions_are_not_compared_by_a_head_that_trains() -> None:
    policy = build()
    rollout = drawn(policy)
    with torch.no_grad():
        own = policy.logprobs(rollout, everything(rollout), ask=Ask(distribution=True)).distribution
    with pytest.raises(UsageError, match="compared by one output layer"):
        policy.logprobs(rollout, everything(rollout), ask=Ask(against=own))


@pytest.mark.parametrize("options", [{"lora": ADAPTER}, {"fast": False}], ids=str)
def test_micro_batches_of_2_and_of_8_give_one_gradient(options: dict[str, Any]) -> None:
    two, eight = (gradients(build(**options, spread=0.05), micro_batch_size=size, count=1) for size in (2, 8))
    assert max(float((a - b).norm() / b.norm()) for a, b in zip(two, eight, strict=True)) < 1e-6


@pytest.mark.parametrize(
    "options", [pytest.param({"lora": ADAPTER | {"dora": True}}, marks=pytest.mark.slow), {}], ids=str
)
def test_a_reference_that_moves_is_the_average_of_what_has_trained(options: dict[str, Any]) -> None:
    """By hand: 0.75 of the average and 0.25 of the weights, after every second of six updates."""
    policy = build(**options, reference_ema={"decay": 0.75, "every": 2})
    live = [p for p in policy.modules()["model"].parameters() if p.requires_grad]
    average = [p.detach().clone() for p in live]
    trainer = training(policy, vowels, steps=3, learning_rate=1e-2, updates_per_rollout=2)
    for _ in range(3):
        report = trainer.step()
        average = [torch.lerp(a, p.detach(), 0.25) for a, p in zip(average, live, strict=True)]
    assert report.metrics["kl"] > 0
    rollout = drawn(policy)
    with policy.reference(), torch.no_grad():
        held_to = policy.logprobs(rollout, everything(rollout)).logprobs
    for p, a in zip(live, average, strict=True):
        p.data.copy_(a)
    expected = policy.logprobs(rollout, everything(rollout)).logprobs.detach()
    assert torch.allclose(held_to, expected, rtol=0, atol=1e-5)
    assert (held_to - rollout.old.logprobs).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "temperature must be above 0"),
        ({"eval_temperature": -1}, "eval_temperature must be 0"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"eval_temperature": float("inf")}, "eval_temperature must be a finite number, or None, got inf"),
        ({"eval_temperature": 1e-40}, r"eval_temperature must be 0 \(greedy\), or from 1e-08 to .*, got 1e-40"),
        ({"stop": "z"}, r"stop must be a list of texts, as in \['z'\], got 'z'"),
        ({"stop": {"z": 1}}, "stop must be a list of texts, got keys"),
        ({"stop_tokens": "<eos>"}, r"stop_tokens must be a list, as in \['<eos>'\], got '<eos>'"),
        ({"stop_tokens": 3}, "stop_tokens must be a list, got 3"),
        ({"top_p": 2.0}, "^top_p must be above 0 and at most 1"),
        ({"eval_top_p": 2.0}, "eval_top_p must be above 0 and at most 1"),
        (
            {"ignore_eos": True, "stop": [], "stop_tokens": [], "mask_truncated": True},
            "mask_truncated trains on completions that end by themselves, and nothing ends one here",
        ),
        ({"ignore_eos": True}, "With ignore_eos no token ends a completion. Leave it out, or stop and stop_tokens"),
        ({"template_options": ["x"]}, "template_options must be a mapping, or None, got a list of 1"),
        ({"lora": ADAPTER, "reference_offload": True}, "are for full training"),
        ({"reference_ema": {"decya": 0.9}}, r"reference_ema has no key 'decya' \(did you mean 'decay'\?\)"),
        ({"reference_ema": 0.9}, "reference_ema must be a mapping, or None, got 0.9"),
        ({"reference_ema": {"decay": 1}}, "reference_ema: decay must be below 1, got 1"),
        ({"reference_dtype": "int3"}, "reference_dtype must be one of"),
        ({"reference_dtype": "bf16", "reference_ema": {}}, "reference_dtype and reference_ema exclude each other"),
    ],
    ids=str,
)
def test_bad_settings_are_one_message(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(**options)


def test_a_name_of_another_trainer_leads_to_ours() -> None:
    with pytest.raises(PluginError, match=r"has no parameter 'lora_r' \(did you mean 'lora.r'\?\)"):
        create("policy", "hf-lm", {"model": "x", "lora_r": 16})


@pytest.mark.parametrize("options", [{}, {"lora": ADAPTER}, {"fast": False}], ids=str)
def test_mixed_precision(options: dict[str, Any]) -> None:
    policy = build(**options)
    trainer = training(policy, length, steps=2, micro_batch_size=8, updates_per_rollout=2, mixed_precision="bf16")
    kept: list[int] = []
    trainer.updates.optimizer.register_step_pre_hook(lambda *_: kept.append(len(policy.path.casts._copies)))
    *_, report = trainer
    assert report.metrics["logprob_diff/mean"] < 0.05
    assert report.metrics["kl"] > 0
    frozen = 15 if "lora" in options else 0  # 7 layers in each of 2 blocks, and the head
    assert kept == [frozen] * 4
    assert not policy.path.casts._copies  # after a stretch of work nothing is kept


@pytest.mark.parametrize("fast", [True, False])
def test_positions_are_counted_as_the_path_scores_them(fast: bool) -> None:
    """The fast path packs completions; the plain one pads each to the longest of its micro-batch."""
    report = training(build(fast=fast), length).step()
    lengths = report.rollout.lengths.sort(descending=True).values
    padded = 4 * lengths[::4].sum()
    assert padded > 1.1 * lengths.sum()
    expected = 1.0 if fast else float(padded / lengths.sum())
    assert report.metrics["positions_per_decision"] == pytest.approx(expected)
