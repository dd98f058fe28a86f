"""Draws by inverse CDF: frequencies, rare tokens, truncation, and the training pass's log-probs of what was drawn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from grpokit.errors import UsageError
from grpokit.sampling import uniforms
from grpokit_hf.tokens.drawing import BLOCK, draw, inverse_cdf
from grpokit_hf.tokens.fused_head import FusedHead
from grpokit_hf.tokens.truncation import packed, restrict, truncation

V = 4 * BLOCK - 3  # the last block is cut short


def logits(rows: int, *, seed: int = 0, spread: float = 3.0, vocabulary: int = V) -> Tensor:
    return spread * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))


def truncated(z: Tensor, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, forbidden=None) -> Tensor:
    """The probabilities after truncation, by sorting, as transformers defines it: [B, V] fp64."""
    never = torch.zeros(z.shape[1], dtype=torch.bool) if forbidden is None else forbidden
    p = (z.double() / temperature).masked_fill(never, -torch.inf).softmax(-1)
    if top_k:
        p = torch.where(p < p.topk(top_k).values[:, -1:], 0.0, p)
    order = p.sort(descending=True)
    before = order.values.cumsum(-1) - order.values
    p = order.values.where(before < top_p * p.sum(-1, keepdim=True), 0.0).gather(-1, order.indices.argsort())
    p = torch.where(p < min_p * p.amax(-1, keepdim=True), 0.0, p)
    return p / p.sum(-1, keepdim=True)


FORBIDDEN = torch.arange(V) % 3 == 0
SETTINGS = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "top_k, as indices": {"top_k": 9},
    "top_k, as bits": {"top_k": 90},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.05},
    "forbidden": {"forbidden": FORBIDDEN},
    "all, as indices": {"temperature": 1.3, "top_k": 12, "top_p": 0.8, "min_p": 0.1, "forbidden": FORBIDDEN},
    "all, as bits": {"temperature": 1.3, "top_k": 100, "top_p": 0.8, "min_p": 0.1, "forbidden": FORBIDDEN},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_frequencies_are_the_probabilities(setting: str) -> None:
    """Chi-square of 20,000 draws, tokens below 10 expected draws taken together; none outside what is left."""
    z, options = logits(1, spread=1.5), SETTINGS[setting]
    drawn = draw(z.expand(20_000, V), uniforms(torch.arange(20_000), 1)[:, 0], **options)
    expected = 20_000 * truncated(z, **options)[0]
    counts = drawn.tokens.bincount(minlength=V).double()
    assert counts[expected == 0].sum() == 0
    often = expected >= 10
    counts, expected = (torch.cat([x[often], x[~often].sum()[None]]) for x in (counts, expected))
    terms = (counts - expected)[expected > 0].square() / expected[expected > 0]
    degrees = len(terms) - 1
    assert terms.sum() < degrees + 4 * (2 * degrees) ** 0.5  # four standard deviations


@pytest.mark.parametrize("setting", SETTINGS)
def test_log_probs_and_entropy_are_of_the_truncated_distribution(setting: str, device: str) -> None:
    z, options = logits(64), SETTINGS[setting]
    there = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in options.items()}
    drawn = draw(z.to(device), uniforms(torch.arange(64, device=device), 1)[:, 0], **there, entropy=True)
    p = truncated(z, **options)
    expected = p.gather(1, drawn.tokens.cpu()[:, None])[:, 0].log()
    torch.testing.assert_close(drawn.logprobs.double().cpu(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(drawn.entropy.double().cpu(), -torch.xlogy(p, p).sum(-1), rtol=0, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_draw_takes_few_launches(setting: str, fake_cuda: Any) -> None:
    """At least 2 microseconds each, for each token, since they are not part of the captured step."""
    options = {name: x.cuda() if isinstance(x, Tensor) else x for name, x in SETTINGS[setting].items()}
    z, chances = logits(8).cuda(), uniforms(torch.arange(8, device="cuda"), 1)[:, 0]
    with fake_cuda.counted() as count:
        draw(z, chances, **options)
    assert count.launches <= 85
    assert not count.waits


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("softcap", [None, 4.0])
def test_the_fused_head_gives_the_samplers_log_probs(setting: str, softcap: float | None) -> None:
    """Ratio 1, with the kept set that the sampler stored."""
    hidden, weight = logits(64, spread=1.0, vocabulary=16), logits(V, seed=1, spread=1.0, vocabulary=16)
    z, options = hidden @ weight.T, SETTINGS[setting]
    z = z if softcap is None else softcap * (z / softcap).tanh()
    drawn = draw(z, uniforms(torch.arange(64), 1)[:, 0], **options, entropy=True)
    logprobs, entropy = FusedHead()(
        hidden,
        drawn.tokens,
        weight,
        scale=1 / options.get("temperature", 1.0),
        softcap=softcap,
        kept=drawn.kept,
        forbidden=options.get("forbidden"),
        entropy="value",
        chunk=10,
    )
    torch.testing.assert_close(logprobs, drawn.logprobs, rtol=0, atol=5e-6)
    torch.testing.assert_close(entropy, drawn.entropy, rtol=0, atol=1e-5)


def test_a_kept_set_is_taken_as_it_is_where_other_arithmetic_would_leave_another() -> None:
    """Logits in bf16 tie and cross the threshold; the sampler's set still gives finite log-probs, near its own."""
    z = logits(200)
    drawn = draw(z.bfloat16(), uniforms(torch.arange(200), 1)[:, 0], top_p=0.7)
    own = draw(z, uniforms(torch.arange(200), 1)[:, 0], top_p=0.7).kept
    assert (own != drawn.kept).any()
    again = restrict(z.clone(), drawn.kept).log_softmax(-1).gather(1, drawn.tokens[:, None])[:, 0]
    torch.testing.assert_close(again, drawn.logprobs, rtol=0, atol=0.1)


