"""The presets: two learn what they promise with the models that ship, and one is run with stand-ins."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from command_line import Call, rows
from grpokit.config import presets
from grpokit.runs import build, build_rewards
from whole_runs import train_config

DOCS = Path(__file__).parents[3] / "docs/language-models.md"


@pytest.mark.parametrize("preset", ["lm-arithmetic", "lm-countdown"])
def test_prompts_and_held_out_prompts_share_none(preset: str) -> None:
    prompts, held_out = build.prompts(presets.read_config(preset)[0])
    assert held_out is not None
    assert len(held_out) == 200
    assert not {p.text for p in prompts} & {p.text for p in held_out}


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize(
    ("preset", "right", "rise"),
    [
        ("lm-arithmetic", "right", 0.15),
        pytest.param("lm-countdown", "countdown", 0.06, marks=pytest.mark.very_slow),
    ],
)
def test_the_reward_rises_in_a_few_steps(preset: str, right: str, rise: float, tmp_path: Path) -> None:
    short = ("trainer.steps=12", "trainer.micro_batch_size=64", "eval.every=0")
    done = train_config(preset, tmp_path / "r", *short)
    assert 0.2 < done.before.means["reward"] < 0.5
    assert done.after.means["reward"] > done.before.means["reward"] + rise
    assert done.after.means[right] > done.before.means[right]
    assert done.after.means["format"] > done.before.means["format"]


@pytest.mark.slow
@pytest.mark.usefixtures("without_report")
def test_micro_batches_of_two_give_the_same_update(tmp_path: Path) -> None:
    found = []
    for size in (2, 8):
        folder = tmp_path / str(size)
        train_config("lm-arithmetic", folder, "trainer.steps=1", f"trainer.micro_batch_size={size}", "data.limit=8")
        weights = load_file(folder / "checkpoints/step_000001/policy.safetensors")
        found.append((rows(folder / "metrics.jsonl")[0]["grad_norm"], weights))
    (norm, one), (other_norm, other) = found
    assert norm == pytest.approx(other_norm, rel=1e-5)
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-6


@pytest.mark.very_slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_rewards_rise_clearly(seed: int, tmp_path: Path) -> None:
    done = train_config("lm-arithmetic", tmp_path / "a", f"seed={seed}")
    assert done.after.means["reward"] > done.before.means["reward"] + 0.25
    assert done.after.means["right"] > 1.4 * done.before.means["right"]
    done = train_config("lm-countdown", tmp_path / "c", f"seed={seed}")
    assert done.after.means["reward"] > done.before.means["reward"] + 0.1


@pytest.mark.slow
def test_the_line_of_the_page_runs_the_large_presets_job_here(call: Call) -> None:
    """With stand-ins for the model and the data, the rest as it is but shorter."""
    line = re.search(r"^grpokit train qwen-gsm8k( .*\\\n.*)$", DOCS.read_text(), re.MULTILINE)
    assert line is not None
    words = shlex.split(line[1].replace("\\\n", " "))
    done = call("train", "qwen-gsm8k", *words, "data.limit=4", "trainer.steps=1", "trainer.group_size=2")
    assert done.code == 0, done.err
    config, _ = presets.read_config("runs/qwen-gsm8k")
    ours = presets.read_config("qwen-gsm8k")[0]
    assert [reward.use for reward in ours.rewards] == ["final-answer", "format"]
    assert [reward.use for reward in config.rewards] == ["grpokit-lm:final-answer", "format"]
    changed = {"model": 0, "dtype": 0, "max_new_tokens": 0}
    assert config.policy.params | changed == ours.policy.params | changed


def gsm8k_folder(folder: Path) -> Path:
    """A data set with the subset, columns and splits of openai/gsm8k."""
    folder.mkdir()
    for split, numbers in (("train", range(3, 9)), ("test", range(3))):
        lines = [{"question": f"What is {n} + 4?", "answer": f"{n} + 4 = <<{n}+4={n + 4}>>{n + 4}\n#### {n + 4}"}
                 for n in numbers]  # fmt: skip
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = [{"split": split, "path": f"{split}.jsonl"} for split in ("train", "test")]
    card = json.dumps([{"config_name": name, "data_files": files} for name in ("main", "socratic")])
    (folder / "README.md").write_text(f"---\nconfigs: {card}\n---\n")
    return folder


def test_the_large_preset_reads_its_data_set(tmp_path: Path) -> None:
    config, _ = presets.read_config("qwen-gsm8k", [f"data.dataset={gsm8k_folder(tmp_path / 'gsm8k')}"])
    prompts, held_out = build.prompts(config)
    assert held_out is not None
    assert [p.text for p in held_out] == ["What is 0 + 4?", "What is 1 + 4?", "What is 2 + 4?"]
    assert (len(prompts), prompts[0].target) == (6, "3 + 4 = <<3+4=7>>7\n#### 7")
    samples: Any = [type("", (), {"output": f"so {text}\n#### {text}", "prompt": prompts[0]})() for text in ("7", "8")]
    assert [term.reward(samples) for term in build_rewards.rewards(config)] == [[1, 0], [1, 1]]


def test_the_large_preset_without_network_or_datasets(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = "policy.model=grpokit_lm:models/arithmetic"
    done = call("train", "qwen-gsm8k", f"data.dataset={gsm8k_folder(tmp_path / 'gsm8k')}")
    assert (done.code, done.out) == (2, "")
    assert "The model 'Qwen/Qwen2.5-0.5B-Instruct' is not a folder here and not in the Hugging Face cache" in done.err
    done = call("train", "qwen-gsm8k", here)
    assert (done.code, done.out) == (2, "")
    assert "Dataset 'openai/gsm8k', split 'train' cannot be read: " in done.err
    assert "Fetch it on a machine with a network, or give a folder with its files." in done.err
    monkeypatch.setitem(sys.modules, "datasets", None)
    done = call("train", "qwen-gsm8k", here)
    assert (done.code, done.out) == (2, "")
    assert "needs `datasets`. Run: pip install 'grpokit[datasets]'" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["gsm8k"]


def test_checking_a_reward_fetches_no_model(call: Call) -> None:
    """Only the preset that fetches one uses `final-answer`, so its examples are scored."""
    done = call("check", "final-answer")
    assert done.code == 0, done.err
