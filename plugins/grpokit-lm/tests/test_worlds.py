"""hf-lm with a world: what is written, what is scored, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import pytest
import torch
from both_paths import compare
from tiny_models import EOS, tiny_model, tiny_tokenizer
from torch import Tensor

from grpokit import Prompt, Rollout
from grpokit.sampling import derive_seeds
from grpokit.testing import outcomes, policy_checks
from grpokit.types import Ask
from grpokit_hf.tokens import packing
from grpokit_lm.completions import Completions
from grpokit_lm.policy import CausalLMPolicy

PROMPTS = [Prompt(text=text) for text in ("hello world, this", "a", "some text")]
TRUNCATED = {"top_k": 40, "top_p": 0.9, "temperature": 0.8}
TURN_ENDS = range(0, 250, 8)


class Echo:
    """Says how many letters it has read, and ends the conversation behind a turn of more than nine."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def start(self, prompt: Prompt, seed: int) -> str:
        return f"{prompt.text}? {seed % 7}"

    def reply(self, text: str) -> str | None:
        self.read.append(len(text))
        return None if len(text) > 9 else f"no, {len(text)}"

    def facts(self) -> Mapping[str, Any]:
        return {"return": float(sum(self.read)), "read": self.read}


def build(family: str = "llama", *, world: Any = Echo, **options: Any) -> CausalLMPolicy:
    defaults: dict[str, Any] = {"max_new_tokens": 60, "stop": ["z"], "stop_tokens": TURN_ENDS}
    return CausalLMPolicy(tiny_model(family), tokenizer=tiny_tokenizer(), world=world, **defaults | options)


def drawn(policy: CausalLMPolicy, group: int = 4) -> Rollout:
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(PROMPTS), group_size=group)
    return policy.rollout(PROMPTS, group, seeds=seeds)


def conversation(rollout: Rollout, row: int) -> Tensor:
    """All tokens of a row, its prompt's first."""
    entries, group = rollout.trace.per_group, int(rollout.group_index[row])
    prompt = entries["prompt"][group, : entries["prompt_length"][group]]
    return torch.cat([prompt, rollout.trace.per_row["tokens"][row, : rollout.lengths[row]]])


def stretches(rollout: Rollout, row: int) -> list[tuple[bool, list[int]]]:
    """A row's tokens behind its prompt in turns: whether the model decided them, and which they are."""
    length = int(rollout.lengths[row])
    pairs = zip(rollout.mask[row, :length].tolist(), rollout.trace.per_row["tokens"][row].tolist(), strict=False)
    return [(own, [token for _, token in each]) for own, each in groupby(pairs, key=lambda pair: pair[0])]


@pytest.mark.parametrize("fast", [True, False])
def test_a_row_is_the_conversation_as_the_template_writes_it(*, fast: bool) -> None:
    policy, tokenizer = build(fast=fast), tiny_tokenizer()
    rollout = drawn(policy)
    assert policy.path.packs == fast
    assert max(sample.info["turns"] for sample in rollout.samples) > 3
    for row, sample in enumerate(rollout.samples):
        first, *messages = sample.info["messages"]
        assert first["content"].startswith(f"{sample.prompt.text}? ")
        start = f"<user>{first['content']}<eos><assistant>"
        assert (
            conversation(rollout, row).tolist()[: len(tokenizer(start)["input_ids"])] == tokenizer(start)["input_ids"]
        )
        turns = stretches(rollout, row)
        assert [own for own, _ in turns] == [i % 2 == 0 for i in range(len(turns))]
        said = [policy.text_of(tokens) for own, tokens in turns if own]
        assert said == [each["content"] for each in messages if each["role"] == "assistant"]
        assert sample.output == said[-1]
        for (_, before), (own, tokens) in zip(turns, turns[1:], strict=False):
            if not own:
                end = "" if before[-1] == EOS else "<eos>"
                assert tokenizer.decode(tokens) == f"{end}<user>no, {len(policy.text_of(before))}<eos><assistant>"
        read = sample.info["read"]
        assert read == [len(text) for text in said[: len(read)]]
        assert sample.info["tokens"] == int(rollout.mask[row].sum())
        assert (sample.info["finish"] == "stop") == (len(read) == len(said) and len(said[-1]) > 9)


def own_logprobs(family: str, rollout: Rollout, row: int, options: Mapping[str, Any]) -> Tensor:
    """[n] log-probs of all tokens behind the prompt, from one plain forward over the whole conversation."""
    tokens, length = conversation(rollout, row), int(rollout.lengths[row])
    logits = tiny_model(family)(input_ids=tokens[None]).logits[0, -length - 1 : -1].float()
    logits = logits / options.get("temperature", 1.0)
    if "top_k" in options:
        logits = logits.masked_fill(logits < logits.topk(options["top_k"], -1).values[:, -1:], -torch.inf)
        p, order = logits.softmax(-1).sort(-1, descending=True)
        out = torch.zeros_like(p, dtype=torch.bool).scatter(-1, order, p.cumsum(-1) - p >= options["top_p"])
        logits = logits.masked_fill(out, -torch.inf)
    return logits.log_softmax(-1).gather(-1, tokens[-length:, None])[:, 0].detach()


