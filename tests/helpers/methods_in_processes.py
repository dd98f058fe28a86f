"""What each process of a test does with objectives that read whole groups, teachers, or an average."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_models import tiny_model, tiny_tokenizer

from grpokit import Prompt, Sample, Trainer, create
from grpokit_diffusers.policy import DiffusersFlow
from grpokit_glm_image.dit import GlmImageDiT
from grpokit_lm.policy import CausalLMPolicy
from grpokit_toy.flow import ToyFlow, prompt_radius, ring_prompts
from in_processes import STEPS, learned
from models_in_processes import PROMPTS, red, vowels

COPIES = {"times": 2, "weight": "uniform", "shared_noise": True}
SIZES = {"group_size": 3, "learning_rate": 1e-3, "micro_batch_size": 4, "device": "cpu", "progress": False}


def nearness(samples: Sequence[Sample]) -> list[float]:
    return [-abs(torch.tensor(sample.output).norm().item() - prompt_radius(sample.prompt)) for sample in samples]


def points(objective: str, files: Sequence[Path] = (), **options: Any) -> Trainer:
    """Of toy-flow in fp64; one of two processes may have no group."""
    own = {name: options.pop(name) for name in ("matching", "old_ema", "sampler") if name in options}
    policy = ToyFlow(steps=3, teachers={file.stem: str(file) for file in files} or None, **own)
    models = [policy.net, *([policy._old._twin] if policy._old else [])]
    models += policy._teachers.models.values() if policy._teachers else []
    for model in models:
        model.double()
    return Trainer(
        policy, [nearness], ring_prompts(limit=12), objective=create("objective", objective), steps=STEPS,
        **{"prompts_per_step": 3, "updates_per_rollout": 2, **SIZES, **options},
    )  # fmt: skip


def of_points(files: Sequence[Path]) -> dict[str, Any]:
    """By case: the weights, metrics and warnings of five steps."""
    cases = {
        "dgpo": points("dgpo", matching=COPIES, minibatches=3),
        "dgpo, one group": points("dgpo", matching=COPIES, prompts_per_step=1),
        "crd": points("crd", matching=COPIES, old_ema={"decay": 0.5, "ramp": 0.1}),
        "nft": points("nft", matching=COPIES, old_ema={"decay": 0.5, "ramp": 0.1}, prompts_per_step=1),
        "opd": points("opd", files),
        "opd of the ode": points("opd", files, sampler="ode", prompts_per_step=1),
    }
    return {case: learned(trainer) for case, trainer in cases.items()}


def trained_points(folder: Path) -> list[Path]:
    """Files of weights near the start of toy-flow."""
    files = [folder / "wide.safetensors", folder / "narrow.safetensors"]
    for seed, file in enumerate(files):
        generator = torch.Generator().manual_seed(seed)
        state = ToyFlow().net.state_dict()
        save_file({name: x + 0.05 * torch.randn(x.shape, generator=generator) for name, x in state.items()}, file)
    return files


def language(**options: Any) -> CausalLMPolicy:
    model = tiny_model("llama").double()
    own = {"lora": {"r": 2}, **options}
    return CausalLMPolicy(model, tokenizer=tiny_tokenizer(), max_new_tokens=8, chat=False, **own)


def flow(**options: Any) -> DiffusersFlow:
    own = {"lora": {"r": 2}, **options}
    return DiffusersFlow("tiny-sd3", size=(64, 64), steps=3, eval_steps=3, **own)


def painter(**options: Any) -> GlmImageDiT:
    policy = GlmImageDiT("tiny", size=(64, 64), steps=3, eval_steps=3, lora={"r": 2}, **options)
    for module in policy.modules().values():
        module.double()
    return policy


def export_adapters(folder: Path) -> None:
    """Trained adapters of ranks 2 and 3 for each kind of policy."""
    makers: dict[str, Callable[..., Any]] = {"hf-lm": language, "diffusers-flow": flow}
    for name, make in makers.items():
        for rank in (2, 3):
            policy, place = make(lora={"r": rank}), folder / f"{name}-{rank}"
            generator = torch.Generator().manual_seed(rank)
            for key, parameter in policy.model.named_parameters():
                if "lora_B" in key:
                    parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator).to(parameter)
            place.mkdir(parents=True)
            policy.export(place)


def spread(objective: str, policy: Any, how: str | None, **options: Any) -> Trainer:
    reward = vowels if isinstance(policy, CausalLMPolicy) else red
    named = [Prompt(text=prompt.text, meta={"teacher": "ab"[i % 3 % 2]}) for i, prompt in enumerate(PROMPTS)]
    prompts = named if options.pop("named", False) else PROMPTS
    return Trainer(
        policy, [reward], prompts, objective=create("objective", objective), steps=STEPS, sharding=how,
        **{"prompts_per_step": 3, **SIZES, **options},
    )  # fmt: skip


def of_spread(folder: Path, how: str | None) -> dict[str, Any]:
    """By case, with weights that processes hold together."""

    def teachers(name: str, count: int) -> dict[str, str]:
        return {letter: str(folder / f"{name}-{rank}") for letter, rank in (("a", 2), ("b", 3))[:count]}

    cases: dict[str, Callable[[], Trainer]] = {
        "hf-lm, one teacher": lambda: spread("opd", language(teachers=teachers("hf-lm", 1)), how),
        "hf-lm, two": lambda: spread(
            "opd", language(teachers=teachers("hf-lm", 2)), how, named=True, prompts_per_step=1
        ),
        "diffusers-flow, one teacher": lambda: spread("opd", flow(teachers=teachers("diffusers-flow", 1)), how),
        "diffusers-flow, two": lambda: spread(
            "opd", flow(teachers=teachers("diffusers-flow", 2)), how, named=True, updates_per_rollout=2
        ),
        "diffusers-flow, dgpo": lambda: spread("dgpo", flow(matching=COPIES), how, prompts_per_step=1),
        "diffusers-flow, crd": lambda: spread(
            "crd", flow(matching=COPIES, old_ema={"decay": 0.5, "ramp": 0.1}), how, updates_per_rollout=2
        ),
        "glm-image-dit, dgpo": lambda: spread("dgpo", painter(matching=COPIES), how, updates_per_rollout=2),
    }
    return {case: learned(make()) for case, make in cases.items()}
