"""What a step of glm-image-dit needs, for `grpokit plan`: counted on the pipeline's parts without their weights.

Denoising takes nearly all of the time, in drawing and in training alike, and activations nearly all of the memory. The
autoregressive half is there with its weights; what it writes is kept, so its time is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpokit.plan import Job, Needs, Part, Remedy, Work
from grpokit_glm_image.decoder import check_size
from grpokit_glm_image.painter import PIXELS_PER_PASS, Painter
from grpokit_glm_image.pipeline import check_dtype, types
from grpokit_glm_image.plan import LIVE, MAPS, MFU, TRANSFORMER_KERNELS, count, forward_flop
from grpokit_glm_image.settings import PAINTING, painting_settings
from grpokit_glm_image.skeleton import skeleton_of
from grpokit_hf.diffusion.adapters import add_adapter
from grpokit_hf.diffusion.settings import FlowSettings
from grpokit_hf.diffusion.trained_lora import continue_lora, find_lora, read_lora
from grpokit_hf.models.quantized import check_setting
from grpokit_hf.plan.counting import QUANTISE, stored

KEPT = {("fp32", "lora"): 54, ("fp32", "full"): 90, ("bf16", "lora"): 41}
"""Bytes that a layer keeps for its backward pass, for a token and a unit of width; measured on a CPU."""

_FINE = 16  # pixels of a picture's side, for one token


def plan(parameters: Mapping[str, Any], job: Job) -> Needs:
    """The needs of a step of `GlmImageDiT`.

    Args:
        parameters: all of the policy's.
        job: the step.

    Raises:
        UsageError: the model cannot be found, or a setting cannot be used.
    """
    check_dtype(parameters["dtype"])
    quantization = parameters["quantization"]
    check_setting(quantization, trains_base=parameters["lora"] is None, planned=True)
    settings = painting_settings(**{name: parameters[name] for name in PAINTING})
    size = check_size(parameters["size"])
    reading = {name: parameters[name] for name in ("revision", "local_files_only")}
    skeleton = skeleton_of(parameters["model"], size=size, edits=False, **reading)
    writes_in, paints_in = (each.itemsize for each in types(parameters["dtype"], trains_base=False, device="cuda"))
    transformer, adapter, own = skeleton.transformer, 0, count(skeleton.transformer)
    copied = own if settings.adapter is None else 0  # as the reference
    paints_in = 4 if settings.adapter is None else paints_in
    weights = stored(transformer, width=paints_in, quantization=quantization)
    if settings.adapter is not None and settings.adapter.adapter is not None:
        file = find_lora(settings.adapter.adapter, revision=settings.adapter.revision)
        adapted = continue_lora(transformer, read_lora(file), name=str(settings.adapter.adapter))
        adapter = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
        copied = adapter
    elif settings.adapter is not None:
        targets = settings.adapter.targets if "targets" in parameters["lora"] else Painter.lora_targets
        adapted = add_adapter(transformer, settings.adapter, targets)
        adapter = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    del skeleton.ar.model.visual, skeleton.ar.model.vqmodel
    painting = _Painting(
        transformer=transformer,
        parameters=parameters,
        settings=settings,
        job=job,
        tokens=size[0] // _FINE * (size[1] // _FINE),
        number=paints_in,
    )
    trained = adapter or own
    around = count(skeleton.vae) + count(skeleton.text_encoder)
    pixels = max(size[0] * size[1], min(job.group_size * size[0] * size[1], PIXELS_PER_PASS))
    return Needs(
        parts=(
            Part(name="weights", bytes=weights),
            Part(name="adapter", bytes=4 * adapter),
            Part(name="optimizer", bytes=8 * trained),
            Part(name="gradients", bytes=4 * trained, moments=("train",)),
            Part(name="average", bytes=4 * trained if settings.average else 0),
            Part(name="reference", bytes=4 * copied if job.reference else 0),
            Part(name="writing half", bytes=stored(skeleton.ar, width=writes_in, quantization=quantization)),
            Part(name="autoencoder", bytes=paints_in * around),
            Part(name="activations", bytes=painting.live(job.group_size), moments=("rollout",)),
            Part(
                name="activations",
                bytes=paints_in * MAPS * skeleton.vae.config.block_out_channels[1] * pixels,
                moments=("decode",),
            ),
            Part(name="activations", bytes=painting.live(painting.rows), moments=("score",)),
            Part(name="activations", bytes=painting.kept(), moments=("train",)),
        ),
        works=tuple(painting.works()),
        remedies=tuple(_remedies(parameters)),
        assumptions=(
            *([skeleton.note] if skeleton.note else []),
            "What the autoregressive half writes is kept from step to step; its time is not counted.",
            "Activations of the diffusion transformer were measured on a CPU.",
            f"The diffusion transformer reaches {MFU:.0%} of the card's FLOP/s.",
            "Evaluation and the autoencoder's time are not counted.",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Painting:
    """The diffusion transformer's part of a step.

    Attributes:
        transformer: with its adapter, if there is one.
        parameters: of the policy.
        settings: of the same.
        job: the step.
        tokens: of the transformer, for a picture.
        number: bytes of a number.
    """

    transformer: Any
    parameters: Mapping[str, Any]
    settings: FlowSettings
    job: Job
    tokens: int
    number: int

    @property
    def rows(self) -> int:
        """The most pictures in a pass with gradient, which are of one group."""
        return min(self.job.micro_batch(self.settings.window.width)[0], self.job.group_size)

    @property
    def _calls(self) -> int:
        """Of the transformer, for a velocity."""
        return 2 if self.parameters["guidance"] > 1 else 1

    @property
    def _width(self) -> int:
        config = self.transformer.config
        return int(config.num_attention_heads * config.attention_head_dim)

    @property
    def _full_precision(self) -> bool:
        return self.number == 4 and self.job.mixed_precision == "no"

    def live(self, rows: int) -> float:
        """Bytes of a pass without gradient."""
        return self.number * LIVE * self._width * min(rows, self.parameters["rows"] or rows) * self.tokens

    def kept(self) -> float:
        """Bytes of a pass with gradient: of one step of the window, with both of its calls."""
        kind = "full" if self.settings.adapter is None else "lora"
        a_layer = KEPT["fp32" if self.number == 4 else "bf16", kind] * self._width * self.rows * self.tokens
        layers = self.transformer.config.num_layers
        if self.parameters["gradient_checkpointing"]:
            inputs = self.number * self._width * self.rows * self.tokens
            return self._calls * layers * inputs + a_layer
        return self._calls * layers * a_layer

    def works(self) -> list[Work]:
        """Its time."""
        steps, window, job = self.parameters["steps"], self.settings.window, self.job
        before = 0.0
        if self.parameters["shared_noise"]:  # steps that a group takes together
            last = max(0, int(window.share * self.settings.able) - window.width)
            before = last / 2 if window.start == "random" else (self.settings.able - window.width) / 2
        forwards = job.prompts * before + job.rows * (steps - before)
        scored = job.rows * window.width
        backward = 3 if self.settings.adapter is None else 2
        again = 1 if self.parameters["gradient_checkpointing"] else 0
        works = [self._work("rollout", forwards), self._work("train", job.passes * scored * (backward + again))]
        if job.old_pass(exact=self._full_precision):
            works.append(self._work("old", scored))
        if job.reference:
            works.append(self._work("reference", scored))  # once for all updates
        return works

    def _work(self, phase: str, forwards: float) -> Work:
        """Forward passes for so many pictures."""
        config, rows = self.transformer.config, max(1, self.rows)
        return Work(
            phase=phase,
            flop=forward_flop(self.transformer, self.tokens) * rows,
            kernels=TRANSFORMER_KERNELS * config.num_layers,
            times=self._calls * forwards / rows,
            mfu=MFU,
            dtype="fp32" if self._full_precision else "bf16",
        )


def _remedies(parameters: Mapping[str, Any]) -> list[Remedy]:
    """What would need less memory, from what changes little to what changes much."""
    remedies = []
    if not parameters["gradient_checkpointing"]:
        price = "training takes about half as long again"
        remedies.append(Remedy(words=("policy.gradient_checkpointing=true",), price=price))
    if parameters["rows"] != 1:
        remedies.append(Remedy(words=("policy.rows=1",), price="pictures are drawn one by one"))
    if parameters["lora"] is None:
        remedies.append(Remedy(words=("policy.lora.r=32",), price="only an adapter is trained, not the weights"))
    elif parameters["quantization"] is None:
        remedies.append(QUANTISE)
    return remedies
