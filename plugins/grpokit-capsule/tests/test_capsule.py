"""Rewards in capsules: the same scores as in the run's own process, whatever a scorer does to its process."""

from __future__ import annotations

import datetime
import io
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import capsule_scorers
import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from grpokit import PluginError, Prompt, RewardError, Sample, UsageError, registry
from grpokit.rewards.scoring import Scores, score_samples
from grpokit.rewards.terms import RewardTerm
from grpokit_capsule import runner
from grpokit_capsule.reward import CapsuleReward, place
from grpokit_capsule.runner import Array
from left_running import gone

SCORERS = str(Path(__file__).parent / "scorers")
HERE = {"python": sys.executable, "path": SCORERS}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The capsules of these tests; what uv has fetched is kept."""
    folder = tmp_path_factory.getbasetemp() / "capsules"
    monkeypatch.setenv("GRPOKIT_CAPSULES", str(folder))
    return folder


def capsule(use: str, params: dict[str, Any] | None = None, timeout: float = 600.0, **options: Any) -> CapsuleReward:
    return place(use, params or {}, timeout, **options)


@pytest.fixture
def as_told() -> Iterator[CapsuleReward]:
    reward = capsule("capsule_scorers:as_told", timeout=2.0, **HERE)
    yield reward
    reward.close()


def texts(*outputs: str, group: int = 0) -> list[Sample]:
    prompt = Prompt("p")
    return [Sample(prompt=prompt, output=output, group=group) for output in outputs]


def scores(reward: Any, samples: list[Sample]) -> Scores:
    return score_samples([RewardTerm(name="r", reward=reward, on_error="skip", skip_limit=1.0)], samples)


def picture(mode: str, seed: int = 0) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    if mode == "I;16":
        return Image.fromarray(noise[..., 0] * np.uint16(257))
    return Image.fromarray(noise).convert(mode)


def everything() -> list[Sample]:
    """Samples with all that can be sent."""
    seen = picture("RGB")
    seen.info["transparency"] = seen.getpixel((0, 0))
    palette = picture("RGB").quantize(9)
    palette.info["transparency"] = 4
    seen_through = picture("RGB", 5)
    seen_through.putalpha(picture("L", 6))
    palettes = [palette, seen_through.quantize(9), picture("RGB").quantize(9).convert("PA")]
    meta = {
        "answer": 3,
        "list": [1, 2.5, None, True, "ü"],
        "pair": (1, (2,)),
        "inner": {"a": {"b": [picture("L")]}, 3: "a key that is a number"},
        "bytes": b"\x00\xff",
        "array": np.arange(6.0).reshape(2, 3)[:, ::-1],
        "scalar": np.float32(0.1),
        "double": np.float64(0.1),
        "tensor": torch.arange(6).reshape(2, 3).T,
        "half": torch.linspace(0, 1, 5, dtype=torch.bfloat16),
        "one": torch.tensor(3.5),
        "none of them": torch.zeros(0, 3),
        "dates": [datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 12, 30, 1, 5, datetime.UTC)],
        "price": Decimal("1.10"),
    }
    prompt = Prompt("Würfel \U0001f3b2", images=[picture("RGB", 3), picture("RGBA", 4)], target=picture("L"), meta=meta)
    modes = ("1", "L", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "F", "I;16")
    outputs: list[Any] = [picture(mode) for mode in modes]
    outputs += [seen, *palettes, "", "a text", {"x": 1}, 3.5, float("inf"), torch.ones(2), np.ones(2, dtype=bool)]
    samples = [Sample(prompt=prompt, output=output, group=0, info={"finish": "stop"}) for output in outputs]
    return [*samples, *texts("x", "y", group=1)]


def test_scores_are_those_of_the_own_process() -> None:
    samples = everything()
    reward = capsule("capsule_scorers:fingerprint", {"scale": 0.3}, replicas=2, **HERE)
    here = capsule_scorers.fingerprint(samples, scale=0.3)
    there = reward(samples)
    reward.close()
    assert len({score for score in here if not math.isnan(score)}) == len(samples) - 1
    np.testing.assert_array_equal(there, here)


def test_a_class_is_built_with_its_parameters() -> None:
    reward = capsule("capsule_scorers:Lengths", {"most": 3}, **HERE)
    assert reward(texts("a", "abcdef")) == [1.0, 3.0]
    assert reward.versions["torch"] == str(torch.__version__)
    reward.close()


def test_the_versions_are_those_that_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the last folder that it imports from
    other = tmp_path / "numpy-0.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.1\n")
    reward = capsule("capsule_scorers:python", **HERE)
    assert reward.versions["numpy"] == np.__version__
    reward.close()


@pytest.mark.parametrize("name", ["Lengths", "fingerprint"])
def test_an_unknown_parameter_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(PluginError, match=r"cannot be built in its capsule: TypeError: .*'least'"):
        capsule(f"capsule_scorers:{name}", {"least": 3}, **HERE)


def test_a_function_of_another_trainer_works_as_it_is() -> None:
    info = {"token_ids": np.array([5, 6, 7])}
    samples = [Sample(prompt=Prompt("p", target="4"), output=text, group=0, info=info) for text in ("4", "5")]
    for use, params, expected in [
        ("right", {}, [1.0, 0.0]),
        ("right", {"bonus": 0.5}, [1.5, 0.5]),
        ("make_overlong", {"most": 2}, [-1.0, -1.0]),
    ]:
        reward = capsule(f"capsule_columns:{use}", params, **HERE)
        assert reward(samples) == expected
        reward.close()
    reward = capsule("capsule_columns:right", **HERE)
    with pytest.raises(RewardError, match="takes the column 'answer', which no prompt has"):
        scores(reward, texts("4"))
    reward.close()
    assert Array("int64", [3], np.arange(3).tobytes()).tolist() == [0, 1, 2]  # where numpy is not installed


@pytest.mark.parametrize(
    ("gpu", "variables", "sees"),
    [
        (None, {}, -1),
        (3, {"LOCAL_RANK": "1"}, 3),
        (None, {"LOCAL_RANK": "1"}, 1),
        (None, {"LOCAL_RANK": "2"}, 0),
        (None, {"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "4,6"}, 6),
        (None, {"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": ""}, -1),
    ],
)
def test_which_gpu_it_sees(
    gpu: int | None, variables: dict[str, str], sees: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    reward = capsule("capsule_scorers:gpus", gpu=gpu, **HERE)
    assert reward(texts("a")) == [sees]
    reward.close()


def test_it_is_no_process_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a library may join the run's processes, or take a GPU by a number that it does not see."""
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    reward = capsule("capsule_scorers:ranks", **HERE)
    assert reward(texts("a")) == [1]
    reward.close()


