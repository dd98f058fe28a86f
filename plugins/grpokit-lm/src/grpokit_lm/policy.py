"""A Hugging Face causal LM as a policy: one decision per token of a completion.

The class puts together what the other modules of this package provide: how a prompt becomes tokens, where a completion
ends, a path that writes and scores, and the frozen reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grpokit import Decisions, Policy, Prompt, Rollout, Sample, Seeds, Trace, frozen_copy, swapped
from grpokit.policies.token_sampling import Draw, draw
from grpokit.sampling import uniforms
from grpokit.types import Ask
from grpokit_lm.completions import Completions, padded
from grpokit_lm.paths import path_for
from grpokit_lm.stopping import Stops


class CausalLMPolicy(Policy):
    """Answers prompts with a language model."""

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any,
        max_new_tokens: int = 256,
        temperature: float = 1.0,
        eval_temperature: float | None = None,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        mask_truncated: bool = False,
        fast: bool = True,
    ) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        self.path, self.path_note = path_for(model, fast=fast)
        self.max_new_tokens, self.mask_truncated = max_new_tokens, mask_truncated
        self.temperature = temperature
        self.eval_temperature = temperature if eval_temperature is None else eval_temperature
        self.truncation = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
        self.stops = Stops([] if ignore_eos else [tokenizer.eos_token_id], stop, tokenizer.decode)
        self.ignore_eos = ignore_eos
        self._frozen: Any = None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def encode(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt."""
        return list(self.tokenizer(prompt.text).input_ids)

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        """Write `group_size` completions per prompt."""
        device = self.device
        temperature = self.eval_temperature if evaluate else self.temperature
        encoded = [self.encode(prompt) for prompt in prompts]
        chances = uniforms(seeds.row.to(device), self.max_new_tokens)  # [B, T]

        def choose(logits: Tensor, t: int, rows: Tensor) -> Draw:
            if temperature == 0:
                tokens = logits.argmax(-1)
                logprobs = (logits / self.temperature).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
                return Draw(tokens=tokens, logprobs=logprobs)
            return draw(logits, chances[rows, t], temperature=temperature, **self.truncation)

        written = self.path.write(
            [torch.tensor(tokens, device=device) for tokens in encoded],
            group_size,
            max_new_tokens=self.max_new_tokens,
            draw=choose,
            ended=self.stops.ended,
        )
        lengths, ended = self.stops.lengths(written.tokens)
        counted = [length if end or not self.mask_truncated else 0 for length, end in zip(lengths, ended, strict=True)]
        place = torch.arange(written.tokens.shape[1])
        mask = (place < torch.tensor(counted)[:, None]).to(device)
        groups = seeds.group_ids.cpu().repeat_interleave(group_size)
        samples = [
            Sample(
                prompt=prompts[row // group_size],
                output=self.tokenizer.decode(tokens[:length], skip_special_tokens=True),
                group=group,
                info={"finish": "stop" if end else "length", "tokens": length},
            )
            for row, (tokens, length, end, group) in enumerate(
                zip(written.tokens.tolist(), lengths, ended, groups.tolist(), strict=True)
            )
        ]
        order = seeds.group_ids.cpu().argsort()
        return Rollout(
            samples=samples,
            groups=groups,
            old=Decisions(logprobs=torch.where(mask, written.logprobs, 0.0)),
            mask=mask,
            max_decisions=self.max_new_tokens,
            trace=Trace(
                per_row={
                    "tokens": torch.where((place < torch.tensor(lengths)[:, None]).to(device), written.tokens, 0),
                    "temperature": torch.full((len(samples),), temperature or self.temperature),
                },
                per_group={
                    "prompt": padded(encoded)[order].to(device),
                    "prompt_length": torch.tensor([len(tokens) for tokens in encoded])[order],
                },
            ),
        )

    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = Ask()) -> Decisions:
        """Score the stored tokens again."""
        start, stop, _ = steps.indices(rollout.mask.shape[1])
        completions = Completions.of(rollout, self.device, stop)
        temperature = float(rollout.trace.per_row["temperature"][0])
        return self.path.score(completions, start, width=stop - start, temperature=temperature, ask=ask)

    def reference(self) -> AbstractContextManager[Any]:
        """Inside, `logprobs` uses the weights that the policy was built with."""
        if self._frozen is None:
            self._frozen = frozen_copy(self.model)
        return swapped(self.path, "model", self._frozen)

    def modules(self) -> Mapping[str, nn.Module]:
        """The model."""
        return {"model": self.model}

    def save(self, folder: Path) -> None:
        """Write the weights."""
        self.model.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        raise NotImplementedError
