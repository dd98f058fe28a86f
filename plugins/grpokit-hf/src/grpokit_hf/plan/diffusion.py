"""What a diffusion transformer needs whose denoising steps are decisions, for `grpokit plan`.

Its layers are read from the model itself, such as on torch's device "meta". Denoising takes nearly all of the time, in
drawing and in training alike, and activations nearly all of the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from torch import nn

from grpokit_hf.diffusion.settings import FlowSettings
from grpokit_hf.plan.counting import EIGHT_BITS, QUANTISE
from grpokit_plan import Job, Part, Remedy, Work

MFU = 0.40
"""Share of a card's FLOP/s: GLM-Image's 20 steps with guidance at 1024 x 1024 took 5.8 s on an H100."""
KERNELS = 30
"""Of a layer."""
LIVE = 16
"""Numbers per token and unit of width that exist at a time without gradient."""
MAPS = 4.5
"""Feature maps of an autoencoder's second width that exist at a time: 4.8 GB at 1024 x 1024, as reported."""

Stream: TypeAlias = Literal["picture", "text", "both", "condition"]
"""Which tokens go through a part of the transformer; a condition is one row for a picture."""

_TRAININGS = (("fp32", "lora"), ("fp32", "full"), ("bf16", "lora"))
_MEASURED = {
    "GlmImageTransformerBlock": (54, 90, 41),
    "JointTransformerBlock": (56, 101, 47),
    "JointTransformerBlock x 2": (82, 137, 79),
    "FluxTransformerBlock": (52, 97, 43),
    "FluxSingleTransformerBlock": (49, 85, 39),
    "ChromaTransformerBlock": (62, 106, 47),
    "ChromaSingleTransformerBlock": (58, 94, 43),
    "CogView4TransformerBlock": (57, 93, 41),
    "Flux2TransformerBlock": (72, 113, 53),
    "Flux2SingleTransformerBlock": (85, 100, 60),
    "ErnieImageSharedAdaLNBlock": (85, 132, 81),
    "Krea2TransformerBlock": (74, 117, 56),
    "LongCatImageTransformerBlock": (52, 97, 43),
    "LongCatImageSingleTransformerBlock": (49, 85, 39),
    "Lumina2TransformerBlock": (90, 147, 88),
    "QwenImage21TransformerBlock": (93, 133, 67),
    "QwenImageTransformerBlock": (52, 97, 44),
    "SanaTransformerBlock x 2": (130, 146, 97),
    "ZImageTransformerBlock": (77, 131, 77),
}
KEPT: Mapping[str, Mapping[tuple[str, str], int]] = {
    kind: dict(zip(_TRAININGS, measured, strict=True)) for kind, measured in _MEASURED.items()
}
"""Kind of a layer -> the type of its numbers and what trains -> bytes for a token and a unit of width that it keeps for
its backward pass; measured on a CPU."""
_OTHER = KEPT["JointTransformerBlock x 2"]  # for layers that were not measured

