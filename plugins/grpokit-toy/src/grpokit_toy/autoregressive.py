"""The policy that all toy generators share: prompt tokens -> response tokens, one categorical draw per token.

It holds everything that GRPO needs (rollout, logprobs, reference and state) and leaves to a subclass only what a
prompt's tokens are and what a response's tokens mean. Written to be read next to the contract in `grpokit.policy`:
each of the contract's rules is one or two lines here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from grpokit import (
    Ask,
    CheckpointError,
    Decisions,
    Policy,
    Prompt,
    Rollout,
    Sample,
    Seeds,
    Trace,
    UsageError,
    frozen_copy,
    swapped,
)
from grpokit.data import refuse_pictures
from grpokit.sampling import sample_categorical, uniforms
from grpokit_toy.transformer import PAD, Transformer


class AutoregressivePolicy(Policy, ABC):
    """A `Transformer` that writes a response to a prompt.

    Args:
        model: the network; the policy runs wherever its parameters are.
        temperature: of the training samples; log-probs are those of the tempered distribution.
        eval_temperature: of the evaluation samples; None for `temperature`, 0 for the most likely token (its
            log-prob is then still given at `temperature`, since that of a certain choice says nothing).
        eos: the token that ends a response, or None where every response has full length. The end token is itself
            a decision; what comes after it is masked out.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        temperature: float = 1.0,
        eval_temperature: float | None = None,
        eos: int | None = None,
    ) -> None:
        if not 0 < temperature < math.inf:
            raise UsageError(f"temperature must be above 0 and finite for training samples, got {temperature}.")
        if eval_temperature is not None and not 0 <= eval_temperature < math.inf:
            raise UsageError(f"eval_temperature must be finite, and 0 (greedy) or above, got {eval_temperature}.")
        self.model = model.eval()
        self.temperature = temperature
        self.eval_temperature = temperature if eval_temperature is None else eval_temperature
        self.eos = eos
        self._frozen: Transformer | None = None

    @abstractmethod
    def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's tokens, at least one and none of them `PAD`; a `UsageError` says what is wrong with it."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> Any:
        """What the rewards see: a pure function of the decided tokens, the end token included."""

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        """Draw `group_size` responses per prompt: the prompts are read once, all rows are then decoded together."""
        temperature = self.eval_temperature if evaluate else self.temperature
        model, device = self.model, self.model.head.weight.device
        seeds = seeds.to(device)
        encoded = self._encode_all(prompts).to(device)  # [P, L]
        rows, length = len(prompts) * group_size, model.shape.response_length
        draws = uniforms(seeds.row, length)  # [B, T]
        tokens = torch.zeros(rows, length, dtype=torch.int64, device=device)
        logprobs = torch.zeros(rows, length, device=device)
        mask = torch.zeros(rows, length, dtype=torch.bool, device=device)
        with torch.no_grad():
            cache = model.prefill(encoded).expand(group_size)
            visible = model.visible_keys(encoded).repeat_interleave(group_size, 0)  # [P, S] -> [B, S]
            last = torch.full((rows,), model.start, device=device)
            open_rows = torch.ones(rows, dtype=torch.bool, device=device)
            for t in range(length):
                logits = model.step(last, cache, visible).float()  # [B, V]
                if temperature > 0:
                    last, chosen = sample_categorical(logits / temperature, draws[:, t])
                else:
                    last = logits.argmax(-1)
                    scores = (logits / self.temperature).log_softmax(-1)
                    chosen = scores.gather(-1, last[:, None])[:, 0]  # [B, V] -> [B]
                tokens[:, t] = last
                logprobs[:, t] = torch.where(open_rows, chosen, 0.0)
                mask[:, t] = open_rows
                if self.eos is not None:
                    open_rows = open_rows & (last != self.eos)
                    if not open_rows.any():
                        break
        groups = seeds.group_ids.repeat_interleave(group_size)
        samples = []
        rows_of_tokens, lengths = tokens.tolist(), mask.sum(1).tolist()
        for i, group in enumerate(groups.tolist()):
            decided = rows_of_tokens[i][: lengths[i]]
            prompt = prompts[i // group_size]
            samples.append(Sample(prompt=prompt, output=self.decode(decided), group=group, info=self._info(decided)))
        scored_at = temperature if temperature > 0 else self.temperature
        temperatures = torch.full((rows,), scored_at, device=device)
        return Rollout(
            samples=samples,
            groups=groups,
            old=Decisions(logprobs=logprobs),
            mask=mask,
            max_decisions=length,
            trace=Trace(
                per_row={"tokens": tokens, "temperature": temperatures},
                per_group={"prompt": encoded[seeds.group_ids.argsort()]},
            ),
        )

    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = Ask()) -> Decisions:
        """Score the stored tokens in one forward pass: log-probs and, if it is read, entropy [b, t]."""
        device = self.model.head.weight.device
        start, stop, _ = steps.indices(rollout.mask.shape[1])
        tokens = rollout.trace.per_row["tokens"][:, :stop].to(device)
        index = rollout.group_index.to(device, non_blocking=True)
        prompts = rollout.trace.per_group["prompt"].to(device)[index]  # [p, L] -> [b, L]
        temperature = rollout.trace.per_row["temperature"].to(device)
        logits = self.model(prompts, tokens)[:, start:].float()  # [b, t, V]
        logprobs = (logits / temperature[:, None, None]).log_softmax(-1)
        chosen = logprobs.gather(-1, tokens[:, start:, None])[..., 0]  # [b, t, V] -> [b, t]
        decided = rollout.mask[:, start:stop].to(device)
        entropy = None
        if ask.entropy != "no":
            surprise = -(logprobs.exp() * logprobs).sum(-1)  # [b, t, V] -> [b, t]
            entropy = torch.where(decided, surprise, 0.0)
        return Decisions(logprobs=torch.where(decided, chosen, 0.0), entropy=entropy)

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside, `logprobs` uses the weights that the policy was built with."""
        reference = self._reference_model().to(self.model.head.weight.device)
        with swapped(self, "model", reference):
            yield

    def modules(self) -> Mapping[str, nn.Module]:
        """The one network."""
        return {"model": self.model}

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Read each prompt's text."""
        refuse_pictures(prompts, "this policy")
        self._encode_all(prompts)

    def state_dict(self) -> dict[str, Any]:
        """The network's weights."""
        return self.model.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take over weights; the reference stays what the policy was built with, as resuming a run needs it."""
        self._reference_model()
        load_weights(self.model, state)

    def _reference_model(self) -> Transformer:
        if self._frozen is None:  # first use, so before the first update: runs without a reference pay nothing
            self._frozen = frozen_copy(self.model)
        return self._frozen

    def _encode_all(self, prompts: Sequence[Prompt]) -> Tensor:
        """[P, L] on the CPU, each prompt padded on the right to the policy's slot, never to its batch mates."""
        slot = self.model.shape.prompt_length
        encoded = torch.full((len(prompts), slot), PAD)
        for row, prompt in zip(encoded, prompts, strict=True):
            codes = self.encode(prompt)
            if not 0 < len(codes) <= slot:
                raise UsageError(
                    f"The prompt {prompt.text!r} is {len(codes)} tokens long; this policy reads 1 to {slot}. "
                    "Shorten the prompt."
                )
            row[: len(codes)] = torch.tensor(codes)
        return encoded

    def _info(self, tokens: Sequence[int]) -> dict[str, Any]:
        if self.eos is None:
            return {}
        finish = "stop" if tokens[-1] == self.eos else "length"
        return {"finish": finish, "tokens": len(tokens), "token_ids": np.array(tokens)}


