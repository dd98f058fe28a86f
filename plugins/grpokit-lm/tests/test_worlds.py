"""hf-lm with a world: what is written, what is scored, and what is refused."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from itertools import count, groupby, pairwise
from typing import Any, ClassVar

import pytest
import torch
from both_paths import compare
from echo_world import Echo
from tiny_models import CHAT_TEMPLATE, EOS, tiny_model, tiny_tokenizer
from torch import Tensor

from grpokit import GrpokitError, Prompt, Rollout, RunError, UsageError
from grpokit.sampling import derive_seeds
from grpokit.types import Ask
from grpokit_check import outcomes, policy_checks
from grpokit_hf.tokens import packing
from grpokit_lm.completions import Completions
from grpokit_lm.policy import CausalLMPolicy

PROMPTS = [Prompt(text=text) for text in ("hello world, this", "a", "some text")]
TRUNCATED = {"top_k": 40, "top_p": 0.9, "temperature": 0.8}
TURN_ENDS = range(0, 250, 8)


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
        assert sample.info["token_ids"].tolist() == [token for _, tokens in turns for token in tokens]
        assert [own for own, _ in turns] == [i % 2 == 0 for i in range(len(turns))]
        said = [policy.encoder.completion(tokens) for own, tokens in turns if own]
        assert said == [each["content"] for each in messages if each["role"] == "assistant"]
        assert sample.output == said[-1]
        for (_, before), (own, tokens) in pairwise(turns):
            if not own:
                end = "" if before[-1] == EOS else "<eos>"
                assert (
                    tokenizer.decode(tokens)
                    == f"{end}<user>no, {len(policy.encoder.completion(before))}<eos><assistant>"
                )
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
@pytest.mark.parametrize("family", ["llama", pytest.param("gpt2", marks=pytest.mark.slow), "qwen2"])
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
        return output + torch.where(
            torch.nn.functional.pad(read, (0, 0, 0, spare)), 0.0, torch.nan
        )  # lets gradients pass

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


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"lora": {"r": 4}}, {"fast": False, **TRUNCATED}], ids=str)
def test_contract_with_a_world(options: dict[str, Any]) -> None:
    """Among the checks: ratio 1, rows that do not depend on each other, slices, the reference, the same draws again."""
    policy = build()

    def last_turns(rollout: Rollout) -> list[str]:
        own = [[tokens for own, tokens in stretches(rollout, row) if own] for row in range(rollout.rows)]
        return [policy.encoder.completion(turns[-1]) for turns in own]

    checks = policy_checks(
        lambda: build(**options), PROMPTS[:2], group_size=2, decode=last_turns, makes="text", module="grpokit_lm.plugin"
    )
    found = list(outcomes(checks))
    assert not [outcome for outcome in found if outcome.state == "failed"]
    assert len([outcome for outcome in found if outcome.state == "ok"]) > 12


class Strict(Echo):
    """Wants the opposite of what it got, in a template's message; counts its turns."""

    tools = (
        {"type": "function", "function": {"name": "flip", "description": "", "parameters": {"type": "object"}}},
    )  # fmt: skip

    def start(self, prompt: Prompt, seed: int) -> None:
        return None

    def reply(self, text: str) -> Any:
        self.read.append(len(text))
        if len(self.read) == 2:
            raise ValueError("no\n such place")
        return [{"role": "tool", "content": "flipped"}]


KNOWS_TOOLS = "{% for t in tools or [] %}{{ t['function']['name'] }};{% endfor %}" + CHAT_TEMPLATE


def test_a_world_that_raises_tells_the_model_if_it_should() -> None:
    policy = build(world=Strict, chat_template=KNOWS_TOOLS, world_errors="message", max_turns=4, max_new_tokens=90)
    rollout = drawn(policy)
    tokenizer = tiny_tokenizer()
    assert tokenizer.decode(conversation(rollout, 0)).startswith("flip;<user>hello world, this<eos><assistant>")
    told = [s.info for s in rollout.samples if s.info["turns"] > 2]
    assert told
    for info in told:
        replies = [each for each in info["messages"] if each["role"] == "tool"]
        assert [each["content"] for each in replies[:2]] == ["flipped", "Error: no such place"]
    assert {s.info["turns"] for s in rollout.samples if s.info["finish"] == "turns"} == {4}  # it never ends by itself


def test_a_world_that_raises_ends_its_episode_alone() -> None:
    rollout = drawn(build(world=Strict, chat_template=KNOWS_TOOLS, world_errors="end", mask_truncated=True))
    ended = [row for row, sample in enumerate(rollout.samples) if sample.info["finish"] == "error"]
    assert ended
    assert all(rollout.samples[row].info["turns"] == 2 for row in ended)
    assert not rollout.mask[ended].any()  # it is no end of the model's own


class Cancelled(Strict):
    """Raises what is no `Exception`, and quotes tokens of the template."""

    def reply(self, text: str) -> Any:
        raise asyncio.CancelledError("<eos> behind <assistant>")


def test_an_error_that_quotes_the_template_and_is_no_exception_becomes_a_message() -> None:
    options = {"world": Cancelled, "chat_template": KNOWS_TOOLS, "max_turns": 2, "max_new_tokens": 90}
    infos = [sample.info for sample in drawn(build(**options, world_errors="message")).samples]
    replies = {each["content"] for info in infos for each in info["messages"] if each["role"] == "tool"}
    assert replies == {"Error: < eos> behind < assistant>"}
    with pytest.raises(RunError, match=r"failed in turn 1, .*CancelledError: <eos> behind"):
        drawn(build(**options))


