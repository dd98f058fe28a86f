"""Names that users of other trainers type for parameters of a policy, in lower case with underscores.

They are those of TRL, transformers, peft and diffusers, of Flow-GRPO, DanceGRPO and ddpo-pytorch, and of ai-toolkit and
kohya's sd-scripts. Of several names for ours, "a|b", that counts which the policy has.
"""

from __future__ import annotations

from collections.abc import Collection

from grpokit.errors import nearest

_STEPS = "steps|decode.steps"
_GUIDANCE = "guidance|decode.guidance"

PARAMETERS = {
    # the model
    "model": "model",
    "model_name": "model",
    "model_name_or_path": "model",
    "pretrained_model_name_or_path": "model",
    "model_init_kwargs": "dtype",
    "model_revision": "revision",
    "torch_dtype": "dtype",
    "trust_remote_code": "trust_remote_code",
    "processing_class": "tokenizer",
    "tokenizer_name_or_path": "tokenizer",
    "quantization_config": "quantization",
    "load_in_4bit": "quantization",
    "load_in_8bit": "quantization",
    "gradient_checkpointing": "gradient_checkpointing",
    "activation_checkpointing": "gradient_checkpointing",
    "pretrained": "model",
    "pretrained_model": "model",
    # an adapter
    "use_peft": "lora",
    "peft_config": "lora",
    "lora_config": "lora",
    "lora_r": "lora.r",
    "lora_rank": "lora.r",
    "lora_alpha": "lora.alpha",
    "lora_dropout": "lora.dropout",
    "lora_target_modules": "lora.targets",
    "target_modules": "lora.targets",
    "use_dora": "lora.dora",
    "use_rslora": "lora.rslora",
    "adapter_name_or_path": "lora.adapter",
    "lora_path": "lora.adapter",
    "pretrained_lora_path": "lora.adapter",
    "use_lora": "lora",
    "rank": "lora.r",
    "linear": "lora.r",
    "network_dim": "lora.r",
    "linear_alpha": "lora.alpha",
    "network_alpha": "lora.alpha",
    "network_dropout": "lora.dropout",
    # prompts and completions
    "max_completion_length": "max_new_tokens",
    "max_response_length": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "max_new_tokens": "max_new_tokens",
    "max_prompt_length": "max_prompt_tokens",
    "mask_truncated_completions": "mask_truncated",
    "chat_template_kwargs": "template_options",
    "system_prompt": "system",
    "stop_strings": "stop",
    "stop_token_ids": "stop_tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    # the reference
    "sync_ref_model": "reference_ema",
    "ref_model_mixup_alpha": "reference_ema.decay",
    "ref_model_sync_steps": "reference_ema.every",
    # pictures and their denoising steps
    "height": "size",
    "width": "size",
    "h": "size",
    "w": "size",
    "resolution": "size",
    "image_size": "size",
    "num_inference_steps": _STEPS,
    "num_sampling_steps": _STEPS,
    "num_steps": _STEPS,
    "sample_num_steps": _STEPS,
    "sample_steps": _STEPS,
    "sampling_steps": _STEPS,
    "eval_num_steps": "eval_steps|eval_decode.steps",
    "cfg": _GUIDANCE,
    "cfg_scale": _GUIDANCE,
    "guidance_scale": _GUIDANCE,
    "sample_guidance_scale": _GUIDANCE,
    "true_cfg_scale": _GUIDANCE,
    "eval_guidance_scale": "eval_guidance|eval_decode.guidance",
    "eta": "noise",
    "sample_eta": "noise",
    "noise_level": "noise",
    "sde_type": "sampler",
    "timestep_fraction": "window.share",
    "train_timestep_fraction": "window.share",
    "sde_window_range": "window.share",
    "sde_window_size": "window.width",
    "init_same_noise": "shared_noise|decode.noise",
    "same_latent": "shared_noise|decode.noise",
    "use_ema": "ema",
    "ema_decay": "ema.decay",
}


def hint(name: object, known: Collection[str], *, group: str = "") -> str:
    """A hint at the parameter that somebody means by `name`: of another trainer's name ours, else the nearest.

    Args:
        name: what was typed.
        known: the parameters that there are.
        group: the parameter whose keys these are, such as "lora".
    """
    for ours in PARAMETERS.get(str(name).lower().replace("-", "_"), "").split("|"):
        own = ours.removeprefix(f"{group}.")
        if own.partition(".")[0] in known:
            return f" (did you mean '{own}'?)"
    return nearest(str(name), known)
