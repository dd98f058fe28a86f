"""glm-image-dit: GLM-Image's diffusion transformer as a policy, with one decision per noisy denoising step.

The autoregressive half is fixed. It writes the visual tokens of a prompt, and the samples of a group are pictures of
the same tokens: they differ by the noise of the steps alone. How steps become decisions is `FlowPolicy`'s, what the
transformer is told is `Painter`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grpokit import Ask, Decisions, Prompt, Rollout, Seeds, UsageError
from grpokit.data import digest
from grpokit.sampling import mix, uniforms
from grpokit.settings import keywords_of
from grpokit_glm_image import saving
from grpokit_glm_image.painter import Painter, Told
from grpokit_glm_image.pipeline import Loaded, prepare
from grpokit_glm_image.policy import GlmImageAR
from grpokit_glm_image.prompts import PromptEncoder
from grpokit_glm_image.settings import PaintingSettings, PipelineSettings
from grpokit_glm_image.token_writer import Writer
from grpokit_hf.diffusion.family import Size
from grpokit_hf.diffusion.flow_policy import FlowPolicy
from grpokit_hf.tokens.packed_attention import install

_ASK = Ask()
_TOKENS = 0x544F4B454E53  # sets the draws of kept tokens apart from all others


class Illustrator(Painter):
    """The diffusion half, whose groups share visual tokens that the autoregressive half writes.

    Args:
        writer: the autoregressive half.
        loaded: the model of both.
        token_sets: how many sets of tokens a prompt has in training; None: each group has one of its own.
        changes: how often the weights of the autoregressive half have changed; what it wrote before is written again.

    Attributes:
        writer: as it was given.
        loaded: likewise.
    """

    def __init__(
        self, writer: Writer, loaded: Loaded, *, token_sets: int | None, changes: Callable[[], int] = lambda: 0
    ) -> None:
        super().__init__(loaded.pipeline)
        self.writer, self.loaded = writer, loaded
        self._token_sets, self._changes = token_sets, changes
        self._kept: dict[tuple[object, ...], Tensor] = {}
        self._kept_at = changes()

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that the autoregressive half cannot read."""
        self.writer.encoder.check(prompts)

    def shared(self, prompts: Sequence[Prompt], seeds: Seeds, *, evaluate: bool) -> Mapping[str, Tensor]:
        """The codes [P, rows, columns] of the large grids, for a prompt and for one of its sets always the same.

        An evaluation's are those of the group's own seed, which has the same value in each evaluation of a run.
        """
        codes = self._codes(prompts, seeds, evaluate=evaluate)
        self.loaded.turns.let_paint()
        return {"codes": codes}

    def condition(self, prompt: Prompt, size: Size, shared: Mapping[str, Tensor]) -> Told:
        """See `Painter`; with what the transformer remembers of pictures to edit."""
        remembered = self.sources(prompt.images, self.writer.sources(prompt))
        return replace(super().condition(prompt, size, shared), sources=remembered)

    def _codes(self, prompts: Sequence[Prompt], seeds: Seeds, *, evaluate: bool) -> Tensor:
        if self._token_sets is None:
            return self._write(prompts, seeds.group)
        if self._changes() != self._kept_at:
            self._kept.clear()
            self._kept_at = self._changes()
        own = seeds.group.tolist()
        drawn_by = own if evaluate else [mix(_TOKENS, seed % self._token_sets) for seed in own]
        keys = [(p.text, *map(digest, p.images), seed) for p, seed in zip(prompts, drawn_by, strict=True)]
        new = {key: prompt for prompt, key in zip(prompts, keys, strict=True) if key not in self._kept}
        # In low precision, tokens would depend on what is written beside them, and so on what is kept already.
        for some in [list(new)] if new and self._exact else [[key] for key in new]:
            codes = self._write([new[key] for key in some], torch.tensor([key[-1] for key in some])).cpu()
            self._kept.update(zip(some, codes, strict=True))
        return torch.stack([self._kept[key] for key in keys])

    @property
    def _exact(self) -> bool:
        """Whether tokens are computed in float32."""
        weights = self.writer.network.parameters()
        lowered = any(map(torch.is_autocast_enabled, ("cpu", "cuda")))  # wherever the writer is now
        return not lowered and all(weight.dtype == torch.float32 for weight in weights)

    def _write(self, prompts: Sequence[Prompt], seeds: Tensor) -> Tensor:
        """The codes [P, rows, columns] of large grids, drawn by seeds [P]."""
        target = self.writer.encoder.target
        self.loaded.turns.let_write()
        page = self.writer.write(prompts, 1, uniforms(seeds.cpu(), target.count))
        large = page.written.tokens[:, target.part("large")]
        codes: Tensor = large.unflatten(1, (target.large.rows, target.large.columns))
        return codes


