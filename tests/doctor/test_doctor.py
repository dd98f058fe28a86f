"""`grpokit doctor` on a healthy environment, and on broken ones: each probe gives the right diagnosis."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants, try_to_load_from_cache

from command_line import Call
from grpokit import Asset, RewardSpec, registry
from grpokit.doctor import Finding, assets, isolated, probes
from grpokit.registry.entry_points import Plugin


def problems(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.state == "problem"]


def package(folder: Path, name: str, source: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(source)


def test_a_healthy_environment(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick probes, in the form of the command; the self-test has its own test."""
    monkeypatch.setattr(isolated.examine, "__defaults__", (("python", "plugins", "weights", "machine"),))
    done = call("doctor", "--json")
    report = json.loads(done.out)
    assert (done.code, report["healthy"]) == (0, True)
    assert {row["area"] for row in report["findings"]} == {"python", "plugins", "weights", "machine"}
    assert any("'builtin' of grpokit" in row["what"] for row in report["findings"])


def test_the_self_test_passes_here() -> None:
    (finding,) = probes.self_test()
    assert finding.state == "ok", finding.what
    assert "ended with the same weights" in finding.what


def test_the_self_test_notices_wrong_logprobs(monkeypatch: pytest.MonkeyPatch) -> None:
    from grpokit.doctor import self_test

    monkeypatch.setattr(self_test, "ratio_difference", lambda trainer: 0.5)
    (finding,) = probes.self_test()
    assert finding.state == "problem"
    assert "the log-probs differ by 0.5 nats" in finding.what


def test_a_cuda_torchvision_beside_a_cpu_torch(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "torchvision", 'raise RuntimeError("operator torchvision::nms does not exist")\n')
    monkeypatch.setattr(isolated.examine, "__defaults__", (("torchvision",),))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    done = call("doctor")
    assert done.code == 1
    assert "RuntimeError: operator torchvision::nms does not exist" in done.out
    assert "It is built for another torch, usually for CUDA beside a CPU torch." in done.out
    assert "uv pip install --reinstall --torch-backend=cpu torch torchvision" in done.out
    assert done.out.splitlines()[-1] == "1 problem, 0 notes"


def test_a_library_that_kills_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "torchvision", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (finding,) = isolated.examine(["torchvision"])
    assert (finding.area, finding.state) == ("torchvision", "problem")
    assert "was ended by signal 11" in finding.what


def test_a_library_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(*command: object, **options: object) -> None:
        raise subprocess.TimeoutExpired("python", isolated.PATIENCE)

    monkeypatch.setattr(subprocess, "run", hangs)
    (finding,) = isolated.examine(["torch"])
    assert finding.what == "the probe did not end within 120 s"


def test_a_probe_that_raises(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(probes.PROBES, "machine", lambda: iter([1 / 0]))  # type: ignore[arg-type, list-item]
    probes.main("machine")
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["state"], row["what"]) == ("problem", "the probe failed: ZeroDivisionError: division by zero")


def test_a_broken_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Plugin(name="mine", package="grpokit-mine", version="0.3", error="ModuleNotFoundError: No module 'x'")
    monkeypatch.setattr(registry, "plugins", lambda: (broken,))
    (finding,) = problems(list(probes.plugins()))
    assert finding.what == "plugin 'mine' of grpokit-mine 0.3 is broken: ModuleNotFoundError: No module 'x'"
    assert "pip uninstall grpokit-mine" in finding.advice


def distribution(folder: Path, name: str, *needs: str) -> Path:
    """Installed, without any code."""
    place = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    place.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {need}" for need in needs)]
    (place / "METADATA").write_text("\n".join(lines) + "\n")
    return place


def test_requirements_that_are_not_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = "numpy>=1000", "no-such-package-anywhere", "absent; extra == 'more'", "grpokit-shared[more]"
    folder = distribution(tmp_path, "grpokit-mine", *needs)
    (folder / "entry_points.txt").write_text("[grpokit]\nmine = mine.plugin\n")
    distribution(tmp_path, "grpokit-shared", "grpokit", "behind-an-extra; extra == 'more'", "no; extra == 'other'")
    monkeypatch.syspath_prepend(tmp_path)
    absent, old, behind = problems(list(probes.python()))
    assert behind.what == "grpokit-shared needs behind-an-extra, and it is not installed"
    assert old.what.startswith("grpokit-mine needs numpy>=1000, and version ")
    assert old.advice == "Run: pip install 'numpy>=1000'"
    assert absent.what == "grpokit-mine needs no-such-package-anywhere, and it is not installed"


HUB = Asset(name="weights", repository="me/my-weights", files=["config.json", "a.bin|*.safetensors"])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache; returns where a snapshot of `HUB` lies."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--me--my-weights"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    return folder / "snapshots" / "abc"


def test_weights_of_the_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RewardSpec(name="r", factory="m:f", assets=[HUB])
    monkeypatch.setattr(registry, "plugins", lambda: (Plugin(name="mine", specs=[spec]),))
    missing = next(probes.weights())
    assert (missing.state, missing.what) == ("note", "missing: weights (me/my-weights), for reward 'r'")
    assert missing.advice == "To fetch it, run: hf download me/my-weights config.json a.bin"
    (cache / "config.json").touch()
    (cache / "x-1-of-2.safetensors").touch()
    assert next(probes.weights()).what == "found: weights (me/my-weights), for reward 'r'"
    index = {"weight_map": {"w": "x-1-of-2.safetensors", "v": "x-2-of-2.safetensors"}}
    (cache / "x.safetensors.index.json").write_text(json.dumps(index))
    assert not assets.found(HUB)  # in part


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"XDG_CACHE_HOME": "/x"},
        {"XDG_CACHE_HOME": "/x", "HF_HOME": "~/h"},
        {"HF_HOME": "$W_HOME/h", "HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_OFFLINE": "off"},
        {"HF_HOME": "/h", "HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "~/$W_HOME", "HF_HUB_OFFLINE": "true"},
        {"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "1"},
        {"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": "On"},
    ],
)
def test_the_cache_is_that_of_the_hubs_library(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the core does not import."""
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HUGGINGFACE_HUB_CACHE", "HF_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    for name, value in {**variables, "W_HOME": "w"}.items():
        monkeypatch.setenv(name, value)
    theirs = runpy.run_path(constants.__file__)
    assert assets.hub_cache() == theirs["HF_HUB_CACHE"]
    assert assets.hub_is_off() == theirs["HF_HUB_OFFLINE"]


def test_a_snapshot_is_where_the_hubs_library_finds_it(cache: Path) -> None:
    (cache / "config.json").touch()
    place = try_to_load_from_cache("me/my-weights", "config.json", cache_dir=assets.hub_cache())
    assert place == str(cache / "config.json")
    assert assets.found(Asset(name="weights", repository="me/my-weights", files=["config.json"]))


def test_files_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asset = Asset(name="w", paths=["$NO_SUCH_VARIABLE/w.pt", "${W_HOME:-/nowhere}/*/w.pt"], fetch="make w")
    assert not assets.found(asset)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "w.pt").touch()
    monkeypatch.setenv("W_HOME", str(tmp_path))
    assert assets.found(asset)
    assert not assets.wanted(Asset(name="w", paths=["/w"], module="no_such_module"))
