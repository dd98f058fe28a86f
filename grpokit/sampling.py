"""Random draws as pure functions of seeds: the prompts of a step, the seeds of its samples, and their decisions.

Nothing here uses the global random state. A draw is a hash of (run seed, stream, step, prompt, sample) and of the
decision's index. So batch size, micro-batches and the number of processes do not change it, and any rollout can be
drawn again. The hash is the splitmix64 finaliser (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from torch import Tensor

from grpokit.types import Seeds

STREAMS = {"train": 0, "evaluate": 1, "sample": 2, "data": 3, "minibatch": 4}
"""The purpose of a seed -> its number, so that no two purposes share a draw."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB


def mix(*values: int) -> int:
    """Hash integers, in their order, to one in [0, 2**63).

    >>> mix(1, 2) == mix(1, 2), mix(1, 2) == mix(2, 1)
    (True, False)
    """
    state = 0
    for value in values:
        state = _finalise((state ^ (value & _MASK)) + _GOLDEN)
    return state >> 1


def _finalise(z: int) -> int:
    z &= _MASK
    z = ((z ^ (z >> 30)) * _M1) & _MASK
    z = ((z ^ (z >> 27)) * _M2) & _MASK
    return z ^ (z >> 31)


def permutation(n: int, *key: int) -> list[int]:
    """A pseudo-random order of range(n) that depends only on `key`."""
    return sorted(range(n), key=lambda i: (mix(*key, i), i))


def prompt_indices(seed: int, step: int, *, per_step: int, total: int) -> list[int]:
    """Which prompts step number `step` (from 0) trains on; every pass over the data has its own order.

    >>> sorted(prompt_indices(1, 0, per_step=2, total=4) + prompt_indices(1, 1, per_step=2, total=4))
    [0, 1, 2, 3]
    """
    indices = []
    for i in range(step * per_step, (step + 1) * per_step):
        epoch, place = divmod(i, total)
        indices.append(_order(total, seed, epoch)[place])
    return indices


def further_indices(
    seed: int, step: int, *, attempt: int, places: Iterable[int], total: int, used: Iterable[int]
) -> list[int]:
    """Which prompts take part when some of a step's groups are drawn again, one for each place.

    Args:
        seed: the run's.
        step: from 0.
        attempt: from 1.
        places: the positions of these groups in the step.
        total: number of prompts.
        used: prompts to avoid while there are others.

    >>> sorted(further_indices(1, 0, attempt=1, places=[0, 3], total=4, used=[0, 1]))
    [2, 3]
    """
    taken = set(used)
    indices = []
    for place in places:
        start = mix(seed, STREAMS["data"], step, attempt, place) % total
        around = ((start + i) % total for i in range(total))
        indices.append(next((i for i in around if i not in taken), start))
        taken.add(indices[-1])
    return indices


@functools.lru_cache(maxsize=4)
def _order(total: int, seed: int, epoch: int) -> list[int]:
    return permutation(total, seed, STREAMS["data"], epoch)


def derive_seeds(
    seed: int,
    *,
    stream: str,
    step: int,
    prompts: int,
    group_size: int,
    first_group: int | None = None,
    attempt: int = 0,
) -> Seeds:
    """Seeds for one rollout: pure functions of (seed, stream, step, prompt, sample, attempt).

    Args:
        seed: the run's seed.
        stream: "train", "evaluate" or "sample": different draws for different uses.
        step: the step's number.
        prompts: P, the number of prompts.
        group_size: G, samples per prompt.
        first_group: global id of the first group; by default step * prompts.
        attempt: how often the step's groups have been drawn before, each time with new seeds.
    """
    s = STREAMS[stream]
    again = (attempt,) if attempt else ()
    row = []
    group = []
    for p in range(prompts):
        group.append(mix(seed, s, step, p, -1, *again))
        for i in range(group_size):
            row.append(mix(seed, s, step, p, i, *again))
    start = step * prompts if first_group is None else first_group
    return Seeds(
        row=torch.tensor(row),
        group=torch.tensor(group),
        group_ids=torch.arange(start, start + prompts),
        step=step,
    )


def uniforms(seeds: Tensor, count: int, *, start: int = 0) -> Tensor:
    """Uniform numbers in (0, 1), one per seed and index: seeds [B] -> [B, count], fp64.

    Column k depends only on the seed and on `start + k`.
    """
    index = torch.arange(start + 1, start + count + 1, device=seeds.device)
    z = seeds[:, None] + index[None] * _signed(_GOLDEN)  # int64 arithmetic wraps, as the hash wants
    z = (z ^ _shift(z, 30)) * _signed(_M1)
    z = (z ^ _shift(z, 27)) * _signed(_M2)
    z = z ^ _shift(z, 31)
    return (_shift(z, 12).double() + 0.5) * 2.0**-52


def normals(seeds: Tensor, count: int, *, start: int = 0) -> Tensor:
    """Standard normal numbers, one per seed and index: seeds [B] -> [B, count], fp64.

    The inverse CDF of `uniforms`, so column k depends only on the seed and on `start + k`, and none exceeds 8.3.
    """
    noise: Tensor = torch.special.ndtri(uniforms(seeds, count, start=start))
    return noise


def sample_categorical(logits: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Sample by inverse CDF: logits [B, V], draws [B] in (0, 1) -> tokens [B], log-probs [B] fp32.

    One uniform per row, so a row's token depends only on its logits and its draw. The cumulative sum is fp64: fp32
    would distort tokens rarer than about 6e-8. A token of probability zero is never drawn. A row with NaN or infinite
    logits gets some token with the log-prob NaN; a run then stops and names the row.
    """
    logprobs = logits.float().log_softmax(-1)
    cdf = logprobs.double().exp().cumsum(-1)
    total = cdf[:, -1:]
    below = torch.nextafter(total, torch.zeros_like(total))
    level = torch.minimum(draws.to(cdf)[:, None] * total, below)
    tokens = torch.searchsorted(cdf, level, right=True)
    tokens = tokens.clamp(max=logits.shape[-1] - 1)  # V in a row of NaN
    return tokens[:, 0], logprobs.gather(-1, tokens)[:, 0]


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
