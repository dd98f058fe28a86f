"""What a step of glm-image-ar needs, for `grpokit plan`: counted on the pipeline's parts without their weights.

The autoregressive half is a transformer like a language model's, so the core's arithmetic serves. What is added here is
the diffusion decoder: its weights, its activations, and the FLOP of each denoising step, which take most of the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from grpokit import UsageError
from grpokit_glm_image.decoder import TOKENS_PER_PASS, DecodeSettings
from grpokit_glm_image.grids import Target
from grpokit_glm_image.painter import PIXELS_PER_PASS
from grpokit_glm_image.pipeline import types
from grpokit_glm_image.settings import WritingSettings
from grpokit_glm_image.skeleton import Skeleton, skeleton_of
from grpokit_hf.models import dtypes
from grpokit_hf.plan.counting import EIGHT_BITS, QUANTISE, sizes_of, stored
from grpokit_hf.plan.diffusion import KERNELS, LIVE, MAPS, MFU, forward_flop
from grpokit_hf.plan.transformer import Kept, TokenWork
from grpokit_plan import MOMENTS, Job, Moment, Needs, Part, Remedy, Work

KEPT: Kept = {  # of a layer with four norms, measured on a CPU as docs/memory.md says
    ("fp32", "full"): (36, 16, 16),
    ("fp32", "lora"): (36, 16, 16),
    ("amp", "full"): (42, 8, 8),
    ("amp", "lora"): (30, 8, 8),
    ("bf16", "lora"): (40, 10, 8),
}

OFFLOAD = Remedy(words=("policy.offload=idle",), price="weights move between the CPU and the GPU")

_KERNELS = 47  # of a layer of the autoregressive half, counted in a recorded step of decoding
_FINE = 16  # pixels of a picture's side, for one token of the diffusion transformer
PROMPT = 100  # tokens of a prompt, if nobody says how many


def plan(parameters: Mapping[str, Any], job: Job) -> Needs:
    """The needs of a step of `GlmImageAR`.

    Args:
        parameters: all of the policy's.
        job: the step.

    Raises:
        UsageError: the model cannot be found, or a setting cannot be used.
    """
    settings = WritingSettings(**parameters)
    target, decoding, idle = settings.target, settings.decoding, settings.offload == "idle"
    skeleton = skeleton_of(settings)
    writer = _writer(skeleton.ar, settings, job)
    painter = _Painter(
        skeleton=skeleton,
        settings=decoding,
        target=target,
        job=job,
        edits=settings.edits,
        number=types(settings.dtype, trains_base=False, device="cuda")[1].itemsize,
        quantization=settings.quantization,
    )
    parts = writer.parts()
    if idle:
        parts = [each for part in parts for each in (_waiting(part, writer) if part.name == "weights" else [part])]
    if job.reference and (size := settings.reference_size(writer.sizes.trained + writer.sizes.adapter)):
        parts.append(Part(name="reference", bytes=4 * size))
    rollout = writer.rollout()
    return Needs(
        parts=(*parts, *painter.parts(idle=idle)),
        works=(*rollout, *painter.works(), *writer.works()[len(rollout) :]),
        remedies=tuple(_remedies(settings, job)),
        assumptions=(
            *([skeleton.note] if skeleton.note else []),
            f"A prompt has {writer.prompt:,} tokens (--prompt-tokens), and a picture {target.count:,}.",
            "Activations of the autoregressive half were measured on a CPU.",
            writer.launches,
            f"The diffusion decoder reaches {MFU:.0%} of the card's FLOP/s. Evaluation is not counted.",
        ),
    )


def _writer(ar: Any, settings: WritingSettings, job: Job) -> TokenWork:
    """What the autoregressive half has to do; its skeleton is changed."""
    full, target = settings.trains_base, settings.target
    width = types(settings.dtype, trains_base=full, device="cuda")[0].itemsize
    if full and width < 4:
        raise UsageError("Weights that train must be float32. Leave dtype out, or add policy.lora.r=32.")
    if not settings.edits:
        del ar.model.visual, ar.model.vqmodel
    ar.requires_grad_(False)
    for part in (ar.model.language_model, ar.lm_head):
        part.requires_grad_(True)
    trained = target.part(settings.train_tokens)
    return TokenWork(
        sizes=sizes_of(
            ar,
            decoder=ar.model.language_model,
            head=ar.lm_head,
            width=width,
            quantization=settings.quantization,
            adapt=settings.adapting(ar),
        ),
        job=job,
        prompt=prompt_tokens(job, target),
        new=target.count,
        decisions=trained.stop - trained.start,
        scored=trained.stop,
        checkpointing=settings.gradient_checkpointing,
        merged=settings.merge_adapter,
        head_trains=full,
        kept=KEPT,
        kernels=_KERNELS,
        top_p=settings.top_p < 1,
    )


@dataclass(frozen=True, kw_only=True)
class _Painter:
    """The diffusion decoder's part of a step.

    Attributes:
        skeleton: its parts.
        settings: of decoding.
        target: the grids of a picture.
        job: the step.
        edits: whether its attention looks at source pictures.
        number: bytes of a number.
        quantization: of the diffusion transformer's blocks.
    """

    skeleton: Skeleton
    settings: DecodeSettings
    target: Target
    job: Job
    edits: bool
    number: int
    quantization: str | None

    def parts(self, *, idle: bool) -> list[Part]:
        """Its memory; `idle`: it is on the GPU only while it decodes."""
        config, vae = self.skeleton.transformer.config, self.skeleton.vae
        width = config.num_attention_heads * config.attention_head_dim
        rows = math.ceil(self._together / self._passes)
        pixels = max(self._pixels, min(rows * self._pixels, PIXELS_PER_PASS))
        painting = LIVE * width * rows * self._tokens
        unfolding = MAPS * vae.config.block_out_channels[1] * pixels
        remembered = 2 * config.num_layers * width * self._tokens if self.edits else 0  # keys and values
        around = self.number * (count(vae) + count(self.skeleton.text_encoder))
        weights = around + stored(self.skeleton.transformer, width=self.number, quantization=self.quantization)
        decoding: tuple[Moment, ...] = ("decode",)
        return [
            Part(name="decoder", bytes=weights, moments=decoding if idle else MOMENTS),
            Part(
                name="activations",
                bytes=self.number * (max(painting, unfolding) + remembered),
                moments=decoding,
            ),
        ]

    def works(self) -> list[Work]:
        """Its time: denoising steps, each twice with guidance, and the autoencoder."""
        transformer, settings = self.skeleton.transformer, self.settings
        turns = self.job.prompts * math.ceil(self.job.group_size / self._together)
        calls = settings.steps * (2 if settings.guidance > 1 else 1) * turns * self._passes
        a_picture = forward_flop(transformer, picture=self._tokens, more=self._tokens if self.edits else 0)
        denoising = Work(
            phase="decode",
            flop=a_picture * self.job.rows / (turns * self._passes),
            kernels=KERNELS * transformer.config.num_layers,
            times=calls,
            mfu=MFU,
        )
        unfolding = vae_flop(self.skeleton.vae, *settings.resolution(self.target))
        return [denoising, Work(phase="decode", flop=unfolding, times=self.job.rows, mfu=MFU)]

    @property
    def _together(self) -> int:
        """The most pictures of a group that are there at a time: all, or those of a smaller rollout."""
        return min(self.job.group_size, self.job.rollout_rows)

    @property
    def _passes(self) -> int:
        """In how many parts they are decoded."""
        return math.ceil(self._together / (self.settings.rows or max(1, TOKENS_PER_PASS // self._tokens)))

    @property
    def _pixels(self) -> int:
        height, width = self.settings.resolution(self.target)
        return height * width

    @property
    def _tokens(self) -> int:
        """Of the diffusion transformer, for a picture."""
        return self._pixels // _FINE**2


def prompt_tokens(job: Job, target: Target) -> int:
    """Of a prompt; if nobody says, as usual, with a picture to edit as large as the result where that has no draft."""
    return job.prompt_tokens or PROMPT + (target.large.count if target.draft is None else 0)


def vae_flop(vae: Any, height: int, width: int) -> float:
    """FLOP of the autoencoder, which is on torch's device "meta", for one picture of this many pixels."""
    config = vae.config
    scale = 2 ** (len(config.block_out_channels) - 1)
    latents = torch.empty(1, config.latent_channels, height // scale, width // scale, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        vae.decode(latents)
    return float(counter.get_total_flops())


def _waiting(weights: Part, writer: TokenWork) -> list[Part]:
    """Weights of which the frozen ones wait in the CPU's memory while pictures are made."""
    stay = writer.sizes.trained * writer.sizes.width
    return [
        Part(name=weights.name, bytes=weights.bytes - stay, moments=("rollout", "score", "train")),
        Part(name=weights.name, bytes=stay),
    ]


def count(model: nn.Module) -> int:
    """The weights of a part."""
    return sum(p.numel() for p in model.parameters())


def _remedies(settings: WritingSettings, job: Job) -> list[Remedy]:
    """What would need less memory, from what changes little to what changes much."""
    remedies, full = [], settings.trains_base
    if not full and settings.quantization is None and settings.merge_adapter:
        remedies.append(Remedy(words=("policy.merge_adapter=false",), price="tokens are written somewhat more slowly"))
    if settings.offload == "none":
        remedies.append(OFFLOAD)
    if not settings.gradient_checkpointing:
        price = "training takes about a third longer"
        remedies.append(Remedy(words=("policy.gradient_checkpointing=true",), price=price))
    if settings.decoding.rows != 1:
        remedies.append(Remedy(words=("policy.decode.rows=1",), price="pictures are made one by one"))
    if full:
        remedies += [EIGHT_BITS] if job.optimizer == "adamw" else []
        remedies.append(Remedy(words=("policy.lora.r=32",), price="only an adapter is trained, not the weights"))
    elif settings.quantization is None:
        if dtypes.dtype_of(settings.dtype) == torch.float32:
            price = "the frozen weights are rounded to 16 bits"
            remedies.append(Remedy(words=("policy.dtype=bfloat16",), price=price))
        remedies.append(QUANTISE)
    return remedies
