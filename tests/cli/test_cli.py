"""The command line, in this process where it can be: run folders, resume, Ctrl-C, the report, bad input."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file

import grpokit
from command_line import Call, config, embedded, rows, steady
from grpokit import RunError, cli
from grpokit.config import presets
from grpokit.phases.phased_trainer import PhasedTrainer
from grpokit.report.verdict import headline
from grpokit.run_folder import rollout_record
from grpokit.run_folder.reader import read_run
from grpokit.runs import train as run
from grpokit.training import checkpoint
from tiny_policies import TinyTokens

METRICS = {  # design.md, section 4
    "step",
    "loss",
    "reward",
    "reward_std",
    "rewards/digit_sum/mean",
    "rewards/length/mean",
    "frac_reward_zero_std",
    "kl",
    "entropy",
    "clip_ratio/low_mean",
    "clip_ratio/high_mean",
    "grad_norm",
    "step_time",
    "time/rollout",
    "time/reward",
    "time/logprobs",
    "time/backward",
}


def reward_file(folder: Path, body: str) -> str:
    """A module beside the config, of a name that no other test uses; gives `module:reward` for `use`."""
    name = "rewards_of_" + re.sub(r"\W", "_", folder.name)
    (folder / f"{name}.py").write_text("import os, signal, time\n\ncalls = 0\n\n\n" + body)
    return f"{name}:score"


COUNTING = """\
def score(samples):
    global calls
    calls += 1
    {then}
    return [float(s.output.count("3")) for s in samples]
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config and the run `out` that it made; tests read it and leave it as it is."""
    folder = tmp_path_factory.mktemp("finished")
    config(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(sys, "argv", ["grpokit", "train", "c.yaml"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert not ended.value.code
    return folder


# --- train ---------------------------------------------------------------------------------------------------------


def test_run_folder(finished: Path) -> None:
    found = {str(p.relative_to(finished / "out")) for p in (finished / "out").rglob("*") if p.is_file()}
    assert found == {
        "config.yaml",
        "versions.json",
        "data.json",
        "machine.json",
        "end.json",
        "metrics.jsonl",
        "eval.jsonl",
        "report.html",
        "report.png",
        *(f"samples/step_00000{n}/{name}" for n in (0, 2, 4, 5) for name in ("samples.jsonl", "scores.json")),
        *(f"groups/step_00000{n}/samples.jsonl" for n in (1, 2, 4, 5)),
        *(
            f"checkpoints/step_000005/{name}"
            for name in ("state.json", "optimizer.safetensors", "reference_probe.safetensors", "policy.safetensors")
        ),
    }
    versions = json.loads((finished / "out/versions.json").read_text())
    assert versions["grpokit"] == grpokit.__version__
    assert versions["torch"] == torch.__version__
    assert versions["plugins"]["grpokit"] == grpokit.__version__


def test_a_run_folder_is_where_its_config_trains_unless_another_is_named(finished: Path) -> None:
    run = finished / "out"
    assert presets.read_config(run)[0].run.dir == str(run)
    assert presets.read_config(run, ["run.dir=elsewhere"])[0].run.dir == "elsewhere"


def test_metrics(finished: Path) -> None:
    found = rows(finished / "out/metrics.jsonl")
    assert [row["step"] for row in found] == [1, 2, 3, 4, 5]
    for row in found:
        assert set(row) >= METRICS
        assert all(isinstance(value, (int, float)) for value in row.values())
        assert row["reward"] == pytest.approx(0.5 * row["rewards/digit_sum/mean"] + row["rewards/length/mean"])
        assert 0 <= row["frac_reward_zero_std"] <= 1
        assert row["grad_norm"] > 0
        assert row["step_time"] >= row["time/rollout"] + row["time/backward"]
    assert found[0]["kl"] == 0  # the policy is still its reference
    assert found[-1]["kl"] > 0
    assert abs(found[0]["loss"]) < 1e-6


def test_resolved_config(finished: Path) -> None:
    found = yaml.safe_load((finished / "out/config.yaml").read_text())
    assert found["seed"] == 7
    settings = {"weight": 1.0, "on_error": "stop", "skip_limit": 0.5, "every": 1, "workers": 0}
    assert found["rewards"][1] == {"use": "length", **settings, "maximum": 3, "scale": 0.1}
    assert found["trainer"]["micro_batch_size"] == 8  # a default is written out
    assert found["trainer"]["kl_coef"] == 0.01


def test_evaluations_are_of_the_same_prompts(finished: Path) -> None:
    found = rows(finished / "out/eval.jsonl")
    assert [row["step"] for row in found] == [0, 2, 4, 5]
    for row in found:
        means = row["means"]
        assert means["reward"] == pytest.approx(0.5 * means["digit_sum"] + means["length"])
        assert row["ci95"]["digit_sum"] > 0
        shown = rows(finished / f"out/samples/step_00000{row['step']}/samples.jsonl")
        assert [s["prompt"] for s in shown] == [str(i) for i in range(5, 9) for _ in range(3)]
        assert sum(s["scores"]["digit_sum"] for s in shown) / 12 == pytest.approx(means["digit_sum"])
        assert shown[0]["scores"]["digit_sum"] == pytest.approx(
            shown[0]["output"].count("3") + 0.01 * len(shown[0]["output"])
        )
    assert found[-1]["means"]["digit_sum"] > found[0]["means"]["digit_sum"]  # it learnt


def test_what_train_prints(call: Call, tmp_path: Path) -> None:
    config(tmp_path, trainer__steps=2, eval__every=0)
    done = call("train", "c.yaml", "seed=1")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("2 prompts x 4 samples = 8 rows a step; 1 update of 8 rows in 1 micro-batch")
    assert lines[1] == "drawing and scoring 12 samples of held-out prompts ..."
    assert lines[2].startswith("held-out prompts after step 0: digit_sum ")
    assert any(line.startswith("policy loss") and "watch the reward instead" in line for line in lines)
    assert [line.split()[1] for line in lines if line.startswith("step ")] == ["1/2", "2/2"]
    assert re.search(r"^held-out +before +after *$", done.out, re.MULTILINE)
    assert lines[-1] == "report: out/report.html"


def test_a_reward_that_scored_nothing_is_told_in_words(call: Call, tmp_path: Path) -> None:
    monitored = [{"use": "tiny_policies:digit_sum"}, {"use": "exact-match", "weight": 0}]  # the prompts have no target
    config(tmp_path, trainer__steps=1, rewards=monitored)
    done = call("train", "c.yaml")
    assert done.code == 0
    told = [line for line in done.out.splitlines() if line.startswith("held-out prompts after step ")]
    assert [" exact-match not scored  reward " in line for line in told] == [True, True]


def test_the_folder_is_named_after_the_config(call: Call, tmp_path: Path) -> None:
    config(tmp_path, trainer__steps=1, run={"threads": 1}, eval={}).rename(tmp_path / "quick.yaml")
    done = call("train", "quick.yaml")
    assert done.out.splitlines()[-1] == "report: runs/quick/report.html"
    assert not (tmp_path / "runs/quick/eval.jsonl").read_text()


def test_same_seed_same_run(call: Call, tmp_path: Path) -> None:
    config(tmp_path, eval={}, trainer__steps=3)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert call("train", "c.yaml", f"run.dir={name}", f"seed={seed}", "trainer.micro_batch_size=8").code == 0
    a, b, c = (steady(rows(tmp_path / name / "metrics.jsonl")) for name in "abc")
    assert a == b
    assert a != c


# --- folders in use ------------------------------------------------------------------------------------------------


def test_overwrite(call: Call, tmp_path: Path) -> None:
    config(tmp_path, eval={})
    assert call("train", "c.yaml", "trainer.steps=3").code == 0
    (tmp_path / "out/note.txt").write_text("x")
    assert call("train", "c.yaml", "trainer.steps=1", "--overwrite").code == 0
    assert [row["step"] for row in rows(tmp_path / "out/metrics.jsonl")] == [1]
    assert not (tmp_path / "out/note.txt").exists()
    assert [p.name for p in (tmp_path / "out/checkpoints").iterdir()] == ["step_000001"]


def test_resume_goes_on_or_starts(call: Call, tmp_path: Path) -> None:
    config(tmp_path, eval={})
    assert "starts over" not in call("train", "c.yaml", "trainer.steps=1", "--resume").out
    assert "resuming after step 1 of 2" in call("train", "c.yaml", "trainer.steps=2", "--resume").out
    assert "already complete (2 steps)" in call("train", "c.yaml", "trainer.steps=2", "--resume").out
    assert [row["step"] for row in rows(tmp_path / "out/metrics.jsonl")] == [1, 2]
    fewer = call("train", "c.yaml", "trainer.steps=1", "--resume")
    assert fewer.code == 2
    assert (
        "out has completed 2 steps, and the config asks for 1. Raise trainer.steps, or start over with --overwrite."
        in fewer.err
    )
    assert "steps: 2" in (tmp_path / "out/config.yaml").read_text()
    shutil.rmtree(tmp_path / "out/checkpoints")  # as after a kill before the first one
    (tmp_path / "out/end.json").unlink()
    again = call("train", "c.yaml", "trainer.steps=1", "--resume")
    assert "out has no checkpoint, so the run starts over" in again.out
    assert [row["step"] for row in rows(tmp_path / "out/metrics.jsonl")] == [1]


def test_home_is_known_behind_an_option(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell expands it in `--folder ~/x` alone; what follows would lie in a folder called `~`."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert call("new", "reward", "mine", "--folder=~/").code == 0
    assert (tmp_path / "home/grpokit-mine").is_dir()


@pytest.mark.parametrize("option", [[], ["--overwrite"], ["--resume"]])
@pytest.mark.parametrize("file", ["thesis.txt", "config.yaml"])
def test_a_foreign_folder_is_left_alone(call: Call, tmp_path: Path, option: list[str], file: str) -> None:
    """A project may well have a file config.yaml: that makes it no run folder to delete."""
    config(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / file).write_text("years of work")
    done = call("train", "c.yaml", *option)
    assert done.code == 2
    assert "out holds files that are not a run of grpokit: it has no versions.json. Choose another" in done.err
    assert (tmp_path / "out" / file).read_text() == "years of work"


@pytest.mark.parametrize("name", ["#2", "null", "a: b"])
def test_a_folder_of_any_name(call: Call, finished: Path, tmp_path: Path, name: str) -> None:
    for folder in ("out", name):
        shutil.copytree(finished / "out", tmp_path / folder)
    for prompts in finished.glob("*.jsonl"):
        shutil.copy(prompts, tmp_path)
    done = call("train", f"./{name}", "--overwrite", "trainer.steps=1", "eval.every=0")
    assert done.code == 0, done.err
    assert len(rows(tmp_path / name / "metrics.jsonl")) == 1
    assert len(rows(tmp_path / "out/metrics.jsonl")) == 5
    assert call("evaluate", f"./{name}").code == 0


def test_a_failed_start_leaves_an_empty_folder_empty(call: Call, tmp_path: Path) -> None:
    use = reward_file(tmp_path, COUNTING.format(then='raise OSError("gone")'))
    config(tmp_path, rewards=[{"use": use}])
    (tmp_path / "out").mkdir()
    inode = (tmp_path / "out").stat().st_ino
    assert call("train", "c.yaml").code == 1
    assert list((tmp_path / "out").iterdir()) == []
    assert (tmp_path / "out").stat().st_ino == inode  # it may be a mount, or have rights of its own
    assert call("train", "c.yaml", "rewards.0.use=length", "rewards.0.maximum=3").code == 0


# --- resume --------------------------------------------------------------------------------------------------------


def test_resume_is_exact(call: Call, tmp_path: Path, finished: Path) -> None:
    """Three steps, a crash that tears the last line and loses two steps' checkpoint, and the rest."""
    config(tmp_path)
    assert call("train", "c.yaml", "trainer.steps=3").code == 0
    for name, row in (("metrics", '{"step": 4, "reward": 99}'), ("eval", '{"step": 4, "means": {}, "ci95": {}}')):
        with (tmp_path / f"out/{name}.jsonl").open("a") as file:
            file.write(f"{row}\n{row[:-9]}")
    done = call("train", "c.yaml", "--resume")
    assert (done.code, done.err) == (0, "")
    assert steady(rows(tmp_path / "out/metrics.jsonl")) == steady(rows(finished / "out/metrics.jsonl"))
    evaluations = [row for row in rows(tmp_path / "out/eval.jsonl") if row["step"] != 3]
    assert evaluations == rows(finished / "out/eval.jsonl")
    for file in ("optimizer.safetensors", "policy.safetensors"):
        a, b = (load_file(f / "out/checkpoints/step_000005" / file) for f in (tmp_path, finished))
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_resume_of_a_finished_run_changes_nothing(call: Call, tmp_path: Path) -> None:
    config(tmp_path, trainer__steps=2)
    assert call("train", "c.yaml").code == 0
    before = {name: (tmp_path / "out" / name).read_bytes() for name in ("metrics.jsonl", "eval.jsonl")}
    done = call("train", "c.yaml", "--resume")
    assert done.code == 0
    assert done.out.count("resuming after step 2 of 2 from ") == 1
    assert "already complete (2 steps). Raise trainer.steps" in done.out
    assert before == {name: (tmp_path / "out" / name).read_bytes() for name in before}


