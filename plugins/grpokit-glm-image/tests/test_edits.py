"""Edits: the contract and the stock model's log-probs with source pictures of different number and size, and a run."""

from __future__ import annotations

import itertools
import json
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers.processors import TemplateProcessing

from command_line import Call, rows
from grpokit import Prompt, Rollout, UsageError
from grpokit.sampling import derive_seeds, normals
from grpokit_check import outcomes, policy_checks
from grpokit_glm_image.dit import GlmImageDiT
from grpokit_glm_image.policy import GlmImageAR
from grpokit_glm_image.source_pictures import source_codes
from grpokit_glm_image.tiny import tiny_pipeline

SIZE = (64, 96)


def picture(width: int, height: int) -> Image.Image:
    random = np.random.default_rng(width + 10 * height)
    return Image.fromarray(random.integers(0, 255, (height, width, 3), dtype=np.uint8))


WIDE, SQUARE, HIGH = picture(96, 64), picture(64, 64), picture(64, 128)
ONE = [
    Prompt(text="red", images=[WIDE]),
    Prompt(text='a wall that says "CAT", in the snow', images=[SQUARE]),
    Prompt(text="two dogs", images=[HIGH]),
]
TWO = [
    Prompt(text="both", images=[WIDE, HIGH]),
    Prompt(text="the dog of the second in the first", images=[SQUARE, WIDE]),
]


def build(**options: Any) -> GlmImageAR:
    quick: dict[str, Any] = {"steps": 1, "guidance": 1.0}
    return GlmImageAR("tiny", edits=True, size=SIZE, decode=quick, eval_decode=quick, **options)


def drawn(policy: GlmImageAR, prompts: Sequence[Prompt], group: int) -> Rollout:
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(prompts), group_size=group)
    return policy.rollout(prompts, group, seeds=seeds)


OF_SOURCES = {"ratio-is-one", "scored-is-sampled", "rows-independent", "batch-size", "joined", "slices", "gradient"}


@pytest.mark.slow
def test_contract() -> None:
    """What source pictures change in it, with one picture beside two."""
    policy = build(lora={"r": 4})

    def decode(rollout: Rollout) -> list[Image.Image]:
        return [sample.output for sample in policy.decoded(rollout)]

    checks = policy_checks(
        lambda: build(lora={"r": 4}),
        [TWO[0], ONE[0]],
        group_size=2,
        decode=decode,
        makes="image",
        module="grpokit_glm_image.plugin",
    )
    found = list(outcomes(check for check in checks if check.name in OF_SOURCES))
    assert len(found) == len(OF_SOURCES)
    assert not [outcome for outcome in found if outcome.state == "failed"]


def test_a_picture_that_the_processor_refuses() -> None:
    prompt = Prompt(text="red", images=[WIDE, picture(320, 64)])
    with pytest.raises(UsageError, match=r"'red' has a picture that .* ratio must be smaller than 4, got 5.0\. Crop"):
        build().check([prompt])


@pytest.mark.parametrize(("prompt", "edits"), [(Prompt(text="a red sign"), False), (ONE[1], True)])
def test_a_tokenizer_that_adds_a_token_adds_it_as_in_the_stock_pipeline(prompt: Prompt, edits: bool) -> None:
    """Before a text, and not before an edit, which begins with a picture."""
    pipeline = tiny_pipeline()
    processor = pipeline.processor
    added = processor.tokenizer.convert_tokens_to_ids("<eop>")
    processor.tokenizer._tokenizer.post_processor = TemplateProcessing(
        single="<eop> $A", special_tokens=[("<eop>", added)]
    )
    policy = GlmImageAR(pipeline, size=SIZE, edits=edits)
    content = [*({"type": "image", "image": image} for image in prompt.images), {"type": "text", "text": prompt.text}]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the size, which the stock pipeline passes in the same way
        stock = processor.apply_chat_template(
            [{"role": "user", "content": content}],
            tokenize=True,
            target_h=SIZE[0],
            target_w=SIZE[1],
            return_dict=True,
            return_tensors="pt",
        )["input_ids"][0]
    assert (stock[0] == added) == (not edits)
    assert policy.encoder._checked(prompt)[0].tolist() == stock.tolist()


