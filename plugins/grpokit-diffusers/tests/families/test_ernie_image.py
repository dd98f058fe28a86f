"""ERNIE-Image: what writes other prompts is not loaded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from transformers import Ministral3Config, Ministral3ForCausalLM

from grpokit import Prompt
from grpokit.sampling import derive_seeds
from grpokit_diffusers.policy import DiffusersFlow
from grpokit_diffusers.tiny import tiny_pipeline
from grpokit_diffusers.tiny.parts import SMALL


def test_what_enhances_prompts_is_not_loaded(tmp_path: Path) -> None:
    """Its weights need not be there, and pictures are those of the pipeline without it."""
    pipeline = tiny_pipeline("tiny-ernie-image")
    writer = Ministral3ForCausalLM(Ministral3Config(**SMALL, head_dim=8))
    pipeline.register_modules(pe=writer, pe_tokenizer=pipeline.tokenizer)
    pipeline.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "model_index.json").read_text())["pe"][1] == "Ministral3ForCausalLM"
    (tmp_path / "pe" / "model.safetensors").unlink()
    policy, plain = (
        DiffusersFlow(model, size=(32, 32), steps=2, eval_steps=2) for model in (str(tmp_path), "tiny-ernie-image")
    )
    assert policy.pipeline.pe is None
    seeds = derive_seeds(1, stream="train", step=0, prompts=1, group_size=1)
    ours, expected = (
        np.asarray(each.rollout([Prompt(text="a cat")], 1, seeds=seeds, evaluate=True).samples[0].output, dtype=int)
        for each in (policy, plain)
    )
    assert np.abs(ours - expected).max() <= 1
