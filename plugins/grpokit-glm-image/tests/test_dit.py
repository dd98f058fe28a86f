"""glm-image-dit: the contract, its pictures against the stock pipeline, and what training changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import GlmImagePipeline
from PIL import Image

from grpokit import Prompt, Rollout, Sample, Trainer, UsageError
from grpokit.sampling import derive_seeds, normals
from grpokit_check import outcomes, policy_checks
from grpokit_glm_image.attribution import attribute
from grpokit_glm_image.dit import GlmImageDiT
from grpokit_glm_image.halves import halves
from grpokit_glm_image.policy import GlmImageAR
from grpokit_glm_image.tiny import tiny_pipeline
from grpokit_glm_image.token_writer import Writer
from teaching import assert_teaches

pytestmark = pytest.mark.usefixtures("small_draft")
PROMPTS = [Prompt(text=text) for text in ("cat", 'a red "CAT" sign')]


def build(model: Any = "tiny", **options: Any) -> GlmImageDiT:
    defaults: dict[str, Any] = {"size": (64, 96), "steps": 4, "eval_steps": 3}
    return GlmImageDiT(model, **defaults | options)


def drawn(policy: GlmImageDiT, *, group: int = 3, evaluate: bool = False) -> Rollout:
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(PROMPTS), group_size=group)
    return policy.rollout(PROMPTS, group, seeds=seeds, evaluate=evaluate)


OF_TOKENS_AND_WEIGHTS = {
    "ratio-is-one", "batch-size", "slices", "gaussian", "gradient", "reference", "save-load",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (
            {"lora": {"r": 2}, "window": {"width": 2}, "guidance": 1.5, "steps": 3, "eval_steps": 2},
            lambda name: True,
        ),
        (
            {"token_sets": None, "gradient_checkpointing": True, "sampler": "cps"},
            OF_TOKENS_AND_WEIGHTS.__contains__,
        ),
        (
            {"lora": {"r": 2}, "matching": {"times": 2}, "steps": 2, "rows": 1},
            {*OF_TOKENS_AND_WEIGHTS, "target"}.__contains__,
        ),
    ],
    ids=["an adapter", "all weights", "copies"],
)
def test_contract(options: dict[str, Any], wanted: Callable[[str], bool]) -> None:
    checks = policy_checks(
        lambda: build(**options), PROMPTS, group_size=2, makes="image", module="grpokit_glm_image.plugin"
    )
    found = list(outcomes(check for check in checks if wanted(check.name)))
    assert len(found) >= len(OF_TOKENS_AND_WEIGHTS)
    assert not [outcome for outcome in found if outcome.state == "failed"]


def stock(pipeline: GlmImagePipeline, rollout: Rollout, **options: Any) -> list[Any]:
    """The pictures, or the latents, of an evaluation's tokens and noise, by the stock pipeline."""
    pipeline.set_progress_bar_config(disable=True)
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(PROMPTS), group_size=3)
    pictures = []
    for row in range(rollout.rows):
        place = row // 3
        codes = rollout.trace.per_group["codes"][place : place + 1]
        noise = normals(seeds.row[row : row + 1], 4 * 8 * 12, start=2**40).float().view(1, 4, 8, 12)
        pictures += pipeline(
            PROMPTS[place].text,
            height=64,
            width=96,
            num_inference_steps=3,
            **{"guidance_scale": 1.5, **options},
            prior_token_ids=codes.repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1),
            latents=noise,
        ).images
    return pictures


def largest(pictures: Sequence[Image.Image], rollout: Rollout) -> int:
    """The largest difference to a rollout's pictures, in levels of 255."""
    ours = np.stack([np.asarray(sample.output, dtype=int) for sample in rollout.samples])
    return int(np.abs(ours - np.stack([np.asarray(picture, dtype=int) for picture in pictures])).max())


