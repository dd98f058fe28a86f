"""benchmarks/lm.py on tiny jobs: the floor by hand, the clock, the rounds, the tables and bad options."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lm
import pytest
import torch
from lm_job import clock, floor, models, plain, rounds, tables
from lm_job.job import PHASES, Job
from lm_job.rounds import Entrant, FailedError, Result, Step, UnequalError

TINY = Job(
    hidden=16, layers=1, heads=2, vocab=64, prompts=2, prompt_tokens=3, group=2, new_tokens=4, micro=2, threads=1
)
SMALL = {"hidden": 4, "intermediate": 8, "layers": 2, "heads": 2, "kv_heads": 1, "vocab": 16}
BY_HAND = Job(**SMALL, prompts=2, prompt_tokens=2, group=2, new_tokens=3, micro=1)
LENGTHS = [3, 1, 2, 2]
# A layer has 16 + 8 + 8 + 16 + 3 * 32 = 144 weights, the output layer 64; a token's keys and values need 16 of them.
# Each prompt: its first token passes one layer, and gives keys and values in the second; its last token passes both.
# They look at 1 and 2 tokens in the first layer, and the last one at 2 in the second.
PROMPTS = 2 * (144 + 16 + 288) * 2
PROMPT_LOOKS = 2 * (1 + 2 + 2) * 16  # a look costs 16 FLOPs
# Of 8 drawn tokens, 4 are read. In each layer they look at 3 and 4 tokens (first row), and at 3 (third and fourth).
ANSWERS, LOOKS = 2 * 288 * 4 + 2 * 64 * 8, 2 * (3 + 4 + 3 + 3) * 16


def test_work_by_hand() -> None:
    # Two steps read tokens, three draw. The first group's prompt is read twice and the second's once, two columns
    # each time; the rows read and write 1 + 2, 0, 1 and 1 columns of their own. A column has 2 * 2 * 2 numbers.
    scoring = PROMPTS + PROMPT_LOOKS + ANSWERS + LOOKS
    weights, column = 4 * (288 + 64), 4 * 8
    assert {name: (part.flops, part.bytes) for name, part in floor.work(BY_HAND, LENGTHS).items()} == {
        "prefill": (PROMPTS + PROMPT_LOOKS, 4 * 288 + 4 * column),
        "decode": (ANSWERS + LOOKS, 4 * (2 * 288 + 3 * 64) + (2 * 2 + 1 * 2 + 5) * column),
        "reference": (scoring, 4 * weights),
        "train": (3 * scoring, 12 * weights),
        "optimizer": (0, 28 * (288 + 2 * 64 + 5 * 4)),
    }


def test_work_of_an_adapter_by_hand() -> None:
    # Of rank 1 it has 8 + 6 + 6 + 8 + 3 * 12 = 64 weights in a layer, 12 of them for keys and values, and 4 FLOPs per
    # weight and token. There are 8 tokens, and the prompts' first ones pass the second layer in part. The base has no
    # gradients of weights, but looks have those of both sides; the first layer passes none on.
    work = floor.work(Job(**{**vars(BY_HAND), "lora": 1}), LENGTHS)
    entering, products = 2 * 32 * 8, 4 * (64 * 14 + 12 * 2)
    assert work["train"].flops == 2 * (PROMPTS + ANSWERS) + 3 * (PROMPT_LOOKS + LOOKS) - entering + products
    assert work["train"].bytes == 8 * 4 * (288 + 64)
    assert work["optimizer"].bytes == 28 * 128


def test_the_floor_is_the_longer_of_both_times() -> None:
    peaks = {"flops": 1000.0, "8": 1000.0}
    assert floor.seconds(BY_HAND, LENGTHS, peaks) == pytest.approx(
        {"prefill": 1.952, "decode": 3.744, "reference": 5.696, "train": 17.088, "optimizer": 12.208}
    )


@pytest.mark.parametrize(("mib", "passes", "speed"), [(4, 1, 4), (64, 8, 4), (65, 3, 2), (32, 1, 2), (999, 1, 1)])
def test_bytes_take_the_time_of_the_memory_that_they_pass_over(mib: int, passes: int, speed: float) -> None:
    peaks = {"flops": 1.0, "8": 4.0, "16": 2.0, "32": 1.5, "64": 2.0, "128": 1.0}  # at 32 someone disturbed it
    assert floor.Work(flops=0, bytes=mib * 2**20, passes=passes).seconds(peaks) == mib * 2**20 / speed


@pytest.mark.slow
def test_peaks_are_measured_and_the_highest_count() -> None:
    measured = floor.measure(TINY)
    assert set(measured["wall"]) == set(measured["cpu"]) == {"flops", *map(str, floor.SPANS["cpu"])}
    assert all(1e8 < speed < 1e14 for peaks in measured.values() for speed in peaks.values())
    assert floor.best([{"flops": 1.0, "8": 5.0}, {"flops": 3.0, "8": 4.0}]) == {"flops": 3.0, "8": 5.0}


def test_log_normal_lengths_are_the_same_for_everyone() -> None:
    job = Job(ragged=True, prompts=64)
    lengths = job.lengths(0)
    assert lengths == job.lengths(0) != job.lengths(1)
    assert min(lengths) >= 1
    assert max(lengths) <= 256
    assert sorted(lengths)[len(lengths) // 2] == pytest.approx(64, rel=0.15)  # the median is a quarter
    assert Job().lengths(0) == [256] * 32


def test_rows_end_at_their_lengths() -> None:
    job = Job(**{**vars(TINY), "ragged": True})
    end = models.EndAt(job, [1, 2, 1, 2])
    assert (end(torch.zeros(4, 3), torch.zeros(4, 64)).argmax(1) == job.end).tolist() == [True, False, True, False]
    second = end(torch.zeros(4, 4), torch.zeros(4, 64))
    assert (second.argmax(1) == job.end).tolist() == [False, True, False, True]
    assert second[0, job.end] == -torch.inf


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The clock shows the only number in here."""
    now = [0.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(clock.time, "process_time", lambda: now[0] / 2)
    return now


def test_time_counts_to_the_innermost_phase(ticks: list[float]) -> None:
    watch = clock.Clock(cuda=False)

    class Model:
        def score(self) -> None:
            ticks[0] += 3

    model = Model()
    watch.watch(model, "score", lambda: "reference")
    model.score()  # before the step: not counted
    watch.start()
    ticks[0] += 1
    with watch("forward"):
        ticks[0] += 10
        model.score()
        ticks[0] += 20
    seconds = watch.stop()
    assert seconds["wall"] == {"other": 1, "forward": 30, "reference": 3}
    assert seconds["cpu"] == {"other": 0.5, "forward": 15, "reference": 1.5}


def test_plain_loss_by_hand() -> None:
    # Ratios 2 (clipped at 1.2) and 1, A = 1; KL of log(2): 2 - log 2 - 1; the second row's padding does not count.
    new = torch.tensor([[0.0, 0.0], [0.0, 9.0]])
    old = torch.tensor([[-1.0, -1.0], [0.0, 0.0]]) * math.log(2)
    reference = torch.tensor([[1.0, 1.0], [0.0, 0.0]]) * math.log(2)
    mask = torch.tensor([[True, True], [True, False]])
    value = plain.loss(new, old, reference, torch.tensor([1.0, -1.0]), mask, 0.5)
    assert float(value) == pytest.approx(0.5 * (2 - math.log(2) - 1) - 1.2 + 1, abs=1e-6)


def test_plain_advantages_by_hand() -> None:
    values = plain.advantages(torch.tensor([0.0, 1.0, 2.0, 3.0, 3.0, 3.0]), 3)
    assert values.tolist() == pytest.approx([-1 / 1.0001, 0, 1 / 1.0001, 0, 0, 0])


@pytest.mark.very_slow
def test_rounds_measure_every_phase_and_a_contender_may_fail(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no room left' >&2\nexit 1\n")
    broken.chmod(0o755)
    job = Job(**{**vars(TINY), "ragged": True})
    names = ["grpokit", "plain", "trl"]
    (played,) = rounds.play({"": job}, names, rounds=2, warmup=1, clock="wall", peers_python=broken).values()
    ours, by_hand, failed = played.entrants
    assert set(ours.phases()) == set(PHASES) - {"old"}
    assert set(by_hand.phases()) == set(PHASES)
    for one in (ours, by_hand):
        assert [taken.tokens for taken in one.steps] == [sum(job.lengths(number)) for number in (1, 2)]
        assert one.steps[0].facts["entropy"] == pytest.approx(math.log(64), abs=0.05)
        assert 0 < played.generate_floor < played.floor < one.seconds
        assert one.growth > 0
    assert failed.failure == "no room left"
    assert "did not finish: no room left" in tables.markdown({"": played})
    assert played.versions["torch"] == torch.__version__


def scripted(asked: list[list[str]]) -> Any:
    """A stand-in for processes: a token takes a second, or three while the job "long" runs.

    Args:
        asked: gets, for each request to a process, its name and job, and then those of all that are alive.
    """
    alive: list[str] = []

    class Worker(rounds.Worker):
        def ask(self, line: str = "") -> dict[str, Any]:
            if not line:
                return {"machine": {"cpu": "", "cores": 2, "instructions": "", "gpu": ""}, "versions": {}}
            asked.append([f"{self.name} {self.label}", *alive])
            if self.name == "peaks":
                speed = 2e3 if self.label == "short" else 1e3
                return {"peaks": {"wall": {"flops": speed, "8": 3e3 - speed}}}
            tokens = sum(self.job.lengths(len(self.steps)))
            seconds = {"generate": 3.0 * tokens if "a long" in alive else 1.0 * tokens}
            return {
                "wall": seconds,
                "cpu": {},
                "growth": 9.0,
                "tokens": tokens,
                "facts": {"entropy": 1.0, "distinct": 9},
            }

    @contextmanager
    def started(name: str, label: str, job: Job, python: Path, further: Any) -> Iterator[rounds.Worker]:
        alive.append(f"{name} {label}")
        yield Worker(name=name, label=label, job=job, process=None, log=python)  # type: ignore[arg-type]
        alive.remove(f"{name} {label}")

    return started


def test_a_process_that_dies_beside_a_later_job_has_done_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    started = scripted(asked)

    @contextmanager
    def mortal(name: str, label: str, job: Job, *given: Any) -> Iterator[rounds.Worker]:
        with started(name, label, job, *given) as worker:
            ask = worker.ask

            def until_the_fourth_step(line: str = "") -> dict[str, Any]:
                if len(worker.steps) == 4:
                    raise FailedError("out of memory")
                return ask(line)

            worker.ask = until_the_fourth_step  # type: ignore[method-assign]
            yield worker

    monkeypatch.setattr(rounds, "started", mortal)
    jobs = {"short": TINY, "long": Job(**{**vars(TINY), "new_tokens": 8})}
    results = rounds.play(jobs, ["a"], rounds=2, warmup=1, clock="wall", peers_python=Path())
    assert [(one.entrants[0].failure, len(one.entrants[0].steps)) for one in results.values()] == [("", 2), ("", 2)]
    assert results["long"].pace is None


def test_jobs_of_a_sweep_share_peaks_and_are_compared_within_the_same_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(rounds, "started", scripted(asked))
    jobs = {"short": TINY, "long": Job(**{**vars(TINY), "new_tokens": 8}), "last": TINY}
    results = rounds.play(jobs, ["a", "b"], rounds=2, warmup=1, clock="wall", peers_python=Path())
    assert [who for who, *_ in asked] == [
        *["peaks short", "a short", "b short"] * 3,
        *["peaks long", "a long", "b long", "a short"] * 3,
        *["peaks last", "a last", "b last", "a short"] * 3,
    ]
    assert max(len(alive) for _, *alive in asked) == 4  # of an earlier job only the first process stays
    assert {label: one.pace for label, one in results.items()} == {"short": 1.0, "long": 3.0, "last": 1.0}
    assert [cells(row)[1] for row in tables.markdown(results).splitlines()[4:]] == ["1.00", "1.00", "1.00"]
    for label, job in jobs.items():
        least = floor.seconds(job, job.lengths(1), {"flops": 2e3, "8": 2e3})  # each the highest of all rows
        assert results[label].floor == pytest.approx(sum(least.values()))
        assert results[label].floor_per_token == pytest.approx(sum(least.values()) / sum(job.lengths(1)))


def test_on_a_gpu_contenders_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(rounds, "started", scripted(asked))
    jobs = {label: Job(**{**vars(TINY), "device": "cuda"}) for label in ("short", "long")}
    results = rounds.play(jobs, ["a", "b"], rounds=1, warmup=1, clock="wall", peers_python=Path())
    alone = [f"{name} {label}" for label in jobs for name in ("peaks", "a", "b") for _ in range(2)]
    assert asked == [[who, who] for who in alone]
    assert [one.pace for one in results.values()] == [None, None]


def test_a_gpus_times_are_those_of_events_in_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = now[0]

        def elapsed_time(self, later: Event) -> float:
            return later.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    watch = clock.Clock(cuda=True)
    watch.start()
    with watch("generate"):
        now[0] = 2000.0  # milliseconds
    now[0] = 2500.0
    assert watch.stop()["wall"] == {"other": 0.5, "generate": 2.0}


def test_a_processs_gpu_is_the_first_that_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []

    class Process:
        def __init__(self, *_: Any, env: dict[str, str], **__: Any) -> None:
            started.append(env)

        def terminate(self) -> None:
            pass

        def communicate(self) -> None:
            pass

    monkeypatch.setattr(rounds.subprocess, "Popen", Process)
    for seen in (None, "3,1"):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if seen:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
        with rounds.started("plain", "", Job(device="cuda"), Path("python")):
            pass
    assert [env["CUDA_VISIBLE_DEVICES"] for env in started] == ["0", "3"]


def test_grpokit_has_the_plain_loops_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_job import equality

    assert "largest difference" in equality.check(TINY)["words"]
    right = plain.loss
    monkeypatch.setattr(plain, "loss", lambda *tensors: right(*tensors[:-1], 2 * tensors[-1]))
    assert "differ by more than" in equality.check(TINY)["problem"]


def step(seconds: float, *, growth: float = 100.0, tokens: float = 10.0, **facts: float) -> Step:
    wall = {"generate": seconds / 2, "forward": seconds / 2}
    return Step(wall=wall, cpu=wall, growth=growth, tokens=tokens, facts={"entropy": 4.0, "distinct": 100.0} | facts)


def entrant(name: str, *steps: Step, failure: str = "") -> Entrant:
    return Entrant(name=name, clock="wall", steps=steps, failure=failure)


def result(*entrants: Entrant, gpu: str = "", pace: float | None = None, floor_per_token: float = 0.1) -> Result:
    machine = {"cpu": "EPYC", "cores": 2, "instructions": "AVX2", "gpu": gpu}
    versions = {"torch": "2.13.0"}
    return Result(
        job=TINY,
        entrants=entrants,
        floor=1.0,
        generate_floor=0.5,
        floor_per_token=floor_per_token,
        pace=pace,
        machine=machine,
        versions=versions,
        rounds=3,
    )


OURS = entrant("grpokit", step(2.0), step(4.0, growth=120), step(3.0, growth=110))
THEIRS = entrant("trl", step(9.0, growth=330))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_table_of_contenders_holds_ratios_of_medians() -> None:
    words, _, _, _, *rows = tables.markdown({"": result(OURS, THEIRS)}).splitlines()
    assert words == "EPYC, 1 of 2 cores, AVX2, fp32; torch 2.13.0; medians of 3 rounds; wall-clock time."
    assert [cells(row)[:6] for row in rows] == [
        ["grpokit", "1.00", "1.00", "33%", "33%", "0.500"],
        ["trl", "3.00", "3.00", "11%", "11%", "1.500"],
    ]


def test_on_a_gpu_a_table_has_its_name_seconds_and_tokens_per_second() -> None:
    words, _, head, _, row = tables.markdown({"": result(THEIRS, gpu="H200")}).splitlines()
    assert words.startswith("H200; ")
    shown = dict(zip(cells(head), cells(row), strict=True))
    assert (shown["time, s"], shown["generate"], shown["new tokens/s"]) == ("9.00", "4.500", "1")
    assert shown["memory growth"] == "0.3 GiB"


def test_a_table_of_jobs_compares_with_the_first_job_and_the_others() -> None:
    longer = entrant("grpokit", step(12.0, tokens=20), step(12.0, tokens=20, growth=150))
    failed = entrant("trl", failure="out of memory")
    text = tables.markdown(
        {"short": result(OURS, THEIRS), "long": result(longer, failed, pace=0.2, floor_per_token=0.05)}
    )
    assert [cells(row) for row in text.splitlines()[4:]] == [
        ["short", "1.00", "1.00", "1.00", "1.10", "33%", "3.00", "3.00"],
        ["long", "3.00", "0.50", "1.14", "1.50", "8%", "did not finish", ""],
    ]


def test_a_table_replaces_what_stands_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- lm x -->\nold\n<!-- end of lm x -->\nb\n<!-- lm y -->\n<!-- end of lm y -->\n")
    for text in ("1", r"2 \1"):
        tables.write(page, "lm x", text)
    assert page.read_text() == (
        "a\n<!-- lm x -->\n2 \\1\n<!-- end of lm x -->\nb\n<!-- lm y -->\n<!-- end of lm y -->\n"
    )
    with pytest.raises(ValueError, match=r"page\.md lacks the lines '<!-- lm z -->'"):
        tables.write(page, "lm z", "3")


@pytest.mark.parametrize(
    ("table", "device"), [(table, device) for device in ("cpu", "cuda") for table in tables.wanted("all", device)]
)
def test_the_page_has_a_place_for_every_table(table: str, device: str, tmp_path: Path) -> None:
    copy = tmp_path / "benchmarks.md"
    copy.write_text(lm.PAGE.read_text())
    tables.write(copy, f"lm {table} {device}", "here")
    assert "here" in copy.read_text()


def test_jobs_of_the_tables() -> None:
    (prompts,) = tables.jobs("prompts", Job()).values()
    assert (prompts.prompt_tokens, prompts.new_tokens) == (256, 128)
    assert {label: job.micro for label, job in tables.jobs("micro", Job()).items()} == {
        "micro-batch 8": 8,
        "micro-batch 2": 2,
        "micro-batch 1": 1,
    }
    scaling = tables.jobs("scaling", Job())
    assert {job.group for job in scaling.values()} == {4, 8, 16, 32}
    assert {job.new_tokens for job in scaling.values()} == {128, 256, 512, 1024}
    assert {job.vocab for job in scaling.values()} == {4128, 8256, 16512, 33024}
    equal, ragged = list(scaling.values())[-2:]
    assert {**vars(equal), "ragged": True} == vars(ragged)
    mean, equal, ragged = tables.jobs("lengths", Job()).values()
    assert (ragged.rows, ragged.new_tokens, {**vars(equal), "ragged": True}) == (128, 1024, vars(ragged))
    drawn = [length for step in range(100) for length in ragged.lengths(step)]
    assert mean.new_tokens == pytest.approx(sum(drawn) / len(drawn), abs=0.5)
    assert set(tables.wanted("all", "cpu")) - set(tables.wanted("all", "cuda")) == {"avx2"}
    with pytest.raises(ValueError, match="about a CPU"):
        tables.wanted("avx2", "cuda")


@pytest.mark.slow
def test_processes_are_held_to_avx2() -> None:
    with rounds.started("check", "", Job(), Path(sys.executable), tables.AVX2) as worker:
        assert worker.ask()["machine"]["instructions"] in ("AVX2", "DEFAULT")


def test_other_work_than_the_jobs_is_refused() -> None:
    with pytest.raises(UnequalError, match=r"trl drew 10 new tokens in step 1; the job has 16\."):
        rounds._check_work(TINY, "trl", 0, step(1.0))
    alike = {"a": [step(1.0)], "b": [step(1.0, entropy=4.007, distinct=159.0)]}
    rounds._check_alike(alike)
    with pytest.raises(UnequalError, match=r"entropies differ by more than chance: a 4, b 4\.01, c 4\.009"):
        rounds._check_alike({**alike, "b": [step(1.0, entropy=4.01)], "c": [step(1.0, entropy=4.009)]})
    with pytest.raises(UnequalError, match=r"numbers of different tokens differ by more than chance: a 100, b 190\."):
        rounds._check_alike({"a": [step(1.0)], "b": [step(1.0, distinct=190.0)]})


def test_contenders_have_the_same_packages() -> None:
    both = {"torch": "2.13.0", "peft": "0.21.2", "trl": "1.16.0"}
    assert rounds._versions([{"torch": "2.13.0", "peft": "0.21.2"}, both | {"torch": "2.13.0+cpu"}]) == both
    with pytest.raises(UnequalError, match=r"have torch 2\.13\.0 and 2\.11\.0: run `lm\.py --prepare` again\."):
        rounds._versions([both, both | {"torch": "2.11.0"}])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--contenders grpokit,verl", "--contenders are some of grpokit, trl, trl-checkpointing, plain, each once"),
        ("--contenders plain,plain", "each once; got 'plain,plain'"),
        ("--contenders plain --micro 3", "--micro must divide --prompts x --group: 3 does not divide 32"),
        ("--contenders plain --group 1", "--group must be at least 2, got 1"),
        ("--contenders plain --hidden 30", "--heads must divide --hidden: 8 does not divide 30"),
        ("--contenders plain --kv-heads 3", "--kv-heads must divide --heads: 3 does not divide 8"),
        ("--contenders plain --rounds 0", "--rounds: must be a whole number of at least 1, got '0'"),
        ("--contenders trl --peers nowhere", "make it by `python benchmarks/lm.py --prepare`"),
        ("--contenders plain --device cuda", "--device cuda needs a GPU, and torch finds none"),
    ],
)
def test_bad_options(
    options: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delattr(lm, "play")  # nothing is to be measured
    monkeypatch.setattr(sys, "argv", ["lm.py", *options.split()])
    with pytest.raises(SystemExit) as end:
        lm.main()
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_prepare_does_not_touch_a_folder_of_other_things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    monkeypatch.setattr(sys, "argv", ["lm.py", "--prepare", "--peers", str(tmp_path)])
    with pytest.raises(SystemExit, match="holds something else than an environment"):
        lm.main()
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]


def test_a_difference_stops_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> str:
        raise FailedError("no such policy")

    monkeypatch.setattr(lm, "check", fails)
    monkeypatch.setattr(sys, "argv", ["lm.py", "--contenders", "grpokit"])
    with pytest.raises(SystemExit, match=r"lm\.py: no such policy"):
        lm.main()
