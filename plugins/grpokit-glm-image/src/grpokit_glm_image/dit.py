"""glm-image-dit: GLM-Image's diffusion transformer as a policy, with one decision per noisy denoising step.

The autoregressive half is fixed. It writes the visual tokens of a prompt, and the samples of a group are pictures of
the same tokens: they differ by the noise of the steps alone. How steps become decisions is `FlowPolicy`'s, what the
transformer is told is `Painter`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grpokit import Ask, Decisions, Prompt, Rollout, Seeds, UsageError, flow
from grpokit.data import digest
from grpokit.sampling import mix, uniforms
from grpokit_glm_image import saving
from grpokit_glm_image.decoder import check_size
from grpokit_glm_image.painter import Painter, Told
from grpokit_glm_image.pipeline import Loaded, Offload, prepare
from grpokit_glm_image.policy import GlmImageAR
from grpokit_glm_image.prompts import PromptEncoder
from grpokit_glm_image.settings import painting_settings
from grpokit_glm_image.writer import Writer
from grpokit_hf.diffusion.family import Size
from grpokit_hf.diffusion.flow_policy import FlowPolicy
from grpokit_hf.models.quantized import Quantization, check_setting
from grpokit_hf.tokens.packed_attention import install
from grpokit_hf.tokens.sampler import SamplerSettings

_ASK = Ask()
_TOKENS = 0x544F4B454E53  # sets the draws of kept tokens apart from all others


class Illustrator(Painter):
    """The diffusion half, whose groups share visual tokens that the autoregressive half writes.

    Args:
        writer: the autoregressive half.
        loaded: the model of both.
        token_sets: how many sets of tokens a prompt has in training; None: each group has one of its own.
        changes: how often the weights of the autoregressive half have changed; what it wrote before is written again.
    """

    def __init__(
        self, writer: Writer, loaded: Loaded, *, token_sets: int | None, changes: Callable[[], int] = lambda: 0
    ) -> None:
        super().__init__(loaded.pipeline)
        self._writer, self._turns, self._token_sets, self._changes = writer, loaded.turns, token_sets, changes
        self._kept: dict[tuple[object, ...], Tensor] = {}
        self._kept_at = changes()

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that the autoregressive half cannot read."""
        self._writer.encoder.check(prompts)

    def shared(self, prompts: Sequence[Prompt], seeds: Seeds, *, evaluate: bool) -> Mapping[str, Tensor]:
        """The codes [P, rows, columns] of the large grids, for a prompt and for one of its sets always the same.

        An evaluation's are those of the group's own seed, which has the same value in each evaluation of a run.
        """
        codes = self._codes(prompts, seeds, evaluate=evaluate)
        self._turns.let_paint()
        return {"codes": codes}

    def condition(self, prompt: Prompt, size: Size, shared: Mapping[str, Tensor]) -> Told:
        """See `Painter`; with what the transformer remembers of pictures to edit."""
        remembered = self.sources(prompt.images, self._writer.sources(prompt))
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
        weights = self._writer.network.parameters()
        lowered = any(map(torch.is_autocast_enabled, ("cpu", "cuda")))  # wherever the writer is now
        return not lowered and all(weight.dtype == torch.float32 for weight in weights)

    def _write(self, prompts: Sequence[Prompt], seeds: Tensor) -> Tensor:
        """The codes [P, rows, columns] of large grids, drawn by seeds [P]."""
        target = self._writer.encoder.target
        self._turns.let_write()
        page = self._writer.write(prompts, 1, uniforms(seeds.cpu(), target.count))
        large = page.written.tokens[:, target.part("large")]
        codes: Tensor = large.unflatten(1, (target.large.rows, target.large.columns))
        return codes