@pytest.mark.parametrize("guidance", [1.0, 1.5])
def test_evaluations_follow_the_ode_of_the_stock_pipeline(guidance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same tokens and noise: equal latents, and pictures that are equal to a level of 255."""
    pipeline = tiny_pipeline()
    policy, latents = build(pipeline, eval_guidance=guidance), []
    pictures = policy.painter.pictures
    monkeypatch.setattr(policy.painter, "pictures", lambda x, size: latents.append(x) or pictures(x, size))
    rollout = drawn(policy, evaluate=True)
    theirs = torch.stack(stock(pipeline, rollout, guidance_scale=guidance, output_type="latent"))
    assert float((torch.cat(latents) - theirs).abs().max()) <= 1e-5 * float(theirs.abs().max())
    assert largest(stock(pipeline, rollout, guidance_scale=guidance), rollout) <= 1


def test_an_update_changes_the_adapter_alone() -> None:
    """Rewarded steps become more likely; the base, with it the reference, and the other half keep every bit."""
    policy = build(lora={"r": 4}, window={"width": 2})
    rollout = drawn(policy)
    everything = slice(0, 2)
    with torch.no_grad(), policy.reference():
        reference = policy.logprobs(rollout, everything).logprobs
    before = {
        name: p.clone()
        for half in (policy.loaded.ar, policy.family.transformer)
        for name, p in half.named_parameters()
        if ".lora_" not in name
    }

    def score(samples: Sequence[Sample]) -> list[float]:
        return [float(np.asarray(sample.output)[..., 0].mean()) for sample in samples]

    trainer = Trainer(
        policy, {"red": score}, PROMPTS, prompts_per_step=2, group_size=3, steps=1, learning_rate=1e-2, progress=False
    )
    report = trainer.step()
    new = policy.logprobs(report.rollout, everything).logprobs.detach()
    gain = (new - report.rollout.old.logprobs).mean(1)
    assert float((gain * report.advantages).mean()) > 0
    with torch.no_grad(), policy.reference():
        assert torch.equal(policy.logprobs(rollout, everything).logprobs, reference)
    after = {
        name: p
        for half in (policy.loaded.ar, policy.family.transformer)
        for name, p in half.named_parameters()
        if ".lora_" not in name
    }
    assert all(torch.equal(p, after[name]) for name, p in before.items())


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("options", [{"rslora": True}, {"dora": True}], ids=str)
def test_a_stock_pipeline_draws_what_the_policy_draws(options: dict[str, Any], merge: bool, tmp_path: Path) -> None:
    """With the adapter that it exports, or the whole pipeline; the base alone draws something else."""
    policy = build(lora={"r": 4, "alpha": 6, **options})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in policy.model.named_parameters():
            if ".lora_" in name and p.requires_grad:
                p.add_(torch.randn(p.shape, generator=generator), alpha=0.2)
    rollout = drawn(policy, evaluate=True)
    policy.export(tmp_path, merge=merge)
    pipeline = GlmImagePipeline.from_pretrained(tmp_path) if merge else tiny_pipeline()
    plain = stock(pipeline, rollout)
    if not merge:
        assert largest(plain, rollout) > 10
        pipeline.transformer.load_lora_adapter(tmp_path, use_safetensors=True)
    assert largest(stock(pipeline, rollout), rollout) <= 1


def test_token_sets() -> None:
    """With one set the groups of a prompt paint the same tokens in every step; without, each group has its own."""
    one, own = build(token_sets=1), build(token_sets=None)
    codes = {}
    for name, policy in (("one", one), ("own", own)):
        codes[name] = []
        for step in (0, 1):
            seeds = derive_seeds(1, stream="train", step=step, prompts=2, group_size=2)
            codes[name].append(policy.rollout(PROMPTS, 2, seeds=seeds).trace.per_group["codes"])
    assert torch.equal(*codes["one"])
    assert not torch.equal(*codes["own"])
    fresh = build(token_sets=1)
    seeds = derive_seeds(1, stream="train", step=5, prompts=1, group_size=2)
    alone = fresh.rollout(PROMPTS[1:], 2, seeds=seeds).trace.per_group["codes"]
    assert torch.equal(alone[0], codes["one"][0][1])  # whatever was kept before


@pytest.mark.slow
def test_what_moves_a_reward_is_found_with_any_number_of_token_sets() -> None:
    """Evaluations draw their own tokens, so a grid of draws varies them even where training keeps one set."""

    def red(samples: Sequence[Sample]) -> list[float]:
        return [float(np.asarray(sample.output)[..., 0].mean()) for sample in samples]

    shares = {sets: attribute(build(token_sets=sets), {"red": red}, PROMPTS)["red"] for sets in (1, None)}
    assert shares[1].group == pytest.approx(shares[None].group, abs=1e-3)
    assert shares[1].group > 0.4


def test_evaluations_keep_their_tokens() -> None:
    """They are written once for a prompt and its seed, and are not those that training keeps."""
    policy = build(token_sets=1)
    training = drawn(policy).trace.per_group["codes"]
    first = drawn(policy, evaluate=True).trace.per_group["codes"]
    assert not torch.equal(first, training)
    policy.loaded.ar.lm_head.weight.data.zero_()  # what would be written now has no shape
    assert torch.equal(drawn(policy, evaluate=True).trace.per_group["codes"], first)


@pytest.mark.parametrize(
    ("dtype", "autocast", "writes"),
    [("float32", False, [2]), ("bfloat16", False, [1, 1]), ("float32", True, [1, 1])],
)
def test_tokens_that_are_not_kept_yet_are_written_together_where_that_changes_none(
    dtype: str, autocast: bool, writes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, written = build(dtype=dtype), []
    write = Writer.write

    def counting(self: Writer, prompts: Sequence[Prompt], *args: Any, **options: Any) -> Any:
        written.append(len(prompts))
        return write(self, prompts, *args, **options)

    monkeypatch.setattr(Writer, "write", counting)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        first = drawn(policy).trace.per_group["codes"]
    assert written == writes
    assert torch.equal(drawn(policy).trace.per_group["codes"], first)
    assert written == writes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eval_size": (64, 128)}, "eval_size is 64 x 128, and the picture of the tokens has the shape of 64 x 96"),
        ({"eval_size": (64, 100)}, "eval_size must be height and width"),
        ({"size": (64, 100)}, "multiples of 32"),
        ({"token_sets": 0}, "token_sets must be at least 1"),
        ({"rows": 0}, "rows must be at least 1, or None, got 0"),
        ({"window": {"width": 9}}, "only 4 steps of the schedule"),
        ({"lora": {"targets": ["q_proj"]}}, "no linear layer of GlmImageTransformer2DModel is called 'q_proj'"),
    ],
    ids=str,
)
def test_settings_that_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(**options)


def test_both_halves_share_a_model() -> None:
    """What the writing half has learnt, the painting half sees; to train one leaves the other as it is."""
    both = halves("tiny", size=(64, 96), ar={"lora": {"r": 2}}, dit={"lora": {"r": 2}, "steps": 3, "eval_steps": 2})
    ar, dit = both["ar"], both["dit"]
    assert isinstance(dit, GlmImageDiT)
    before = drawn(dit)
    assert torch.equal(drawn(dit).trace.per_group["codes"], before.trace.per_group["codes"])
    with torch.no_grad():
        for name, p in ar.modules()["model"].named_parameters():
            if ".lora_B." in name:
                p.add_(0.3)
    ar.updated(1)
    after = drawn(dit)
    assert not torch.equal(after.trace.per_group["codes"], before.trace.per_group["codes"])
    models = [model for half in both.values() for model in half.modules().values()]
    trained = [name for model in models for name, p in model.named_parameters() if p.requires_grad]
    assert trained
    assert all(".lora_" in name for name in trained)
    assert not {id(p) for p in ar.modules()["model"].parameters()} & {id(p) for p in dit.model.parameters()}


def test_neither_half_takes_the_adapter_of_the_other(tmp_path: Path) -> None:
    both = halves("tiny", size=(64, 96), ar={"lora": {"r": 2}}, dit={"lora": {"r": 2}, "steps": 3, "eval_steps": 2})
    for name, half in both.items():
        assert isinstance(half, (GlmImageAR, GlmImageDiT))
        (tmp_path / name).mkdir()
        half.export(tmp_path / name)
    with pytest.raises(UsageError, match=r"an adapter of a diffusion transformer .* this policy trains another model"):
        GlmImageAR("tiny", size=(64, 96), lora={"adapter": str(tmp_path / "dit")})
    with pytest.raises(
        UsageError, match=r"has 24 tensors of another kind, such as 'base_model\.model\.model\.language_model"
    ):
        build(lora={"adapter": str(tmp_path / "ar")})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dit": {"size": (64, 64)}}, "dit: size is for both halves"),
        ({"ar": {"edits": True}}, "ar: edits is for both halves. Set it as policy.edits"),
        ({"ar": {"offload": "idle"}}, "ar: offload is for both halves. Set it as policy.offload"),
        ({"ar": {"tempature": 1.0}}, r"ar: there is no parameter 'tempature' \(did you mean 'temperature'\?\)"),
        ({"dit": {"window": {"width": 20}}}, "only 10 steps of the schedule"),
        ({"dit": ["lora"]}, "dit must be a mapping, or None, got a list of 1"),
    ],
    ids=str,
)
def test_halves_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        halves("tiny", size=(64, 96), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": (64, 64)}, r"size is \[64, 96\], but the policy whose model is shared has \[64, 64\]"),
    ],
    ids=str,
)
def test_a_policy_whose_model_cannot_be_shared(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        GlmImageDiT(GlmImageAR("tiny", **{"size": (64, 96), **options}), size=(64, 96), steps=3, eval_steps=2)


def test_an_exported_adapter_trains_on(tmp_path: Path) -> None:
    """It has the same weights; the reference is where it began."""
    first = build(lora={"r": 2, "alpha": 6})
    with torch.no_grad():
        for name, p in first.model.named_parameters():
            if "lora_B" in name:
                p.add_(0.2)
    first.export(tmp_path)
    second = build(lora={"adapter": tmp_path})
    names = [name for name, p in second.model.named_parameters() if p.requires_grad]
    assert names == [name for name, p in first.model.named_parameters() if p.requires_grad]
    scale = {"lora_A": 1, "lora_B": 3}
    both = dict(first.model.named_parameters()), dict(second.model.named_parameters())
    assert all(torch.equal(both[0][name] * scale[name.split(".")[-3]], both[1][name]) for name in names)
    seeds = derive_seeds(1, stream="train", step=0, prompts=1, group_size=2)
    rollout = second.rollout([Prompt(text="a cat")], 2, seeds=seeds)
    with second.reference():
        assert torch.equal(second.logprobs(rollout, slice(0, 1)).logprobs, rollout.old.logprobs[:, :1])


def test_exported_adapters_are_teachers_around_one_base(tmp_path: Path) -> None:
    assert_teaches(build, [*PROMPTS, Prompt(text="two dogs")], tmp_path, steps=2)
