"""What this package brings to grpokit: the light module behind its entry point.

It imports only grpokit, so that `grpokit plugins` can list the policy without importing torch.
"""

from __future__ import annotations

from collections.abc import Iterable

from grpokit import Asset, PolicySpec, PresetSpec, RewardSpec, WorldSpec, hookimpl

_INSTALL = "pip install 'grpokit[lm]'"
_WITH_A_WORLD = "policy:\n  use: hf-lm\n  model: Qwen/Qwen3-0.6B\n"
_TWENTY_TWO = {"prompt": "Make 22 from 3, 5 and 7.", "target": "22", "meta": {"numbers": [3, 5, 7]}}
_HALF = {"prompt": "What is 3 / 6?", "target": "One of two is 1/2.\n#### 1/2"}


@hookimpl
def grpokit_policies() -> Iterable[PolicySpec]:
    """The one policy for all language models."""
    yield PolicySpec(
        api=1,
        name="hf-lm",
        factory="grpokit_lm.policy:CausalLMPolicy",
        example="policy: {use: hf-lm, model: Qwen/Qwen3-0.6B, max_new_tokens: 256, lora: {r: 16, alpha: 32}}",
        summary="a Hugging Face language model that answers prompts, with or without an adapter",
        install=_INSTALL,
        makes="text",
        plan="grpokit_lm.plan:plan",
    )


@hookimpl
def grpokit_rewards() -> Iterable[RewardSpec]:
    """Rewards for answers that can be checked; they need no package of their own."""
    yield RewardSpec(
        api=1,
        name="countdown",
        factory="grpokit_lm.tasks.countdown:Countdown",
        summary="1 where the answer is an expression of the prompt's numbers with the target's value",
        accepts={"text"},
        unscorable="grpokit_lm.tasks.countdown:unscorable",
        range=(0.0, 1.0),
        examples=[
            ({"output": "<answer>3*5+7</answer>"} | _TWENTY_TWO, {"output": "<answer>3*7+5</answer>"} | _TWENTY_TWO),
            ({"output": "<answer>7 + 5*3</answer>"} | _TWENTY_TWO, {"output": "<answer>22</answer>"} | _TWENTY_TWO),
        ],
    )
    yield RewardSpec(
        api=1,
        name="final-answer",
        factory="grpokit_lm.tasks.final_answer:final_answer",
        summary="1 where the answer behind #### (GSM8K) or in \\boxed{...} (MATH) equals the target's",
        accepts={"text"},
        unscorable="grpokit.rewards.missing_inputs:any_target",
        range=(0.0, 1.0),
        examples=[
            ({"output": "so it is \\boxed{0.5}."} | _HALF, {"output": "so it is \\boxed{2}."} | _HALF),
            ({"output": "3 / 6 = 1 / 2\n#### 1/2"} | _HALF, {"output": "3 / 6 = 1 / 2"} | _HALF),
        ],
    )


@hookimpl
def grpokit_worlds() -> Iterable[WorldSpec]:
    """A tool, and a game that a tiny model can learn."""
    yield WorldSpec(
        api=1,
        name="calculator",
        factory="grpokit_lm.worlds.calculator:Calculator",
        example=f"{_WITH_A_WORLD}  world: {{use: calculator}}",
        summary="a tool that computes expressions, called as Hermes and Qwen templates write calls",
        install=_INSTALL,
    )
    yield WorldSpec(
        api=1,
        name="guess-the-number",
        factory="grpokit_lm.worlds.guess:GuessTheNumber",
        example=f"{_WITH_A_WORLD}  world: {{use: guess-the-number}}",
        summary="a game: it says higher or lower until the number is found",
        install=_INSTALL,
    )


@hookimpl
def grpokit_presets() -> Iterable[PresetSpec]:
    """Ready runs: three of tiny models that ship with the package, and one of a model of the hub."""
    for name, summary in (
        ("lm-arithmetic", "a tiny language model with a LoRA adapter learns to add, from format and answer rewards"),
        ("lm-countdown", "a tiny language model with a LoRA adapter learns to make a number from three others"),
        ("lm-guess", "a tiny language model with a LoRA adapter learns a game of several turns, to guess a number"),
    ):
        yield PresetSpec(
            api=1,
            name=name,
            factory=f"grpokit_lm:presets/{name}.yaml",
            summary=summary,
            install=_INSTALL,
            takes="about a minute on one CPU core",
        )
    yield PresetSpec(
        api=1,
        name="qwen-gsm8k",
        factory="grpokit_lm:presets/qwen-gsm8k.yaml",
        summary="Qwen2.5-0.5B-Instruct learns to solve the math problems of GSM8K, on a GPU",
        install="pip install 'grpokit[lm,datasets]'",
        assets=[
            Asset(
                name="Qwen2.5-0.5B-Instruct",
                repository="Qwen/Qwen2.5-0.5B-Instruct",
                files=["config.json", "*.safetensors"],
            )
        ],
        fetches=True,
        needs="a GPU; fetches Qwen2.5-0.5B-Instruct and GSM8K from the Hugging Face hub",
    )