class Prompter(Echo):
    """Speaks for the model, too, and turns torch's state over."""

    def reply(self, text: str) -> Any:
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(True)
        return [{"role": "assistant", "content": "the answer is 42"}, {"role": "user", "content": "go on"}]


def test_rewards_see_the_models_own_words_and_torch_stays_as_it_was() -> None:
    rollout = drawn(build(world=Prompter))
    assert {sample.info["finish"] for sample in rollout.samples} == {"length"}
    for row, sample in enumerate(rollout.samples):
        own = [tokens for decided, tokens in stretches(rollout, row) if decided]
        assert sample.output == build().encoder.completion(own[-1])
    assert torch.get_default_dtype() == torch.float32
    assert not rollout.old.logprobs.requires_grad


@pytest.mark.parametrize("room", [0, 1, 2])
def test_an_answer_that_leaves_no_room_for_the_model_ends_the_episode(room: int) -> None:
    """`room` columns behind the first answer; with none the answer would fill the row."""
    world = partial(Echo, long=1000)
    turns = stretches(drawn(build(world=world)), 0)
    own, answer = (len(tokens) for _, tokens in turns[:2])
    info = drawn(build(world=world, max_new_tokens=own + answer + room)).samples[0].info
    assert info["finish"] == "length"
    assert info["tokens"] == own + room


class Session(Echo):
    """Counts those that are open."""

    left: ClassVar[set[int]] = set()
    fails = ""

    def start(self, prompt: Prompt, seed: int) -> str:
        self.left.add(id(self))
        return super().start(prompt, seed)

    def reply(self, text: str) -> str | None:
        if self.fails:
            raise ValueError("the server is gone")
        return super().reply(text)

    def close(self) -> None:
        self.left.remove(id(self))
        if self.fails == "twice":
            raise ValueError("no server to close")


@pytest.mark.parametrize("fails", ["", "once", "twice"])
def test_worlds_are_closed_after_a_rollout_an_error_and_the_check(fails: str) -> None:
    policy = build(world=type("Failing", (Session,), {"fails": fails}))
    with nullcontext() if fails != "twice" else pytest.raises(RunError, match=r"failed in close: .*no server to close"):
        policy.check(PROMPTS)
    with nullcontext() if not fails else pytest.raises(RunError, match=r"failed in turn 1, .*server is gone"):
        drawn(policy)
    assert not Session.left


class NoReply:
    def start(self, prompt: Prompt, seed: int) -> None: ...


class Chance(Echo):
    COUNT = count()

    def start(self, prompt: Prompt, seed: int) -> str:
        return f"{next(self.COUNT)}"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"world": "guess-the-numbers"}, "no world called 'guess-the-numbers' (did you mean 'guess-the-number'"),
        ({"world": {"use": "guess-the-number", "guess": 3}}, "has no parameter 'guess'"),
        ({"world": {"name": "guess-the-number"}}, "world must name a world"),
        ({"world": "echo_world:Ech"}, "Ech"),
        ({"world": NoReply}, "'NoReply' has no method reply"),
        ({"world": Strict}, "chat template does not write them"),
        ({"world": Strict, "chat": False}, "world has tools"),
        ({"max_turns": 0}, "max_turns must be at least 1"),
        ({"world_errors": "ignore"}, "world_errors must be 'stop' or 'message' or 'end'"),
        ({"engine": {"url": "http://here"}, "lora": {"r": 2}}, "engine writes one turn"),
    ],
    ids=str,
)
def test_a_wrong_world_is_refused_before_the_run(options: dict[str, Any], words: str) -> None:
    with pytest.raises(GrpokitError, match=re.escape(words)):
        build(**options)


PICTURE = [{"role": "user", "content": [{"type": "image"}]}]


@pytest.mark.parametrize(
    "message", [3, [], {"content": "a"}, {"role": "word", "content": "a"}, "a<eos>b", PICTURE], ids=str
)
def test_a_message_of_the_wrong_form_is_refused(message: Any) -> None:
    with pytest.raises(UsageError, match="The world 'echo_world:Odd' sends a message that cannot be read"):
        build(world={"use": "echo_world:Odd", "message": message}).check(PROMPTS)

    class Late(Echo):
        def reply(self, text: str) -> Any:
            return message

    with pytest.raises(RunError, match=r"The world 'Late' failed in turn 1, after the model wrote .* cannot be read"):
        drawn(build(world=Late))


def test_errors_of_a_world_stop_the_run_with_one_message() -> None:
    with pytest.raises(
        RunError, match=r"world 'Strict' failed in turn 2, .*ValueError: no such place \(test_worlds.py"
    ):
        drawn(build(world=Strict, chat_template=KNOWS_TOOLS))
    with pytest.raises(RunError, match=r"world 'Chance' starts the episodes of a group with different messages"):
        drawn(build(world=Chance))


def test_a_text_of_a_world_is_plain_text_without_a_template() -> None:
    rollout = drawn(build(chat=False))
    turns = stretches(rollout, 0)
    assert tiny_tokenizer().decode(turns[1][1]) == f"no, {rollout.samples[0].info['read'][0]}"
