"""LongCat-Image-Edit: a vision-language model reads the picture with the text, and the transformer has its latents."""

from __future__ import annotations

from PIL.Image import Image
from torch import Tensor

from grpokit import Prompt
from grpokit.images import to_rgb
from grpokit_diffusers.families.longcat_image import LongCatImage
from grpokit_diffusers.family import Text
from grpokit_diffusers.packed import EditFamily
from grpokit_hf.diffusion.family import Size


class LongCatImageEdit(EditFamily, LongCatImage):
    """`LongCatImageEditPipeline`, with one picture to edit, which is as large as the result."""

    sources = 1
    needs_source = True

    def read(self, text: str, prompt: Prompt, size: Size) -> Text:
        """See `PipelineFamily`; the picture is read with both texts."""
        return self.kept(self.encoded_beside, text, prompt.images[0], size)

    def encoded_beside(self, text: str, picture: Image, size: Size) -> Text:
        """Embeddings [1, L, D] of a text with a picture, which is read with half its sides."""
        height, width = size
        whole = self.prepared(to_rgb(picture), size)
        return self.embedded(text, self.pipeline.image_processor.resize(whole, height // 2, width // 2))

    def picture_tokens(self, size: Size) -> int:
        """See `PipelineFamily`."""
        config = self.pipeline.text_encoder.config.vision_config
        side: int = 2 * config.patch_size * config.spatial_merge_size
        return size[0] * size[1] // side**2

    def prepared(self, picture: Image, size: Size) -> Image:
        """See `EditFamily`; the pipeline's results have their source's shape, so a source gets that of the result."""
        resized: Image = self.pipeline.image_processor.resize(picture, *size)
        return resized

    def guided(self, v: Tensor, away: Tensor, guidance: float) -> Tensor:
        """See `PipelineFamily`; this pipeline lets velocities grow."""
        return super(LongCatImage, self).guided(v, away, guidance)
