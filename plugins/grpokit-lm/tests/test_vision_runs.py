"""Runs on pictures from a file: they train, stop, go on and draw again as if nothing had happened."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_vision import picture
from tiny_vision import save_tiny_vision_model
from transformers import AutoModelForImageTextToText, AutoProcessor

from grpokit import DataError
from grpokit.config import presets
from grpokit.runs import train as run
from grpokit.runs.export import export
from grpokit.runs.redraw import redraw

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


@pytest.mark.long
def test_a_run_on_pictures(config: Path) -> None:
    """The reward rises, a resumed run and a redrawn step are equal to the bit, and the export loads."""
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
    drawn = redraw(folder / "whole", 7)
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
