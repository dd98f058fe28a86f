"""`grpokit sweep`: the runs of a grid and the table of them, also after a stop and beside a failing run."""

from __future__ import annotations

import math
import os
import re
import signal
import statistics
from pathlib import Path

import pytest

from command_line import Call, config, rows, steady
from grpokit.run_folder.journal import Journal
from grpokit.runs.sweep import settings_table
from grpokit.tracking.step_report import StepReport

SMALL = ("trainer.steps=2", "eval.every=0")
GRID = ("sweep", "c.yaml", *SMALL, "trainer.learning_rate=0.01,0.1", "seed=1..3", "--dir", "s")


def last_reward(run: Path) -> float:
    last: float = rows(run / "eval.jsonl")[-1]["means"]["reward"]
    return last


def test_a_sweep_its_page_and_more_seeds(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    config(tmp_path)
    done = call("sweep", "c.yaml", *SMALL, "trainer.learning_rate=0.01,0.1", "seed=1..2", "--dir", "s")
    assert (done.code, done.err) == (0, "")
    first = (tmp_path / "s/learning_rate-0.01_seed-1/metrics.jsonl").stat().st_mtime_ns
    killed_in_its_report = tmp_path / "s/learning_rate-0.01_seed-2/report.html"
    killed_in_its_report.unlink()
    done = call(*GRID)
    assert (done.code, done.out.count("is finished\n")) == (0, 3)
    assert killed_in_its_report.is_file()
    assert (tmp_path / "s/learning_rate-0.01_seed-1/metrics.jsonl").stat().st_mtime_ns == first

    assert call("train", "c.yaml", *SMALL, "trainer.learning_rate=0.1", "seed=3", "run.dir=alone").code == 0
    alone, swept = (steady(rows(tmp_path / f"{run}/metrics.jsonl")) for run in ("alone", "s/learning_rate-0.1_seed-3"))
    assert alone == swept

    scores = {
        rate: [
            rows(tmp_path / f"s/learning_rate-{rate}_seed-{seed}/eval.jsonl")[-1]["means"]["reward"]
            for seed in (1, 2, 3)
        ]
        for rate in ("0.01", "0.1")
    }

    def interval(values: list[float], sign: str = "") -> str:
        width = 4.3027 * statistics.stdev(values) / math.sqrt(3)
        return f"{statistics.mean(values):{sign}.3f} ± {width:.3f}"

    differences = [b - a for a, b in zip(scores["0.01"], scores["0.1"], strict=True)]
    page = (tmp_path / "s/sweep.md").read_text()
    low, high = (line for line in page.splitlines() if line.startswith("| trainer"))
    assert f"| trainer.learning_rate=0.01 | {interval(scores['0.01'])} |" in low
    assert f"| trainer.learning_rate=0.1  | {interval(scores['0.1'])} |" in high
    assert interval(differences, "+") in high
    assert "- [learning_rate-0.1_seed-3](learning_rate-0.1_seed-3/report.html): finished" in page
    assert high in done.out


@pytest.mark.slow
def test_a_sweep_that_was_stopped_goes_on_to_the_bit(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config(tmp_path)
    words = ("sweep", "c.yaml", "trainer.steps=4", "seed=1,2", "--dir")
    assert call(*words, "whole").code == 0
    with monkeypatch.context() as patch:
        write = Journal.step

        def stop_in_the_second_run(journal: Journal, report: StepReport) -> None:
            write(journal, report)
            if (journal.folder.name, report.step) == ("seed-2", 2):
                os.kill(os.getpid(), signal.SIGINT)

        patch.setattr(Journal, "step", stop_in_the_second_run)
        done = call(*words, "s")
    assert done.code == 130
    assert "Continue with:\n  grpokit sweep c.yaml trainer.steps=4 seed=1,2 --dir s\n" in done.out
    assert "(seed-2/report.html): stopped" in (tmp_path / "s/sweep.md").read_text()
    done = call(*words, "s")
    assert (done.code, done.out.count("is finished\n"), "resuming after step 2" in done.out) == (0, 1, True)
    for name in ("metrics.jsonl", "eval.jsonl"):
        whole, stopped = (steady(rows(tmp_path / folder / "seed-2" / name)) for folder in ("whole", "s"))
        assert whole == stopped


def test_a_failing_run_stops_no_other(call: Call, tmp_path: Path) -> None:
    config(tmp_path)
    (tmp_path / "fragile.py").write_text("def fails(samples): raise ValueError('no room')\n")
    rewards = "rewards=[{use: 'fragile:fails'}],[{use: 'tiny_policies:digit_sum'}]"
    done = call("sweep", "c.yaml", *SMALL, rewards, "seed=1,2", "--dir", "s")
    assert done.code == 1
    assert re.match(r"error: 2 runs of the sweep failed:\n  rewards-\S+_seed-1: Reward ", done.err)
    page = (tmp_path / "s/sweep.md").read_text()
    assert (page.count(": failed\n"), page.count(": finished\n")) == (2, 2)


def test_finished_runs_are_not_mixed_with_other_ones(call: Call, tmp_path: Path) -> None:
    config(tmp_path)
    assert call("sweep", "c.yaml", *SMALL, "seed=1,2", "--dir", "s").code == 0
    again = ("sweep", "c.yaml", *SMALL, "seed=1..3", "--dir", "s")
    prompts = (tmp_path / "prompts.jsonl").read_text()
    (tmp_path / "prompts.jsonl").write_text(prompts.replace('"4"', '"4", "target": "5"'))
    done = call(*again)
    assert (done.code, "training prompts: 1 of 4 prompts changed, first the target" in done.err) == (2, True)
    config(tmp_path, trainer__group_size=3)
    done = call(*again)
    assert (done.code, "s/seed-1 cannot be compared" in done.err, "group_size: 4 -> 3" in done.err) == (2, True, True)
    config(tmp_path)
    assert call(*again).code == 0


def test_what_a_sweep_refuses_before_it_trains(call: Call, tmp_path: Path) -> None:
    config(tmp_path)
    for words, message in (
        (("trainer.steps=1,0",), "trainer.steps"),
        (("trainer.stepz=1,2",), "did you mean 'steps'"),
        (("rewards=[{use: ocrr}],[{use: ocr}]",), "There is no reward called 'ocrr'"),
        (("rewards=[{use: length, minimum: 1}],[{use: length, least: 1}]",), "has no parameter 'least'"),
        (("trainer.objective=grpo,grpoo",), "There is no objective called 'grpoo'"),
        (("trainer.advantage=group,{use: gdpo, x: 1}",), "has no parameter 'x'"),
        (("policy.size=1,2",), "has no parameter 'size'"),
        (("data.prompts=prompts.jsonl,other.jsonl",), "other.jsonl does not exist"),
        (("eval.fraction=0.5,0.01", "eval.prompts=null"), "Holding out 0.01 of 4 prompts"),
        (("run.best=reward,digits",), "there is no held-out score 'digits'"),
        (("run.stop=null,{reward: reward, patience: 2}", "eval.every=0"), "set eval.every"),
        (("trackers.use=[tensorboard],[tensorbord]",), "tensorbord"),
        (("policy={use: toy-lm}", "rewards=[{use: format, pattern: a}],[{use: ssim}]"), "the policy 'toy-lm' makes"),
        (("seed=1,2", "run.dir=x"), "Use --dir"),
    ):
        done = call("sweep", "c.yaml", *words)
        assert (done.code, message in done.err) == (2, True), done.err
    assert not (tmp_path / "sweeps").exists()


def test_a_sweep_in_which_no_run_could_begin_says_why(call: Call, tmp_path: Path) -> None:
    config(tmp_path)
    done = call("sweep", "c.yaml", *SMALL, "rewards.1.minimum=4,5", "--dir", "s")
    assert done.code == 1
    assert "no text has at least 5" in done.err
    assert (tmp_path / "s/sweep.md").read_text().count(": failed\n") == 2


def test_differences_are_paired_by_seed() -> None:
    """Not by place: the settings share the seeds 2 and 3, and the gap is 1 in both."""
    page = settings_table({"a": {"reward": {"1": 1.0, "2": 5.0, "3": 9.0}}, "b": {"reward": {"3": 10.0, "2": 6.0}}})
    assert "+1.000 ± 0.000" in page.splitlines()[-1]


@pytest.mark.parametrize(
    ("values", "scores"), [("rewards.0.weight=1,2", ["digit_sum", "length"]), ("rewards.1.maximum=3,4", ["digit_sum"])]
)
def test_scores_on_two_scales_are_left_out(call: Call, tmp_path: Path, values: str, scores: list[str]) -> None:
    config(tmp_path)
    assert call("sweep", "c.yaml", *SMALL, values, "--dir", "s").code == 0
    header, *_ = (tmp_path / "s/sweep.md").read_text().splitlines()
    assert [cell.strip() for cell in header.split("|")[1:-2]] == ["setting", *scores, "digit_sum minus the first"]
