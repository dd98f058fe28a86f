"""Qwen-Image-Edit: the vision-language model reads the picture with the text, and the transformer has its latents."""

from __future__ import annotations

import math
from typing import Any

from PIL.Image import Image

from grpokit import Prompt
from grpokit.images import to_rgb
from grpokit_diffusers.families.qwen_image import QwenImage
from grpokit_diffusers.family import Text
from grpokit_diffusers.packed import EditFamily, source_area
from grpokit_hf.diffusion.family import Size


class QwenImageEdit(EditFamily, QwenImage):
    """`QwenImageEditPipeline`, with one picture to edit."""

    sources = 1
    needs_source = True
    longest_text = None

    def read(self, text: str, prompt: Prompt, size: Size) -> Text:
        """See `PipelineFamily`; the pictures are read with both texts."""
        return self.kept(self.encoded_beside, text, tuple(prompt.images), size)

    def encoded_beside(self, text: str, pictures: tuple[Image, ...], size: Size) -> Text:
        """Embeddings [1, L, D] of a text with pictures."""
        seen = [fitted(self.pipeline, to_rgb(picture), self.read_area(size)) for picture in pictures]
        embeddings, _ = self.pipeline.encode_prompt(text, seen, device=self.device)
        return (embeddings,)

    def read_area(self, size: Size) -> int:
        """The pixels of a picture that is read with a text: as many as the autoencoder gets."""
        return source_area(size)

    def picture_tokens(self, size: Size) -> int:
        """See `PipelineFamily`."""
        config = self.pipeline.text_encoder.config.vision_config
        side: int = config.patch_size * config.spatial_merge_size
        return self.read_area(size) // side**2

    def prepared(self, picture: Image, size: Size) -> Image:
        """See `EditFamily`: with 1024 x 1024 pixels or so, and beside a smaller result with as many as that has."""
        return fitted(self.pipeline, picture, source_area(size))


def fitted(pipeline: Any, picture: Image, area: int) -> Image:
    """A picture in its own shape with so many pixels or so: sides of a multiple of 32."""
    ratio = picture.width / picture.height
    width = math.sqrt(area * ratio)
    resized: Image = pipeline.image_processor.resize(picture, round(width / ratio / 32) * 32, round(width / 32) * 32)
    return resized