def test_resume_from_a_checkpoint_without_its_state(call: Call, tmp_path: Path) -> None:
    config(tmp_path, trainer__steps=1)
    assert call("train", "c.yaml").code == 0
    (tmp_path / "out/checkpoints/step_000001/state.json").unlink()
    done = call("train", "c.yaml", "--resume")
    assert done.code == 2
    assert "out/checkpoints/step_000001 is not a checkpoint of grpokit: it has no state.json." in done.err


def test_a_damaged_checkpoint(call: Call, tmp_path: Path) -> None:
    config(tmp_path, trainer__steps=1)
    assert call("train", "c.yaml").code == 0
    (tmp_path / "out/checkpoints/step_000001/optimizer.safetensors").write_bytes(b"torn")
    done = call("train", "c.yaml", "--resume", "trainer.steps=2")
    assert done.code == 2
    assert "checkpoints/step_000001 is damaged: " in done.err
    assert "There is no other checkpoint: start a new run with --overwrite." in done.err


def test_save_every(call: Call, tmp_path: Path) -> None:
    config(tmp_path, eval={}, run__save_every=2, eval__every=0)
    assert call("train", "c.yaml").code == 0
    assert sorted(p.name for p in (tmp_path / "out/checkpoints").iterdir()) == [
        "step_000002",
        "step_000004",
        "step_000005",
    ]


