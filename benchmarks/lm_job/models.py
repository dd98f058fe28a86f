"""The model, its tokenizer and its precision: the same in every contender's process."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from lm_job.job import Job


def build_model(job: Job) -> Any:
    """A Llama of the job's size with the seed's random weights, in fp32 on the job's device."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=job.hidden,
        intermediate_size=job.mlp,
        num_hidden_layers=job.layers,
        num_attention_heads=job.heads,
        num_key_value_heads=job.kv_heads or job.heads,
        vocab_size=job.vocab,
        max_position_embeddings=max(2048, job.prompt_tokens + job.new_tokens),
        tie_word_embeddings=False,
        pad_token_id=job.pad,
        bos_token_id=None,
        eos_token_id=job.end if job.ragged else None,
    )
    torch.manual_seed(job.seed)
    return LlamaForCausalLM(config).to(job.device)


def build_tokenizer(job: Job, *, end: int) -> Any:
    """Token i is the word "t<i>", and `end` the end token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = {job.pad: "<pad>", 2: "<unk>", end: "<end>"}
    vocabulary = {names.get(i, f"t{i}"): i for i in range(max(job.vocab, end + 1))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **special)


def lora_config(job: Job) -> Any:
    """The adapter of a job with `lora`."""
    from peft import LoraConfig

    return LoraConfig(r=job.lora, lora_alpha=2 * job.lora, target_modules="all-linear", task_type="CAUSAL_LM")


def precision(job: Job) -> AbstractContextManager[Any]:
    """Autocast to bf16 on a GPU, nothing on a CPU."""
    return torch.autocast("cuda", torch.bfloat16) if job.device == "cuda" else contextlib.nullcontext()


class EndAt:
    """A logits processor that lets each row end at its length, and no earlier; it changes the scores that it gets."""

    def __init__(self, job: Job, lengths: list[int]) -> None:
        self.job, self.lengths = job, torch.tensor(lengths, device=job.device)

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """[B, t] tokens so far and [B, V] scores -> [B, V]."""
        last = self.lengths == ids.shape[1] - self.job.prompt_tokens + 1
        scores[:, self.job.end] = -torch.inf
        scores[last] = -torch.inf
        scores[last, self.job.end] = 0.0
        return scores
