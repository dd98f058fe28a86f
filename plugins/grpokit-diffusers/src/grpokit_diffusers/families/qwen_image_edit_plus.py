"""Qwen-Image-Edit 2509 and 2511: several pictures, which the vision-language model reads at a smaller size."""

from __future__ import annotations

from grpokit_diffusers.families.qwen_image_edit import QwenImageEdit
from grpokit_hf.diffusion.family import Size


class QwenImageEditPlus(QwenImageEdit):
    """`QwenImageEditPlusPipeline`, with one to three pictures, for which its authors trained it."""

    sources = 3

    def read_area(self, size: Size) -> int:
        """See `QwenImageEdit`: always the same."""
        return 384**2