@pytest.mark.parametrize(
    ("word", "failure"),
    [
        ("crash", "ended by SIGSEGV"),
        ("exit", "exit code 3, and printed last: no more of this"),
        ("hang", "no answer within 2 s"),
        ("raise", "raised ValueError: no such word .*capsule_scorers.py, line"),
        ("import", "No module named 'no_such_module'.* that its capsule lacks"),
        ("orphans and crash", "ended by SIGSEGV"),
    ],
)
def test_a_failure_costs_the_rows_of_its_call(as_told: CapsuleReward, word: str, failure: str) -> None:
    result = scores(as_told, [*texts("ab", "abc"), *texts(word, "a", group=1), *texts("abcd", group=2)])
    np.testing.assert_array_equal(result.matrix[:, 0].numpy(), [2, 3, np.nan, np.nan, 4])
    assert result.lost[:, 0].tolist() == [False, False, True, True, False]
    with pytest.raises(RewardError, match=failure):
        score_samples([RewardTerm(name="r", reward=as_told)], texts(word))
    assert as_told(texts("ab")) == [2.0]


def test_an_answer_at_the_last_moment_costs_no_later_call(monkeypatch: pytest.MonkeyPatch) -> None:
    reward = capsule("capsule_scorers:as_told", timeout=0.5, **HERE)
    (process,) = reward._copies
    receive = runner.receive

    def at_the_last_moment(stream: Any) -> Any:
        reply = receive(stream)
        while not process._late:
            time.sleep(0)
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(runner, "receive", at_the_last_moment)
        assert reward(texts("ab")) == [2.0]
    assert reward(texts("abc")) == [3.0]
    reward.close()


@pytest.mark.parametrize("word", ["nothing", "words", "too few", "infinite", "huge", "sort"])
def test_an_invalid_answer_stops_the_run_as_it_does_here(as_told: CapsuleReward, word: str) -> None:
    samples = texts(word, "a")
    with pytest.raises(RewardError, match=r"Reward 'r': it (returned|gave|changed)"):
        scores(as_told, samples)
    with pytest.raises(RewardError, match=r"Reward 'r': it (returned|gave|changed)"):
        scores(capsule_scorers.as_told, samples)


def test_of_a_forked_scorer_one_process_answers(as_told: CapsuleReward) -> None:
    assert as_told([*texts("fork"), *texts("ab", group=1), *texts("abc", group=2)]) == [2.0, 2.0, 3.0]
    assert as_told([*texts("abcd"), *texts("a", group=1)]) == [4.0, 1.0]


def test_what_is_printed_goes_to_a_log_of_limited_size(cache: Path) -> None:
    reward = capsule("capsule_scorers:as_told", **HERE)
    assert reward(texts("print")) == [1.0]
    reward.close()
    logs = [file for file in (cache / "logs").iterdir() if f".{os.getpid()}." in file.name]
    assert logs
    assert all(file.stat().st_size < 5e6 for file in logs)


def test_it_prints_where_no_log_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPOKIT_CAPSULES", f"{__file__}/no/folder")
    reward = capsule("capsule_scorers:as_told", timeout=20.0, **HERE)
    assert reward(texts("print")) == [1.0]
    reward.close()