@pytest.mark.parametrize("options", [{}, TRUNCATED], ids=["plain", "truncated"])
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2"])
def test_logprobs_are_those_of_a_plain_forward_over_the_conversation(
    family: str, options: dict[str, Any], *, fast: bool
) -> None:
    policy = build(family, fast=fast, **options)
    rollout = drawn(policy)
    assert not all(len(stretches(rollout, row)) == 1 for row in range(rollout.rows))
    scored = policy.logprobs(rollout, slice(0, rollout.mask.shape[1])).logprobs.detach()
    for row in range(rollout.rows):
        length, mask = int(rollout.lengths[row]), rollout.mask[row, : rollout.lengths[row]]
        expected = own_logprobs(family, rollout, row, options)
        for found in (rollout.old.logprobs, scored):
            assert torch.allclose(found[row, :length][mask], expected[mask], rtol=0, atol=1e-5)
            assert not found[row, :length][~mask].any()
            assert not found[row, length:].any()


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_both_paths_write_and_score_alike(family: str) -> None:
    compare(build(family), build(family, fast=False), drawn, least=1e-3)


@pytest.mark.parametrize("options", [{}, TRUNCATED], ids=["plain", "truncated"])
@pytest.mark.parametrize("fast", [True, False])
def test_no_gradient_comes_from_the_tokens_of_a_world(options: dict[str, Any], *, fast: bool) -> None:
    """All that a world's tokens are predicted from becomes NaN; log-probs and gradients stay as they were, to the bit.

    On the fast path that is each place behind which no decision follows, on the plain one the logits there.
    """
    policy = build(fast=fast, **options)
    rollout = drawn(policy)
    if fast:
        plan = packing.pack(Completions.of(rollout, policy.device, rollout.mask.shape[1]), 0, width=60)
        assert plan is not None
        read, layer = torch.zeros(len(plan.source), 1).index_fill(0, plan.decided, 1) > 0, policy.model.model.norm
    else:
        read, layer = rollout.mask[..., None], policy.model.get_output_embeddings()
    assert int(read.sum()) == int(rollout.mask.sum())

    def poison(_module: Any, _given: Any, output: Tensor) -> Tensor:
        spare = output.shape[-2] - read.shape[-2]  # rows that the fast path adds for speed
        return torch.where(torch.nn.functional.pad(read, (0, 0, 0, spare)), output, torch.nan)

    found = []
    for poisoned in (False, True):
        handle = layer.register_forward_hook(poison) if poisoned else None
        view = policy.logprobs(rollout, slice(0, rollout.mask.shape[1]), ask=Ask(entropy="grad"))
        if handle is not None:
            handle.remove()
        assert view.entropy is not None
        policy.model.zero_grad()
        (view.logprobs.sum() + view.entropy.sum()).backward()
        head = policy.model.get_output_embeddings().weight.grad.clone()
        found.append((view.logprobs.detach(), head))
    for clean, other in zip(*found, strict=True):
        assert torch.equal(clean, other)


def test_a_change_of_what_a_world_says_last_changes_no_logprob() -> None:
    """Of decisions before it, that is; those behind it see it."""
    policy = build()
    rollout = drawn(policy)
    row = max(range(rollout.rows), key=lambda row: len(stretches(rollout, row)))
    turns = stretches(rollout, row)
    last = sum(len(tokens) for _, tokens in turns[:-2]) + 2  # a place in the world's last words
    before = policy.logprobs(rollout, slice(0, rollout.mask.shape[1])).logprobs.detach()[row]
    assert not rollout.mask[row, last]
    rollout.trace.per_row["tokens"][row, last] += 1
    after = policy.logprobs(rollout, slice(0, rollout.mask.shape[1])).logprobs.detach()[row]
    assert torch.allclose(before[:last], after[:last], rtol=0, atol=1e-6)
    assert not torch.allclose(before[last:], after[last:], rtol=0, atol=1e-3)


@pytest.mark.parametrize("options", [{"lora": {"r": 4}}, {"fast": False, **TRUNCATED}], ids=str)
def test_contract_with_a_world(options: dict[str, Any]) -> None:
    """Among the checks: ratio 1, rows that do not depend on each other, slices, the reference, the same draws again."""
    policy = build()

    def last_turns(rollout: Rollout) -> list[str]:
        own = [[tokens for own, tokens in stretches(rollout, row) if own] for row in range(rollout.rows)]
        return [policy.text_of(turns[-1]) for turns in own]

    checks = policy_checks(
        lambda: build(**options), PROMPTS, decode=last_turns, makes="text", module="grpokit_lm.plugin"
    )
    found = list(outcomes(checks))
    assert not [outcome for outcome in found if outcome.state == "failed"]
    assert len([outcome for outcome in found if outcome.state == "passed"]) > 12
