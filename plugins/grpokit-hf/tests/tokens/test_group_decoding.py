"""Group decoding against the model's own forward pass over what was written."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_decoders import MODELS, build
from torch import Tensor

from grpokit.sampling import sample_categorical, uniforms
from grpokit_hf.tokens import group_decoding, packed_attention
from grpokit_hf.tokens.group_decoding import Written, decode
from grpokit_hf.tokens.packed_attention import install

SEEDS = torch.arange(8) * 7919 + 11


def write(
    model: Any, prompts: Sequence[Tensor], *, group: int = 4, length: int = 12, every: int = 1, **given: Any
) -> Written:
    """What the model writes, one uniform number for each row and token; every sixth token ends a sample."""
    chances = uniforms(SEEDS, length)

    def draw(hidden: Tensor, t: int, rows: Tensor) -> Any:
        tokens, logprobs = sample_categorical(model.lm_head(hidden).float(), chances[rows, t])
        return SimpleNamespace(tokens=tokens, logprobs=logprobs)

    with torch.no_grad():
        return decode(
            model.get_decoder(),
            prompts,
            group,
            max_new_tokens=length,
            draw=draw,
            ended=lambda tokens, first: (tokens[:, first:] % 6 == 0).any(1),
            check_every=every,
            **given,
        )


def prompts_of(*lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(1, 50, (n,), generator=generator) for n in lengths]


def lengths_of(written: Written) -> Tensor:
    hits = written.tokens % 6 == 0
    return torch.where(hits.any(1), hits.int().argmax(1) + 1, written.tokens.shape[1])


def up_to_their_ends(written: Written) -> list[list[int]]:
    return [row[:length] for row, length in zip(written.tokens.tolist(), lengths_of(written).tolist(), strict=True)]


@pytest.mark.parametrize(("every", "spare", "lengths"), [(1, 0, (3, 9)), (3, 0, (3, 9)), (1, 5, (9, 4))])
@pytest.mark.parametrize("name", MODELS)
def test_tokens_and_logprobs_are_those_of_the_model(
    name: str, every: int, spare: int, lengths: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_attention, "spare_rows", lambda count, like: spare)
    model, prompts = build(name), prompts_of(*lengths)
    install(model)
    written = write(model, prompts, every=every)
    ends = lengths_of(written)
    assert ends.unique().numel() > 2  # samples leave at different times
    chances = uniforms(SEEDS, 12)
    for row, length in enumerate(ends.tolist()):
        prompt, tokens = prompts[row // 4], written.tokens[row, :length]
        with torch.no_grad():
            logits = model(input_ids=torch.cat([prompt, tokens])[None]).logits[0, len(prompt) - 1 : -1]
        drawn, logprobs = sample_categorical(logits, chances[row, :length])
        assert drawn.tolist() == tokens.tolist()
        assert torch.allclose(logprobs, written.logprobs[row, :length], rtol=0, atol=1e-5)


def test_embeddings_and_positions_of_ones_own() -> None:
    """Every second position, from another one for each prompt, and embeddings in place of tokens."""
    model, prompts = build("grouped"), prompts_of(3, 9)
    install(model)
    spans = [2 * torch.arange(len(prompt) + 11) + len(prompt) for prompt in prompts]
    embeddings = [model.get_input_embeddings()(prompt) for prompt in prompts]
    written = write(model, embeddings, positions=spans)
    for row, length in enumerate(lengths_of(written).tolist()):
        prompt, tokens = prompts[row // 4], written.tokens[row, :length]
        whole = torch.cat([prompt, tokens])[None, :-1]
        places = spans[row // 4][None, : whole.shape[1]]
        with torch.no_grad():
            logits = model(input_ids=whole, position_ids=places).logits[0, len(prompt) - 1 :]
        logprobs = logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
        assert torch.allclose(logprobs, written.logprobs[row, :length], rtol=0, atol=1e-5)


def test_finished_samples_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """The places in use shrink, and nothing that stays is changed."""
    model = build("grouped")
    install(model)
    sizes: list[int] = []
    model.get_decoder().embed_tokens.register_forward_hook(lambda _, args, __: sizes.append(args[0].numel()))
    written = write(model, prompts_of(3, 9))
    monkeypatch.setattr(group_decoding, "LEAVE_AT", 0.0)
    whole = write(model, prompts_of(3, 9))
    lengths = lengths_of(written)
    assert lengths.tolist() == lengths_of(whole).tolist()
    for row, length in enumerate(lengths.tolist()):
        assert written.tokens[row, :length].tolist() == whole.tokens[row, :length].tolist()
    monkeypatch.setattr(group_decoding, "LEAVE_AT", 1.0)
    write(model, prompts_of(3, 9))
    first, second, third = sizes[1:12], sizes[13:24], sizes[25:]
    assert sorted(first, reverse=True) == first
    assert first[-1] < 8
    assert set(second) == {8}
    assert third == [int((lengths > t).sum()) for t in range(1, 12)]  # of each group as many as are left


def test_a_prompt_is_read_once_for_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_attention, "spare_rows", lambda count, like: 0)
    model = build("grouped")
    install(model)
    read: list[int] = []
    model.get_decoder().embed_tokens.register_forward_hook(lambda _, args, __: read.append(args[0].numel()))
    write(model, prompts_of(3, 9), length=2)
    assert read == [12, 8]


@pytest.mark.parametrize("columns", [1, 5])
def test_the_size_of_a_block_changes_nothing(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are begun, filled in part, and left by finished samples; by default one block would hold all columns."""
    model = build("capped")
    install(model)
    want = write(model, prompts_of(3, 9))
    monkeypatch.setattr(group_decoding.GroupCache, "BLOCK", columns)
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN, which nothing may read
    try:
        have = write(model, prompts_of(3, 9))
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(have.tokens, want.tokens)
    assert torch.allclose(have.logprobs, want.logprobs, rtol=0, atol=1e-6)


