"""The reward `hpsv2`: a CLIP of open_clip, trained on how people ranked pictures of generators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import open_clip
import torch
from PIL import Image
from torch import Tensor

from grpokit import UsageError
from grpokit.errors import nearest
from grpokit_preference import files
from grpokit_preference.pictures import whole_pixels
from grpokit_preference.scoring import Dtype, Preference, cosines


class HPSv2Reward(Preference):
    """Human Preference Score v2: the cosine of the embeddings of picture and prompt, mostly 0.2 to 0.35.

    Wu et al. (2023, arXiv:2306.09341, equation 1). The published number leaves the logit scale of 100 out.

    Args:
        weights: a file, or owner/repository/file of the hub; v2.0 is xswu/HPSv2/HPS_v2_compressed.pt.
        model: open_clip's name of the architecture.
        device: as torch names it; None: the GPU if there is one.
        batch_size: pictures per call of the model; a smaller batch is filled up.
        dtype: of the model's products. The published code runs under an autocast to float16.

    Raises:
        UsageError: a parameter cannot be used, or weights are not there or not those of the model.
    """

    name = "hpsv2"

    def __init__(
        self,
        *,
        weights: str = "xswu/HPSv2/HPS_v2.1_compressed.pt",
        model: str = "ViT-H-14",
        device: str | None = None,
        batch_size: int = 8,
        dtype: Dtype = "float32",
    ) -> None:
        super().__init__(device=device, batch_size=batch_size, dtype=dtype)
        config = open_clip.get_model_config(model) if model in open_clip.list_models() else None
        if config is None:
            raise UsageError(f"hpsv2: open_clip has no model '{model}'{nearest(model, open_clip.list_models())}.")
        if set(config) != {"embed_dim", "vision_cfg", "text_cfg"} or "hf_model_name" in config["text_cfg"]:
            raise UsageError(f"hpsv2: '{model}' is no plain CLIP, as the published ViT-H-14 is.")
        state = files.weights(weights, reward=self.name)
        with torch.random.fork_rng(devices=[]):  # its random start must not move the global state
            clip = open_clip.CLIP(**config)
        files.fill(clip, state, name=weights, reward=self.name)
        self.clip = self.frozen(clip)
        self.tokenizer: Any = open_clip.get_tokenizer(model)
        self.size: int = config["vision_cfg"]["image_size"]

    def scores(self, pictures: Sequence[Image.Image], texts: Sequence[str]) -> Tensor:
        """The published score of each of b RGB pictures with its text, [b]."""
        images = self.clip.encode_image(whole_pixels(pictures, self.size).to(self.device))  # [b, D]
        tokens = self.tokenizer(list(texts)).to(self.device)
        prompts = self.clip.encode_text(tokens)  # [b, D]
        return cosines(images, prompts)
