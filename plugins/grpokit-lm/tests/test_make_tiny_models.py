"""The tiny models that ship are those that the script makes, and begin where the presets need them."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import make_tiny_models
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def test_what_ships_is_what_the_script_makes() -> None:
    assert make_tiny_models.main(["--check"]) == 0


def test_a_change_of_what_ships_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(make_tiny_models.FOLDER, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(make_tiny_models, "FOLDER", tmp_path)
    config = tmp_path / "arithmetic/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"rms_norm_eps": 1e-5}))
    template = tmp_path / "countdown/chat_template.jinja"
    template.write_text(template.read_text() + " ")
    assert make_tiny_models.main(["--check"]) == 1
    assert capsys.readouterr().err.splitlines()[1:] == ["arithmetic: config", "countdown: tokenizer"]
    monkeypatch.setattr(make_tiny_models, "STARTS", {"arithmetic": make_tiny_models.STARTS["arithmetic"]})
    shutil.copy(make_tiny_models.FOLDER / "countdown/config.json", config)
    (tmp_path / "arithmetic/model.safetensors").rename(tmp_path / "arithmetic/other.safetensors")
    assert make_tiny_models.main(["--check"]) == 1
    assert "arithmetic: files" in capsys.readouterr().err


@pytest.mark.parametrize("name", make_tiny_models.STARTS)
def test_plain_transformers_loads_and_writes(name: str) -> None:
    folder = make_tiny_models.FOLDER / name
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    question, _ = next(make_tiny_models.STARTS[name].texts())
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    written = model.generate(**prompt, do_sample=False, max_new_tokens=40)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(written).endswith("<|end|>")
    assert tokenizer.decode(tokenizer("Zählt 3 × 4?\n")["input_ids"]) == "Zählt 3 × 4?\n"  # any text


def test_all_that_ships_is_small_and_package_data() -> None:
    package = make_tiny_models.FOLDER.parent
    project = tomllib.loads((package.parents[1] / "pyproject.toml").read_text())
    data = {f for pattern in project["tool"]["setuptools"]["package-data"]["grpokit_lm"] for f in package.glob(pattern)}
    files = {file for file in package.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")}
    assert files == data
    assert sum(file.stat().st_size for file in files) < 900_000
