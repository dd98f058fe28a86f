"""A parameter by another trainer's name leads to ours, where the component has it."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest

from grpokit import PluginError, UsageError, create, registry
from grpokit.flow import Matching
from grpokit.reference import Average
from grpokit.registry.synonyms import PARAMETERS
from grpokit_hf.diffusion.windows import Window
from grpokit_hf.models.adapters import AdapterSettings


def policy(*, max_new_tokens: int = 1, lora: Any = None, top: int = 1) -> None:
    """A factory that no plugin brings."""


def test_a_parameter_may_be_infinite_or_an_array() -> None:
    create("policy", f"{__name__}:policy", {"lora": math.inf})
    create("policy", f"{__name__}:policy", {"lora": np.zeros(3)})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_completion_length", " (did you mean 'max_new_tokens'?)"),
        ("Use-PEFT", " (did you mean 'lora'?)"),
        ("lora_r", " (did you mean 'lora.r'?)"),
        ("network-dim", " (did you mean 'lora.r'?)"),
        ("resolutions", ""),  # in which nobody should see `revision`
        ("max_new_token", " (did you mean 'max_new_tokens'?)"),  # misspelt
        ("model_name_or_path", ""),  # for which this one has no parameter
    ],
)
def test_a_parameter_by_another_name(name: str, hint: str) -> None:
    with pytest.raises(PluginError) as raised:
        create("policy", f"{__name__}:policy", {name: 1})
    assert f" has no parameter '{name}'{hint}. It accepts: max_new_tokens=1, " in str(raised.value)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("num_inference_steps", "steps"),
        ("guidance_scale", "guidance"),
        ("height", "size"),
        ("resolution", "size"),
        ("noise_level", "noise"),
        ("timestep_fraction", "window.share"),
        ("sde_window_size", "window.width"),
        ("same_latent", "shared_noise"),
        ("linear_alpha", "lora.alpha"),
    ],
)
def test_a_key_of_an_image_trainer_names_the_parameter(name: str, ours: str) -> None:
    with pytest.raises(PluginError, match=rf"has no parameter '{name}' \(did you mean '{ours}'\?\)"):
        create("policy", "diffusers-flow", {"model": "tiny-sd3", name: 1})
    if name in ("num_inference_steps", "guidance_scale"):
        with pytest.raises(PluginError, match=rf"\(did you mean 'decode\.{ours}'\?\)"):
            create("policy", "glm-image-ar", {"model": "x", name: 1})


@pytest.mark.parametrize(
    ("name", "ours"), [("lora_alpha", "alpha"), ("target_modules", "targets"), ("network_dim", "r")]
)
def test_a_key_of_another_trainers_adapter_names_ours(name: str, ours: str) -> None:
    with pytest.raises(UsageError, match=rf"lora has no key '{name}' \(did you mean '{ours}'\?\)"):
        AdapterSettings.read({name: 8})


def test_the_other_trainers_names_lead_to_parameters_that_exist() -> None:
    policies = [registry.resolve(spec.factory) for _, spec in registry.installed("policy")]
    known = {name for policy in policies for name in inspect.signature(policy).parameters}
    groups = {"lora": AdapterSettings, "window": Window, "matching": Matching}
    groups |= {"ema": Average, "reference_ema": Average}
    for ours in {part for value in PARAMETERS.values() for part in value.split("|")}:
        name, _, key = ours.partition(".")
        assert name in known
        assert not key or "decode" in name or key in inspect.signature(groups[name]).parameters
