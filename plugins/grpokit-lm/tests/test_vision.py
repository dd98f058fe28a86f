"""Vision-language models: pictures in prompts, on both paths and in a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from both_paths import compare
from PIL import Image
from safetensors.torch import load_file
from tiny_models import IMAGE, VIDEO
from tiny_vision import VISION_FAMILIES, save_tiny_vision_model, tiny_processor, tiny_vision_model
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoProcessor

from grpokit import DataError, Prompt, Rollout, Sample, Trainer, UsageError, objectives
from grpokit.config import presets
from grpokit.runs import train as run
from grpokit.runs.export import export
from grpokit.runs.replay import replay
from grpokit.sampling import derive_seeds
from grpokit_check import outcomes, policy_checks
from grpokit_lm.packed_path import PackedPath
from grpokit_lm.plain_path import PlainPath
from grpokit_lm.policy import CausalLMPolicy

PACKED = [family for family in VISION_FAMILIES if family != "gemma3"]


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Random colours."""
    generator = torch.Generator().manual_seed(seed)
    return Image.fromarray(torch.randint(256, (height, width, 3), generator=generator, dtype=torch.uint8).numpy())


PROMPTS = [
    Prompt(text="what?", image=picture(16, 16)),
    Prompt(text="no picture"),
    Prompt(text="a longer question", image=picture(40, 24, seed=1)),
    Prompt(text="both", images=[picture(16, 24, seed=2), picture(24, 16, seed=3)]),
]


def build(family: str, *, model: Any = None, **options: Any) -> CausalLMPolicy:
    defaults = {"max_new_tokens": 8, "stop_tokens": range(0, 250, 8)}
    return CausalLMPolicy(model or tiny_vision_model(family), tokenizer=tiny_processor(family), **defaults | options)


def drawn(policy: CausalLMPolicy, prompts: list[Prompt] = PROMPTS, group: int = 3, **options: Any) -> Rollout:
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(prompts), group_size=group)
    return policy.rollout(prompts, group, seeds=seeds, **options)


def letters(samples: Sequence[Sample]) -> list[float]:
    return [sum(letter.isascii() and letter.isalpha() for letter in sample.output) / 8 for sample in samples]


def everything(rollout: Rollout) -> slice:
    return slice(0, rollout.mask.shape[1])


def scores(policy: CausalLMPolicy, rollout: Rollout) -> Tensor:
    return policy.logprobs(rollout, everything(rollout)).logprobs.detach()


@pytest.mark.parametrize("family", PACKED)
def test_both_paths_write_and_score_alike(family: str) -> None:
    fast, plain = (build(family, train_vision=True, fast=fast) for fast in (True, False))
    gradients = compare(fast, plain, drawn, least=1e-2)
    assert sum(x.norm() for name, x in gradients.items() if "vis" in name) > 0.1


