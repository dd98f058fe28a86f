"""The reward `imagereward`: BLIP reads the prompt beside the picture, and a small head rates what it read.

The published model is BLIP's own code. The classes of transformers give the same architecture, under other names; the
sizes follow from the shapes of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from transformers import AutoTokenizer, BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

from grpokit import UsageError
from grpokit_preference import files
from grpokit_preference.pictures import pixels
from grpokit_preference.scoring import Dtype, Preference

MEAN, STD = 0.16717362830052426, 1.0333394966054072
"""Of the head's values on the authors' data; the published score is normalised by them."""

TOKENS = 35
"""So many tokens of a prompt are read, with the marks of start and end."""

HEAD_WIDTH = 64
"""Numbers in an attention head, of both halves of the published model."""

_NAMES = {
    "blip.text_encoder.": "text.",
    "mlp.layers.": "head.",
    "blip.visual_encoder.norm.": "vision.post_layernorm.",
    "blip.visual_encoder.blocks.": "vision.encoder.layers.",
    "blip.visual_encoder.cls_token": "vision.embeddings.class_embedding",
    "blip.visual_encoder.pos_embed": "vision.embeddings.position_embedding",
    "blip.visual_encoder.patch_embed.proj.": "vision.embeddings.patch_embedding.",
    ".attn.qkv.": ".self_attn.qkv.",
    ".attn.proj.": ".self_attn.projection.",
    ".norm1.": ".layer_norm1.",
    ".norm2.": ".layer_norm2.",
}
"""The published names and those of transformers."""


class ImageRewardReward(Preference):
    """ImageReward: a rating of picture and prompt, normalised to mean 0 and deviation 1 over its authors' data.

    Xu et al. (2023, arXiv:2304.05977, section 3.2).

    Args:
        weights: a file, or owner/repository/file of the hub.
        tokenizer: a hub id, or a folder that `save_pretrained` wrote.
        device: as torch names it; None: the GPU if there is one.
        batch_size: pictures per call of the model; a smaller batch is filled up.
        dtype: of the model's products.

    Raises:
        UsageError: a parameter cannot be used, or weights are not there or not those of the model.
    """

    name = "imagereward"

    def __init__(
        self,
        *,
        weights: str = "THUDM/ImageReward/ImageReward.pt",
        tokenizer: str = "google-bert/bert-base-uncased",
        device: str | None = None,
        batch_size: int = 8,
        dtype: Dtype = "float32",
    ) -> None:
        super().__init__(device=device, batch_size=batch_size, dtype=dtype)
        self.tokenizer: Any = files.pretrained(AutoTokenizer, tokenizer, reward=self.name, what="tokenizer")
        published = files.weights(weights, reward=self.name)
        state = {_renamed(key): x for key, x in published.items()}
        try:
            with torch.random.fork_rng(devices=[]):  # its random start must not move the global state
                model = Rater(state)
        except (KeyError, IndexError, ValueError, ZeroDivisionError) as error:
            raise UsageError(
                f"The reward 'imagereward': '{weights}' does not hold the weights of BLIP and a head under the names "
                f"of ImageReward.pt: {error} is not there, or has another shape."
            ) from error
        files.fill(model, state, name=weights, reward=self.name)
        words = model.text.config.vocab_size
        files.check_tokenizer(self.tokenizer, tokenizer, known=words, reward=self.name)
        self.model = self.frozen(model)

    def scores(self, pictures: Sequence[Image.Image], texts: Sequence[str]) -> Tensor:
        """The published score of each of b RGB pictures with its text, [b]."""
        tokens = self.tokenizer(
            list(texts), padding="max_length", truncation=True, max_length=TOKENS, return_tensors="pt"
        ).to(self.device)
        size = self.model.vision.config.image_size
        batch = pixels(pictures, size, odd="even").to(self.device)
        rates: Tensor = self.model(batch, tokens.input_ids, tokens.attention_mask)
        return (rates.cpu().double() - MEAN) / STD


class Rater(nn.Module):
    """BLIP's picture encoder, its text encoder with cross-attention, and the linear layers of the head.

    Args:
        state: weights under the names of this module, whose shapes say the sizes.
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        width, _, patch, _ = state["vision.embeddings.patch_embedding.weight"].shape
        places = state["vision.embeddings.position_embedding"].shape[1] - 1
        self.vision = BlipVisionModel(
            BlipVisionConfig(
                hidden_size=width,
                intermediate_size=len(state["vision.encoder.layers.0.mlp.fc1.weight"]),
                num_hidden_layers=_layers(state, "vision.encoder.layers."),
                num_attention_heads=width // HEAD_WIDTH,
                image_size=patch * round(places**0.5),
                patch_size=patch,
                hidden_act="gelu",
                layer_norm_eps=1e-6,
            )
        )
        words, size = state["text.embeddings.word_embeddings.weight"].shape
        self.text = BlipTextModel(
            BlipTextConfig(
                vocab_size=words,
                hidden_size=size,
                encoder_hidden_size=width,
                intermediate_size=len(state["text.encoder.layer.0.intermediate.dense.weight"]),
                num_hidden_layers=_layers(state, "text.encoder.layer."),
                num_attention_heads=size // HEAD_WIDTH,
                max_position_embeddings=len(state["text.embeddings.position_embeddings.weight"]),
                hidden_act="gelu",
                layer_norm_eps=1e-12,
                is_decoder=True,  # which gives it cross-attention; it reads in both directions all the same
            ),
            add_pooling_layer=False,
        )
        layers: list[nn.Module] = []
        for place in range(_layers(state, "head.")):
            weight = state.get(f"head.{place}.weight")  # where there is none, dropout stands in training
            if weight is None:
                layers.append(nn.Identity())
            else:
                layers.append(nn.Linear(weight.shape[1], weight.shape[0]))
        self.head = nn.Sequential(*layers)

    def forward(self, pixels: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """Pictures [b, 3, h, w] and prompts [b, n] with their mask -> the head's values [b]."""
        seen = self.vision(pixel_values=pixels).last_hidden_state  # [b, places + 1, D]
        read = self.text(
            input_ids=tokens,
            attention_mask=mask,
            encoder_hidden_states=seen,
            encoder_attention_mask=torch.ones(seen.shape[:2], dtype=torch.long, device=seen.device),
        ).last_hidden_state
        with torch.autocast(pixels.device.type, enabled=False):
            rates: Tensor = self.head(read[:, 0].float())[:, 0]  # [b, 1] -> [b]
        return rates


def _renamed(key: str) -> str:
    for published, own in _NAMES.items():
        key = key.replace(published, own)
    return key


def _layers(state: Mapping[str, Tensor], prefix: str) -> int:
    """One more than the highest number that follows a prefix among the names."""
    behind = [key.removeprefix(prefix) for key in state if key.startswith(prefix)]
    return 1 + max(int(rest.partition(".")[0]) for rest in behind)