@pytest.mark.parametrize("place", [0, 1, BLOCK - 1, BLOCK, V - 1])
@pytest.mark.parametrize("rare", [1e-12, 1e-9])
def test_a_rare_token_gets_its_share_wherever_it_stands(place: int, rare: float) -> None:
    """The uniforms that draw it are an interval of its probability's width, found by bisection of both ends."""
    p = torch.full((1, V), 1 / (V - 1)).index_fill(1, torch.tensor([place]), rare)

    def first(token: int) -> float:
        """The least uniform that draws `token` or a later one."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            reached = inverse_cdf(p, torch.tensor([middle], dtype=torch.float64)) >= token
            low, high = (low, middle) if reached else (middle, high)
        return high

    assert first(place + 1) - first(place) == pytest.approx(rare, rel=1e-3)


def test_draws_follow_the_fp64_running_sum() -> None:
    p = logits(500).softmax(-1)
    u = uniforms(torch.arange(500), 1)[:, 0]
    index = inverse_cdf(p, u)[:, None]
    above = (p.double().cumsum(-1) / p.double().sum(-1, keepdim=True)).gather(1, index)[:, 0]
    below = above - p.double().gather(1, index)[:, 0]
    assert ((below - 1e-7 < u) & (u < above + 1e-7)).all()


def test_draws_at_the_edges_stay_among_the_tokens_that_can_be_drawn() -> None:
    z = torch.full((1, V), -torch.inf)
    z[0, 5], z[0, 200] = 0.0, 0.0
    edges = torch.tensor([0.0, 2.0**-53, 0.5, 1 - 2.0**-53, 1.0], dtype=torch.float64)
    assert draw(z.expand(5, V), edges).tokens.tolist() == [5, 5, 200, 200, 200]


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_row_of_nan_or_infinity_gets_a_nan_and_others_do_not(number: float, setting: str) -> None:
    z = logits(3)
    z[1, 7] = number
    drawn = draw(z, torch.full((3,), 0.5, dtype=torch.float64), **SETTINGS[setting])
    assert drawn.logprobs.isnan().tolist() == [False, True, False]
    assert 0 <= drawn.tokens[1] < V


def test_a_rows_draw_does_not_depend_on_the_others() -> None:
    z, u = logits(40), uniforms(torch.arange(40), 1)[:, 0]
    together = draw(z, u, top_p=0.9)
    for i in (0, 17, 39):
        alone = draw(z[i : i + 1], u[i : i + 1], top_p=0.9)
        for name in ("tokens", "logprobs", "kept"):
            assert torch.equal(getattr(alone, name)[0], getattr(together, name)[i])


def test_the_kept_set_is_stored_in_the_smaller_form() -> None:
    """Indices where they need no more bytes than bits: 4 each, against 64 for 512 tokens."""
    z, u = logits(2, vocabulary=512), torch.full((2,), 0.5)
    forms = [draw(z, u, **options).kept for options in ({}, {"top_k": 16}, {"top_k": 17}, {"top_k": 512, "min_p": 0.1})]
    assert forms[0] is None
    assert [(tuple(x.shape), x.dtype) for x in forms[1:]] == [
        ((2, 16), torch.int32),
        ((2, 64), torch.uint8),
        ((2, 64), torch.uint8),
    ]


@pytest.mark.parametrize("vocabulary", [8, 13, 64])
def test_bits_hold_any_set(vocabulary: int) -> None:
    keep = torch.rand(20, vocabulary, generator=torch.Generator().manual_seed(0)) < 0.5
    bits = packed(keep)
    assert bits.shape == (20, -(-vocabulary // 8))
    assert bits[0, 0] == sum(2**i for i in range(8) if keep[0, i])
    assert ((restrict(torch.zeros(20, vocabulary), bits) == 0) == keep).all()


def test_truncation_by_hand(device: str) -> None:
    """Of 0.2, 0.4, 0.1, 0.3, top_k 3 leaves 0.9, and 0.75 of that needs 0.4 + 0.3; alone, 0.75 needs 0.2, too."""
    p = torch.tensor([[0.2, 0.4, 0.1, 0.3]])

    def left(p: Tensor, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> list[int]:
        return truncation(p.to(device), top_k=top_k, top_p=top_p, min_p=min_p)[0].nonzero()[:, 0].tolist()

    assert left(p, top_k=3) == [0, 1, 3]
    assert left(p, top_k=3, top_p=0.75) == [1, 3]
    assert left(p, top_p=0.75) == [0, 1, 3]
    assert left(p, top_p=1e-9) == [1]
    assert left(p, min_p=0.49) == [0, 1, 3]
    assert left(p, min_p=0.51) == [1, 3]
    assert left(p, min_p=1.0) == [1]
    assert left(torch.tensor([[0.3, 0.3, 0.1, 0.3]]), top_k=1) == [0, 1, 3]  # ties at the edge stay


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0}, r"temperature must be from 1e-08 to 1e\+08, got 0"),
        ({"temperature": 1e300}, r"temperature must be from .* got 1e\+300"),
        ({"temperature": 1e-40}, "temperature must be from .* got 1e-40"),
        ({"top_k": -1}, "top_k must be a whole number, or 0 for all tokens; got -1"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1"),
        ({"min_p": 1.5}, "min_p must be between 0"),
        ({"uniforms": torch.zeros(3)}, r"got \(2, 509\) and \(3,\)"),
    ],
)
def test_settings_outside_their_range_are_refused(change: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        draw(**{"logits": logits(2), "uniforms": torch.full((2,), 0.5), **change})
