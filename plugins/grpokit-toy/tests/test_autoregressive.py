"""The shared base with responses of variable length: the end token is a decision, what follows it is not."""

import pytest
import torch

from grpokit import Prompt, UsageError
from grpokit.sampling import derive_seeds
from grpokit_toy.autoregressive import AutoregressivePolicy
from grpokit_toy.transformer import Shape, Transformer

EOS = 3


class Babble(AutoregressivePolicy):
    """Prompts are digits 1-5, responses digits 0-2 and the end."""

    def __init__(self, **settings):
        torch.manual_seed(0)
        shape = Shape(prompt_vocab=6, vocab=4, prompt_length=6, response_length=9, width=16, layers=2, heads=2)
        super().__init__(Transformer(shape), eos=EOS, **settings)

    def encode(self, prompt):
        return [int(c) for c in prompt.text]

    def decode(self, tokens):
        return "".join(map(str, tokens))


def draw(policy, texts, group_size=8):
    seeds = derive_seeds(0, stream="train", step=0, prompts=len(texts), group_size=group_size)
    return policy.rollout([Prompt(text=t) for t in texts], group_size, seeds=seeds)


def test_the_mask_ends_with_the_end_token():
    rollout = draw(Babble(), ["1", "12345", "22"])
    lengths = set()
    for sample, row, mask in zip(rollout.samples, rollout.trace.per_row["tokens"].tolist(), rollout.mask, strict=True):
        n = int(mask.sum())
        lengths.add(n)
        assert mask.tolist() == [True] * n + [False] * (9 - n)
        assert EOS not in row[: n - 1]
        assert sample.output == "".join(map(str, row[:n]))
        assert sample.info["tokens"] == n
        assert sample.info["finish"] == ("stop" if row[n - 1] == EOS else "length")
        assert n == 9 or row[n - 1] == EOS
    assert len(lengths) > 2, "the test needs different lengths"


def test_logprobs_agree_under_the_mask_and_says_nothing_elsewhere():
    policy = Babble(temperature=0.8)
    rollout = draw(policy, ["1", "12345", "22"])
    new = policy.logprobs(rollout, slice(0, 9))
    assert (new.logprobs - rollout.old.logprobs).abs().max() < 1e-4
    assert bool((new.logprobs[~rollout.mask] == 0).all())
    assert bool((new.entropy[~rollout.mask] == 0).all())


def test_a_short_prompts_row_does_not_feel_a_long_neighbour():
    policy = Babble()
    alone, beside = draw(policy, ["1"]), draw(policy, ["1", "12345"])
    assert torch.equal(alone.trace.per_row["tokens"], beside.trace.per_row["tokens"][:8])
    assert (alone.old.logprobs - beside.old.logprobs[:8]).abs().max() < 1e-5


@pytest.mark.parametrize("prompt", ["", "1111111"])
def test_prompts_must_fit_the_slot(prompt):
    with pytest.raises(UsageError, match=f"is {len(prompt)} tokens long; this policy reads 1 to 6"):
        draw(Babble(), [prompt])


def test_padding_is_not_read():
    """Another embedding of the padding changes no log-prob."""
    policy = Babble()
    rollout = draw(policy, ["1", "12345"])
    with torch.no_grad():
        policy.model.prompt_embedding.weight[0] += 100
    assert (policy.logprobs(rollout, slice(0, 9)).logprobs - rollout.old.logprobs).abs().max() < 1e-4


def test_cached_decoding_is_the_full_forward():
    policy = Babble()
    model, prompts = policy.model, torch.tensor([[1, 2, 0, 0, 0, 0], [5, 4, 3, 2, 1, 1]])
    tokens = torch.randint(0, 4, (2, 9), generator=torch.Generator().manual_seed(0))
    cache, visible = model.prefill(prompts), model.visible_keys(prompts)
    last, steps = torch.full((2,), model.start), []
    with torch.no_grad():
        cache = model.prefill(prompts)
        for t in range(9):
            steps.append(model.step(last, cache, visible))
            last = tokens[:, t]
        torch.testing.assert_close(torch.stack(steps, 1), model(prompts, tokens), atol=1e-5, rtol=0)
