"""Names that users of other trainers type.

The trainers are those of `registry.synonyms`, Lightning and verl. `KEYS` holds the config's own key for each, `ADVICE`
what to do where no key corresponds. The names are in lower case with underscores.
"""

from __future__ import annotations

from grpokit.registry.synonyms import PARAMETERS

_KEYS = {
    "trainer.learning_rate": "lr unet_lr train_learning_rate",
    "trainer.optimizer": "optim optimizer_name optimizer_type",
    "trainer.weight_decay": "wd adam_weight_decay",
    "trainer.schedule": "lr_scheduler lr_scheduler_type scheduler",
    "trainer.warmup_steps": "lr_warmup_steps num_warmup_steps warmup warmup_ratio",
    "trainer.max_grad_norm": "clip_grad_norm grad_clip gradient_clip_val",
    "trainer.micro_batch_size trainer.prompts_per_step": "batch_size train_batch_size",
    "trainer.micro_batch_size": "per_device_train_batch_size",
    "trainer.prompts_per_step trainer.group_size": "generation_batch_size",
    "trainer.minibatches": "mini_batch_size num_mini_batches",
    "trainer.group_size": "num_generations num_samples_per_prompt num_image_per_prompt num_images_per_prompt",
    "trainer.prompts_per_step": "num_batches_per_epoch sample_num_batches_per_epoch",
    "trainer.rollout_batch_size": "sample_batch_size",
    "trainer.updates_per_rollout": "num_inner_epochs train_num_inner_epochs num_iterations num_ppo_epochs ppo_epochs",
    "trainer.steps": "max_steps max_train_steps num_steps total_steps",
    "trainer.kl_coef": "beta kl_coeff kl_loss_coef kl_beta kl_ratio kl_weight",
    "trainer.kl": "kl_loss_type",
    "trainer.clip_range": "epsilon epsilon_low clip_ratio cliprange clip_range_lt train_clip_range",
    "trainer.clip_range_high": "epsilon_high clip_range_gt",
    "trainer.entropy_coef": "entropy_coeff ent_coef",
    "trainer.dual_clip": "delta clip_ratio_c",
    "trainer.kl_bias_correction": "use_bias_correction_kl",
    "trainer.dynamic_sampling": "dynamic_sample filter_groups max_resample_times max_num_gen_batches",
    "trainer.ratio": "importance_sampling_level",
    "trainer.objective": "loss loss_type",
    "trainer.advantage": "adv_estimator advantage_estimator scale_rewards",
    "trainer.device": "accelerator",
    "trainer.mixed_precision": "bf16 fp16 precision",
    "rewards": "reward reward_fn reward_funcs",
    "rewards.0.weight": "reward_weights",
    "data.dataset": "dataset_name train_data_dir train_dataset",
    "data.split": "dataset_split",
    "data.use": "prompt_fn",
    "data.prompts": "jsonl",
    "eval.split eval.prompts": "eval_dataset",
    "eval.prompts": "eval_jsonl eval_prompts validation_prompt validation_prompts",
    "eval.targets": "eval_targets",
    "eval.images": "eval_images",
    "eval.split": "eval_split",
    "eval.fraction": "eval_fraction test_size",
    "seed": "manual_seed random_seed",
    "run.dir": "output output_dir default_root_dir logging_dir logdir save_dir training_folder",
    "run.save_every": "save_every_n_steps save_steps save_freq checkpointing_steps",
    "run.stop": "earlystoppingcallback early_stopping_patience",
    "run.keep_last": "checkpoints_total_limit save_total_limit max_step_saves_to_keep num_checkpoint_limit",
    "run.best": "load_best_model_at_end metric_for_best_model",
    "eval.every": "eval_every eval_freq eval_steps eval_strategy sample_every sample_every_n_steps test_freq "
    "val_check_interval validation_steps",
    "eval.samples": "eval_samples num_generations_eval num_validation_images",
    "eval.batch_size": "eval_batch_size per_device_eval_batch_size",
    "trackers.use": "log_with logger report_to",
    "trackers.project": "project_name tracker_project_name wandb_project",
    "trackers.name": "experiment_name run_name output_name wandb_run_name",
    "trackers.tags": "wandb_tags",
}

KEYS = {name: tuple(ours.split()) for ours, names in _KEYS.items() for name in names.split()}

_ADVICE = {
    "a run is counted in steps: set trainer.steps": "max_epochs num_epochs num_train_epochs max_train_epochs "
    "total_epochs",
    "gradients are accumulated over micro-batches: set trainer.micro_batch_size": "accumulate_grad_batches "
    "gradient_accumulation_steps",
    "set trainer.minibatches, the optimizer steps of one pass over a rollout": "steps_per_generation",
    "set steps, guidance, noise and window in policy, and trainer.group_size": "sample",
    "it is a parameter of the advantage, as in trainer.advantage={use: group, clip: 5}": "adv_clip_max",
    "set trainer.advantage to gdpo for normalize_then_sum": "multi_objective_aggregation",
    "it is a parameter of the objective, as in trainer.objective={use: sapo, tau_pos: 1}": "sapo_temperature_pos "
    "sapo_temperature_neg vespo_k_pos vespo_k_neg vespo_lambda_pos vespo_lambda_neg",
    "set trainer.modifiers=[{use: kl-gate}]": "kl_gate",
    "set trainer.modifiers=[{use: diversity, monitor: NAME}]": "diversity",
    "set trainer.modifiers=[{use: entropy-filter, share: 0.2}]": "top_entropy_quantile",
    "set trainer.modifiers=[{use: entropy-target, target: 1}]": "use_adaptive_entropy entropy_target target_entropy "
    "entropy_coef_delta entropy_coef_min entropy_coef_max",
    "set trainer.correction, as in {how: mask, per: token, low: 0, high: 3}": "vllm_importance_sampling_correction "
    "vllm_importance_sampling_mode vllm_importance_sampling_clip_min vllm_importance_sampling_clip_max",
    "give hf-lm an engine, as in policy.engine={url: ...} or {offline: true, sleep: true}": "use_vllm vllm_mode "
    "vllm_server_base_url vllm_server_timeout vllm_gpu_memory_utilization vllm_max_model_length vllm_enable_sleep_mode",
    "there is nothing to set: it is always so": "auto_find_batch_size disable_dropout eval_on_start log_every_n_steps "
    "logging_steps per_prompt_stat_tracking shuffle_dataset",
    "report.html shows samples anyway; run.record keeps all of them": "log_completions log_multimodal "
    "log_unique_prompts num_completions_to_print",
    "all randomness follows from seed": "data_seed full_determinism",
    "set trainer.device to cpu": "use_cpu",
    "set run.sharding to fsdp2": "fsdp",
    "use a plugin's run hooks": "callbacks",
    "give the command --resume": "resume_from resume_from_checkpoint",
}

ADVICE = {name: advice for advice, names in _ADVICE.items() for name in names.split()}
ADVICE |= {
    theirs: f"it is a parameter of the policy, if the policy has one: set policy.{ours.replace('|', ' or policy.')}"
    for theirs, ours in PARAMETERS.items()
    if theirs not in KEYS
}
