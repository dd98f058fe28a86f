"""benchmarks/images.py on tiny models: equal work, what differs is found, the table by hand, and the whole script."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import Any

import images
import pytest
from images_job import equality, pages, worker
from images_job.job import CONTENDERS, Job, Part, job_of
from images_job.pages import Flow, Tokens
from lm_job.clock import Clock
from lm_job.rounds import Step, UnequalError

pytestmark = pytest.mark.filterwarnings("ignore")  # the stock classes' own, of old names for options
CLOCK = Clock(cuda=False)


def tiny(part: Part) -> Job:
    return job_of(part, tiny=True, threads=1)


@pytest.mark.parametrize("part", CONTENDERS)
def test_pages_have_the_logprobs_and_gradients_of_grpokit(part: Part) -> None:
    found = equality.check(tiny(part))
    assert found["problem"] == ""
    assert found["words"].count("log-probs") == (2 if part == "tokens" else 1)


def test_tokens_at_wrong_places_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Tokens.written

    def flat(page: Tokens, inputs: Any, tokens: Any) -> pages.Written:
        written = right(page, inputs, tokens)
        return dataclasses.replace(written, positions=written.positions[:1].expand(3, -1, -1))  # as if all were a line

    monkeypatch.setattr(Tokens, "written", flat)
    assert "grpokit and a page differ by more than" in equality.check(tiny("tokens"))["problem"]


def test_another_noise_level_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Flow.moments

    def louder(page: Flow, *args: Any) -> Any:
        mean, std = right(page, *args)
        return mean, 1.01 * std

    monkeypatch.setattr(Flow, "moments", louder)
    assert "grpokit and a page differ by more than" in equality.check(tiny("flow"))["problem"]


@pytest.mark.slow
@pytest.mark.parametrize(("part", "name"), [(part, name) for part, names in CONTENDERS.items() for name in names])
def test_each_contender_does_the_work_of_the_job(part: Part, name: str) -> None:
    job = tiny(part)
    done = worker.contender(name, job, CLOCK)(job.prompts, job.group)
    wanted = 2 * 2 * (16 * 16 + 2 * 2 if part == "tokens" else 10 if name.endswith("all steps") else 2)
    assert done == {"decisions": wanted, "pictures": 4}
    assert wanted == job.decisions(name)


def step(wall: dict[str, float], *, peak: float = 100.0, **did: float) -> Step:
    facts = {"pictures": 8.0, "decisions": 16.0, "updates": 1.0, "peak": peak} | did
    return Step(wall=wall, cpu={"draw": 2 * sum(wall.values())}, growth=0.0, tokens=0.0, facts=facts)


@pytest.mark.parametrize("did", [{"pictures": 7}, {"decisions": 80}, {"updates": 2}])
def test_other_work_stops_it(did: dict[str, float]) -> None:
    job = job_of("flow", tiny=False, threads=1)
    images.check_work(job, "loop, window", step({}))
    images.check_work(job, "loop, all steps", step({}, decisions=80))
    with pytest.raises(UnequalError, match=r"loop, window did .* the job has"):
        images.check_work(job, "loop, window", step({}, **did))


def test_ratios_are_those_of_each_round() -> None:
    # Rounds of 1, 10 and 4 seconds, in which the loop takes 3, 20 and 16: 3, 2 and 4 times as long.
    ours = [step({"draw": 0.5 * s, "train": 0.5 * s}, peak=s) for s in (1, 10, 4)]
    loop = [step({"draw": s - 1, "other": 1}) for s in (3, 20, 16)]
    machine = {"cpu": "A CPU", "cores": 2, "instructions": "AVX512"}
    text = images.markdown(job_of("flow", tiny=False, threads=2), machine, {"grpokit": ours, "loop": loop}, [], "equal")
    assert "A CPU, 2 of 2 cores, AVX512, fp32; torch " in text
    assert "3 rounds; `python benchmarks/images.py`.\n\nBefore: equal." in text
    assert text.splitlines()[-2:] == [
        "| grpokit | 1.00 | 1.00 | 10 | 0.50 | 0.00 | 0.00 | 0.50 | 0.00 |",
        "| loop | 3.00 (2.00 to 4.00) | 3.00 | 100 | 2.00 | 0.00 | 0.00 | 0.00 | 0.25 |",
    ]


def run(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["images.py", *options])
    images.main()


@pytest.mark.slow
@pytest.mark.parametrize("part", CONTENDERS)
def test_the_whole_script(part: Part, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(["--tiny", "--rounds", "1", "--threads", "1", "--part", part], monkeypatch)
    printed = capsys.readouterr().out
    assert f"## {part}\n" in printed
    assert "these figures say nothing" in printed
    rows = [line.split(" | ") for line in printed.splitlines() if line.startswith("| ")][2:]
    assert tuple(row[0].removeprefix("| ") for row in rows) == CONTENDERS[part]
    assert all(100 < float(row[3].replace(",", "")) < 4000 for row in rows)


def test_tables_have_their_places_in_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = Path(shutil.copy(images.PAGE, tmp_path))
    monkeypatch.setattr(images, "PAGE", page)
    monkeypatch.setattr(images, "check", lambda job: "equal")
    monkeypatch.setattr(images, "play", lambda job, rounds: ({}, {}))
    monkeypatch.setattr(images, "markdown", lambda job, *rest: f"| {job.part} {job.rows} |")
    run(["--write"], monkeypatch)
    for part, rows in (("tokens", 32), ("flow", 8)):
        assert f"<!-- images {part} -->\n| {part} {rows} |\n<!-- end of images {part} -->" in page.read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tiny", "--write"], "--write is for real figures; those of --tiny mean nothing"),
        (["--rounds", "0"], "--rounds and --threads must be at least 1, got 0 and 1"),
        (["--part", "speed"], "invalid choice: 'speed'"),
    ],
)
def test_bad_options_are_one_line(
    options: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(options, monkeypatch)
    assert words in capsys.readouterr().err.splitlines()[-1]