_CONDITION = (
    *("norm", "final_norm", "time", "t_embedder", "adaLN_modulation", "modulation", "img_mod", "txt_mod"),
    *("double_stream", "single_stream", "distilled_guidance"),
)
_TEXT = (
    *("add_", "to_add_out", "ff_context", "context_", "txt_", "cap_embedder", "caption_projection", "text_proj"),
    *("glyph_projector", "text_fusion"),
)
_JOINT = (  # layers whose weights are the same for text and picture
    "CogView4TransformerBlock",
    "Krea2TransformerBlock",
    "QwenImage21TransformerBlock",
)
_PICTURE = ("attn2", "noise_refiner")  # layers or attention that see no text
_OF_TEXT = ("context_refiner", "text_fusion")  # and that see nothing else


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer of a diffusion transformer.

    Attributes:
        kind: the name of its class, with " x 2" if it has two attentions.
        width: of its tokens.
        stream: which tokens it has.
    """

    kind: str
    width: int
    stream: Stream


def layers_of(transformer: nn.Module) -> list[Layer]:
    """The layers of a diffusion transformer, in their order: what its lists of modules with attention hold."""
    found = []
    for name, module in transformer.named_modules():
        for child in module if isinstance(module, nn.ModuleList) else ():
            widths = [width for own in child.modules() if (width := _width(own))]
            if widths:
                kind = type(child).__name__ + (" x 2" if len(widths) > 1 else "")
                stream = "picture" if any(map(_is_cross, child.modules())) else _seen(name)
                layer = Layer(kind=kind, width=widths[0], stream=stream)
                found.append(layer)
    return found


@dataclass(frozen=True, kw_only=True)
class FlowWork:
    """A diffusion transformer with what it has to do in a step.

    Attributes:
        transformer: with its adapter, if there is one.
        adapter: weights of the adapter; 0 if the transformer's own are trained.
        stored: bytes of the transformer's weights, an adapter aside.
        settings: of the policy.
        job: the step.
        picture: tokens of a picture, and of pictures that go through the layers with it.
        text: tokens of the text.
        sources: tokens of pictures to edit that go through the layers once for a group, and leave keys and values.
        calls: of the transformer for a velocity: two where guidance needs a second.
        number: bytes of a number.
    """

    transformer: nn.Module
    adapter: int
    stored: float
    settings: FlowSettings
    job: Job
    picture: int
    text: int = 0
    sources: int = 0
    calls: int = 1
    number: int

    @property
    def _rows(self) -> int:
        """The most pictures in a pass with gradient, which are of one group."""
        rows, _ = self.job.micro_batch(self.settings.decisions)
        return min(rows, self.job.group_size)

    @property
    def _trains(self) -> str:
        return "lora" if self.adapter else "full"

    @property
    def _full_precision(self) -> bool:
        return self.number == 4 and self.job.mixed_precision == "no"

    def parts(self) -> list[Part]:
        """The memory of the transformer and of its adapter, and of passes."""
        own = sum(p.numel() for p in self.transformer.parameters()) - self.adapter
        trained = self.adapter or own
        averages = [each for each in (self.settings.average, self.settings.old_average) if each is not None]
        reference = self.settings.reference_size(trained) if self.job.reference else 0
        drawing = self._live(self.job.group_size)
        scoring = self._live(self._rows)
        return [
            Part(name="weights", bytes=self.stored),
            Part(name="adapter", bytes=4 * self.adapter),
            Part(name="optimizer", bytes=self.job.averages * trained),
            Part(name="gradients", bytes=4 * trained, moments=("train",)),
            Part(name="average", bytes=4 * trained * len(averages)),
            Part(name="reference", bytes=4 * reference),
            Part(name="activations", bytes=drawing, moments=("rollout",)),
            Part(name="activations", bytes=scoring, moments=("score",)),
            Part(name="activations", bytes=self._kept(), moments=("train",)),
        ]

    def _live(self, rows: int) -> float:
        """Bytes of a pass without gradient."""
        tokens = min(rows, self.settings.rows or rows) * (self.picture + self.text)
        widths = [layer.width for layer in layers_of(self.transformer)]
        keys_and_values = 2 * sum(widths) * self.sources
        return self.number * (LIVE * max(widths) * tokens + keys_and_values)

    def _kept(self) -> float:
        """Bytes of a pass with gradient: of one decision, with all of its calls."""
        tokens = _tokens(self.picture, self.text)
        kind = ("fp32" if self.number == 4 else "bf16", self._trains)
        layers = layers_of(self.transformer)
        passes = self.calls * self._rows
        sizes, kept = [], []
        for layer in layers:
            size = layer.width * (passes * tokens[layer.stream] + self.sources)
            sizes.append(size)
            kept.append(KEPT.get(layer.kind, _OTHER)[kind] * size)
        if self.settings.gradient_checkpointing:
            remembered = 2 * sum(layer.width for layer in layers) * self.sources
            return self.number * (sum(sizes) + remembered) + max(kept) / self.calls
        return float(sum(kept))

    def works(self) -> list[Work]:
        """Its time."""
        job, settings = self.job, self.settings
        shared = settings.shared_steps
        forwards = job.prompts * shared + job.rows * (settings.steps - shared)
        scored = job.rows * settings.decisions
        forwards += scored if settings.copies else 0  # copies are scored where they are made
        backward = 2 if self.adapter else 3
        again = 1 if settings.gradient_checkpointing else 0
        ahead = 1 if job.whole_groups else 0
        works = self._work("rollout", forwards, looks=job.prompts)
        works += self._work("train", job.passes * scored * (ahead + backward + again))
        if job.old_pass(exact=self._full_precision):
            works += self._work("old", scored)
        if job.reference:
            works += self._work("reference", scored)  # once for all updates
        return works

    def _work(self, phase: str, forwards: float, *, looks: float | None = None) -> list[Work]:
        """Forward passes for so many pictures; `looks` at pictures to edit, one for each pass if it is None."""
        rows = max(1, self._rows)
        picture = forward_flop(self.transformer, picture=self.picture, text=self.text, more=self.sources)
        work = Work(
            phase=phase,
            flop=picture * rows,
            kernels=KERNELS * len(layers_of(self.transformer)),
            times=self.calls * forwards / rows,
            mfu=MFU,
            dtype="fp32" if self._full_precision else "bf16",
        )
        if not self.sources:
            return [work]
        look = forward_flop(self.transformer, picture=self.sources)
        times = forwards / rows if looks is None else looks
        return [work, replace(work, flop=look, times=times)]


def autoencoder(width: int, *, number: int, size: tuple[int, int], pictures: int, most: int) -> Part:
    """The feature maps of an autoencoder while it makes pictures.

    Args:
        width: its second one, counted from the picture.
        number: bytes of a number.
        size: height and width of a picture.
        pictures: that there are.
        most: pixels that are decoded at a time, as of `painted`.
    """
    own = size[0] * size[1]
    pixels = max(own, min(pictures * own, most))
    return Part(name="activations", bytes=number * MAPS * width * pixels, moments=("decode",))


def remedies(settings: FlowSettings, job: Job) -> list[Remedy]:
    """What would need less memory, from what changes little to what changes much."""
    found = []
    if not settings.gradient_checkpointing:
        price = "training takes about half as long again"
        found.append(Remedy(words=("policy.gradient_checkpointing=true",), price=price))
    if settings.rows != 1:
        found.append(Remedy(words=("policy.rows=1",), price="pictures are drawn one by one"))
    if settings.trains_base:
        found += [EIGHT_BITS] if job.optimizer == "adamw" else []
        found.append(Remedy(words=("policy.lora.r=32",), price="only an adapter is trained, not the weights"))
    elif settings.quantization is None:
        found.append(QUANTISE)
    return found


ASSUMED = (
    "Activations of the diffusion transformer were measured on a CPU.",
    f"The diffusion transformer reaches {MFU:.0%} of the card's FLOP/s.",
    "Evaluation and the autoencoder's time are not counted.",
)
"""What the numbers of a `FlowWork` rest on."""


def forward_flop(transformer: nn.Module, *, picture: int, text: int = 0, more: int = 0) -> float:
    """FLOP of a forward pass for one picture: two per weight and token, and four per pair of tokens and width.

    Args:
        transformer: the model, in the names of diffusers.
        picture: tokens of the picture, and of pictures that go through the layers with it.
        text: tokens of the text.
        more: other tokens that attention looks at.
    """
    tokens = _tokens(picture, text)
    modules = dict(transformer.named_modules())
    joint = tuple(f"{name}." for name, module in modules.items() if type(module).__name__ in _JOINT)
    flop = 0
    for name, module in modules.items():
        if isinstance(module, nn.Linear | nn.Conv2d):
            stream = _stream(name)
            if stream == "picture" and name.startswith(joint):
                stream = "both"
            if name.endswith((".to_k", ".to_v")) and _is_cross(modules[name.rpartition(".")[0]]):
                stream = "text"
            flop += 2 * module.weight.numel() * tokens[stream]
        elif width := _width(module):
            flop += 4 * width * _pairs(name, module, tokens, more)
    return float(flop)


def _pairs(name: str, module: Any, tokens: Mapping[Stream, int], more: int) -> int:
    """How many pairs of tokens an attention looks at."""
    if _is_cross(module):
        return tokens["picture"] * tokens["text"]
    if "Linear" in type(getattr(module, "processor", None)).__name__:  # Sana's, whose keys and values are summed up
        heads: int = module.heads
        return tokens["picture"] * (_width(module) // heads + 1)
    own = tokens[_seen(name)]
    return own * (own + more)


def _is_cross(module: Any) -> bool:
    """Whether a module is an attention of the picture to the text."""
    return bool(getattr(module, "is_cross_attention", False))


def _width(module: Any) -> int:
    """Of an attention's queries; 0 for another module."""
    if hasattr(module, "to_qkv_mlp_proj"):  # FLUX.2's, in one with what leads into the other half of the block
        return int(module.inner_dim)
    return int(module.to_q.out_features) if hasattr(module, "to_q") else 0


def _tokens(picture: int, text: int) -> Mapping[Stream, int]:
    return {"picture": picture, "text": text, "both": picture + text, "condition": 0}


def _stream(name: str) -> Stream:
    """Which tokens a linear layer multiplies."""
    parts = name.split(".")
    if any(part.startswith(_CONDITION) for part in parts):
        return "condition"
    if any(part.startswith(_TEXT) for part in parts):
        return "text"
    return "both" if {"layers", "single_transformer_blocks"} & {*parts} else "picture"


def _seen(name: str) -> Stream:
    """Which tokens an attention or a layer looks at."""
    parts = set(name.split("."))
    if parts.intersection(_PICTURE):
        return "picture"
    return "text" if parts.intersection(_OF_TEXT) else "both"