def test_a_model_with_a_mask_of_its_own_for_pictures_takes_the_plain_path() -> None:
    policy = build("gemma3")
    assert isinstance(policy.path, PlainPath)
    assert "an attention mask of its own" in policy.note
    rollout = drawn(policy)
    assert torch.allclose(scores(policy, rollout), rollout.old.logprobs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_a_row_has_the_log_probs_of_the_model_alone(family: str) -> None:
    """One row at a time, unpadded, with positions and pictures as transformers' own forward pass takes them."""
    policy, model = build(family), tiny_vision_model(family)
    rollout = drawn(policy)
    for row, sample in enumerate(rollout.samples):
        text = policy.encoder.text(sample.prompt)
        images = list(sample.prompt.images) or None
        given = dict(policy.loaded.processor(text=[text], images=images, add_special_tokens=False, return_tensors="pt"))
        prompt = given.pop("input_ids")
        length = int(rollout.lengths[row])
        tokens = rollout.trace.per_row["tokens"][row, :length]
        if IMAGE in tokens or VIDEO in tokens:  # transformers would look for a picture there
            continue
        whole = torch.cat([prompt, tokens[None]], 1)
        for name in ("token_type_ids", "mm_token_type_ids"):
            if name in given:
                given[name] = torch.nn.functional.pad(given[name], (0, length))
        given["attention_mask"] = torch.ones_like(whole)
        with torch.no_grad():
            logits = model(input_ids=whole, **given).logits[0, prompt.shape[1] - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
        assert torch.allclose(rollout.old.logprobs[row, :length], expected, rtol=0, atol=1e-5), row


@pytest.mark.parametrize("family", ["qwen2.5-vl", "llava"])
def test_a_completion_may_have_the_token_that_stands_for_a_picture(family: str) -> None:
    fast, plain = build(family), build(family, fast=False)
    assert isinstance(fast.path, PackedPath)
    rollout = drawn(fast)
    tokens = rollout.trace.per_row["tokens"].clone()
    tokens[:, 0] = IMAGE
    trace = replace(rollout.trace, per_row={**rollout.trace.per_row, "tokens": tokens})
    forced = replace(rollout, trace=trace)
    assert torch.allclose(scores(fast, forced), scores(plain, forced), rtol=0, atol=1e-5)
    assert (scores(fast, forced) - scores(fast, rollout)).abs().max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3-vl", "llava-next"])
def test_a_rollout_in_several_calls_is_the_whole_one(family: str) -> None:
    """Pictures of other sizes, or none at all in a call, give the same trace, log-probs and updates."""

    def trainer(**sizes: int) -> Trainer:
        policy = build(family, lora={"r": 4})
        options = {"steps": 2, "prompts_per_step": 4, "group_size": 3, "learning_rate": 1e-2, "progress": False}
        return Trainer(policy, [letters], PROMPTS, objective=objectives.GRPO(kl_coef=0.1), **options | sizes)

    whole, parts = trainer(micro_batch_size=12), trainer(micro_batch_size=2, rollout_batch_size=3)
    for _ in range(2):
        one, other = whole.step(), parts.step()
        for name, x in one.rollout.trace.per_group.items():
            assert torch.equal(x, other.rollout.trace.per_group[name]), name
        assert torch.allclose(one.rollout.old.logprobs, other.rollout.old.logprobs, rtol=0, atol=3e-5)
    weights = [dict(each.policy.modules()["model"].named_parameters()) for each in (whole, parts)]
    for name, x in weights[0].items():
        assert torch.allclose(x, weights[1][name], rtol=0, atol=1e-5), name


@pytest.mark.parametrize("family", ["qwen2.5-vl", "llava"])
def test_recomputed_layers_see_the_same_pictures(family: str) -> None:
    gradients = []
    for again in (False, True):
        policy = build(family, train_vision=True, gradient_checkpointing=again)
        rollout = drawn(policy)
        policy.logprobs(rollout, everything(rollout)).logprobs.sum().backward()
        gradients.append([p.grad for p in policy.model.parameters() if p.grad is not None])
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(*gradients, strict=True))


def test_pictures_are_looked_at_once_for_their_group() -> None:
    policy = build("qwen2.5-vl")
    patches: list[int] = []
    policy.model.model.visual.register_forward_pre_hook(lambda _, args: patches.append(len(args[0])))
    rollout = drawn(policy)
    once = [16, 60, 24 + 24]  # pixels / 16 of each prompt that has pictures
    assert patches == once
    scores(policy, rollout)
    assert patches == once * 2


def test_the_plain_path_makes_no_logits_of_prompts() -> None:
    policy = build("llava", fast=False)
    columns: list[int] = []
    policy.model.lm_head.register_forward_hook(lambda _, args, logits: columns.append(logits.shape[1]))
    rollout = drawn(policy)
    assert set(columns) == {1}
    policy.logprobs(rollout, slice(2, 5))
    assert columns[-1] == 3


@pytest.mark.parametrize("fast", [True, False])
def test_mixed_precision(fast: bool) -> None:
    policy = build("qwen2.5-vl", lora={"r": 4}, fast=fast)
    options = {"steps": 2, "prompts_per_step": 4, "group_size": 3, "micro_batch_size": 6, "updates_per_rollout": 2}
    objective = objectives.GRPO(kl_coef=0.1)
    trainer = Trainer(
        policy, [letters], PROMPTS, objective=objective, mixed_precision="bf16", progress=False, **options
    )
    *_, report = trainer
    assert report.metrics["logprob_diff/mean"] < 0.05
    assert report.metrics["kl"] > 0


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_what_pictures_do_not_pass_through_stays(family: str) -> None:
    """LLaVA reads the last layer but one of its tower."""
    named = dict(build(family, train_vision=True).model.named_parameters())
    unread = {name for name, p in named.items() if not p.requires_grad}
    assert {name.partition("vision_tower.")[2].partition(".self")[0] for name in unread if "q_proj" in name} == (
        {"encoder.layers.1"} if family.startswith("llava") else set()
    )
    assert len(unread) == (18 if family.startswith("llava") else 0)


def test_what_is_frozen_in_a_tower_stays_frozen() -> None:
    model = tiny_vision_model("qwen2.5-vl")
    frozen = next(p for name, p in model.named_parameters() if "visual" in name).requires_grad_(False)
    build("qwen2.5-vl", model=model, train_vision=True)
    assert [p for p in model.parameters() if not p.requires_grad] == [frozen]
    build("qwen2.5-vl", model=model)  # which freezes all of the tower
    with pytest.raises(UsageError, match="all of the model's vision tower is frozen, maybe by an earlier policy"):
        build("qwen2.5-vl", model=model, train_vision=True)


def test_the_tower_trains_only_if_asked() -> None:
    def trained(**options: Any) -> set[str]:
        named = build("llava", **options).model.named_parameters()
        return {"tower" if "vision" in name else "rest" for name, p in named if p.requires_grad}

    assert trained() == trained(lora={"r": 2}) == {"rest"}
    assert trained(train_vision=True) == {"tower", "rest"}
    with pytest.raises(UsageError, match=r"train_vision is for full training\. With lora, name"):
        build("llava", train_vision=True, lora={"r": 2})


OF_PICTURES = {"ratio-is-one", "rows-independent", "batch-size", "joined", "slices", "trimmed", "gradient", "reference"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("qwen2.5-vl", {"lora": {"r": 4}}),
        ("llava", {"fast": False}),
        ("llava", {"train_vision": True}),
    ],
    ids=str,
)
def test_contract(family: str, options: dict[str, Any]) -> None:
    """What pictures change in it: no picture beside one and two."""
    checks = policy_checks(lambda: build(family, **options), PROMPTS[1:], group_size=2, makes="text")
    found = list(outcomes(check for check in checks if check.name in OF_PICTURES))
    assert len(found) == len(OF_PICTURES)
    assert not [outcome for outcome in found if outcome.state == "failed"]


