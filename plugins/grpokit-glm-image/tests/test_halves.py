"""Both halves of a GLM-Image learn in turn: runs in phases on the tiny model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import GlmImagePipeline
from safetensors.torch import load_file

from grpokit import Policy, Prompt, Sample, UsageError
from grpokit.config.schema import parse
from grpokit.runs import train as run
from grpokit.runs.export import export
from grpokit.sampling import derive_seeds
from grpokit_glm_image import token_writer
from grpokit_glm_image.attribution import attribute
from grpokit_glm_image.dit import GlmImageDiT
from grpokit_glm_image.halves import halves, reader
from grpokit_glm_image.policy import GlmImageAR
from grpokit_glm_image.tiny_prompts import prompts
from grpokit_hf.tokens.linear_layers import for_decoding
from grpokit_plan import Job
from grpokit_plan.estimate import needs_of

pytestmark = pytest.mark.usefixtures("small_draft")
CONFIG = """
policy:
  use: glm-image
  model: tiny
  size: [64, 64]
  ar: {lora: {r: 2}, train_tokens: large, decode: {steps: 1, guidance: 1.0}, eval_decode: {steps: 1, guidance: 1.0}}
  dit: {lora: {r: 2}, steps: 3, eval_steps: 2, window: {width: 2, share: 1.0}, ema: {decay: 0.5, every: 1}}
data: {use: "grpokit_glm_image.tiny_prompts:prompts", limit: 2}
rewards: [{use: brightness}]
trainer: {prompts_per_step: 2, group_size: 2, learning_rate: 5.0e-2, device: cpu}
phases:
  - {name: tokens, policy: ar, steps: 2, trainer: {kl_coef: 0.01}}
  - {name: painting, policy: dit, steps: 1, trainer: {kl_coef: 0.1, kl: gaussian}}
rounds: 2
eval: {every: 3}
run: {dir: out, threads: 1, save_every: 1, keep_last: null}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class StoppedError(Exception):
    """Ends a run in a test."""


def train(*overrides: str, **options: Any) -> run.Result:
    return run.train(parse(CONFIG, "c.yaml", overrides), **options)


