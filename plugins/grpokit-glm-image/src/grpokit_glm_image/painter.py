"""GLM-Image's diffusion half: a transformer that paints what visual tokens tell, and the autoencoder behind it.

The stock pipeline does the same in `pipe(prior_token_ids=...)`, with equal pictures. Here what a group shares is
computed once: the glyphs of its prompt, and what the transformer sees of source pictures.

A pass has the rows of one prompt. Together, prompts with texts of different length would change each other's pictures,
since the transformer ignores the mask of padded glyphs (diffusers 0.42, issue 13587).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from diffusers import GlmImagePipeline, ModelMixin
from diffusers.models.transformers.transformer_glm_image import GlmImageKVCache
from diffusers.pipelines.glm_image.pipeline_glm_image import calculate_shift
from PIL.Image import Image
from torch import Tensor
from torch.nn.functional import interpolate

from grpokit import Prompt, swapped
from grpokit.builtin.quotes import quotations
from grpokit.images import to_rgb
from grpokit_glm_image.grids import PIXELS
from grpokit_hf.diffusion.family import Family, Schedule, Size
from grpokit_hf.diffusion.kept import Kept
from grpokit_hf.diffusion.latents import painted

_FINE = 16  # pixels of a picture's side, for one token of the transformer
_KEPT = 2**27  # bytes of latents of pictures to edit, on the device: 256 of 1024 x 1024 in 16 bits
PIXELS_PER_PASS = 2**16  # of the autoencoder: more at a time take more memory, and no less time


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the transformer is told beside latents and time.

    Attributes:
        glyphs: [1, L, D], of what is in quotes in the prompt.
        no_glyphs: [1, 1, D], of a text without quotes.
        prior: [n, N] or [1, N], one code for each of its tokens.
        size: height and width of the picture in pixels.
        sources: what its attention remembers of pictures to edit.
    """

    glyphs: Tensor
    no_glyphs: Tensor
    prior: Tensor
    size: Size
    sources: GlmImageKVCache | None = None


