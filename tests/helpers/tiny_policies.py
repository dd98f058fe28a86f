"""Small real policies for tests of the engine: tokens with ragged ends, and Gaussian steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from grpokit import Decisions, Policy, Prompt, Rollout, Sample, Seeds, Trace, frozen_copy, swapped
from grpokit.builtin.more_objectives import BNPO, CISPO, DPPO, LUSPO, SAPO, VESPO
from grpokit.flow import gaussian_logprobs
from grpokit.objectives import DAPO, GRPO, GSPO, DrGRPO
from grpokit.sampling import sample_categorical, uniforms

OBJECTIVES_BY_NAME = {
    "grpo": GRPO,
    "dapo": DAPO,
    "dr_grpo": DrGRPO,
    "bnpo": BNPO,
    "gspo": GSPO,
    "luspo": LUSPO,
    "cispo": CISPO,
    "sapo": SAPO,
    "vespo": VESPO,
    "dppo": DPPO,
}


class TinyTokens(Policy):
    """A Markov chain over tokens with a small net; token 0 ends a row, so that masks are ragged.

    Its prompt is a number in `Prompt.text`; the net sees (prompt number, position, previous token).
    """

    def __init__(
        self,
        vocab: int = 6,
        length: int = 7,
        *,
        width: int = 16,
        slices: int = 1,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        entropy: bool = True,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.vocab, self.length, self.slice_count, self.entropy = vocab, length, slices, entropy
        self.net = nn.Sequential(
            nn.Linear(16 + length + vocab, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, vocab),
        )
        for p in self.net.parameters():
            p.data = torch.randn(p.shape, generator=generator, dtype=dtype) * (0.5 if p.ndim > 1 else 0.1)
        self.frozen: nn.Module | None = None
        self.scored: list[tuple[int, slice]] = []

    def logits(self, prompt: Tensor, position: Tensor, previous: Tensor) -> Tensor:
        """[b, t] each -> [b, t, V]"""
        parts = (prompt % 16, 16), (position, self.length), (previous, self.vocab)
        like = next(self.net.parameters())
        return self.net(torch.cat([torch.eye(n, dtype=like.dtype, device=like.device)[x] for x, n in parts], dim=-1))

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        like = next(self.net.parameters())
        numbers = torch.tensor([int(p.text) for p in prompts]).repeat_interleave(group_size).to(like.device)
        draws = uniforms(seeds.row, self.length).to(like.device)
        tokens = numbers.new_zeros(len(numbers), self.length)
        logprobs = like.new_zeros(tokens.shape)
        previous, alive = torch.zeros_like(numbers), torch.ones_like(numbers, dtype=torch.bool)
        mask = torch.zeros_like(tokens, dtype=torch.bool)
        for t in range(self.length):
            logits = self.logits(numbers[:, None], torch.full_like(numbers, t)[:, None], previous[:, None])[:, 0]
            previous, _ = sample_categorical(logits, draws[:, t])
            tokens[:, t], mask[:, t] = previous, alive
            logprobs[:, t] = logits.log_softmax(-1).gather(-1, previous[:, None])[:, 0]
            alive = alive & (previous != 0)
        groups = seeds.group_ids.repeat_interleave(group_size)
        samples = [
            Sample(
                prompt=prompts[i // group_size],
                output="".join(str(int(v)) for v in tokens[i][mask[i]]),
                group=int(groups[i]),
            )
            for i in range(len(numbers))
        ]
        return Rollout(
            samples=samples,
            groups=groups,
            old=Decisions(logprobs=logprobs),
            mask=mask,
            max_decisions=self.length,
            decision_rewards=torch.where(mask, (tokens == 3) + 0.01, 0.0).double(),  # they sum up to `digit_sum`
            trace=Trace(
                per_row={"tokens": tokens}, per_group={"number": numbers[::group_size][seeds.group_ids.argsort()]}
            ),
        )

    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        self.scored.append((rollout.rows, steps))
        tokens = rollout.trace.per_row["tokens"]
        prompt = rollout.trace.per_group["number"][rollout.group_index.to(tokens.device)]
        previous = nn.functional.pad(tokens, (1, 0))[:, :-1][:, steps]
        position = torch.arange(self.length, device=tokens.device)[steps].expand_as(previous)
        logprobs = self.logits(prompt[:, None].expand_as(previous), position, previous).log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1) if self.entropy else None
        return Decisions(logprobs=logprobs.gather(-1, tokens[:, steps, None])[..., 0], entropy=entropy)

    def slices(self, rollout: Rollout) -> list[slice]:
        edges = [round(i * self.length / self.slice_count) for i in range(self.slice_count + 1)]
        return [slice(a, b) for a, b in itertools.pairwise(edges)]

    @contextmanager
    def reference(self) -> Iterator[None]:
        if self.frozen is None:
            self.frozen = frozen_copy(self.net)
        with swapped(self, "net", self.frozen):
            yield

    def modules(self) -> Mapping[str, nn.Module]:
        return {"net": self.net}

    def state_dict(self) -> Any:
        return self.net.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.net.load_state_dict(state)


class BatchesSeen(TinyTokens):
    """Keeps how every rollout is drawn, and the groups of every batch that is scored with gradient."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seeds: list[Seeds] = []
        self.evaluated: list[bool] = []
        self.batches: list[Tensor] = []

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        self.seeds.append(seeds)
        self.evaluated.append(evaluate)
        return super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)

    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        if torch.is_grad_enabled():
            self.batches.append(rollout.groups)
        return super().logprobs(rollout, steps)


