"""The reward `pickscore`: a CLIP of transformers, trained on which of two pictures people picked for their prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer, CLIPModel

from grpokit_preference import files
from grpokit_preference.pictures import pixels
from grpokit_preference.scoring import Dtype, Preference, cosines


class PickScoreReward(Preference):
    """PickScore: the CLIP logit of picture and prompt, exp(logit scale) times the cosine; about 16 to 26.

    Kirstain et al. (2023, "Pick-a-Pic", arXiv:2305.01569, equation 1).

    Args:
        model: a hub id, or a folder that `save_pretrained` wrote.
        tokenizer: likewise; the published model was trained with that of the CLIP that it began from.
        device: as torch names it; None: the GPU if there is one.
        batch_size: pictures per call of the model; a smaller batch is filled up.
        dtype: of the model's products.

    Raises:
        UsageError: a parameter cannot be used, or the model or tokenizer cannot be loaded.
    """

    name = "pickscore"

    def __init__(
        self,
        *,
        model: str = "yuvalkirstain/PickScore_v1",
        tokenizer: str = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
        device: str | None = None,
        batch_size: int = 8,
        dtype: Dtype = "float32",
    ) -> None:
        super().__init__(device=device, batch_size=batch_size, dtype=dtype)
        self.tokenizer: Any = files.pretrained(AutoTokenizer, tokenizer, reward=self.name, what="tokenizer")
        self.clip = self.frozen(files.pretrained(CLIPModel, model, reward=self.name))
        words = self.clip.config.text_config.vocab_size
        files.check_tokenizer(self.tokenizer, tokenizer, known=words, reward=self.name)

    def scores(self, pictures: Sequence[Image.Image], texts: Sequence[str]) -> Tensor:
        """The published score of each of b RGB pictures with its text, [b]."""
        clip, config = self.clip, self.clip.config
        tokens = self.tokenizer(
            list(texts),
            padding="max_length",
            truncation=True,
            max_length=config.text_config.max_position_embeddings,
            return_tensors="pt",
        ).to(self.device)
        batch = pixels(pictures, config.vision_config.image_size, odd="down").to(self.device)
        images = clip.visual_projection(clip.vision_model(pixel_values=batch).pooler_output)  # [b, D]
        prompts = clip.text_projection(
            clip.text_model(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask).pooler_output
        )  # [b, D]
        scale: Tensor = clip.logit_scale.cpu().double().exp()
        return scale * cosines(images, prompts)
