"""FLUX.1 Kontext: FLUX.1 that edits a picture."""

from __future__ import annotations

import math

from diffusers.pipelines.flux.pipeline_flux_kontext import PREFERRED_KONTEXT_RESOLUTIONS
from PIL.Image import Image

from grpokit_diffusers.families.flux import Flux
from grpokit_diffusers.packed import EditFamily
from grpokit_hf.diffusion.family import Size


class FluxKontext(EditFamily, Flux):
    """`FluxKontextPipeline`, with one picture to edit, or none."""

    sources = 1

    def prepared(self, picture: Image, size: Size) -> Image:
        """See `EditFamily`.

        The pipeline takes the nearest in shape of the sizes that it was trained with, all of 1024 x 1024 pixels or so.
        A smaller or larger result has its source in proportion.
        """
        shape = picture.width / picture.height
        width, height = min(PREFERRED_KONTEXT_RESOLUTIONS, key=lambda each: abs(shape - each[0] / each[1]))
        scale = math.sqrt(size[0] * size[1]) / 1024
        height, width = (max(1, int(side * scale) // self.multiple) * self.multiple for side in (height, width))
        resized: Image = self.pipeline.image_processor.resize(picture, height, width)
        return resized