@pytest.mark.gpu
def test_no_captured_steps_where_a_model_waits_for_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("grouped").cuda()
    install(model)
    prompts = [prompt.cuda() for prompt in prompts_of(3, 9)]
    monkeypatch.setattr(f"{__name__}.SEEDS", SEEDS.cuda())
    captured = write(model, prompts)

    def wait(*given: Any) -> None:
        torch.zeros(1, device="cuda").nonzero()

    model.get_decoder().register_forward_pre_hook(wait)
    with pytest.warns(UserWarning, match="LlamaModel waits for the GPU within a step, so its steps cannot be captured"):
        waiting = write(model, prompts)
    assert up_to_their_ends(waiting) == up_to_their_ends(captured)
    assert torch.cuda.get_sync_debug_mode() == 0


@pytest.mark.gpu
def test_another_error_of_a_step_is_not_taken_for_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = build("grouped").cuda(), []
    install(model)

    def fail(*given: Any) -> None:
        calls.append(None)
        if len(calls) == 3:  # the prompts, a first run, and the one that is looked at
            raise RuntimeError("out of memory")

    model.get_decoder().register_forward_pre_hook(fail)
    monkeypatch.setattr(f"{__name__}.SEEDS", SEEDS.cuda())
    with pytest.raises(RuntimeError, match="out of memory"):
        write(model, [prompt.cuda() for prompt in prompts_of(3, 9)])
    assert torch.cuda.get_sync_debug_mode() == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
def test_captured_steps_write_what_plain_ones_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(name).cuda()
    install(model)
    prompts = [prompt.cuda() for prompt in prompts_of(3, 9)]
    monkeypatch.setattr(f"{__name__}.SEEDS", SEEDS.cuda())
    replays: list[None] = []
    replay = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(None), replay(graph))[1])
    captured = write(model, prompts)
    assert replays
    plain_init = group_decoding._Step.__init__

    def init(step: Any, decoder: Any, cache: Any) -> None:
        plain_init(step, decoder, cache)
        cache.captured = False

    monkeypatch.setattr(group_decoding._Step, "__init__", init)
    count = len(replays)
    plain = write(model, prompts)
    assert len(replays) == count
    assert up_to_their_ends(captured) == up_to_their_ends(plain)
