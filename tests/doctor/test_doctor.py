"""`grpokit doctor` on a healthy environment, and on broken ones: each finding is the right diagnosis."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from command_line import Call
from grpokit import Asset, RewardSpec, registry
from grpokit.doctor import environment, training
from grpokit.doctor.environment import Finding
from grpokit.registry import entry_points
from grpokit.registry.entry_points import Plugin


@pytest.fixture
def first_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules the other process finds first."""
    folder = tmp_path / "first"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
    return folder


def problems(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.state == "problem"]


@pytest.mark.slow
def test_a_healthy_environment(call: Call) -> None:
    done = call("doctor", "--json")
    report = json.loads(done.out)
    assert (done.code, report["healthy"]) == (0, True), report
    areas = {row["area"] for row in report["findings"]}
    assert areas >= {"packages", "plugins", "weights", "machine", "torch", "self-test"}
    (self_test,) = (row for row in report["findings"] if row["area"] == "self-test")
    assert "ends with the same weights" in self_test["what"]


@pytest.mark.slow
def test_a_cuda_torchvision_beside_a_cpu_torch(
    call: Call, first_on_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = "operator torchvision::nms does not exist"
    (first_on_path / "torchvision.py").write_text(f'raise RuntimeError("{error}")\n')
    monkeypatch.setattr(environment, "examine", lambda commands: environment.training())
    done = call("doctor")
    assert done.code == 1
    assert f"RuntimeError: {error}" in done.out
    assert "uv pip install --reinstall --torch-backend=cpu torch torchvision" in done.out
    assert done.out.splitlines()[-1].startswith("1 problem, ")


@pytest.mark.slow
def test_a_library_that_kills_its_process(first_on_path: Path) -> None:
    (first_on_path / "torchvision.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    findings = list(environment.training())
    assert {"machine", "torch"} < {finding.area for finding in findings}  # found before
    assert "ended with signal 11" in problems(findings)[0].what


@pytest.mark.slow
def test_a_library_that_configs_need(first_on_path: Path) -> None:
    error = "`RunConfig` is not fully defined"
    (first_on_path / "pydantic.py").write_text(f'raise RuntimeError("{error}\\n\\nFor further information read on")\n')
    (finding,) = problems(list(environment.training()))
    assert f"RuntimeError: {error}" in finding.what


@pytest.mark.slow
def test_outside_an_activated_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert problems(list(environment.training())) == []


def test_a_library_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(*command: object, **options: object) -> None:
        raise subprocess.TimeoutExpired("python", 1)

    monkeypatch.setattr(subprocess, "run", hangs)
    (finding,) = environment.training()
    assert "did not end within 180 s" in finding.what


def test_a_broken_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Plugin(name="mine", package="grpokit-mine", version="0.3", error="ModuleNotFoundError: No module 'x'")
    monkeypatch.setattr(registry, "plugins", lambda: (broken,))
    (finding,) = problems(list(environment.plugins([])))
    assert finding.what == "plugin 'mine' of grpokit-mine 0.3 is broken: ModuleNotFoundError: No module 'x'"
    assert "pip uninstall grpokit-mine" in finding.advice


def test_a_plugin_that_keeps_every_command_waiting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import time\ntime.sleep(0.05)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(environment, "_SLOW", 0.04)
    slow = entry_points.load_plugin(EntryPoint("mine", "waits", "grpokit"))
    monkeypatch.setattr(registry, "plugins", lambda: (slow, Plugin(name="light", seconds=0.001)))
    waits, light = environment.plugins([])
    assert (waits.state, light.state) == ("note", "ok")
    assert "not in 'waits'" in waits.advice


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (
            "grpokit-mine 0.3 has requirement transformers<5,>=4.40, but you have transformers 5.23.0.",
            "pip install --upgrade grpokit-mine 'transformers>=5.23.0'.",
        ),
        (
            "grpokit-mine 0.3 has requirement torch>=2.14, but you have torch 2.13.0+cpu.",
            "pip install --upgrade grpokit-mine 'torch>=2.13.0'.",
        ),
        ("grpokit-mine 0.3 requires jax, which is not installed.", "pip install grpokit-mine"),
    ],
)
def test_no_advice_takes_a_package_back(monkeypatch: pytest.MonkeyPatch, line: str, command: str) -> None:
    checked = subprocess.CompletedProcess([], 1, f"{line}\n", "")
    monkeypatch.setattr(environment, "_python", lambda *words: checked)
    (finding,) = problems(list(environment.packages()))
    assert finding.advice.startswith(f"Run: {command}")


