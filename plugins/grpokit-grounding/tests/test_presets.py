"""The preset grounding-scenes: what ships fits its script, begins where it says, learns, and suits a larger model."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import make_scenes_model
import pytest
import yaml
from tiny_vision import save_tiny_vision_model

from grpokit.config import presets
from grpokit.runs import build
from grpokit.sampling import derive_seeds
from grpokit_grounding.reward import BoxFormat, BoxIoU
from grpokit_grounding.scenes import prompts
from grpokit_lm.policy import CausalLMPolicy
from whole_runs import train_config

PAGE = Path(__file__).parents[3] / "docs/grounding.md"


def test_what_ships_is_what_the_script_makes() -> None:
    assert make_scenes_model.main(["--check"]) == 0


def test_all_that_ships_is_small_and_package_data() -> None:
    package = make_scenes_model.FOLDER.parent.parent
    project = tomllib.loads((package.parents[1] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["grpokit_grounding"]
    files = {file for file in package.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")}
    assert files == {file for pattern in patterns for file in package.glob(pattern)}
    assert sum(file.stat().st_size for file in files) < 700_000


def test_a_number_is_a_token_and_a_text_is_read_as_it_is() -> None:
    tokenizer = make_scenes_model.tokenizer()
    for text in ("<think>red circle</think><answer>[0,7,42,64]</answer>", "the blue square left of the cross"):
        tokens = tokenizer(text)["input_ids"]
        assert tokenizer.decode(tokens) == text
        assert tokenizer.unk_token_id not in tokens
    assert len({tokenizer(str(number))["input_ids"][0] for number in range(65)}) == 65
    assert len(tokenizer("[0,7,42,64]")["input_ids"]) == 9


@pytest.mark.slow
def test_the_preset_holds_out_167_scenes_and_takes_the_fast_path() -> None:
    config, _ = presets.read_config("grounding-scenes")
    trained_on, held_out = build.prompts(config)
    assert held_out is not None
    assert len(held_out) == 167
    assert not {p.image.tobytes() for p in trained_on if p.image} & {p.image.tobytes() for p in held_out if p.image}
    policy = CausalLMPolicy(**config.policy.params)
    assert policy.note == ""  # the fast path
    policy.check(held_out)


@pytest.mark.slow
def test_the_start_hits_less_than_a_tenth() -> None:
    """Whether samples are drawn or the most likely tokens are taken."""
    for temperature in (1.0, 0.0):
        policy = CausalLMPolicy(
            "grpokit_grounding:models/scenes", dtype="float32", max_new_tokens=20, eval_temperature=temperature
        )
        seeds = derive_seeds(0, stream="evaluate", step=0, prompts=167, group_size=1)
        samples = policy.rollout(prompts("eval"), 1, seeds=seeds, evaluate=True).samples
        assert sum(BoxIoU(threshold=0.5)(samples)) < 0.1 * 167
        assert sum(BoxFormat()(samples)) > 0.9 * 167


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_it_begins_low_and_rises_at_once(tmp_path: Path) -> None:
    """The first steps of the run, in which the overlap rises by far more than its noise."""
    done = train_config("grounding-scenes", tmp_path / "r", "trainer.steps=20", "eval.every=0")
    assert done.before.means["acc"] < 0.1
    assert done.before.means["iou"] < 0.35
    assert done.before.means["box-format"] > 0.9
    assert done.after.means["iou"] > done.before.means["iou"] + 0.1


@pytest.mark.very_slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_boxes_become_right(seed: int, tmp_path: Path) -> None:
    done = train_config("grounding-scenes", tmp_path / "r", f"seed={seed}")
    assert done.before.means["acc"] < 0.1
    assert done.after.means["acc"] >= 0.59
    assert done.after.means["iou"] >= 0.52


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_the_pages_config_of_a_large_model_runs_with_a_stand_in(tmp_path: Path) -> None:
    """Qwen2.5-VL's own class with an adapter; only the model, the matching reward and the sizes are others."""
    (text,) = re.findall(r"^```yaml\n(seed: 0\n.*?)```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    config = yaml.safe_load(text)
    assert [reward["use"] for reward in config["rewards"]] == ["box-iou", "box-format", "box-iou", "crop-match"]
    assert config["rewards"][3]["match"] == "clip-score"
    (tmp_path / "config.yaml").write_text(text)
    save_tiny_vision_model(tmp_path / "model", "qwen2.5-vl")
    done = train_config(
        str(tmp_path / "config.yaml"),
        tmp_path / "r",
        f"policy.model={tmp_path / 'model'}",
        "policy.dtype=float32",
        "policy.max_new_tokens=16",
        "policy.system=null",
        "rewards.3.match=grpokit_grounding.scenes:fits",
        "rewards.3.match_params=null",
        "data={use: grpokit_grounding.scenes:prompts, limit: 4}",
        "eval={every: 0}",
        "trainer.steps=2",
        "trainer.prompts_per_step=2",
        "trainer.group_size=2",
    )
    assert set(done.after.means) >= {"iou", "acc", "box-format", "crop-match"}