class Fails(TinyTokens):
    """Raises `error` once, in the call of logprobs that comes `left` calls from now."""

    left = 0
    error: Exception = ValueError("a fault")

    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        self.left -= 1
        if self.left == 0:
            raise self.error
        return super().logprobs(rollout, steps)


class Falters(TinyTokens):
    """Raises in one of its rollouts for training, or from its scoring on."""

    def __init__(self, step: int = 1, where: str = "rollout") -> None:
        super().__init__()
        self.step, self.where, self.drawn = step, where, 0

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        self.drawn += not evaluate
        self._fault("rollout")
        return super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)

    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        self._fault("logprobs")
        return super().logprobs(rollout, steps)

    def _fault(self, where: str) -> None:
        if where == self.where and self.drawn >= self.step:
            raise ValueError(f"a fault in step {self.step}")


class TinyGaussian(TinyTokens):
    """Gaussian steps x' ~ N(x + net(x), std) in `dims` dimensions, one slice per step."""

    def __init__(self, dims: int = 3, length: int = 4, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        super().__init__(length=length, slices=length, dtype=dtype, seed=seed)
        self.dims, self.std = dims, 0.3
        generator = torch.Generator().manual_seed(seed + 1)
        self.net = nn.Linear(dims, dims, bias=False, dtype=dtype)
        self.net.weight.data = 0.2 * torch.randn(dims, dims, generator=generator, dtype=dtype)

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        b = len(prompts) * group_size
        dtype = next(self.net.parameters()).dtype
        uniform = uniforms(seeds.row, self.length * self.dims).reshape(b, self.length, self.dims)
        noise = (torch.erfinv(2 * uniform - 1) * 2**0.5).to(dtype)
        path = [torch.zeros(b, self.dims, dtype=dtype)]
        for t in range(self.length):
            path.append(path[-1] + self.net(path[-1] + 1) + self.std * noise[:, t])
        groups = seeds.group_ids.repeat_interleave(group_size)
        trace = Trace(per_row={"path": torch.stack(path, 1)})  # [B, T + 1, D]
        samples = [
            Sample(prompt=prompts[i // group_size], output=path[-1][i].tolist(), group=int(groups[i])) for i in range(b)
        ]
        mask = torch.ones(b, self.length, dtype=torch.bool)
        steps = self._steps(trace, slice(0, self.length))
        return Rollout(
            samples=samples,
            groups=groups,
            old=Decisions(logprobs=steps.logprobs),
            mask=mask,
            max_decisions=self.length,
            action_dims=self.dims,
            trace=trace,
        )

    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        self.scored.append((rollout.rows, steps))
        return self._steps(rollout.trace, steps)

    def _steps(self, trace: Trace, steps: slice) -> Decisions:
        path = trace.per_row["path"]
        here, there = path[:, :-1][:, steps], path[:, 1:][:, steps]
        mean = here + self.net(here + 1)
        std = torch.full_like(mean[..., :1], self.std)
        return Decisions(logprobs=gaussian_logprobs(there, mean, std), mean=mean, std=std)


def digit_sum(samples: Sequence[Sample]) -> list[float]:
    """More of token 3, and a little for length: a reward that TinyTokens can learn."""
    return [s.output.count("3") + 0.01 * len(s.output) for s in samples]


def nearness(samples: Sequence[Sample]) -> list[float]:
    """End near (1, 1, 1)."""
    return [-sum((x - 1) ** 2 for x in s.output) for s in samples]
