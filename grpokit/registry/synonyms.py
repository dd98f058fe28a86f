"""Names that users of other trainers type for parameters of a policy, in lower case with underscores.

They are those of TRL, transformers, peft and diffusers, of Flow-GRPO, DanceGRPO and ddpo-pytorch, and of ai-toolkit and
kohya's sd-scripts. Of several names for ours, "a|b", that counts which the policy has.
"""

from __future__ import annotations

from collections.abc import Collection

from grpokit.errors import nearest

_PARAMETERS = {
    "model": "model model_name model_name_or_path pretrained_model_name_or_path pretrained pretrained_model",
    "dtype": "model_init_kwargs torch_dtype",
    "revision": "model_revision",
    "trust_remote_code": "trust_remote_code",
    "tokenizer": "processing_class tokenizer_name_or_path",
    "quantization": "quantization_config load_in_4bit load_in_8bit",
    "gradient_checkpointing": "gradient_checkpointing activation_checkpointing",
    "lora": "use_peft peft_config lora_config use_lora",
    "lora.r": "lora_r lora_rank rank linear network_dim",
    "lora.alpha": "lora_alpha linear_alpha network_alpha",
    "lora.dropout": "lora_dropout network_dropout",
    "lora.targets": "lora_target_modules target_modules",
    "lora.dora": "use_dora",
    "lora.rslora": "use_rslora",
    "lora.adapter": "adapter_name_or_path lora_path pretrained_lora_path",
    "max_new_tokens": "max_completion_length max_response_length max_tokens max_new_tokens",
    "max_prompt_tokens": "max_prompt_length",
    "mask_truncated": "mask_truncated_completions",
    "template_options": "chat_template_kwargs",
    "system": "system_prompt",
    "stop": "stop_strings",
    "stop_tokens": "stop_token_ids",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "reference_ema": "sync_ref_model",
    "reference_ema.decay": "ref_model_mixup_alpha",
    "reference_ema.every": "ref_model_sync_steps",
    "world": "environment_factory tools",
    "max_turns": "max_tool_calling_iterations",
    "size": "height width h w resolution image_size",
    "steps|decode.steps": "num_inference_steps num_sampling_steps num_steps sample_num_steps sample_steps "
    "sampling_steps",
    "eval_steps|eval_decode.steps": "eval_num_steps",
    "guidance|decode.guidance": "cfg cfg_scale guidance_scale sample_guidance_scale true_cfg_scale",
    "eval_guidance|eval_decode.guidance": "eval_guidance_scale",
    "noise": "eta sample_eta noise_level",
    "sampler": "sde_type",
    "window.share": "timestep_fraction train_timestep_fraction sde_window_range",
    "window.width": "sde_window_size",
    "matching.times": "num_train_timesteps",
    "matching.weight": "awm_weighting weighting",
    "shared_noise|decode.noise": "init_same_noise same_latent",
    "ema": "use_ema",
    "ema.decay": "ema_decay",
}

PARAMETERS = {name: ours for ours, names in _PARAMETERS.items() for name in names.split()}


def hint(name: object, known: Collection[str], *, group: str = "") -> str:
    """A hint at the parameter that someone means by `name`: of another trainer's name ours, else the nearest.

    Args:
        name: what was typed.
        known: the parameters that there are.
        group: the parameter whose keys these are, such as "lora".
    """
    plain = str(name).lower().replace("-", "_")
    for ours in PARAMETERS.get(plain, "").split("|"):
        own = ours.removeprefix(f"{group}.")
        if own.partition(".")[0] in known:
            return f" (did you mean '{own}'?)"
    return nearest(str(name), known)