def metrics(folder: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    noise = ("time/", "step_time", "memory/")
    return [{k: x for k, x in row.items() if not k.startswith(noise) and not k.endswith("/seconds")} for row in rows]


def weights(folder: str, step: int, policy: str) -> dict[str, torch.Tensor]:
    return load_file(Path(folder, f"checkpoints/step_{step:06d}/policy/{policy}.safetensors"))


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    assert one
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_halves_learn_in_turn_and_a_resume_is_exact() -> None:
    """Stopped where a phase ends and both halves have learnt: the same run to the bit. Its weights are exported."""
    train("run.dir=whole")
    assert [row["phase"] for row in metrics("whole")] == ["tokens", "tokens", "painting"] * 2
    for step, other in ((2, "dit"), (3, "ar"), (5, "dit"), (6, "ar")):  # what was frozen in the step
        trained = {"ar": "dit", "dit": "ar"}[other]
        assert same(weights("whole", step, other), weights("whole", step - 1, other))
        assert not same(weights("whole", step, trained), weights("whole", step - 1, trained))

    def end(report: Any) -> None:
        if len(metrics("parts")) == 3:
            raise StoppedError

    with pytest.raises(StoppedError):
        train("run.dir=parts", watcher=run.Watcher(step=end))
    train("run.dir=parts", resume=True)
    assert metrics("whole") == metrics("parts")
    assert all(same(weights("whole", 6, name), weights("parts", 6, name)) for name in ("ar", "dit"))
    assert Path("whole/eval.jsonl").read_text() == Path("parts/eval.jsonl").read_text()
    config, trained_at = parse(CONFIG, "c.yaml", ["run.dir=whole"]), Path("whole/checkpoints/step_000006")
    export(config, trained_at, Path("there"))
    assert (Path("there/dit/pytorch_lora_weights.safetensors")).is_file()
    assert (Path("there/ar/adapter_model.safetensors")).is_file()
    export(config, trained_at, Path("merged"), merge=True)
    for half in ("ar", "dit"):
        assert isinstance(GlmImagePipeline.from_pretrained(Path("merged", half)), GlmImagePipeline)


def both(**dit: Any) -> tuple[GlmImageAR, GlmImageDiT]:
    built = halves(
        "tiny",
        size=(64, 64),
        ar={"train_tokens": "large", "eval_decode": {"steps": 2, "guidance": 1.0}},
        dit={"steps": 3, "eval_steps": 2, "eval_guidance": 1.0, **dit},
    )
    ar, painter = built["ar"], built["dit"]
    assert isinstance(ar, GlmImageAR)
    assert isinstance(painter, GlmImageDiT)
    return ar, painter


def drawn(policy: Policy) -> list[bytes]:
    seeds = derive_seeds(0, stream="evaluate", step=0, prompts=1, group_size=2)
    return [s.output.tobytes() for s in policy.rollout([Prompt(text="cat")], 2, seeds=seeds, evaluate=True).samples]


def test_evaluations_paint_with_the_average() -> None:
    ar, painter = both(ema={"decay": 0.5, "every": 1}, lora={"r": 2})
    before = drawn(ar)
    with torch.no_grad():
        for name, parameter in painter.model.named_parameters():
            if ".lora_B." in name:
                parameter.add_(1.0)
    assert drawn(ar) == before  # the average has not moved yet
    painter.updated(1)
    after = drawn(ar)
    assert after != before
    ar_alone, painter = both(lora={"r": 2})
    with torch.no_grad():
        for name, parameter in painter.model.named_parameters():
            if ".lora_B." in name:
                parameter.add_(1.0)
    assert drawn(ar_alone) not in (before, after)


def brightness(samples: Sequence[Sample]) -> list[float]:
    return [float(np.asarray(sample.output.convert("L")).mean()) / 255 for sample in samples]


def test_what_moves_the_reward_is_found() -> None:
    """Brightness is the tokens' in this model, unless all samples have the same ones: then it is the noise's."""
    shares = {}
    for temperature in (None, 0.0):
        options = {"eval_temperature": temperature, "eval_decode": {"steps": 4, "guidance": 1.5}}
        policies = halves("tiny", size=(64, 96), ar=options, dit={"steps": 3, "eval_steps": 2})
        shares[temperature] = attribute(policies["ar"], [brightness], prompts("eval"))["brightness"]
    assert shares[None].row > 0.9
    assert shares[0.0].row < 1e-6
    assert shares[0.0].group > 0.9


def test_prompts_are_read_without_weights() -> None:
    parameters = {"model": "tiny", "size": [64, 64], "ar": None, "dit": None, "dtype": "auto", "device": None}
    parameters |= {"revision": None, "local_files_only": False}
    encoder = reader(parameters)
    with pytest.raises(UsageError):
        encoder.check([Prompt(text="a" * 20_000)])
    with pytest.raises(UsageError, match="dit: there is no parameter 'windw'"):
        reader({**parameters, "dit": {"windw": {"width": 2}}})


@pytest.mark.parametrize(("phase", "part"), [("tokens", "ar"), ("painting", "dit")])
def test_each_phase_has_a_plan(phase: str, part: str) -> None:
    config = parse(CONFIG, "c.yaml")
    own = {each.name: view for each, view in config.phased()}[phase]
    job, needs = needs_of(own, reference=False, policy=part)
    assert isinstance(job, Job)
    assert job.policy == part
    works = {work.phase for work in needs.works}
    whole = {each: needs_of(own, reference=False, policy=each)[1] for each in ("ar", "dit")}
    sizes = {each: {x.name: x.bytes for x in found.parts} for each, found in whole.items()}
    other = {"ar": "dit", "dit": "ar"}[part]
    learnt = sum(sizes[other].get(name, 0) for name in ("adapter", "optimizer", "average"))
    assert sizes[part]["other half learns"] == learnt > 0
    words = {word for remedy in needs.remedies for word in remedy.words}
    assert {f"policy.{part}.gradient_checkpointing=true", "policy.quantization=4bit", "policy.offload=idle"} <= words
    assert needs.assumptions[-1].startswith("The other half is there with its weights")
    assert works


@pytest.mark.parametrize("trains", ["an adapter", "all weights"])
def test_a_plan_in_which_one_half_waits(trains: str) -> None:
    """What trains stays in the phase of the other half. Tokens are always drawn as the half that writes draws them."""
    words = [
        "policy.offload=idle",
        *(["policy.dit.lora=null", "policy.ar.lora=null"] if trains == "all weights" else []),
    ]
    _, view = parse(CONFIG, "c.yaml", words).phased()[0]
    held: dict[str, dict[str, dict[str, float]]] = {}
    for half in ("ar", "dit"):
        held[half] = {}
        for part in needs_of(view, reference=False, policy=half)[1].parts:
            row = held[half].setdefault(part.name, {})
            row.update({moment: row.get(moment, 0.0) + part.bytes for moment in part.moments})
    writes, paints = held["ar"], held["dit"]
    assert set(writes["decoder"]) == {"decode"}
    assert set(paints["writing half"]) == {"rollout"}
    assert paints["weights for drawing"] == writes["weights for drawing"]
    for own, other in ((writes, paints), (paints, writes)):
        stays = sum(other.get(name, {}).get("train", 0.0) for name in ("adapter", "optimizer", "average", "reference"))
        trained = other["weights"]["train"] if trains == "all weights" else 0.0
        assert own["other half learns"]["train"] == own["other half learns"]["decode"] == stays + trained > 0


@pytest.mark.parametrize("merged", [True, False])
def test_tokens_to_paint_are_drawn_as_merge_adapter_says(merged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies take 15 GiB of the released model, whichever half learns."""
    ways: list[bool] = []

    def noted(model: Any, *, merged: bool, **options: Any) -> Any:
        ways.append(merged)
        return for_decoding(model, merged=merged, **options)

    monkeypatch.setattr(token_writer, "for_decoding", noted)
    own = {"lora": {"r": 2}, "merge_adapter": merged}
    drawn(halves("tiny", size=(64, 64), ar=own, dit={"steps": 3, "eval_steps": 2})["dit"])
    assert ways == [merged]


def test_a_plan_of_a_half_that_does_not_exist() -> None:
    _, own = parse(CONFIG, "c.yaml").phased()[0]
    with pytest.raises(
        UsageError, match=r"There is no half 'dti' \(did you mean 'dit'\?\): glm-image gives ar and dit"
    ):
        needs_of(own, reference=False, policy="dti")
