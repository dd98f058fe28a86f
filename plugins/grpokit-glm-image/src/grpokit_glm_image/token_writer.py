"""GLM-Image's autoregressive half at work: it reads prompts and writes the visual tokens of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor, nn

from grpokit import Prompt
from grpokit_glm_image.prompts import PromptEncoder, Reading
from grpokit_glm_image.source_pictures import source_codes
from grpokit_hf.diffusion.kept import Kept
from grpokit_hf.tokens import group_decoding
from grpokit_hf.tokens.group_decoding import Written
from grpokit_hf.tokens.linear_layers import for_decoding
from grpokit_hf.tokens.sampler import Sampler, SamplerSettings

_KEPT = 2**27  # bytes of the codes of pictures to edit: 16,000 of 1024 x 1024


@dataclass(frozen=True, kw_only=True)
class Page:
    """The tokens of P * G pictures, and what they were written from.

    Attributes:
        written: tokens and log-probs [P * G, T].
        readings: of the P prompts.
        sampler: that drew them.
    """

    written: Written
    readings: Sequence[Reading]
    sampler: Sampler


class Writer:
    """Writes visual tokens.

    Args:
        network: the autoregressive half, on its device; an adapter may have replaced its layers.
        encoder: reads prompts.
        sampling: how tokens are drawn.
        merged: whether to draw with copies of the weights that have the adapter added.

    Attributes:
        forbidden: [V] bool on the CPU: ids that no picture has, such as its end.
        changes: how often the network's weights have changed, for who keeps what it wrote.
    """

    def __init__(self, network: Any, encoder: PromptEncoder, sampling: SamplerSettings, *, merged: bool = True) -> None:
        config = network.config
        self.network, self.encoder, self.sampling, self.merged = network, encoder, sampling, merged
        self.changes = 0
        self._kept = Kept(_KEPT)
        # The codes of a picture have the ids before that of its start.
        self.forbidden = torch.arange(config.text_config.vision_vocab_size) >= config.image_start_token_id

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        device: torch.device = self.network.lm_head.weight.device
        return device

    def sources(self, prompt: Prompt) -> Sequence[Tensor]:
        """The visual tokens of a prompt's pictures to edit, each [h * w] on the CPU; the vision tower never trains."""
        return [self._kept(self._codes, picture) for picture in prompt.images] if self.encoder.edits else []

    def _codes(self, picture: Image) -> Tensor:
        return source_codes(self.network, self.encoder.processor, picture).cpu()

    def write(self, prompts: Sequence[Prompt], group_size: int, chances: Tensor, *, evaluate: bool = False) -> Page:
        """Write the tokens of all pictures together; each prompt is read once.

        Args:
            prompts: P.
            group_size: G, pictures per prompt.
            chances: [P * G, T] uniform numbers in (0, 1), one for each token.
            evaluate: draw as in evaluation.
        """
        readings = [self.encoder.encode(prompt, self.sources(prompt)).to(self.device) for prompt in prompts]
        chances, forbidden = (x.to(self.device, non_blocking=True) for x in (chances, self.forbidden))
        sampler = self.sampling.sampler(chances, evaluate=evaluate, forbidden=forbidden)
        decoder, head, count = self.network.model.language_model, self.network.lm_head, self.encoder.target.count
        with (
            torch.inference_mode(),
            for_decoding(nn.ModuleList([decoder, head]), rows=len(chances), merged=self.merged),
        ):
            written = group_decoding.decode(
                decoder,
                [reading.tokens for reading in readings],
                group_size,
                max_new_tokens=count,
                draw=lambda hidden, t, rows: sampler(head(hidden).float(), t, rows),
                ended=lambda tokens, checked: torch.zeros(len(tokens), dtype=torch.bool),  # a grid is never cut short
                positions=[reading.positions for reading in readings],
                check_every=count,
            )
        usable = Written(tokens=written.tokens.clone(), logprobs=written.logprobs.clone())  # with autograd
        return Page(written=usable, readings=readings, sampler=sampler)