def read_weights(model: nn.Module, path: Path) -> None:
    """Fill `model` from a safetensors file, which may hold a codebook or an average too.

    Raises:
        UsageError: names the file that is missing, cannot be read, or does not fit.
    """
    if not path.is_file():
        raise UsageError(f"No weights at {path}. Give a safetensors file, such as policy.safetensors of a checkpoint.")
    try:
        stored = load_file(path)
    except SafetensorError as error:
        raise UsageError(f"{path} is not a readable safetensors file ({error}). Save it again.") from error
    weights = {name: x for name, x in stored.items() if not name.startswith(("codebook.", "old/"))}
    try:
        load_weights(model, weights)
    except CheckpointError as error:
        raise UsageError(f"{path} {error}") from error


def load_weights(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Copy `state` into `model`, in the model's own dtype and device.

    Raises:
        CheckpointError: a tensor is missing, unknown or of another shape: it is another model's.
    """
    wanted = {name: tuple(x.shape) for name, x in model.state_dict().items()}
    found = {name: tuple(x.shape) for name, x in state.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise CheckpointError(
                f"does not fit this policy: {name} should be {wanted.get(name, 'absent')}, "
                f"it has {found.get(name, 'nothing')}. It was saved by another policy or another size of it."
            )
    model.load_state_dict(dict(state))