def test_a_plugin_for_another_grpokit_is_found_without_pip(
    monkeypatch: pytest.MonkeyPatch, first_on_path: Path
) -> None:
    monkeypatch.setattr(environment, "_python", lambda *words: subprocess.CompletedProcess([], 1, "", "No module pip"))
    assert problems(list(environment.packages())) == []
    place = first_on_path / "mine-1.0.dist-info"
    place.mkdir()
    (place / "entry_points.txt").write_text("[grpokit]\nmine = mine.plugin\n")
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\nRequires-Dist: grpokit>=9\n")
    (finding,) = problems(list(environment.packages()))
    assert "pip install --upgrade 'grpokit>=9'" in finding.what


@pytest.mark.slow
@pytest.mark.parametrize(("name", "state"), [("grpokit-mine", "problem"), ("someone-elses", "note")])
def test_requirements_that_are_not_met(name: str, state: str, first_on_path: Path) -> None:
    place = first_on_path / f"{name.replace('-', '_')}-1.0.dist-info"
    place.mkdir()
    lines = f"Name: {name}\nVersion: 1.0\nRequires-Dist: numpy>=1000\nRequires-Dist: no-such-package-anywhere\n"
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\n{lines}")
    found = [finding for finding in environment.packages() if finding.what.startswith(name)]  # this environment's apart
    assert [finding.state for finding in found] == [state, state]
    assert any("no-such-package-anywhere" in finding.what for finding in found)


HUB = Asset(name="weights", repository="me/my-weights", files=["config.json", "a.bin|*.safetensors"])


def test_weights_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    spec = RewardSpec(api=1, name="r", factory="m:f", assets=[HUB])
    monkeypatch.setattr(registry, "plugins", lambda: (Plugin(name="mine", specs=[spec]),))
    folder = tmp_path / "models--me--my-weights"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (missing,) = environment.weights()
    assert (missing.state, missing.what) == ("note", "missing: weights (me/my-weights), for reward 'r'")
    assert "run: hf download me/my-weights\n" in missing.advice
    assert "HF_HUB_OFFLINE is set" in missing.advice
    (snapshot / "config.json").touch()
    (snapshot / "x-1-of-2.safetensors").touch()
    (complete,) = environment.weights()
    assert (complete.state, complete.what) == ("ok", "found: weights (me/my-weights), for reward 'r'")
    index = {"weight_map": {"w": "x-1-of-2.safetensors", "v": "x-2-of-2.safetensors"}}
    (snapshot / "x.safetensors.index.json").write_text(json.dumps(index))
    (in_part,) = environment.weights()
    assert in_part.state == "note"


def test_files_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asset = Asset(name="w", paths=["$NO_SUCH_VARIABLE/w.pt", "${W_HOME:-/nowhere}/*/w.pt"], fetch="make w")
    assert not environment.find_asset(asset, {})
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "w.pt").touch()
    monkeypatch.setenv("W_HOME", str(tmp_path))
    assert environment.find_asset(asset, {})


@pytest.mark.gpu
def test_the_self_test_uses_the_gpu() -> None:
    (finding,) = training.self_test()
    assert finding.state == "ok", finding
    assert finding.what.startswith("on cuda: ")
