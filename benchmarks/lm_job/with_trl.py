"""TRL's own GRPOTrainer on the job, run by its `train()`. The worker of an environment of its own."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from lm_job.job import Even, Job, words
from lm_job.models import EndAt, build_model, build_tokenizer, lora_config
from lm_job.turns import Turns

STEPS = 1000
"""Prompts are made for this many; nobody takes more."""


def run(job: Job, turns: Turns, *, checkpointing: bool = False) -> None:
    """Take steps while there are turns.

    Args:
        job: the job.
        turns: when to take a step.
        checkpointing: compute activations again in the backward pass, as TRL does by default.
    """
    with tempfile.TemporaryDirectory() as folder:
        model = build_model(job)
        model.save_pretrained(folder)
        model.config._name_or_path = folder  # TRL loads the frozen reference from where the model came
        options = GRPOConfig(
            output_dir=str(Path(folder) / "run"),
            use_cpu=job.device == "cpu",
            bf16=job.device == "cuda",
            per_device_train_batch_size=job.micro,
            gradient_accumulation_steps=job.rows // job.micro,
            gradient_checkpointing=checkpointing,
            num_generations=job.group,
            max_completion_length=job.new_tokens,
            max_steps=STEPS,
            learning_rate=job.learning_rate,
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            beta=job.beta,
            loss_type="grpo",
            use_bias_correction_kl=False,  # TRL weights the KL's gradient by the ratio unless told otherwise
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            shuffle_dataset=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=job.seed,
        )
        even = Even()

        def rewards(completion_ids: list[list[int]], **_: Any) -> list[float]:
            return even(completion_ids)

        prompts = [words(ids) for step in range(STEPS) for ids in job.prompt_ids(step)]
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=rewards,
            args=options,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=build_tokenizer(job, end=job.end),
            peft_config=lora_config(job) if job.lora else None,
        )
        if job.ragged:
            generate = trainer.model.generate

            @functools.wraps(generate)
            def ragged(*args: Any, **kwargs: Any) -> Any:
                return generate(*args, logits_processor=[EndAt(job, job.lengths(turns.step))], **kwargs)

            trainer.model.generate = ragged
        turns.clock.watch(trainer, "_generate_single_turn", "generate")
        turns.clock.watch(trainer, "_calculate_rewards", "reward")
        turns.clock.watch(trainer, "compute_loss", "forward")
        turns.clock.watch(
            trainer,
            "_get_per_token_logps_and_entropies",
            lambda: "forward" if torch.is_grad_enabled() else "reference",
        )
        trainer.add_callback(_OneStepPerTurn(job, turns, even))
        if turns.begin():
            trainer.train()


class _OneStepPerTurn(TrainerCallback):
    """Ends a turn where TRL logs a step, and waits for the next one."""

    def __init__(self, job: Job, turns: Turns, even: Even) -> None:
        self.job, self.turns, self.even = job, turns, even

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Called after each step, and once more when training ends."""
        if "entropy" not in logs:
            return
        facts = {name: float(logs[name]) for name in ("entropy", "grad_norm", "reward")}
        tokens = float(logs["completions/mean_length"]) * self.job.rows
        self.turns.end(tokens=tokens, distinct=self.even.distinct, **facts)
        if not self.turns.begin():
            control.should_training_stop = True