class GlmImageDiT(FlowPolicy):
    """The half of GLM-Image that paints.

    Args:
        model: a hub id, a folder that `GlmImagePipeline.save_pretrained` wrote, a folder in a package, "tiny" for a
            random model of a megabyte, a pipeline object, or a `GlmImageAR`, whose model this then shares.
        size: height and width of the pictures in pixels, multiples of 32.
        edits: each prompt brings pictures to edit, which both halves see.
        steps: of denoising in training samples.
        guidance: of training samples, the same in drawing and in scoring; 1 leaves the second pass out.
        sampler: "flow-sde", "dance-sde" or "cps".
        noise: the sampler's noise level (see `grpokit.flow`); None for its default.
        window: which steps are decisions, such as {"width": 2}; None: all that have noise.
        step_weight: how much the policy loss of each step counts: "none", "guard", "tempflow" or "flash".
        matching: decisions that are noised copies of a finished sample, such as {"times": 4, "weight": "t"}; then
            samples are drawn by the ODE. None: denoising steps are the decisions.
        shared_noise: a group's training samples begin with the same noise, and differ by the steps' noise alone; with
            `matching` each begins with its own.
        eval_steps: of the ODE in evaluation.
        eval_guidance: in evaluation.
        eval_size: of the pictures in evaluation, in the shape of `size`; their tokens are those of a picture of `size`.
            None for `size`.
        token_sets: how many sets of visual tokens a prompt has in training. They are written once and kept; a group's
            seed picks one. None: each group has tokens of its own, as in evaluation.
        temperature: of the visual tokens, as the released model is used.
        top_p: likewise.
        lora: settings of an adapter, such as {"r": 32, "alpha": 64}; None trains the transformer's own weights.
        ema: an average of the trained weights, such as {"decay": 0.9, "every": 8}, which evaluations draw with.
        reference_ema: let the reference follow the policy, such as {"decay": 0, "every": 50}; None: it stays.
        gradient_checkpointing: keep less for the backward pass and compute it again.
        rows: the most pictures in one pass of the transformer while drawing; None for a whole group.
        compiled: compile the transformer's blocks with `torch.compile`, which takes a minute or two at the first pass.
        dtype: of the weights: "auto", "float32" or "bfloat16".
        quantization: "4bit" or "8bit", for the blocks of both halves, where an adapter trains.
        device: where to load the weights: "cpu" or "cuda"; None loads on the GPU if there is one.
        offload: "idle" keeps the autoregressive half in the CPU's memory, and the diffusion half while tokens are
            written, but for what trains; "none" keeps both on the device.
        revision: a branch, tag or commit of the hub's repository.
        local_files_only: use the cache and ask no hub.

    Raises:
        UsageError: the model or a setting cannot be used.
    """

    def __init__(
        self,
        model: Any = "zai-org/GLM-Image",
        *,
        size: Sequence[int] = (512, 512),
        edits: bool = False,
        steps: int = 10,
        guidance: float = 1.0,
        sampler: flow.Sampler = "flow-sde",
        noise: float | None = None,
        window: Mapping[str, Any] | None = None,
        matching: Mapping[str, Any] | None = None,
        step_weight: flow.StepWeight = "none",
        shared_noise: bool = True,
        eval_steps: int = 50,
        eval_guidance: float = 1.5,
        eval_size: Sequence[int] | None = None,
        token_sets: int | None = 1,
        temperature: float = 0.9,
        top_p: float = 0.75,
        lora: Mapping[str, Any] | None = None,
        ema: Mapping[str, Any] | None = None,
        reference_ema: Mapping[str, Any] | None = None,
        gradient_checkpointing: bool = False,
        rows: int | None = None,
        compiled: bool = False,
        dtype: str = "auto",
        quantization: Quantization | None = None,
        device: str | None = None,
        offload: Offload = "none",
        revision: str | None = None,
        local_files_only: bool = False,
    ) -> None:
        settings: dict[str, Any] = {
            "size": size,
            "steps": steps,
            "guidance": guidance,
            "sampler": sampler,
            "noise": noise,
            "window": window,
            "matching": matching,
            "step_weight": step_weight,
            "eval_steps": eval_steps,
            "eval_guidance": eval_guidance,
            "eval_size": eval_size,
            "lora": lora,
            "ema": ema,
            "reference_ema": reference_ema,
            "rows": rows,
        }
        painting_settings(token_sets=token_sets, temperature=temperature, top_p=top_p, **settings)  # before weights
        check_setting(quantization, trains_base=lora is None)
        sampling = SamplerSettings(temperature=temperature, top_p=top_p)
        loading: dict[str, Any] = {
            "edits": edits,
            "dtype": dtype,
            "quantization": quantization,
            "device": device,
            "offload": offload,
            "revision": revision,
            "local_files_only": local_files_only,
        }
        if isinstance(model, GlmImageAR):
            _check_shared(model, size, **loading)
            encoder, self.loaded, changes = model.encoder, model.loaded, lambda: model.writer.changes
            merged = model.writer.merged
        else:
            prepared = prepare(model, size=size, **loading)
            encoder, changes, merged = prepared.encoder(check_size(size), edits=edits), lambda: 0, True
            self.loaded = prepared.load()
            self.loaded.ar.requires_grad_(False)
            install(self.loaded.ar.model.language_model)
        self._edits, self._checkpointing = encoder.edits, gradient_checkpointing
        self.loaded.turns.let_paint()  # an adapter is made where the transformer is
        writer = Writer(self.loaded.ar, encoder, sampling, merged=merged)
        if lora is None and dtype == "auto":
            self.loaded.pipeline.transformer.float()  # an optimizer's small steps are lost in bfloat16
        if gradient_checkpointing:
            self.loaded.pipeline.transformer.enable_gradient_checkpointing()
        illustrator = Illustrator(writer, self.loaded, token_sets=token_sets, changes=changes)
        super().__init__(illustrator, shared_noise=shared_noise, compiled=compiled, **settings)

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
        if self._edits and not self._checkpointing:
            raise UsageError("run.sharding with edits needs policy.gradient_checkpointing: true.")
        return super().blocks()

    def export(self, folder: Path, *, merge: bool = False) -> Mapping[str, str]:
        """Write a folder that plain diffusers loads; returns facts for its model card."""
        with self.averaged() as painter:
            size, edits = self._training.size, self._edits
            return saving.export_painter(painter, self.loaded, Path(folder), size=size, edits=edits, merge=merge)


def _check_shared(other: GlmImageAR, size: Sequence[int], *, dtype: str, offload: str, **options: Any) -> None:
    """Refuse settings that the policy whose model is shared has decided already.

    Raises:
        UsageError: naming the setting.
    """
    for name, value in {**options, "dtype": dtype != "auto", "offload": offload != "none"}.items():
        if value:
            raise UsageError(f"{name} is that of the policy whose model is shared. Set it there.")
    if other.encoder.size != check_size(size):
        raise UsageError(f"size is {list(size)}, and the policy whose model is shared has {list(other.encoder.size)}.")


def reader(parameters: Mapping[str, Any]) -> PromptEncoder:
    """What reads prompts, from all parameters of `GlmImageDiT`, without the model's weights.

    Raises:
        UsageError: as of `GlmImageDiT`, where that is known without weights.
    """
    check_setting(parameters["quantization"], trains_base=parameters["lora"] is None)
    names = ("model", "size", "edits", "dtype", "quantization", "device", "offload", "revision", "local_files_only")
    prepared = prepare(**{name: parameters[name] for name in names})
    return prepared.encoder(check_size(parameters["size"]), edits=parameters["edits"])