STEPS = 8
CONFIG = """
policy: {{use: hf-lm, model: {model}, max_new_tokens: 6, lora: {{r: 4}}}}
data: {{prompts: {data}}}
rewards: [{{use: "test_vision:letters"}}]
trainer:
  {{prompts_per_step: 4, group_size: 8, updates_per_rollout: 2, steps: 8, learning_rate: 0.02, kl_coef: 0.01}}
run: {{dir: {run}, record: true, save_every: 6, keep_last: null, threads: 1}}
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config file beside a model and data."""
    folder = tmp_path_factory.mktemp("vision")
    save_tiny_vision_model(folder / "model", "qwen2.5-vl")
    rows: list[dict[str, object]] = [{"prompt": "none"}]
    for number, (width, height) in enumerate([(16, 16), (40, 24), (24, 32)]):
        picture(width, height, seed=number).save(folder / f"{number}.png")
        rows.append({"prompt": f"what is {number}?", "image": f"{number}.png"})
    rows.append({"prompt": "compare", "images": ["0.png", "2.png"]})
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = CONFIG.format(model=folder / "model", data=folder / "data.jsonl", run=folder / "run")
    (folder / "config.yaml").write_text(text)
    return folder / "config.yaml"


def train(config: Path, folder: str, *overrides: str, **options: bool) -> run.Result:
    parsed, _ = presets.read_config(str(config), [f"run.dir={config.parent / folder}", *overrides])
    return run.train(parsed, **options)


@pytest.mark.slow
def test_a_run_on_pictures(config: Path) -> None:
    """The reward rises, a resumed run and a replayed step are equal to the bit, and the export loads."""
    folder = config.parent
    train(config, "whole")
    rows = [json.loads(line) for line in (folder / "whole" / "metrics.jsonl").read_text().splitlines()]
    rewards = [row["reward"] for row in rows if "reward" in row]
    assert rewards[-1] > rewards[0] + 0.05, rewards
    shutil.copytree(folder / "whole", folder / "cut")
    shutil.rmtree(folder / "cut/checkpoints" / f"step_{STEPS:06d}")
    train(config, "cut", resume=True)
    ends = [folder / name / "checkpoints" / f"step_{STEPS:06d}" for name in ("whole", "cut")]
    a, b = (load_file(end / "policy.safetensors") for end in ends)
    assert a
    assert all(torch.equal(a[name], b[name]) and "vis" not in name for name in a)
    drawn = replay(folder / "whole", 7)
    assert drawn.equal
    parsed, _ = presets.read_config(str(config), [f"run.dir={folder / 'whole'}"])
    export(parsed, ends[0], folder / "merged", merge=True)
    merged = AutoModelForImageTextToText.from_pretrained(folder / "merged").state_dict()
    base = AutoModelForImageTextToText.from_pretrained(folder / "model").state_dict()
    changed = {name for name, x in merged.items() if not torch.equal(x, base[name])}
    assert changed
    assert all("language_model" in name for name in changed)
    AutoProcessor.from_pretrained(folder / "merged")


def test_a_damaged_picture_is_refused_before_the_run(config: Path) -> None:
    (config.parent / "bad.png").write_text("no picture")
    (config.parent / "bad.jsonl").write_text('{"prompt": "a", "images": ["0.png", "bad.png"]}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl, line 1: source: .*bad\.png cannot be read as a picture"):
        train(config, "bad", f"data.prompts={config.parent / 'bad.jsonl'}")
    assert not (config.parent / "bad").exists()
