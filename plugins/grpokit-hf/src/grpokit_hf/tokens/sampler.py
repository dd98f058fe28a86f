"""Draws tokens by a policy's settings, and keeps what their log-probs need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from grpokit.errors import UsageError
from grpokit.settings import Settings
from grpokit_hf.tokens.drawing import Draw, draw
from grpokit_hf.tokens.truncation import COLDEST, HOTTEST, check_settings, forbid


@dataclass(frozen=True, kw_only=True)
class SamplerSettings(Settings):
    """How a policy draws tokens in training, and in evaluation where that differs.

    Attributes:
        temperature: of the training samples; log-probs are those of the tempered distribution.
        eval_temperature: of the evaluation samples; None for `temperature`, 0 for the most likely token.
        top_k: draw from the k most likely tokens only; 0 for all. Log-probs are those of the truncated distribution.
        top_p: draw from the most likely tokens that together have this probability; 1 for all.
        min_p: draw from tokens that have at least this share of the largest probability; 0 for all.
        eval_top_k: of the evaluation samples; None for `top_k`.
        eval_top_p: likewise; None for `top_p`.
        eval_min_p: likewise; None for `min_p`.
    """

    temperature: float = 1.0
    eval_temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    eval_top_k: int | None = None
    eval_top_p: float | None = None
    eval_min_p: float | None = None

    def check_together(self) -> None:
        """Refuse settings that give no distribution.

        Raises:
            UsageError: a setting is outside its range.
        """
        if not self.temperature > 0:
            raise UsageError(f"temperature must be above 0 for training samples, got {self.temperature}.")
        if self.eval_temperature and not COLDEST <= self.eval_temperature <= HOTTEST:
            raise UsageError(
                f"eval_temperature must be 0 (greedy), or from {COLDEST:g} to {HOTTEST:g}, got {self.eval_temperature}."
            )
        check_settings(temperature=self.temperature, **self._truncation(evaluate=False))
        check_settings(temperature=self.temperature, **self._truncation(evaluate=True), prefix="eval_")

    def sampler(self, chances: Tensor, *, evaluate: bool = False, forbidden: Tensor | None = None) -> Sampler:
        """A sampler for one rollout.

        Args:
            chances: [B, T] uniform numbers.
            evaluate: draw as in evaluation.
            forbidden: [V] bool, tokens that are never drawn; None for none.
        """
        temperature = self.temperature
        if evaluate and self.eval_temperature is not None:
            temperature = self.eval_temperature
        return Sampler(
            chances,
            temperature=temperature,
            scored_at=temperature or self.temperature,  # the log-prob of a certain choice would say nothing
            truncation=self._truncation(evaluate=evaluate),
            forbidden=forbidden,
        )

    def _truncation(self, *, evaluate: bool) -> dict[str, Any]:
        settings = {name: getattr(self, name) for name in ("top_k", "top_p", "min_p")}
        if not evaluate:
            return settings
        own = {name: getattr(self, f"eval_{name}") for name in settings}
        return settings | {name: value for name, value in own.items() if value is not None}


class Sampler:
    """Draws the next tokens, and keeps what a truncated distribution needs to be scored again.

    Args:
        chances: [B, T] uniform numbers.
        temperature: 0 takes the most likely token.
        scored_at: the temperature of the log-probs.
        truncation: top_k, top_p and min_p.
        forbidden: [V] bool, tokens that are never drawn; None for none.
    """

    def __init__(
        self,
        chances: Tensor,
        *,
        temperature: float,
        scored_at: float,
        truncation: Mapping[str, Any],
        forbidden: Tensor | None = None,
    ) -> None:
        self.chances = chances
        self.temperature = temperature
        self.scored_at = scored_at
        self.truncation = truncation
        self.forbidden = forbidden
        self._kept: list[tuple[Tensor, Tensor]] = []  # for each token, its rows and their sets

    def __call__(self, logits: Tensor, t: int, rows: Tensor) -> Draw:
        """logits [b, V], the token's index, its rows [b] -> tokens and log-probs."""
        if self.temperature == 0:
            logits = logits if self.forbidden is None else forbid(logits.clone(), self.forbidden)
            tokens = logits.argmax(-1)
            logprobs = (logits / self.scored_at).log_softmax(-1)
            return Draw(tokens=tokens, logprobs=logprobs.gather(-1, tokens[:, None])[:, 0])
        drawn = draw(
            logits,
            self.chances[rows, t],
            temperature=self.temperature,
            forbidden=self.forbidden,
            **self.truncation,
        )
        if drawn.kept is not None:
            self._kept.append((rows, drawn.kept))
        return drawn

    def kept(self) -> dict[str, Tensor]:
        """The sets that tokens were drawn from, for the trace: [B, t, ...], no wider than what was written."""
        if not self._kept:
            return {}
        sets = self._kept[0][1]
        shape = (len(self.chances), len(self._kept), sets.shape[1])
        table = sets.new_zeros(shape)
        while self._kept:  # each set is let go once it is in the table
            rows, sets = self._kept.pop()
            table[rows, len(self._kept)] = sets
        return {"kept": table}
