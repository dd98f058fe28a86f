"""What families do beside the transformer's call: sources of edits, packing, texts that are kept, folders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from grpokit import Prompt, UsageError
from grpokit.sampling import derive_seeds
from grpokit_diffusers.policy import DiffusersFlow
from grpokit_diffusers.tiny import PIPELINES, tiny_pipeline


def build(model: Any, **options: Any) -> DiffusersFlow:
    return DiffusersFlow(model, **{"size": (32, 32), "steps": 2, "eval_steps": 2, "lora": {"r": 2}} | options)


def pictures(policy: DiffusersFlow, prompts: list[Prompt]) -> np.ndarray:
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(prompts), group_size=2)
    samples = policy.rollout(prompts, 2, seeds=seeds, evaluate=True).samples
    return np.stack([np.asarray(sample.output, dtype=int) for sample in samples])


@pytest.mark.parametrize(
    ("sides", "size", "expected"),
    [
        ((20, 40), (1024, 1024), (1456, 720)),  # of shape 0.5: 720 / 1456 is nearest
        ((300, 200), (1024, 1024), (832, 1248)),
        ((20, 40), (512, 512), (728, 360)),
        ((100, 100), (32, 48), (36, 36)),  # 39.2, down to a multiple of 4
    ],
)
def test_the_size_of_a_source(sides: tuple[int, int], size: tuple[int, int], expected: tuple[int, int]) -> None:
    family: Any = build("tiny-flux-kontext").family
    assert family.source_size(Image.new("RGB", sides), size) == expected


def test_a_source_is_seen_and_belongs_to_its_prompt() -> None:
    """Another source gives another picture, no source too, and the other prompt of the batch keeps its own."""
    policy = build("tiny-flux-kontext")
    red, blue = (Prompt(text="brighter", image=Image.new("RGB", (64, 64), color)) for color in ("red", "blue"))
    none = Prompt(text="brighter")
    first, second, third = (pictures(policy, [prompt, red]) for prompt in (red, blue, none))
    assert (first[:2] != second[:2]).any()
    assert (first[:2] != third[:2]).any()
    assert (first[2:] == second[2:]).all()
    assert (first[2:] == third[2:]).all()


def test_a_source_is_looked_at_for_each_size() -> None:
    """A policy that has trained at one size evaluates at another as a new one does."""
    prompts = [Prompt(text="brighter", image=Image.effect_noise((64, 64), 90).convert("RGB"))]
    used, new = (build("tiny-flux-kontext", eval_size=(64, 64)) for _ in range(2))
    used.rollout(prompts, 2, seeds=derive_seeds(0, stream="train", step=0, prompts=1, group_size=2))
    assert (pictures(used, prompts) == pictures(new, prompts)).all()


@pytest.mark.parametrize("model", PIPELINES)
def test_too_many_pictures_are_refused(model: str) -> None:
    picture = Image.new("RGB", (8, 8))
    policy = build(model)
    one = [Prompt(text="a cat", images=(picture,))]
    if model == "tiny-flux-kontext":
        policy.check(one)
    else:
        with pytest.raises(UsageError, match=r"'a cat' has 1 source picture, and .*Pipeline reads only text"):
            policy.check(one)
    with pytest.raises(UsageError, match=r"brings 2|has 2 source pictures"):
        policy.check([Prompt(text="a cat", images=(picture, picture))])


@pytest.mark.parametrize("model", PIPELINES)
def test_tokens_of_the_pipelines_own_are_refused(model: str) -> None:
    policy = build(model)
    policy.check([Prompt(text="a < b, \U0001f600 <unknown>")])  # T5's tokenizer has no such letter
    end = policy.family.pipeline.tokenizer.all_special_tokens[0]  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=f"has '{re.escape(end)}' in its text, which is a token of the model's own"):
        policy.check([Prompt(text=f"a cat {end} a dog")])


def test_packing_and_unpacking() -> None:
    family: Any = build("tiny-flux", size=(16, 24)).family
    latents = torch.randn(2, 4, 8, 12)
    packed = family.packed(latents)
    assert packed.shape == (2, *family.latent_shape((16, 24)))
    assert torch.equal(packed, family.pipeline._pack_latents(latents, 2, 4, 8, 12))
    assert torch.equal(family.unpacked(packed, (16, 24)), latents)


def test_a_text_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = build("tiny-sd3")
    texts = []
    encode = policy.pipeline.encode_prompt
    monkeypatch.setattr(
        policy.pipeline,
        "encode_prompt",
        lambda text, *rest, **options: texts.append(text) or encode(text, *rest, **options),
    )
    for _ in range(2):
        pictures(policy, [Prompt(text="cat"), Prompt(text="dog")])
    assert sorted(texts) == ["", "cat", "dog"]


@pytest.mark.parametrize("model", PIPELINES)
def test_a_pipeline_from_a_folder_and_its_adapter(model: str, tmp_path: Path) -> None:
    """A saved pipeline draws the pictures of the object, and a saved adapter those of the trained policy.

    To one level of 255: weights that lie elsewhere in memory are multiplied in another order.
    """
    pipeline = tiny_pipeline(model)
    pipeline.save_pretrained(tmp_path / "model")
    prompts = [Prompt(text="a cat")]
    policy, again = build(pipeline), build(str(tmp_path / "model"))
    before = pictures(policy, prompts)
    assert np.abs(pictures(again, prompts) - before).max() <= 1
    with torch.no_grad():
        for name, p in policy.model.named_parameters():
            if "lora_B" in name:
                p.fill_(0.2)
    after = pictures(policy, prompts)
    assert np.abs(after - before).max() > 3
    again.load_state_dict(policy.state_dict())
    assert np.abs(pictures(again, prompts) - after).max() <= 1


def test_full_training_has_no_adapter_and_a_frozen_reference() -> None:
    policy = build("tiny-z-image", lora=None)
    assert all(p.requires_grad for p in policy.family.transformer.parameters())
    assert not any(p.requires_grad for p in policy.pipeline.text_encoder.parameters())


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("model", PIPELINES)
def test_a_stock_pipeline_has_what_was_exported(model: str, merge: bool, tmp_path: Path) -> None:
    """Its own loader adds the adapter, or the whole pipeline is read; both draw what the policy draws."""
    policy, prompts = build(model), [Prompt(text="cat"), Prompt(text="two dogs")]
    plain = pictures(policy, prompts)
    with torch.no_grad():
        for name, p in policy.model.named_parameters():
            if ".lora_B." in name:
                p.add_(0.2)
    trained = pictures(policy, prompts)
    facts = policy.export(tmp_path, merge=merge)
    assert ("load_lora_weights" in facts["usage"]) == (not merge)
    pipeline = type(policy.pipeline).from_pretrained(tmp_path) if merge else tiny_pipeline(model)
    if not merge:
        assert [file.name for file in tmp_path.iterdir()] == ["pytorch_lora_weights.safetensors"]
        pipeline.load_lora_weights(tmp_path)
        pipeline.fuse_lora()
        pipeline.unload_lora_weights()
    stock = pictures(build(pipeline, lora=None), prompts)
    assert np.abs(stock - trained).max() <= 1
    assert np.abs(plain - trained).max() > 5
    modes = {file.stat().st_mode for file in tmp_path.rglob("*") if file.is_file()}
    (tmp_path / "plain").touch()
    assert modes == {(tmp_path / "plain").stat().st_mode}