@pytest.mark.parametrize("prompts", [ONE, TWO], ids=["one picture", "two pictures"])
def test_log_probs_are_those_of_the_stock_model_while_it_samples(prompts: Sequence[Prompt]) -> None:
    """A ragged batch, which `generate` reads pictures and all, and the policy scores."""
    pipe, policy = tiny_pipeline(), build(temperature=0.9)
    messages = [
        [{"role": "user", "content": [*({"type": "image"} for _ in p.images), {"type": "text", "text": p.text}]}]
        for p in prompts
    ]
    inputs = pipe.processor(
        text=[pipe.processor.apply_chat_template(message, tokenize=False) for message in messages],
        images=[image for p in prompts for image in p.images],
        padding=True,
        target_h=SIZE[0],
        target_w=SIZE[1],
        return_tensors="pt",
    )
    count = policy.target.count
    torch.manual_seed(0)
    out = pipe.vision_language_encoder.generate(
        **inputs,
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=True,
        temperature=0.9,
        top_p=1.0,
        top_k=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    tokens = out.sequences[:, inputs["input_ids"].shape[1] :]
    stock = torch.stack(out.scores, 1).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    rollout = drawn(policy, prompts, group=1)
    trace = replace(rollout.trace, per_row=dict(rollout.trace.per_row) | {"tokens": tokens})
    logprobs = policy.logprobs(replace(rollout, trace=trace), slice(0, count)).logprobs
    assert (logprobs - stock).abs().max() < 1e-4


CONFIG = """
policy:
  use: glm-image-ar
  model: tiny
  edits: true
  size: [64, 96]
  lora: {r: 4}
  decode: {steps: 1, guidance: 1.0}
  eval_decode: {steps: 1}
data: {prompts: prompts.txt, images: source_images, targets: target_images}
eval: {fraction: 0.5}
rewards: [{use: structure}, {use: ssim}, {use: brightness}]
trainer: {steps: 2, prompts_per_step: 2, group_size: 2, learning_rate: 4.0e-3}
run: {dir: run, record: true, save_every: 1, threads: 1}
"""


@pytest.mark.slow
def test_a_run_from_a_folder_of_pictures(call: Call) -> None:
    """Train, resume, draw again, sample, evaluate and report, by the command line."""
    here = Path()
    (here / "edits.yaml").write_text(CONFIG)
    (here / "prompts.txt").write_text('red\na wall that says "CAT"\nblue\nfewer dogs\n')
    for folder, sources in (("source_images", (WIDE, SQUARE, HIGH, WIDE)), ("target_images", (WIDE,) * 4)):
        (here / folder).mkdir()
        for line, source in enumerate(sources, 1):
            source.save(here / folder / f"{line}.png")

    assert call("train", "edits.yaml").code == 0
    steps = rows(here / "run/metrics.jsonl")
    assert all(row["logprob_diff/max"] < 1e-4 and row["unscored_rows"] == 0 for row in steps)
    after = rows(here / "run/eval.jsonl")[-1]["means"]
    assert {"structure", "ssim", "brightness", "reward"} <= set(after)
    trained = (here / "run/checkpoints/step_000002/policy.safetensors").read_bytes()
    shutil.rmtree(here / "run/checkpoints/step_000002")
    assert call("train", "edits.yaml", "--resume").code == 0
    assert (here / "run/checkpoints/step_000002/policy.safetensors").read_bytes() == trained
    assert "equal to the bit" in call("replay", "run", "--step", 2).out

    assert call("sample", "run", "--out", "drawn", "--before").code == 0
    assert {file.name for file in (here / "drawn/after").iterdir()} >= {"0000.png", "0000.source.png"}
    (here / "own.jsonl").write_text(json.dumps({"prompt": "green", "image": "source_images/1.png"}) + "\n")
    assert call("sample", "run", "--out", "own", "--prompts", "own.jsonl").code == 0
    alone = call("sample", "run", "--out", "alone", "--prompt", "green")
    assert alone.code == 2
    assert "'green' has no picture to edit. Name a folder of pictures as data.images" in alone.err
    scores = call("evaluate", "run").out
    assert f"{after['structure']:.3f}" in scores
    assert call("report", "run").code == 0


def painter(model: Any = "tiny", **options: Any) -> GlmImageDiT:
    return GlmImageDiT(model, **{"size": SIZE, "edits": True, "steps": 3, "eval_steps": 2, **options})


def test_layers_of_edits_are_spread_over_processes_with_checkpointing_alone() -> None:
    """Without it the first backward pass failed; with it, processes learn as one does (tests/processes)."""
    with pytest.raises(UsageError, match=r"policy\.gradient_checkpointing: true"):
        painter("tiny").blocks()
    assert list(painter("tiny", gradient_checkpointing=True).blocks())
    assert list(painter("tiny", edits=False).blocks())


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"lora": {"r": 2}, "window": {"width": 2}, "guidance": 1.5},
        {"gradient_checkpointing": True, "token_sets": None},
        {"lora": {"r": 2}, "gradient_checkpointing": True, "rows": 1, "matching": {"times": 2}},
    ],
    ids=["an adapter", "all weights", "copies"],
)
def test_contract_of_the_painter(options: dict[str, Any]) -> None:
    checks = policy_checks(
        lambda: painter(**options),
        [TWO[0], ONE[0]],
        group_size=2,
        makes="image",
        module="grpokit_glm_image.plugin",
    )
    names = {*OF_SOURCES, "gaussian", "reference"}
    found = list(outcomes(check for check in checks if check.name in names))
    assert len(found) == len(names)
    assert not [outcome for outcome in found if outcome.state == "failed"]