def test_nothing_is_left_running() -> None:
    others = children()  # of other tests
    reward = capsule("capsule_scorers:as_told", **HERE)
    before = children() - others
    reward(texts("orphans"))
    after = children() - others
    assert len(after - before) >= 3
    reward.close()
    assert gone(before | after)


def children() -> set[int]:
    """The processes that this one has started, and those that they have."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_the_code_that_a_run_notes_is_all_that_was_imported_from_the_user_s_folder(tmp_path: Path) -> None:
    (tmp_path / "made_helper.py").write_text("FACTOR = 1")
    (tmp_path / "made_main.py").write_text("import made_helper\ndef score(samples):\n    return [1.0] * len(samples)")

    def code() -> str:
        reward = capsule("made_main:score", python=sys.executable, path=str(tmp_path))
        reward.close()
        return reward.versions["code"]

    before = code()
    (tmp_path / "made_helper.py").write_text("# the same\nFACTOR = 1")
    assert code() == before
    (tmp_path / "made_helper.py").write_text("FACTOR = 2")
    assert code() != before


KILLED = """
import os, sys
from grpokit import Prompt, Sample
from grpokit_capsule.reward import place
import psutil
reward = place("capsule_scorers:as_told", {}, 600.0, python=sys.executable, path=sys.argv[1], replicas=2)
reward([Sample(prompt=Prompt("p"), output="orphans", group=0)])
pending = reward.submit([Sample(prompt=Prompt("p"), output="hang", group=0)])
print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_killed_run_leaves_nothing_running() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, SCORERS], stdout=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL
    processes = {*map(int, done.stdout.split())}
    assert len(processes) >= 7  # two that watch, two that score, three that are left behind
    assert gone(processes)


def test_what_cannot_be_sent_stops_the_run(as_told: CapsuleReward) -> None:
    sample = Sample(prompt=Prompt("p"), output=object(), group=0)
    with pytest.raises(UsageError, match=r"cannot be sent to its capsule: builtins\.object; expected text, numbers"):
        scores(as_told, [sample])
    assert as_told(texts("ab")) == [2.0]


def test_a_picture_that_cannot_be_read_costs_its_rows(as_told: CapsuleReward) -> None:
    file = io.BytesIO()
    Image.effect_noise((99, 99), 64).save(file, "PNG")
    cut = Image.open(io.BytesIO(file.getvalue()[:999]))
    before = psutil.Process().children()
    result = scores(as_told, [*texts("ab"), Sample(prompt=Prompt("p"), output=cut, group=1)])
    np.testing.assert_array_equal(result.matrix[:, 0].numpy(), [2, np.nan])
    assert "could not be sent its samples: OSError" in result.notes[0]
    assert psutil.Process().children() == before


def test_a_failed_import_waits_for_no_thread() -> None:
    begin = time.monotonic()
    with pytest.raises(PluginError, match="ValueError: no such weights"):
        capsule("capsule_broken:score", **HERE)
    assert time.monotonic() - begin < 30


def test_a_process_that_ends_while_it_builds_the_reward(tmp_path: Path) -> None:
    (tmp_path / "capsule_exit.py").write_text("import os\nos._exit(3)\n")
    with pytest.raises(PluginError, match=r"ended with exit code 3\.$"):
        capsule("capsule_exit:score", python=sys.executable, path=str(tmp_path))


def test_what_is_missing_is_a_package_only_where_a_module_is_missing() -> None:
    with pytest.raises(PluginError) as caught:
        capsule("capsule_scorers:as_tol", **HERE)
    assert "requires" not in str(caught.value)


@pytest.mark.parametrize(
    ("use", "options", "message"),
    [
        ("capsule_scorers:as_tol", HERE, "AttributeError: .*as_tol"),
        ("capsule_scorer:as_told", HERE, "Name the folder that holds capsule_scorer as `path`"),
        ("capsule_scorers:as_told", {"python": "/no/such/python"}, "expected an interpreter"),
        ("capsule_scorers:as_told", {**HERE, "path": "/no/such/folder"}, "expected a folder"),
        ("capsule_scorers:as_told", {**HERE, "replicas": 0}, "expected 1 or more"),
        ("capsule_scorers:as_told", {"requires": "no-such.txt"}, "there is no such file"),
        ("capsule_scorers:as_told", {"requires": [3]}, "expected a list of texts"),
    ],
)
def test_a_mistake_is_one_message(use: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises((PluginError, UsageError), match=message):
        capsule(use, **options)


def test_a_config_names_it(tmp_path: Path) -> None:
    """Through the registry, with the shorthand and with options."""
    placement = {"capsule": {"python": sys.executable, "path": SCORERS}}
    reward = registry.place("capsule_scorers:python", {}, placement)
    assert reward(texts("a")) == [sys.version_info[0] + sys.version_info[1] / 100]
    reward.close()