class Painter(Family):
    """The diffusion half of a pipeline.

    Args:
        pipeline: with its transformer, autoencoder, text encoder, tokenizer and scheduler. The autoregressive half is
            not used and may be absent.
    """

    transformer: ModelMixin
    multiple = PIXELS

    def __init__(self, pipeline: GlmImagePipeline) -> None:
        self._pipeline = pipeline
        self.transformer = pipeline.transformer
        self._glyphs = lru_cache(maxsize=1024)(self._encoded)
        self._rotary = lru_cache(maxsize=8)(self._tables)
        self._latents = Kept(_KEPT)

    @property
    def device(self) -> torch.device:
        """Where the transformer is."""
        return self.transformer.device

    def schedule(self, steps: int, size: Size) -> Schedule:
        """See `Family`: the noise levels are shifted for the size of the picture, and the times stay as they are."""
        scheduler, times = self.scheduler(steps, size)
        return Schedule(sigmas=scheduler.sigmas.double().cpu(), times=times.float())

    def scheduler(self, steps: int, size: Size) -> tuple[Any, Tensor]:
        """A scheduler of its own, at its first step, and the times [K] on the CPU."""
        scheduler = type(self._pipeline.scheduler).from_config(self._pipeline.scheduler.config)
        config, tokens = scheduler.config, (size[0] // _FINE) * (size[1] // _FINE)
        times = np.linspace(config.num_train_timesteps, 1.0, steps + 1)[:-1].astype(np.int64).astype(np.float32)
        shift = calculate_shift(tokens, config.base_image_seq_len, config.base_shift, config.max_shift)
        levels = times / config.num_train_timesteps
        scheduler.set_timesteps(timesteps=times, sigmas=levels, mu=shift)
        scheduler.set_begin_index(0)
        return scheduler, scheduler.timesteps

    def latent_shape(self, size: Size) -> tuple[int, ...]:
        """See `Family`."""
        scale = self._pipeline.vae_scale_factor
        return self._pipeline.transformer.config.in_channels, size[0] // scale, size[1] // scale

    def prior(self, codes: Tensor, size: Size) -> Tensor:
        """The codes [n, rows, columns] of a grid, one for each of the transformer's tokens: [n, N]."""
        return _resampled(codes.to(self.device, non_blocking=True), size[0] // _FINE, size[1] // _FINE)

    def condition(self, prompt: Prompt, size: Size, shared: Mapping[str, Tensor]) -> Told:
        """See `Family`; `shared` has the codes [rows, columns] of the grid that is painted."""
        return self.told(prompt, self.prior(shared["codes"][None], size), size)

    def told(self, prompt: Prompt, prior: Tensor, size: Size, *, sources: GlmImageKVCache | None = None) -> Told:
        """What the transformer is told of a prompt.

        Args:
            prompt: whose quoted text it paints letter by letter.
            prior: [n, N] or [1, N], of `prior`.
            size: height and width of the picture in pixels.
            sources: of `sources`, for an edit.
        """
        glyphs, no_glyphs = self._glyphs(prompt.text), self._glyphs("")
        return Told(glyphs=glyphs, no_glyphs=no_glyphs, prior=prior, size=size, sources=sources)

    def velocity(self, latents: Tensor, time: Tensor, condition: Told, *, guidance: float) -> Tensor:
        """See `Family`."""
        guided = self._pass(latents, time, condition, conditional=True)
        if guidance > 1:
            unguided = self._pass(latents, time, condition, conditional=False)
            guided = unguided + guidance * (guided - unguided)
        return guided

    def sources(self, pictures: Sequence[Image], codes: Sequence[Tensor]) -> GlmImageKVCache | None:
        """What the transformer's attention remembers of the pictures to edit, for all samples of a prompt.

        It depends on the weights, and is differentiable: an adapter learns what to remember, too.

        Args:
            pictures: of the prompt.
            codes: [h * w] of each, as `source_pictures.source_codes` returns them.

        Returns:
            The cache of the transformer's layers; None without pictures.
        """
        if not pictures:
            return None
        layers = self.transformer.config.num_layers
        whole = GlmImageKVCache(num_layers=layers)
        whole.set_mode("read")
        for picture, own in zip(pictures, codes, strict=True):
            # A cache of its own, as it was: with checkpointing, the backward pass writes once more.
            part = GlmImageKVCache(num_layers=layers)
            part.set_mode("write")
            self._remember(picture, own, part)
            for there, layer in zip(whole.caches, part.caches, strict=True):
                keys, values = layer.k_caches.pop(), layer.v_caches.pop()
                assert isinstance(keys, Tensor)  # as the pass has stored them
                assert isinstance(values, Tensor)
                there.store(keys, values)
        return whole

    def _remember(self, picture: Image, codes: Tensor, memory: GlmImageKVCache) -> None:
        transformer, size = self.transformer, (picture.height, picture.width)
        prior = self.prior(codes.view(1, size[0] // PIXELS, size[1] // PIXELS), size)
        target, latents = self._there(size, torch.int64)[None], self._latents(self._encode, picture)
        transformer(
            hidden_states=latents,
            encoder_hidden_states=self._glyphs("")[:, :0],
            prior_token_id=prior,
            prior_token_drop=torch.arange(0, device=self.device),
            timestep=torch.zeros(1, device=self.device),
            target_size=target,
            crop_coords=torch.zeros_like(target),
            kv_caches=memory,
            image_rotary_emb=self._rotary(*latents.shape[-2:], latents.device),
        )

    @torch.no_grad()
    def _encode(self, picture: Image) -> Tensor:
        """The scaled latents [1, C, h, w] of a picture, on the device."""
        vae, (mean, std) = self._pipeline.vae, self._scale()
        pixels = self._pipeline.image_processor.preprocess(to_rgb(picture), height=picture.height, width=picture.width)
        with self._as_loaded():
            latents: Tensor = vae.encode(pixels.to(self.device, vae.dtype)).latent_dist.mode()
            return ((latents - mean) / std).to(self.transformer.dtype)

    def pictures(self, latents: Tensor, size: Size) -> Sequence[Image | None]:
        """See `Family`; a few at a time."""
        vae = self._pipeline.vae
        mean, std = self._scale()

        def decode(latents: Tensor) -> Tensor:
            pixels: Tensor = vae.decode(latents * std + mean, return_dict=False)[0]
            return pixels

        return painted(latents.to(vae.dtype), decode, self._pipeline, size=size, most=PIXELS_PER_PASS)

    def _pass(self, latents: Tensor, time: Tensor, told: Told, *, conditional: bool) -> Tensor:
        """Velocities of latents [n, C, h, w], with or without what they are told."""
        transformer, rows = self.transformer, len(latents)
        prior = told.prior.expand(rows, -1)
        sizes = self._there(told.size, transformer.dtype).expand(rows, -1)
        glyphs = told.glyphs if conditional else told.no_glyphs
        flow: Tensor = transformer(
            hidden_states=latents.to(transformer.dtype),
            encoder_hidden_states=glyphs.repeat(rows, 1, 1),  # a view would be rounded in another way
            prior_token_id=prior,
            # Numbers of rows: to write at a mask, the host would wait for the number of its true elements.
            prior_token_drop=torch.arange(0 if conditional else rows, device=latents.device),
            timestep=time.to(latents.device, non_blocking=True).expand(rows) - 1,
            target_size=sizes,
            crop_coords=torch.zeros_like(sizes),
            kv_caches=told.sources if conditional else None,
            image_rotary_emb=self._rotary(*latents.shape[-2:], latents.device),
            return_dict=False,
        )[0]
        return flow.float()

    def _tables(self, height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary embedding of latents [n, C, height, width]."""
        cosines, sines = self.transformer.rope(torch.empty(1, 1, height, width))
        return cosines.to(device), sines.to(device)

    def _there(self, numbers: Sequence[float], dtype: torch.dtype) -> Tensor:
        """Numbers [n] on the device, for which the host does not wait."""
        return torch.tensor(numbers, dtype=dtype).to(self.device, non_blocking=True)

    def _encoded(self, text: str) -> Tensor:
        """The glyphs [1, L, D] of what is in quotes in a text; of nothing if there are no quotes.

        The spans are those that the reward `ocr` reads, and not the pipeline's, which takes what is between two
        apostrophes.
        """

        def spans(texts: str | Sequence[str]) -> list[list[str]]:
            return [quotations(each) for each in ([texts] if isinstance(texts, str) else texts)]

        with torch.no_grad(), self._as_loaded(), swapped(self._pipeline, "get_glyph_texts", spans):
            embeddings: Tensor = self._pipeline.encode_prompt(
                text, do_classifier_free_guidance=False, device=self.device, dtype=self._pipeline.transformer.dtype
            )[0]
        return embeddings

    def _as_loaded(self) -> torch.autocast:
        """Inside, no mixed precision: the autoencoder overflows in float16, and glyphs are kept for later."""
        return torch.autocast(self.device.type, enabled=False)

    def _scale(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation [1, C, 1, 1] of the autoencoder's latents."""
        vae = self._pipeline.vae
        both = (vae.config.latents_mean, vae.config.latents_std)
        mean, std = (self._there(x, vae.dtype)[None, :, None, None] for x in both)
        return mean, std


def _resampled(codes: Tensor, rows: int, columns: int) -> Tensor:
    """Codes [n, h, w] on another grid, each cell with the code at its place: [n, rows * columns]."""
    return interpolate(codes[:, None].float(), size=(rows, columns), mode="nearest").long().flatten(1)
