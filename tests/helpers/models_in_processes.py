"""What each process of a test does with real model classes: trainings of tiny language models and image generators."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from warnings import filterwarnings

import numpy as np
import torch
from PIL import Image
from tiny_models import tiny_model, tiny_tokenizer

from grpokit import Phase, PhasedTrainer, Policy, Prompt, Sample, Trainer
from grpokit.processes.team import local
from grpokit_check import outcomes, policy_checks
from grpokit_diffusers.policy import DiffusersFlow
from grpokit_glm_image.dit import GlmImageDiT
from grpokit_glm_image.halves import halves
from grpokit_glm_image.policy import GlmImageAR
from grpokit_lm.policy import CausalLMPolicy
from in_processes import STEPS, learned
from tiny_policies import OBJECTIVES_BY_NAME

PROMPTS = [Prompt(text=f"say {letter}") for letter in "abcdefghijkl"]
SIZES = {"prompts_per_step": 3, "updates_per_rollout": 2, "learning_rate": 1e-3, "device": "cpu", "progress": False}
LANGUAGE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "all weights, a mean reference": ({"reference_ema": {"decay": 0.8}}, {}),
    "an adapter": ({"lora": {"r": 2}}, {"prompts_per_step": 1}),
    "a token budget": ({"lora": {"r": 2}}, {"micro_batch_tokens": 40, "dynamic_sampling": 2}),
}
PICTURES = ("glm-image-ar", "glm-image-dit", "diffusers-flow")
MODELS = ("hf-lm", *PICTURES)


def vowels(samples: Sequence[Sample]) -> list[float]:
    return [float(sum(letter < "h" for letter in sample.output)) for sample in samples]


def red(samples: Sequence[Sample]) -> list[float]:
    return [float(np.asarray(sample.output.convert("RGB"), dtype=float)[..., 0].mean()) for sample in samples]


def language_model(max_new_tokens: int = 8, **options: Any) -> CausalLMPolicy:
    model = tiny_model("llama").double()
    return CausalLMPolicy(model, tokenizer=tiny_tokenizer(), max_new_tokens=max_new_tokens, chat=False, **options)


def language(case: str) -> Trainer:
    policy, options = LANGUAGE[case]
    objective = OBJECTIVES_BY_NAME["grpo"](kl_coef=0.1)
    sizes = {**SIZES, "group_size": 4} | options
    return Trainer(language_model(**policy), [vowels], PROMPTS, steps=STEPS, objective=objective, **sizes)


def references_too_late() -> None:
    """The second trainer of a policy wants a frozen copy, and the first one has spread the weights."""
    policy = language_model()
    for kl in (0.0, 0.1):
        objective = OBJECTIVES_BY_NAME["grpo"](kl_coef=kl)
        Trainer(policy, [vowels], PROMPTS, steps=1, objective=objective, group_size=4, sharding="fsdp2", **SIZES)


def pictures(name: str, **options: Any) -> Trainer:
    """The two of GLM-Image compute in float64 where their model classes do not ask for float32."""
    short: dict[str, Any] = {"size": (64, 64), "lora": {"r": 2}}
    decode = {"steps": 1, "guidance": 1.0}
    policies: dict[str, Callable[[], Policy]] = {
        "glm-image-ar": lambda: GlmImageAR("tiny", decode=decode, eval_decode=decode, **short),
        "glm-image-dit": lambda: GlmImageDiT("tiny", steps=3, eval_steps=3, **short),
        "diffusers-flow": lambda: DiffusersFlow("tiny-sd3", steps=3, eval_steps=3, **short),
    }
    policy, of_tokens = policies[name](), name == "glm-image-ar"
    for module in policy.modules().values() if name != "diffusers-flow" else ():
        module.double()
    objective = OBJECTIVES_BY_NAME["grpo"](kl_coef=0.1, **({} if of_tokens else {"kl": "gaussian"}))
    return Trainer(policy, [red], PROMPTS, steps=STEPS, objective=objective, group_size=3, **SIZES, **options)


def both_halves() -> PhasedTrainer:
    """Two rounds in which the tokens of GLM-Image learn for a step and its painting for one."""
    short: dict[str, Any] = {"lora": {"r": 2}}
    policies = halves("tiny", size=(64, 64), ar=short, dit={"steps": 3, "eval_steps": 3, **short})
    phases: list[Phase] = []
    for seed, (name, policy) in enumerate(policies.items()):
        for module in policy.modules().values():
            module.double()
        objective = OBJECTIVES_BY_NAME["grpo"](kl_coef=0.1, **({} if name == "ar" else {"kl": "gaussian"}))
        sizes = {**SIZES, "group_size": 3}
        trainer = Trainer(policy, [red], PROMPTS, steps=2, seed=seed, objective=objective, **sizes)
        phases.append(Phase(name=name, trainer=trainer, steps=1, policy=name))
    return PhasedTrainer(phases, rounds=2)


def of_both_halves(trainer: PhasedTrainer | None = None) -> tuple[list[Any], list[dict[str, float]]]:
    """The weights of both halves after the last step, and the metrics of all steps."""
    trainer = trainer or both_halves()
    metrics = [dict(report.metrics) for report in trainer]
    policies = [phase.trainer.policy for phase in trainer.phases.values()]
    modules = [module for policy in policies for module in policy.modules().values()]
    return [p.detach().tolist() for module in modules for p in module.parameters()], metrics


def both_halves_resumed(folder: Path) -> tuple[Any, Any]:
    """What both halves learn, and what they learn with a stop in the second round."""
    trainer = both_halves()
    for _ in range(3):
        trainer.step()
    trainer.save(folder)
    next(iter(trainer.phases.values())).trainer.team.gather(None)  # until it is there
    again = both_halves()
    again.load(folder)
    return of_both_halves(trainer)[0], of_both_halves(again)[0]


def of(name: str) -> Trainer:
    return language("a token budget") if name == "hf-lm" else pictures(name)


def of_language() -> dict[str, Any]:
    return {case: learned(language(case)) for case in LANGUAGE}


SPREAD: dict[str, Callable[[str | None], Trainer]] = {
    "hf-lm, all weights": lambda how: spread_language(how, prompts_per_step=3),
    "hf-lm, a mean reference": lambda how: spread_language(how, reference_ema={"decay": 0.8}, prompts_per_step=1),
    "hf-lm, an adapter and a mean one": lambda how: spread_language(
        how, lora={"r": 2}, reference_ema={"decay": 0.8}, prompts_per_step=2
    ),
    "hf-lm, an adapter that was trained before": lambda how: spread_language(
        how, lora={"adapter": trained_adapter()}, prompts_per_step=2
    ),
    "hf-lm, most completions are masked": lambda how: spread_language(
        how, lora={"r": 2}, mask_truncated=True, prompts_per_step=2, micro_batch_size=2
    ),
    "hf-lm, none ends by itself": lambda how: spread_language(
        how, lora={"r": 2}, mask_truncated=True, max_new_tokens=1, prompts_per_step=2
    ),
    "glm-image-ar": lambda how: pictures("glm-image-ar", sharding=how),
    "glm-image-dit": lambda how: pictures("glm-image-dit", sharding=how),
    "glm-image-dit, pictures are edited": lambda how: glm_edits(how),
    "diffusers-flow": lambda how: pictures("diffusers-flow", sharding=how),
    "diffusers-flow, pictures are edited": lambda how: edits(how),
    "diffusers-flow, tiny-chroma": lambda how: blocks_of_two_kinds("tiny-chroma", how),
    "diffusers-flow, tiny-flux2-klein": lambda how: blocks_of_two_kinds("tiny-flux2-klein", how),
}
"""With unequal shares, shares of no rows, and rows of which nothing is trained: trainers by the kind of sharding."""


def spread_language(sharding: str | None, **options: Any) -> Trainer:
    of_policy = ("lora", "mask_truncated", "max_new_tokens", "reference_ema")
    own = {name: options.pop(name) for name in of_policy if name in options}
    objective = OBJECTIVES_BY_NAME["grpo"](kl_coef=0.1)
    sizes = {**SIZES, "group_size": 4, **options}
    return Trainer(
        language_model(**own), [vowels], PROMPTS, steps=STEPS, objective=objective, sharding=sharding, **sizes
    )


def trained_adapter() -> str:
    policy, folder = language_model(lora={"r": 2}), tempfile.mkdtemp()
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.constant_(parameter, 0.01)
    policy.export(Path(folder))
    return folder


def edits(sharding: str | None) -> Trainer:
    """One group, so that other processes than one have no rows."""
    prompts = [Prompt(text=f"edit {i}", image=Image.new("RGB", (32, 32), (50 * i, 90, 10))) for i in range(3)]
    policy = DiffusersFlow("tiny-flux-kontext", size=(32, 32), steps=3, eval_steps=3, lora={"r": 2})
    sizes = {**SIZES, "group_size": 3, "prompts_per_step": 1}
    return Trainer(policy, [red], prompts, steps=STEPS, sharding=sharding, **sizes)


def blocks_of_two_kinds(model: str, sharding: str | None) -> Trainer:
    policy = DiffusersFlow(model, size=(32, 32), steps=3, eval_steps=3, lora={"r": 2})
    return Trainer(policy, [red], PROMPTS, steps=STEPS, group_size=3, sharding=sharding, **SIZES)


def glm_edits(sharding: str | None) -> Trainer:
    prompts = [Prompt(text=f"edit {i}", image=Image.new("RGB", (64, 64), (50 * i, 90, 10))) for i in range(3)]
    short: dict[str, Any] = {"size": (64, 64), "steps": 3, "eval_steps": 3, "lora": {"r": 2}}
    policy = GlmImageDiT("tiny", edits=True, gradient_checkpointing=True, **short)
    for module in policy.modules().values():
        module.double()
    return Trainer(policy, [red], prompts, steps=STEPS, group_size=3, sharding=sharding, **SIZES)


def of_spread(sharding: str | None) -> dict[str, tuple[Any, int]]:
    """For each case what is learned, and how many numbers this process holds of the policy and its reference."""
    filterwarnings("error", "FSDP2-wrapped", append=True)  # it may mean wrong gradients
    found = {}
    for case, make in SPREAD.items():
        trainer = make(sharding)
        result = learned(trainer)
        with trainer.policy.reference():
            models = [trainer.policy.model, *([trainer.policy.path.model] if case.startswith("hf-lm") else [])]
        parameters = {id(p): local(p).numel() for model in models for p in model.parameters()}
        found[case] = result, sum(parameters.values())
    return found


def of_pictures() -> dict[str, Any]:
    return {name: learned(pictures(name)) for name in PICTURES}


def resumed(folder: Path) -> list[tuple[Any, Any]]:
    """For each policy: what five steps change, and what they change with a stop after two."""
    found = []
    for name in MODELS:
        trainer = of(name)
        for _ in range(2):
            trainer.step()
        trainer.save(folder / name)
        trainer.team.gather(None)  # until it is there
        again = of(name)
        again.load(folder / name)
        found.append((learned(trainer)[0], learned(again)[0]))
    return found


def kept_contract(name: str) -> list[str]:
    """The checks of the policy contract that hold here, or do not apply."""
    checks = policy_checks(lambda: of(name).policy, PROMPTS[:2], makes="text" if name == "hf-lm" else "image")
    apart = ("gaussian", "target")  # which do not apply to every kind of decision
    found = list(outcomes(checks))
    return [outcome.name for outcome in found if outcome.ok or (outcome.name in apart and not outcome.failed)]