# --- Ctrl-C --------------------------------------------------------------------------------------------------------


def test_ctrl_c_saves_and_says_how_to_go_on(call: Call, tmp_path: Path) -> None:
    """With an override that needs quotes in the printed command."""
    use = reward_file(tmp_path, COUNTING.format(then="if calls == 3:\n        signal.raise_signal(signal.SIGINT)"))
    config(tmp_path, eval={}, trainer__steps=6, rewards=[{"use": use}], eval__every=0)
    override = "rewards.0.name=the threes"
    done = call("train", "c.yaml", override)
    assert (done.code, done.err) == (130, "")
    *_, said, command = done.out.splitlines()
    assert said == "Stopped after step 3; the state is saved. Continue with:"
    assert (tmp_path / "out/checkpoints/step_000003/state.json").is_file()
    words = shlex.split(command)
    assert words == ["grpokit", "train", "c.yaml", override, "--resume"]

    assert call(*words[1:]).code == 0
    resumed = rows(tmp_path / "out/metrics.jsonl")
    assert [row["step"] for row in resumed] == list(range(1, 7))
    assert call("train", "c.yaml", override, "run.dir=straight").code == 0
    assert steady(resumed) == steady(rows(tmp_path / "straight/metrics.jsonl"))


def test_a_second_ctrl_c_ends_at_once(call: Call, tmp_path: Path) -> None:
    then = "if calls == 3:\n        signal.raise_signal(signal.SIGINT)\n        signal.raise_signal(signal.SIGINT)"
    config(tmp_path, eval={}, rewards=[{"use": reward_file(tmp_path, COUNTING.format(then=then))}])
    before = signal.getsignal(signal.SIGINT)
    done = call("train", "c.yaml")
    assert done.code == 130
    assert "Traceback" not in done.out + done.err
    assert [row["step"] for row in rows(tmp_path / "out/metrics.jsonl")] == [1, 2]
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_in_the_last_step_ends_a_whole_run(call: Call, tmp_path: Path) -> None:
    then = "if calls == 2:\n        signal.raise_signal(signal.SIGINT)"
    use = reward_file(tmp_path, COUNTING.format(then=then))
    config(tmp_path, eval={}, rewards=[{"use": use}], trainer__steps=2)
    done = call("train", "c.yaml")
    assert done.code == 0
    assert "changed the handling" not in done.out + done.err  # the reward has not
    assert done.out.splitlines()[-1] == "report: out/report.html"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_last_save_does_no_harm(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    save = checkpoint.save

    def interrupted(*given: Any, **options: Any) -> None:
        signal.raise_signal(number)
        save(*given, **options)

    monkeypatch.setattr(checkpoint, "save", interrupted)
    config(tmp_path, eval={}, trainer__steps=2)
    done = call("train", "c.yaml")
    assert done.code == 0, done.err
    assert (tmp_path / "out/checkpoints/step_000002/state.json").is_file()


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_first_step_leaves_nothing(call: Call, tmp_path: Path, number: signal.Signals) -> None:
    then = f"if calls == 1 and not os.path.exists('again'):\n        signal.raise_signal({int(number)})"
    config(tmp_path, rewards=[{"use": reward_file(tmp_path, COUNTING.format(then=then))}], trainer__steps=1)
    before = sorted(path.name for path in tmp_path.iterdir())
    done = call("train", "c.yaml")
    assert done.code == 130
    assert "Stopped at once" in done.err
    left = sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__")
    assert left == before
    (tmp_path / "again").touch()
    assert call("train", "c.yaml").code == 0


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize(("number", "times"), [(signal.SIGTERM, 1), (signal.SIGHUP, 2)])  # two, of a shell and a kernel
def test_other_signals_save_too(call: Call, tmp_path: Path, number: signal.Signals, times: int) -> None:
    then = f"if calls == 3:\n        [signal.raise_signal({int(number)}) for _ in range({times})]"
    config(tmp_path, eval={}, rewards=[{"use": reward_file(tmp_path, COUNTING.format(then=then))}])
    before = signal.getsignal(number)
    done = call("train", "c.yaml")
    assert done.code == 130
    assert done.out.splitlines()[-2] == "Stopped after step 3; the state is saved. Continue with:"
    assert (tmp_path / "out/checkpoints/step_000003/state.json").is_file()
    assert signal.getsignal(number) is before


def test_nohup_keeps_a_closed_terminal_away(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    then = "if calls == 2:\n        signal.raise_signal(signal.SIGHUP)"
    config(tmp_path, eval={}, rewards=[{"use": reward_file(tmp_path, COUNTING.format(then=then))}])
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert call("train", "c.yaml").code == 0
    finally:
        signal.signal(signal.SIGHUP, before)


# --- failures ------------------------------------------------------------------------------------------------------


def test_a_reward_that_raises(call: Call, tmp_path: Path) -> None:
    then = 'if calls == 6 and not os.path.exists("mended"):\n        raise OSError("the server\\nis gone")'
    # calls: evaluation, steps 1 and 2, evaluation, steps 3 and 4
    config(tmp_path, rewards=[{"use": reward_file(tmp_path, COUNTING.format(then=then))}])
    done = call("train", "c.yaml")
    assert done.code == 1
    first, second, page = done.err.splitlines()
    assert page.startswith("see ")
    assert first.startswith("error: Reward 'score' raised OSError: the server is gone (rewards_of_")
    assert first.endswith(". Correct it, or set `on_error: skip` in its config to count its rows as unscored.")
    saved = "The state after step 3 is saved in out/checkpoints/step_000003; "
    assert second == saved + "correct the cause, then continue with --resume."
    assert "Traceback" not in done.out
    assert [row["step"] for row in rows(tmp_path / "out/metrics.jsonl")] == [1, 2, 3]
    (tmp_path / "mended").touch()
    assert call("train", "c.yaml", "--resume").code == 0
    assert call("train", "c.yaml", "run.dir=straight").code == 0
    assert steady(rows(tmp_path / "out/metrics.jsonl")) == steady(rows(tmp_path / "straight/metrics.jsonl"))
    assert rows(tmp_path / "out/eval.jsonl") == rows(tmp_path / "straight/eval.jsonl")  # a resume adds none of its own


def test_what_a_reward_changes_when_it_is_imported_is_set_back(call: Call, tmp_path: Path) -> None:
    plain = "def score(samples):\n    return [float(len(s.output)) for s in samples]\n"
    changes = "set_default_dtype(torch.float64)", "set_num_threads(3)", "set_grad_enabled(False)"
    careless = "\n".join(["import torch", *(f"torch.{change}" for change in changes), plain])
    (tmp_path / "careless_when_imported.py").write_text(f"{careless}\ntorch.backends.mkldnn.enabled = False\n")

    def state() -> tuple[Any, ...]:
        names = "default_dtype", "num_threads", "float32_matmul_precision"
        return torch.is_grad_enabled(), torch.backends.mkldnn.enabled, *(getattr(torch, f"get_{n}")() for n in names)

    config(tmp_path, rewards=[{"use": reward_file(tmp_path, plain)}], trainer__steps=2)
    assert call("train", "c.yaml", "run.dir=plain").code == 0
    before = state()
    config(tmp_path, rewards=[{"use": "careless_when_imported:score"}], trainer__steps=2)
    done = call("train", "c.yaml")
    assert done.code == 0, done.err
    assert state() == before
    assert steady(rows(tmp_path / "out/metrics.jsonl")) == steady(rows(tmp_path / "plain/metrics.jsonl"))


def test_a_step_whose_record_cannot_be_kept_is_made_again(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config(tmp_path, eval={}, run__record=True, run__save_every=1, eval__every=1)
    assert call("train", "c.yaml", "run.dir=straight").code == 0
    calls = iter(range(1, 9))
    with monkeypatch.context() as patch:
        whole = rollout_record.write_step
        patch.setattr(rollout_record, "write_step", lambda *given: full() if next(calls) == 3 else whole(*given))
        done = call("train", "c.yaml")
    assert done.code == 1
    assert "continue from out/checkpoints/step_000002 with --resume" in done.err
    assert call("train", "c.yaml", "--resume").code == 0
    for kind in ("rollouts", "groups", "checkpoints"):
        kept, expected = (
            sorted(path.name for path in (tmp_path / run / kind).iterdir()) for run in ("out", "straight")
        )
        assert kept == expected


def test_a_reward_that_raises_may_be_skipped(call: Call, tmp_path: Path) -> None:
    use = reward_file(tmp_path, COUNTING.format(then='if 2 <= calls <= 4:\n        raise OSError("gone")'))
    rewards = [{"use": use, "on_error": "skip", "skip_limit": 1}, {"use": "length", "maximum": 2}]
    config(tmp_path, eval={}, rewards=rewards, trainer__steps=3)
    assert call("train", "c.yaml").code == 0
    found = rows(tmp_path / "out/metrics.jsonl")
    assert [row["rewards/score/unscored"] for row in found] == [0, 8, 0]
    assert found[1]["rewards/score/mean"] is None  # NaN is no JSON
    assert found[1]["reward"] == found[1]["rewards/length/mean"]


def test_a_reward_that_is_skipped_on_held_out_prompts_is_told(call: Call, tmp_path: Path) -> None:
    use = reward_file(
        tmp_path,
        "def score(samples):\n"
        "    if samples[-1].prompt.text == '8':\n"
        "        raise ValueError('no eights')\n"
        "    return [float(len(s.output)) for s in samples]\n",
    )
    config(tmp_path, rewards=[{"use": use, "on_error": "skip"}, {"use": "length", "maximum": 3}], trainer__steps=1)
    done = call("train", "c.yaml")
    assert done.code == 0, done.err
    said = re.findall(r"warning: held-out prompts: Reward 'score' left 3 rows unscored: .*no eights.*", done.out)
    assert len(said) == 2, done.out  # before and after
    noted = [row for row in rows(tmp_path / "out" / "warnings.jsonl") if "no eights" in row["message"]]
    assert [row["step"] for row in noted] == [0, 1]
    assert noted[0]["message"] == said[0].removeprefix("warning: ")
    found = call("evaluate", "out")
    assert found.code == 0, found.err
    told = [line.partition(" Reward")[0] for line in found.err.splitlines() if "no eights" in line]
    assert told == ["warning, before:", "warning, after:"]


def test_a_full_disk(call: Call, tmp_path: Path) -> None:
    """No file may grow beyond 3,000 bytes: the checkpoint does not fit, and leaves nothing behind."""
    import resource

    config(tmp_path, eval={}, trainer__steps=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    try:
        done = call("train", "c.yaml")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.code == 1
    assert done.err.startswith("error: The checkpoint out/checkpoints/step_000001 cannot be written: ")
    assert list((tmp_path / "out/checkpoints").iterdir()) == []


def test_a_full_disk_at_the_end(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(tmp_path, eval={}, trainer__steps=2)
    written = []
    monkeypatch.setattr("grpokit.runs.saved_on_error.report", SimpleNamespace(write=written.append))
    monkeypatch.setattr(PhasedTrainer, "save", full)
    done = call("train", "c.yaml")
    assert done.code == 1
    assert done.err == ("error: no space left\nThe state after step 2 could not be saved; start again with --resume.\n")
    assert written == [tmp_path / "out"]
    assert json.loads((tmp_path / "out/end.json").read_text())["message"] == "no space left"


def full(*_: Any, **__: Any) -> None:
    raise RunError("no space left")


@pytest.mark.parametrize("where", ["rollout", "logprobs"])
def test_a_policy_that_raises_loses_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Its traceback is shown, since it is a fault of the policy; what was learnt before is saved all the same.

    There is a KL, so that saving would like to score a sample for the reference, too.
    """
    monkeypatch.chdir(tmp_path)
    policy = {"use": "tiny_policies:Falters", "step": 4, "where": where}
    config(tmp_path, policy=policy, eval={})
    with pytest.raises(ValueError, match="a fault in step 4") as caught:
        run.train(presets.read_config("c.yaml")[0], name="c")
    assert caught.value.__notes__ == [
        f"The state after step 3 is saved in {tmp_path}/out/checkpoints/step_000003; correct the cause, "
        "then continue with --resume."
    ]
    assert [row["step"] for row in rows(tmp_path / "out/metrics.jsonl")] == [1, 2, 3]
    assert json.loads((tmp_path / "out/end.json").read_text())["message"] == "ValueError: a fault in step 4"
    assert (tmp_path / "out/report.html").is_file()


@pytest.mark.parametrize(
    ("calls", "end", "words"),
    [
        (1, SystemExit(0), "SystemExit: 0"),
        (5, SystemExit(0), "SystemExit: 0"),
        (5, asyncio.CancelledError(), "CancelledError"),
    ],
)
def test_a_policy_that_exits_is_an_error(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int, end: BaseException, words: str
) -> None:
    """In the evaluation before training, and in step 3."""
    whole, left = TinyTokens.rollout, iter(range(1, 9))

    def exits(self: TinyTokens, *arguments: Any, **options: Any) -> Any:
        if next(left) == calls:
            raise end
        return whole(self, *arguments, **options)

    monkeypatch.setattr(TinyTokens, "rollout", exits)
    config(tmp_path, eval__every=0)
    done = call("train", "c.yaml")
    assert done.code == 1
    assert f"{words} (test_cli.py, line " in done.err
    assert ("The state after step 2 is saved in out/checkpoints/step_000002" in done.err) == (calls > 1)


def test_a_failed_evaluation_loses_no_step(call: Call, tmp_path: Path) -> None:
    then = 'if len(samples) == 12 and calls > 3:\n        raise OSError("gone")'  # 8 rows are training
    config(tmp_path, rewards=[{"use": reward_file(tmp_path, COUNTING.format(then=then))}], trainer__steps=4)
    done = call("train", "c.yaml")
    assert done.code == 1
    assert "The state after step 2 is saved in out/checkpoints/step_000002" in done.err


def test_a_picture_that_breaks_later_loses_no_step(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpokit.runs.run.check_pictures", lambda *_: None)  # it breaks behind the check
    config(tmp_path, trainer__steps=4, trainer__prompts_per_step=1, eval__every=0)
    lines = [{"prompt": str(i), "target": f"{i}.png"} for i in range(1, 5)]
    (tmp_path / "pictures.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for i in range(1, 5):
        Image.effect_noise((64, 64), 90).save(tmp_path / f"{i}.png")
    from grpokit.sampling import prompt_indices

    third = prompt_indices(7, 2, per_step=1, total=4)[0] + 1
    whole = (tmp_path / f"{third}.png").read_bytes()
    (tmp_path / f"{third}.png").write_bytes(whole[: len(whole) // 2])  # the header is sound
    done = call("train", "c.yaml", "data={prompts: pictures.jsonl}")
    assert done.code == 2
    assert f"error: pictures.jsonl, line {third}: {third}.png cannot be read as a picture: image file is tr" in done.err
    assert (
        "The state after step 2 is saved in out/checkpoints/step_000002; correct the input, then continue with"
        in done.err
    )


# --- evaluate, sample ----------------------------------------------------------------------------------------------


def table(text: str) -> dict[str, list[str]]:
    """First cell -> the others, of the last table in `text`."""
    cells = [re.split(r"\s{2,}", line.strip()) for line in text[text.index("held-out") :].splitlines()]
    return {first: rest for first, *rest in cells}


def test_evaluate_before_and_after(call: Call, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished)
    first, *_, last = rows(finished / "out/eval.jsonl")
    done = call("evaluate", "out")
    assert (done.code, [line.split(":")[0] for line in done.err.splitlines()]) == (
        0,
        ["before", "after"],
    )
    assert "drawing and scoring 12 samples of 4 held-out prompts" in done.err
    expected = {
        name: [f"{row['means'][name]:.3f} ± {row['ci95'][name]:.3f}" for row in (first, last)]
        for name in ("digit_sum", "length", "reward")
    }
    changes = {
        change.name: f"{change.change:+.3f} ± {change.width:.3f}" for change in headline(read_run(finished / "out"))
    }
    changed = {name: [*cells, changes[name]] for name, cells in expected.items()}  # the report's, which pairs prompts
    assert table(done.out).items() >= {"held-out": ["before", "after", "change"], **changed}.items()
    only_before = {name: cells[:1] for name, cells in expected.items()}
    assert table(call("evaluate", "c.yaml").out).items() >= {"held-out": ["before"], **only_before}.items()


@pytest.mark.skipif(torch.cuda.is_available(), reason="says that there is no CUDA")
@pytest.mark.parametrize("command", [("evaluate",), ("sample", "--prompt", "3"), ("train", "--overwrite")])
def test_every_command_takes_the_device_of_the_config(
    call: Call, finished: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(finished)
    done = call(command[0], "c.yaml", *command[1:], "trainer.device=cuda")
    assert done.code == 2
    assert done.err.endswith("device is 'cuda', but torch finds no CUDA device. Use device: auto or cpu.\n")
    assert (finished / "out/metrics.jsonl").is_file()


def test_evaluate_with_options(call: Call, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished)
    assert (
        table(call("evaluate", "out", "--limit", 1, "-n", 1).out)["reward"][0].count("±") == 0
    )  # one sample: no width
    monkeypatch.chdir(finished)
    with_pattern = call("evaluate", "out", "rewards=[{use: exact-match}]")
    assert table(with_pattern.out)["exact-match"] == ["not scored"] * 3  # there is no target


def test_evaluate_tells_of_trained_and_of_other_prompts(call: Call, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "there")
    with contextlib.chdir(tmp_path / "there"):
        Path("mine.txt").write_text("3\n4\n12\n")
        done = call("evaluate", "out", "eval.prompts=mine.txt")
        assert "2 of 3 held-out prompts are trained on as well" in done.err
        Path("held.jsonl").write_text('{"prompt": "5"}\n{"prompt": "16"}\n')
        done = call("evaluate", "out")
        assert "held-out prompts: 4 prompts became 2; 1 of 2 prompts changed" in done.err
        assert done.code == 0


def test_evaluate_as_json(call: Call, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished)
    first, *_, last = rows(finished / "out/eval.jsonl")
    answer = json.loads(call("evaluate", "out", "--json").out)
    checkpoint = str(finished / "out/checkpoints/step_000005")
    facts = {"source": "out", "checkpoint": checkpoint, "step": 5, "seed": 7}
    assert answer.items() >= {**facts, "prompts": 4, "samples_per_prompt": 3}.items()
    for label, row in (("before", first), ("after", last)):
        assert answer[label] == {
            name: {"mean": pytest.approx(row["means"][name]), "ci95": pytest.approx(row["ci95"][name])}
            for name in ("digit_sum", "length", "reward")
        }
    lone = json.loads(call("evaluate", "c.yaml", "--json", "--limit", 1, "-n", 1, "rewards=[{use: exact-match}]").out)
    assert (lone["checkpoint"], lone["before"]["exact-match"]) == (None, {"mean": None, "ci95": None})


def test_a_dry_run_draws_a_group_and_writes_nothing(call: Call, tmp_path: Path) -> None:
    config(tmp_path, trackers__use=["tensorboard"])
    files = sorted(tmp_path.rglob("*"))
    done = call("train", "c.yaml", "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert (
        "prompts: 4 for training, 4 held-out prompts\nfolder: out\n2 prompts x 4 samples = 8 rows a step;" in done.out
    )
    assert len(re.findall(r"^  [1-4]  digit_sum [0-9.-]+  length [0-9.-]+  reward [0-9.-]+  '", done.out, re.M)) == 4
    scores = [float(x) for x in re.findall(r"^  \d  digit_sum ([0-9.]+)", done.out, re.M)]
    assert f"  digit_sum: mean {sum(scores) / 4:.3f}, std " in done.out
    assert sorted(tmp_path.rglob("*")) == files
    assert "there is no held-out score 'digits'" in call("train", "c.yaml", "--dry-run", "run.best=digits").err
    use = reward_file(tmp_path, "def score(samples):\n    return [float('nan')] * len(samples)\n")
    nothing = call("train", "c.yaml", "--dry-run", f"rewards=[{{use: '{use}'}}]")
    assert "  score: scored no sample\n  reward: scored no sample\n" in nothing.out
    assert nothing.err == ""


def test_sample(call: Call, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished)
    out = tmp_path / "drawn"
    done = call("sample", "out", "--out", out, "--prompt", "3", "--prompt", "4", "-n", 2)
    drawn = rows(out / "samples.jsonl")
    texts = "".join(f"  '{row['prompt']}' -> '{row['output']}'\n" for row in drawn)
    assert (done.code, done.out) == (0, f"4 samples in {out}\n{texts}")
    assert [row["prompt"] for row in drawn] == ["3", "3", "4", "4"]
    assert all(re.fullmatch("[0-5]+", row["output"]) for row in drawn)
    again = call("sample", "out", "--out", out, "--prompt", "3")
    assert again.code == 2
    assert f"{out} already holds files. Choose another folder with --out, or add --overwrite." in again.err
    assert call("sample", "out", "--out", out, "--prompt", "3", "--overwrite").code == 0
    assert rows(out / "samples.jsonl") == drawn[:1]  # the same draw again


def test_sample_from_the_start_and_from_the_end(
    call: Call, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished)
    (tmp_path / "p.txt").write_text("1\n2\n")
    for source in ("c.yaml", "out"):
        assert call("sample", source, "--out", tmp_path / source, "-n", 20, "--prompts", tmp_path / "p.txt").code == 0
    start, end = (rows(tmp_path / source / "samples.jsonl") for source in ("c.yaml", "out"))
    assert len(start) == len(end) == 40
    options = ("-n", 20, "--prompts", tmp_path / "p.txt", "--before")
    assert call("sample", "out", "--out", tmp_path / "two", *options).code == 0
    assert [rows(tmp_path / "two" / name / "samples.jsonl") for name in ("before", "after")] == [start, end]
    both = call("evaluate", tmp_path / "two", "--reward", "length")
    assert (both.code, both.out) == (2, "")
    assert both.err.endswith(f"There is one in {tmp_path / 'two/before'}.\n")
    alone = call("sample", "c.yaml", "--out", tmp_path / "none", *options)
    assert alone.code == 2
    assert "--before needs a run folder" in alone.err
    assert call("sample", "out", "-n", 7, "--out", tmp_path / "many", "--prompt", "1").out.endswith("\n  and 2 more\n")
    assert sum(r["output"].count("3") for r in end) > sum(r["output"].count("3") for r in start)
    done = call("sample", "c.yaml", "--out", tmp_path / "all", "--limit", 3)
    assert done.out.startswith("3 samples in ")
    done = call("sample", "c.yaml", "--out", tmp_path / "both", "--prompt", "1", "--prompts", tmp_path / "p.txt")
    assert (done.code, done.err) == (2, "error: Give either --prompt or --prompts, not both.\n")
    (tmp_path / "p.jsonl").write_text('{"prompt": "2"}\n')
    assert call("sample", "c.yaml", "--out", tmp_path / "json", "--prompts", tmp_path / "p.jsonl").code == 0
    assert [row["prompt"] for row in rows(tmp_path / "json/samples.jsonl")] == ["2"]


def test_a_checkpoint_can_be_used_without_its_run(call: Call, finished: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(finished / "out/checkpoints/step_000005", tmp_path / "mine")
    config(tmp_path)
    tables = [table(call("evaluate", source).out) for source in ("mine", finished / "out")]
    for rows_of_scores in tables:
        rows_of_scores.pop(next(line for line in rows_of_scores if line.startswith("report: ")))
    assert tables[0] == tables[1]
    words = ["--prompt", "3", "-n", 6]
    for source, out in (("mine", "a"), (finished / "out", "b"), ("c.yaml", "c")):
        assert call("sample", source, "--out", out, *words).code == 0
    a, b, start = ((tmp_path / out / "samples.jsonl").read_text() for out in "abc")
    assert a == b != start
    (tmp_path / "mine/policy.safetensors").write_bytes(b"torn")
    done = call("sample", "mine", "--out", "d", *words)
    assert done.code == 2
    assert done.err.startswith("error: The checkpoint mine is damaged: policy.safetensors was changed after it ")
    assert not (tmp_path / "d").exists()


# --- report --------------------------------------------------------------------------------------------------------


def references(page: str) -> list[str]:
    """Everything that a browser could fetch, and any other address."""
    page = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    fetched = re.findall(r'(?:src|href|action|data|poster)="([^"#]*)"', page) + re.findall(r"url\(([^)#]*)\)", page)
    return [f for f in fetched if f and not f.startswith("data:")] + re.findall(r"https?://[^\s\"'<]+", page)


def test_report_is_self_contained(finished: Path) -> None:
    page = (finished / "out/report.html").read_text()
    assert references(page[: page.index("<script")]) == []
    assert "@import" not in page
    (shown,) = embedded(finished / "out/report.html")["runs"]
    assert (shown["name"], shown["steps"]) == ("out", 5)
    assert len(shown["charts"]) >= 5
    first, *_, last = rows(finished / "out/eval.jsonl")
    assert f"{first['means']['reward']:.3f} → {last['means']['reward']:.3f}" in shown["verdict"]
    assert [evaluation["step"] for evaluation in shown["evaluations"]] == [0, 2, 4, 5]


def test_report_again(call: Call, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished)
    before = (finished / "out/report.html").read_text()
    done = call("report", "out")
    assert (done.code, done.out) == (0, "report: out/report.html\n")
    assert (finished / "out/report.html").read_text() == before


EVIL = "<script>alert(\"x\")</script> & \u2028 '$x$' {{ 7*7 }} </svg>"


@pytest.mark.usefixtures("drawn")
def test_report_escapes_what_came_from_data(call: Call, tmp_path: Path) -> None:
    """A prompt, a target, an output, a reward's name and the config, each with markup in it."""
    name = "<b>$x_$</b> &"
    use = reward_file(tmp_path, "def score(samples):\n    return [float(len(s.output)) for s in samples]\n")
    config(
        tmp_path, trainer__steps=1, policy={"use": f"{use.partition(':')[0]}:Odd"}, rewards=[{"use": use, "name": name}]
    )
    module = tmp_path / f"{use.partition(':')[0]}.py"
    module.write_text(
        module.read_text() + "\n\nfrom dataclasses import replace\n\nfrom tiny_policies import TinyTokens\n\n\n"
        "class Odd(TinyTokens):\n"
        "    def rollout(self, prompts, group_size, **options):\n"
        "        found = super().rollout([replace(p, text='1') for p in prompts], group_size, **options)\n"
        "        samples = [replace(s, prompt=prompts[i // group_size], output=f'<i>{s.output}</i>\\u2028\"')\n"
        "                   for i, s in enumerate(found.samples)]\n"
        "        return replace(found, samples=samples)\n"
    )
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": EVIL, "target": EVIL}, ensure_ascii=False) + "\n")
    done = call("train", "c.yaml")
    assert done.code == 0, done.err
    page = (tmp_path / "out/report.html").read_text()
    data = page[page.index('<script type="application/json"') : page.index('<script type="text/plain"')]
    assert "<script>" not in data
    assert "<i>" not in data
    assert "<b>$" not in data
    (shown,) = embedded(tmp_path / "out/report.html")["runs"]
    assert json.dumps(EVIL) in json.dumps(shown["groups"])
    assert shown["rewards"] == [name]


@pytest.mark.usefixtures("drawn")
def test_report_shows_pictures(call: Call, tmp_path: Path) -> None:
    use = reward_file(tmp_path, "def score(samples):\n    return [float(s.output.getpixel((0, 0))) for s in samples]\n")
    config(tmp_path, trainer__steps=1, policy={"use": f"{use.partition(':')[0]}:Grey"}, rewards=[{"use": use}])
    module = tmp_path / f"{use.partition(':')[0]}.py"
    module.write_text(
        module.read_text() + "\n\nfrom dataclasses import replace\n\nfrom PIL import Image\n"
        "from tiny_policies import TinyTokens\n\n\nclass Grey(TinyTokens):\n"
        "    def rollout(self, prompts, group_size, **options):\n"
        "        found = super().rollout(prompts, group_size, **options)\n"
        "        grey = [Image.new('L', (8, 8), 40 * s.output.count('3')) for s in found.samples]\n"
        "        samples = [replace(s, output=image) for s, image in zip(found.samples, grey)]\n"
        "        return replace(found, samples=samples)\n"
    )
    assert call("train", "c.yaml").code == 0
    pictures = embedded(tmp_path / "out/report.html", "pictures")
    assert pictures
    assert all(picture.startswith("data:image/png;base64,") for picture in pictures.values())
    shown = rows(tmp_path / "out/samples/step_000001/samples.jsonl")
    with Image.open(tmp_path / "out/samples/step_000001" / shown[3]["file"]) as image:
        assert image.getpixel((0, 0)) == shown[3]["scores"]["score"]


@pytest.mark.usefixtures("drawn")
def test_report_of_a_run_without_evaluations_or_steps(call: Call, tmp_path: Path) -> None:
    config(tmp_path, eval={}, trainer__steps=1)
    assert call("train", "c.yaml").code == 0
    for name in ("metrics.jsonl", "versions.json", "eval.jsonl"):
        (tmp_path / "out" / name).unlink()
        assert call("report", "out").code == 0
    (shown,) = embedded(tmp_path / "out/report.html")["runs"]
    assert (shown["steps"], shown["verdict"]) == (0, "No step was trained.")


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        (
            "--lr",
            "There is no option --lr (did you mean 'trainer.learning_rate'?). Write a setting of the run as KEY=",
        ),
        ("--trainer.steps=5", "There is no option --trainer.steps (did you mean 'trainer.steps'?)."),
        ("--num-generations=5", "There is no option --num-generations (did you mean 'trainer.group_size'?)."),
        ("--resume-from-checkpoint", "There is no option --resume-from-checkpoint (give the command --resume)."),
    ],
)
def test_an_option_that_is_a_key(call: Call, option: str, hint: str) -> None:
    done = call("train", "toy-lm", option, "3")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {hint}")


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_names_presets_and_keys(call: Call, option: str) -> None:
    done = call("train", option)
    assert done.code == 0
    words = " ".join(done.out.split())
    assert re.search(r"Presets: .*\btoy-lm\b.* \(see `grpokit plugins`\)", words)
    assert re.search(r"Usual keys: trainer\.steps, .*trainer\.learning_rate.* \(see `grpokit schema`\)", words)


def test_help_version_and_schema(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    done = call("--help")
    assert done.code == 0
    for command in ("train", "sample", "evaluate", "report", "plugins", "schema"):
        assert f"\n  {command} " in done.out
    commands = done.out[done.out.index("Commands:") :].splitlines()[1:]
    assert len(commands) == 20
    assert not any(line.endswith("...") for line in commands)  # no summary is cut
    assert call("--version").out == f"{grpokit.__version__}\n"
    monkeypatch.setattr("grpokit.registry.installed", lambda kind: [])  # whose modules take seconds to import
    assert {"seed", "policy", "data", "rewards", "trainer", "run"} <= set(json.loads(call("schema").out)["properties"])


def test_a_config_names_functions_in_files_beside_it(call: Call, tmp_path: Path) -> None:
    """Prompts too may come from a function, which is asked for both splits."""
    use = reward_file(
        tmp_path,
        "def score(samples, *, of='3'):\n    return [float(s.output.count(of)) for s in samples]\n\n\n"
        "def prompts(split, count):\n    return [str(i) for i in range(count if split == 'train' else 2)]\n\n\n"
        "def nothing(split):\n    return [] if split == 'train' else None\n",
    )
    module = use.partition(":")[0]
    config(
        tmp_path,
        trainer__steps=1,
        data={"use": f"{module}:prompts", "count": 3},
        eval={"samples": 3},
        rewards=[{"use": use, "of": "2"}],
    )
    assert call("train", "c.yaml").code == 0
    assert rows(tmp_path / "out/metrics.jsonl")[0]["rewards/score/mean"] >= 0
    assert len(rows(tmp_path / "out/samples/step_000000/samples.jsonl")) == 2 * 3
    done = call("train", "c.yaml", f"data={{use: '{module}:nothing'}}", "--overwrite")
    assert done.code == 2
    assert "nothing' gave no prompts for split 'train'" in done.err
    done = call("train", "c.yaml", "data.counts=3", "--overwrite")
    assert done.code == 2
    assert "has no parameter 'counts' (did you mean 'count'?)" in done.err
    assert (tmp_path / "out/metrics.jsonl").is_file()  # a mistake deletes nothing


@pytest.mark.parametrize("words", [("train", "--overwrite"), ("sample",), ("evaluate", "--limit", "1")], ids=str)
def test_a_presets_name_is_the_preset_whatever_lies_here(call: Call, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "toy-lm").mkdir()
    (tmp_path / "toy-lm" / "config.yaml").write_text("broken: [")
    done = call(words[0], "toy-lm", *words[1:], "trainer.steps=1", "trainer.group_size=2", "eval.every=0")
    assert done.code == 0, done.err
    assert (tmp_path / "toy-lm" / "config.yaml").read_text() == "broken: ["
    other = call(words[0], "./toy-lm", *words[1:])
    assert other.code == 2
    assert "toy-lm/config.yaml, line 1" in other.err


def test_a_warning_is_one_line_without_code(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    call("plugins")
    assert warnings.formatwarning("no pad\n token", UserWarning, "policy.py", 3) == "warning: no pad token\n"


@pytest.mark.slow
@pytest.mark.parametrize(("own", "least", "most"), [({}, 0.0, 0.15), ({"OMP_WAIT_POLICY": "active"}, 0.25, 1.5)])
def test_torchs_threads_spin_shortly_between_products(own: dict[str, str], least: float, most: float) -> None:
    """The processor time of a thread that waits, per second of the thread that works; a user's own choice stays."""
    code = """
import time
from grpokit import cli
try:
    cli.main()
except SystemExit:
    import torch
torch.set_num_threads(2)
x = torch.ones(2**17)
x + x
begin, spent = time.thread_time(), time.process_time()
while time.thread_time() < begin + 0.3:
    x + x
    pause = time.thread_time() + 0.003
    while time.thread_time() < pause:
        pass
worked = time.thread_time() - begin
print((time.process_time() - spent - worked) / worked)
"""
    given = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_", "KMP_"))} | own
    command = [sys.executable, "-c", code, "--version"]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
    assert least <= float(done.stdout.split()[-1]) < most