def test_prompts_with_one_text_and_different_pictures_have_their_own_tokens() -> None:
    prompts = [Prompt(text="red", images=[picture]) for picture in (WIDE, HIGH, WIDE)]
    seeds = derive_seeds(1, stream="train", step=0, prompts=3, group_size=2)
    codes = painter(token_sets=1).rollout(prompts, 2, seeds=seeds).trace.per_group["codes"]
    assert not torch.equal(codes[0], codes[1])
    assert torch.equal(codes[0], codes[2])


@pytest.mark.parametrize("prompt", [ONE[1], TWO[1]], ids=["one picture", "two pictures"])
@pytest.mark.parametrize("guidance", [1.0, 1.5])
def test_the_painter_follows_the_stock_pipeline(
    prompt: Prompt, guidance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the same tokens and noise: equal latents, and pictures that are equal to a level of 255."""
    pipeline = tiny_pipeline()
    policy, latents = painter(pipeline, eval_guidance=guidance), []
    pictures = policy.painter.pictures
    monkeypatch.setattr(policy.painter, "pictures", lambda x, size: latents.append(x) or pictures(x, size))
    seeds = derive_seeds(1, stream="train", step=0, prompts=1, group_size=1)
    rollout = policy.rollout([prompt], 1, seeds=seeds, evaluate=True)
    pipeline.set_progress_bar_config(disable=True)
    codes = [source_codes(pipeline.vision_language_encoder, pipeline.processor, picture) for picture in prompt.images]
    shapes = [(picture.height // 32, picture.width // 32) for picture in prompt.images]
    prior = [pipeline._upsample_token_ids(own, *shape)[0] for own, shape in zip(codes, shapes, strict=True)]
    given: dict[str, Any] = {
        "height": SIZE[0],
        "width": SIZE[1],
        "num_inference_steps": 2,
        "guidance_scale": guidance,
        "image": [list(prompt.images)],
        "prior_token_ids": rollout.trace.per_group["codes"].repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1),
        "prior_token_image_ids": [torch.cat(prior)],
        "source_image_grid_thw": [torch.tensor([[1, 2 * rows, 2 * columns] for rows, columns in shapes])],
        "latents": normals(seeds.row, 4 * 8 * 12, start=2**40).float().view(1, 4, 8, 12),
    }
    theirs = pipeline(prompt.text, **given, output_type="latent").images
    assert float((latents[0] - theirs).abs().max()) <= 1e-5 * float(theirs.abs().max())
    picture = pipeline(prompt.text, **given).images[0]
    assert np.abs(np.asarray(rollout.samples[0].output, int) - np.asarray(picture, int)).max() <= 1


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_flow_through_what_is_remembered_of_sources(checkpointing: bool) -> None:
    """The slope along a direction is that of finite differences; with keys or values cut off it would be another."""
    policy = painter(lora={"r": 2}, gradient_checkpointing=checkpointing)
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in parameters:
            p.copy_(torch.randn(p.shape, generator=random) * 0.1)
    direction = [torch.randn(p.shape, generator=random) * 0.1 for p in parameters]
    latents, weights = torch.randn(2, 1, 4, 8, 12, generator=random)
    time, codes = policy.painter.schedule(3, SIZE).times[1], torch.zeros(2, 3, dtype=torch.int64)

    def value() -> torch.Tensor:
        told = policy.painter.condition(TWO[0], SIZE, {"codes": codes})
        return (policy.painter.velocity(latents, time, told, guidance=1.0) * weights).double().sum()

    def moved(by: float) -> float:
        with torch.no_grad():
            for p, step in zip(parameters, direction, strict=True):
                p.add_(step, alpha=by)
            return float(value())

    value().backward()
    slope = sum(float((p.grad * step).sum()) for p, step in zip(parameters, direction, strict=True))
    assert slope == pytest.approx((moved(0.003) - moved(-0.006)) / 0.006, rel=0.01)


def test_the_example_beside_an_export_edits_a_picture(tmp_path: Path) -> None:
    for kind, edits in itertools.product((GlmImageAR, GlmImageDiT), (False, True)):
        folder = tmp_path / f"{kind.__name__} {edits}"
        folder.mkdir()
        usage = kind("tiny", size=SIZE, edits=edits, lora={"r": 2}).export(folder)["usage"]
        compile(usage, "usage", "exec")
        assert ('image=[Image.open("source.png")]' in usage) == ("from PIL import Image" in usage) == edits