class GlmImageDiT(FlowPolicy):
    """The half of GLM-Image that paints. Its arguments are those of `PaintingSettings`.

    Attributes:
        loaded: the model of both halves.

    Raises:
        UsageError: the model or a setting cannot be used.
    """

    @keywords_of(PaintingSettings)
    def __init__(self, settings: PaintingSettings) -> None:
        _ = settings.trained_lora  # which is looked for here, before weights are read
        settings.find_teachers()
        if isinstance(settings.model, GlmImageAR):
            illustrator = _sharing(settings.model, settings)
        else:
            illustrator = _loaded(settings)
        self.loaded, self._edits = illustrator.loaded, illustrator.writer.encoder.edits
        self.loaded.turns.let_paint()  # an adapter is made where the transformer is
        if settings.trains_base and settings.dtype == "auto":
            self.loaded.pipeline.transformer.float()  # an optimizer's small steps are lost in bfloat16
        super().__init__(illustrator, settings)

    @property
    def painter(self) -> Painter:
        """What paints: the transformer with all around it."""
        assert isinstance(self.family, Painter)
        return self.family

    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = _ASK) -> Decisions:
        """See `FlowPolicy`."""
        self.loaded.turns.let_paint()
        return super().logprobs(rollout, steps, ask=ask)

    @contextmanager
    def reference(self) -> Iterator[None]:
        """See `FlowPolicy`."""
        self.loaded.turns.let_paint()
        with super().reference():
            yield

    def modules(self) -> Mapping[str, nn.Module]:
        """The transformer, with its adapter, on its device."""
        self.loaded.turns.let_paint()
        return super().modules()

    def blocks(self) -> Iterable[nn.Module]:
        """See `Policy`.

        Raises:
            UsageError: for edits without checkpointing. Layers give keys and values of source pictures to a memory
                beside their outputs, so FSDP2 would not gather a layer before the backward pass through them.
        """
        if self._edits and not self.settings.gradient_checkpointing:
            raise UsageError("run.sharding with edits needs policy.gradient_checkpointing: true.")
        return super().blocks()

    def export(self, folder: Path, *, merge: bool = False) -> Mapping[str, str]:
        """Write a folder that plain diffusers loads; returns facts for its model card."""
        with self.averaged() as painter:
            return saving.export_painter(
                painter, self.loaded, Path(folder), size=self.size, edits=self._edits, merge=merge
            )


def _loaded(settings: PaintingSettings) -> Illustrator:
    """The diffusion half of a model of its own, whose autoregressive half stays as it is."""
    prepared = prepare(settings)
    encoder, loaded = prepared.encoder(settings.resolution, edits=settings.edits), prepared.load()
    loaded.ar.requires_grad_(False)
    install(loaded.ar.model.language_model)
    writer = Writer(loaded.ar, encoder, settings.sampling)
    return Illustrator(writer, loaded, token_sets=settings.token_sets)


def _sharing(other: GlmImageAR, settings: PaintingSettings) -> Illustrator:
    """The diffusion half of another policy's model, whose autoregressive half learns there.

    Raises:
        UsageError: a setting is that policy's to decide.
    """
    for field in fields(PipelineSettings):
        if field.name not in ("model", "size") and getattr(settings, field.name) != field.default:
            raise UsageError(f"{field.name} belongs to the policy whose model is shared. Set it there.")
    size = other.encoder.size
    if settings.resolution != size:
        raise UsageError(f"size is {list(settings.size)}, but the policy whose model is shared has {list(size)}.")
    writer = Writer(other.loaded.ar, other.encoder, settings.sampling, merged=other.writer.merged)
    return Illustrator(writer, other.loaded, token_sets=settings.token_sets, changes=lambda: other.writer.changes)


def reader(parameters: Mapping[str, Any]) -> PromptEncoder:
    """What reads prompts, from all parameters of `GlmImageDiT`, without the model's weights.

    Raises:
        UsageError: as of `GlmImageDiT`, where that is known without weights.
    """
    settings = PaintingSettings(**parameters)
    return prepare(settings).encoder(settings.resolution, edits=settings.edits)
