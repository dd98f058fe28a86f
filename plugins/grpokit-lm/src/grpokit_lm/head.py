"""The last layer of a causal LM: from hidden states to the log-probs of tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Head:
    """A transformers model's output layer with what its family does to the logits afterwards.

    Args:
        model: a causal LM with a linear output layer.

    Attributes:
        layer: the output layer.
        scale: factor of the logits.
        softcap: c of c * tanh(logit / c), or None.
    """

    def __init__(self, model: Any) -> None:
        self.layer: nn.Module = model.get_output_embeddings()
        config = model.config.get_text_config()
        self.softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self.scale = float(getattr(config, "logit_scale", None) or 1.0)  # Cohere
        self.scale /= float(getattr(config, "logits_scaling", None) or 1.0)  # Granite

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [n, H] -> logits [n, V], fp32."""
        logits: Tensor = self.layer(hidden).float()
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits
