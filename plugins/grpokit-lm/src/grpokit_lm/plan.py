"""What a step of hf-lm needs, for `grpokit plan`: counted on the model without its weights, by docs/memory.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from grpokit import UsageError
from grpokit.plan import MOMENTS, Job, Moment, Needs, Part, Remedy
from grpokit_hf.models import dtypes
from grpokit_hf.models.adapters import AdapterSettings, add_adapter, around
from grpokit_hf.models.quantized import check_setting, stored_settings
from grpokit_hf.models.references import Average, dtype_of_twin, is_copied
from grpokit_hf.models.trained_adapter import find_adapter
from grpokit_hf.plan.counting import EIGHT_BITS, QUANTISE, sizes_of
from grpokit_hf.plan.transformer import Sizes, TokenWork
from grpokit_hf.tokens.sampler import SamplerSettings
from grpokit_lm.engines import ServerSettings, read_engine
from grpokit_lm.loading import find_skeleton
from grpokit_lm.vision import freeze_vision

_PROMPT = 256  # tokens, if nobody says how many


def plan(parameters: Mapping[str, Any], job: Job) -> Needs:
    """The needs of a step of `CausalLMPolicy`.

    Args:
        parameters: all of the policy's.
        job: the step.

    Raises:
        UsageError: the model cannot be found, or a setting cannot be used.
    """
    SamplerSettings.of(parameters)  # refuses what the policy will
    lora = None if parameters["lora"] is None else AdapterSettings.read(parameters["lora"])
    quantization = parameters["quantization"]
    check_setting(quantization, trains_base=lora is None, planned=True)
    dtypes.check_settings(dtype=parameters["dtype"], device=None)
    reading = {name: parameters[name] for name in ("revision", "local_files_only", "trust_remote_code")}
    model, stored = find_skeleton(parameters["model"], own_tokenizer=parameters["tokenizer"] is None, **reading)
    if stored_settings(model.config):
        raise UsageError("The weights of the model are stored quantised, which a plan cannot count.")
    dtype = dtypes.chosen(parameters["dtype"], stored, trains_base=lora is None, device="cuda")
    if lora is None and dtype.itemsize < 4:
        raise UsageError(
            f"Trainable parameters would be {dtype}, which rounds away most updates. Leave dtype out and set "
            "trainer.mixed_precision=bf16, or add policy.lora.r=16."
        )
    if not parameters["train_vision"]:
        freeze_vision(model)
    sizes = sizes_of(
        model,
        decoder=model.get_decoder(),
        head=model.get_output_embeddings(),
        width=dtype.itemsize,
        quantization=quantization,
        adapt=None if lora is None else _adapter(model, lora, local_files_only=parameters["local_files_only"]),
    )
    limit = parameters["max_prompt_tokens"]
    prompt = job.prompt_tokens or min(_PROMPT, limit or _PROMPT)
    work = TokenWork(
        sizes=sizes,
        job=job,
        prompt=prompt,
        new=parameters["max_new_tokens"],
        checkpointing=parameters["gradient_checkpointing"],
        head_trains=lora is None,
        top_p=parameters["top_p"] < 1,
    )
    parts, works = work.parts(), work.works()
    drawing = _drawing(parameters["engine"])
    if drawing:
        parts = [part for part in parts if [*part.moments] != ["rollout"]]
        works = [work for work in works if work.phase != "rollout"]
    return Needs(
        parts=(*parts, *_reference(parameters, sizes, job, lora)),
        works=tuple(works),
        remedies=tuple(_remedies(parameters, job, lora)),
        assumptions=(
            f"A prompt has {prompt:,} tokens (--prompt-tokens).",
            "The fast path is used; activations are those of a Llama's layers, measured on a CPU (docs/memory.md).",
            *(drawing or [work.launches]),
        ),
    )


def _drawing(engine: Any) -> tuple[str, ...]:
    """What is not counted where an engine draws; empty without one."""
    if engine is None:
        return ()
    settings = read_engine(engine)
    if isinstance(settings, ServerSettings):
        return ("A server draws; what it takes is not counted.",)
    share, when = settings.gpu_memory_utilization, " while it draws" if settings.sleep else ""
    return (
        f"vLLM draws, and takes {share:.0%} of the GPU's memory for itself{when} (engine: gpu_memory_utilization). "
        "Neither that nor its time is counted.",
    )


def _adapter(model: Any, settings: AdapterSettings, *, local_files_only: bool) -> Callable[[], object]:
    if settings.adapter is None:
        return partial(add_adapter, model, settings)
    trained = find_adapter(settings.adapter, revision=settings.revision, local_files_only=local_files_only)
    return partial(around, model, trained.config)


def _reference(parameters: Mapping[str, Any], sizes: Sizes, job: Job, lora: AdapterSettings | None) -> list[Part]:
    """The frozen or moving copy of what trains; with a new adapter there is none."""
    average = None if parameters["reference_ema"] is None else Average.read(parameters["reference_ema"])
    dtype = dtype_of_twin(
        parameters["reference_dtype"],
        offload=parameters["reference_offload"],
        average=average,
        adapted=lora is not None,
    )
    if not job.reference or not is_copied(lora, average):
        return []
    size = (sizes.trained + sizes.adapter) * (4 if dtype is None else dtype.itemsize)
    moments: tuple[Moment, ...] = ("score",) if parameters["reference_offload"] else MOMENTS
    return [Part(name="reference", bytes=size, moments=moments)]


def _remedies(parameters: Mapping[str, Any], job: Job, lora: AdapterSettings | None) -> list[Remedy]:
    """What would need less memory, from what changes little to what changes much."""
    remedies = []
    if not parameters["gradient_checkpointing"]:
        words = ("policy.gradient_checkpointing=true",)
        remedies.append(Remedy(words=words, price="training takes about a third longer"))
    if lora is None:
        average = parameters["reference_ema"] is not None
        if job.reference and not average and parameters["reference_dtype"] is None:
            words = ("policy.reference_dtype=bfloat16",)
            remedies.append(Remedy(words=words, price="the reference is rounded to 16 bits"))
        if job.reference and not parameters["reference_offload"]:
            words = ("policy.reference_offload=true",)
            remedies.append(Remedy(words=words, price="the reference moves to the GPU in every step"))
        remedies += [EIGHT_BITS] if job.optimizer == "adamw" else []
        words = ("policy.lora.r=16",)
        remedies.append(Remedy(words=words, price="only an adapter is trained, not the weights"))
    elif parameters["quantization"] is None:
        if dtypes.dtype_of(parameters["dtype"]) not in (dtypes.DTYPES["bfloat16"], dtypes.DTYPES["float16"]):
            words = ("policy.dtype=bfloat16",)
            remedies.append(Remedy(words=words, price="the frozen weights are rounded to 16 bits"))
        remedies.append(QUANTISE)
    return remedies
