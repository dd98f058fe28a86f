"""Names that users of TRL and transformers type for parameters of a policy, in lower case with underscores."""

from __future__ import annotations

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
    # an adapter
    "use_peft": "lora",
    "peft_config": "lora",
    "lora_config": "lora",
    "lora_r": "lora",
    "lora_rank": "lora",
    "lora_alpha": "lora",
    "lora_dropout": "lora",
    "lora_target_modules": "lora",
    "target_modules": "lora",
    "use_dora": "lora",
    "use_rslora": "lora",
    "adapter_name_or_path": "lora",
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
    "ref_model_mixup_alpha": "reference_ema",
    "ref_model_sync_steps": "reference_ema",
}
