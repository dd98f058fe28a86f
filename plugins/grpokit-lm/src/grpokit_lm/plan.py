"""What a step of hf-lm needs, for `grpokit plan`: counted on the model without its weights, by docs/memory.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpokit import UsageError
from grpokit_hf.models import dtypes
from grpokit_hf.models.quantized import stored_settings
from grpokit_hf.plan.counting import EIGHT_BITS, QUANTISE, sizes_of
from grpokit_hf.plan.transformer import Sizes, TokenWork
from grpokit_lm.engines import EngineSettings, ServerSettings
from grpokit_lm.loading import find_skeleton
from grpokit_lm.settings import CausalLMSettings
from grpokit_lm.vision import freeze_vision
from grpokit_plan import MOMENTS, Job, Moment, Needs, Part, Remedy

_PROMPT = 256  # tokens, if nobody says how many


def plan(parameters: Mapping[str, Any], job: Job) -> Needs:
    """The needs of a step of `CausalLMPolicy`.

    Args:
        parameters: all of the policy's.
        job: the step.

    Raises:
        UsageError: the model cannot be found, or a setting cannot be used.
    """
    settings = CausalLMSettings(**parameters)
    model, stored = find_skeleton(settings.model, settings)
    if stored_settings(model.config):
        raise UsageError("The weights of the model are stored quantised, which a plan cannot count.")
    dtype = dtypes.chosen(settings.dtype, stored, trains_base=settings.trains_base, device="cuda")
    if settings.trains_base and dtype.itemsize < 4:
        raise UsageError(
            f"Trainable parameters would be {dtype}, which rounds away most updates. Leave dtype out and set "
            "trainer.mixed_precision=bf16, or add policy.lora.r=16."
        )
    if not settings.train_vision:
        freeze_vision(model)
    sizes = sizes_of(
        model,
        decoder=model.get_decoder(),
        head=model.get_output_embeddings(),
        width=dtype.itemsize,
        quantization=settings.quantization,
        adapt=settings.adapting(model),
    )
    limit = settings.max_prompt_tokens
    prompt = job.prompt_tokens or min(_PROMPT, limit or _PROMPT)
    work = TokenWork(
        sizes=sizes,
        job=job,
        prompt=prompt,
        new=settings.max_new_tokens,
        checkpointing=settings.gradient_checkpointing,
        head_trains=settings.trains_base,
        top_p=settings.top_p < 1,
    )
    parts, works = work.parts(), work.works()
    drawing = _drawing(settings.engine_settings)
    if drawing:
        parts = [part for part in parts if [*part.moments] != ["rollout"]]
        works = [work for work in works if work.phase != "rollout"]
    return Needs(
        parts=(*parts, *_reference(settings, sizes, job)),
        works=tuple(works),
        remedies=tuple(_remedies(settings, job)),
        assumptions=(
            f"A prompt has {prompt:,} tokens (--prompt-tokens).",
            "The fast path is used; activations are those of a Llama's layers, measured on a CPU (docs/memory.md).",
            *(drawing or [work.launches]),
        ),
    )


def _drawing(engine: EngineSettings | None) -> tuple[str, ...]:
    """What is not counted where an engine draws; empty without one."""
    if engine is None:
        return ()
    if isinstance(engine, ServerSettings):
        return ("A server draws; what it takes is not counted.",)
    share, when = engine.gpu_memory_utilization, " while it draws" if engine.sleep else ""
    return (
        f"vLLM draws, and takes {share:.0%} of the GPU's memory for itself{when} (engine: gpu_memory_utilization). "
        "Neither that nor its time is counted.",
    )


def _reference(settings: CausalLMSettings, sizes: Sizes, job: Job) -> list[Part]:
    """The frozen or moving copy of what trains, or the teachers' adapters; with a new adapter there is none."""
    size = settings.reference_size(sizes.trained + sizes.adapter) if job.reference else 0
    if not size:
        return []
    width = 4 if settings.twin_dtype is None else settings.twin_dtype.itemsize
    moments: tuple[Moment, ...] = ("score",) if settings.reference_offload else MOMENTS
    return [Part(name="reference", bytes=size * width, moments=moments)]


def _remedies(settings: CausalLMSettings, job: Job) -> list[Remedy]:
    """What would need less memory, from what changes little to what changes much."""
    remedies = []
    if not settings.gradient_checkpointing:
        words = ("policy.gradient_checkpointing=true",)
        remedies.append(Remedy(words=words, price="training takes about a third longer"))
    if settings.trains_base:
        if job.reference and settings.reference is None and settings.reference_dtype is None:
            words = ("policy.reference_dtype=bfloat16",)
            remedies.append(Remedy(words=words, price="the reference is rounded to 16 bits"))
        if job.reference and not settings.reference_offload:
            words = ("policy.reference_offload=true",)
            remedies.append(Remedy(words=words, price="the reference moves to the GPU in every step"))
        remedies += [EIGHT_BITS] if job.optimizer == "adamw" else []
        words = ("policy.lora.r=16",)
        remedies.append(Remedy(words=words, price="only an adapter is trained, not the weights"))
    elif settings.quantization is None:
        if dtypes.dtype_of(settings.dtype) not in (dtypes.DTYPES["bfloat16"], dtypes.DTYPES["float16"]):
            words = ("policy.dtype=bfloat16",)
            remedies.append(Remedy(words=words, price="the frozen weights are rounded to 16 bits"))
        remedies.append(QUANTISE)
    return remedies
