"""The report: what it says, that it stands alone, that it survives half-written runs, and how a browser takes it."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib.textpath import TextPath
from PIL import Image

from command_line import Call, Done
from grpokit import Prompt, RunError, Sample, UsageError, report
from grpokit.config import presets
from grpokit.evaluation.intervals import half_width, mean_of_totals, student_t
from grpokit.report.charts import Line, _chart, charts, figure, quiet
from grpokit.report.reading import read
from grpokit.report.scores import headline
from grpokit.runs import train as run
from grpokit.runs.journal import Journal, save_outputs

EVIL = "<script>alert(\"x\")</script> & \u2028 '$x$' {{ 7*7 }} </svg></style>"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def picture(shade: int, size: int = 8) -> Image.Image:
    """Stripes with some grain, so that a large one is not a small file."""
    grain = np.random.default_rng(shade).integers(0, 24, (size, size, 3))
    return Image.fromarray((grain + shade + np.arange(size)[:, None, None] * 96 // size).clip(0, 255).astype(np.uint8))


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def make_run(
    folder: Path,
    *,
    steps: int = 4,
    every: int = 2,
    name: str = "nice",
    prompt: str = "a prompt",
    side: int = 8,
    gain: float = 0.1,
    text: str | None = None,
    weight: float = 0.5,
    spread: float = 0.3,
) -> Path:
    """A run folder as training writes it, of 20 held-out prompts; each evaluation adds `gain` to every score."""
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0)
    rewards = [{"use": "x", "name": name, "weight": weight}, {"use": "length", "weight": 1.0}]
    settings = {"rewards": rewards, "trainer": {"steps": steps}, "run": {"dir": str(folder)}}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, allow_unicode=True), encoding="utf-8")
    (folder / "versions.json").write_text(json.dumps({"grpokit": "0.1.0", "plugins": {"x": name}}))
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            level, noisy = step / steps, float(noise.normal(0, 0.1))
            row: dict[str, Any] = {"step": step, "reward": level + noisy, f"rewards/{name}/mean": level - noisy}
            row |= {"rewards/length/mean": 0.5 + noisy, "reward_std": 0.1, "frac_reward_zero_std": 0.25, "kl": level}
            row |= {"entropy": 2 - level, "clip_ratio/low_mean": 0.1, "clip_ratio/high_mean": abs(noisy)}
            row |= {"grad_norm": 1 + noisy, "step_time": 1.5, "time/rollout": 1.0, "time/reward": 0.5}
            file.write(json.dumps({**row, "memory/peak_mb": 500 + step}) + "\n")
    noise = np.random.default_rng(1)
    first = noise.uniform(0, spread, 20)
    evaluations = []
    for i, step in enumerate(range(0, steps + 1, every)):
        scores = first + gain * i + noise.normal(0, 0.001, 20)
        both = {"reward": weight * scores + 0.5, name: scores, "length": np.full(20, 0.5)}
        row = {"step": step}
        for key, column in both.items():
            row |= {key: float(column.mean()), f"{key}/ci95": half_width(column.tolist(), range(20))}
        evaluations.append(row)
        place = folder / "samples" / f"step_{step:06d}"
        place.mkdir(parents=True)
        columns = {key: column.tolist() for key, column in both.items()}
        kept = {"prompts": "0" * 64, "prompt": list(range(20)), "scores": columns}
        (place / "scores.json").write_text(json.dumps(kept))
        rows = []
        for n in range(16):
            mine = {"prompt": f"{prompt} {n}", "target_text": prompt}
            if text is None:
                mine["file"] = f"{n:04d}.png"
                picture(8 * n, side).save(place / mine["file"])
            else:
                mine["output"] = text
            scored = {name: float(scores[n]), "length": 0.5}
            rows.append({**mine, "scores": scored, "reward": float(both["reward"][n])})
        write_rows(place / "samples.jsonl", rows)
    write_rows(folder / "eval.jsonl", evaluations)
    for step in sorted({1, *range(every, steps + 1, every)}):
        place = folder / "groups" / f"step_{step:06d}"
        place.mkdir(parents=True)
        rows = []
        for n in range(8):
            picture(10 * n, side).save(place / f"{n:04d}.png")
            mine = {"place": "best" if n < 4 else "worst", "group": n // 4, "prompt": prompt, "file": f"{n:04d}.png"}
            scored = {name: 1 - n / 8, "length": None}
            rows.append({**mine, "scores": scored, "reward": 1 - n / 8, "advantage": 1.5 - n % 4})
        write_rows(place / "samples.jsonl", rows)
    return folder


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def shown(page: str) -> str:
    """The words of a page, without its tags."""
    return " ".join(html.unescape(re.sub(r"<style>.*?</style>|<svg.*?</svg>|<[^>]*>", " ", page, flags=re.S)).split())


def text_of(path: Path) -> str:
    return shown(path.read_text(encoding="utf-8"))


# --- intervals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (3, 3.1824), (5, 2.5706), (7, 2.3646), (15, 2.1314), (30, 2.0423), (9999, 1.96)],
)
def test_student_t_is_the_printed_table(freedom: int, quantile: float) -> None:
    assert student_t(freedom) == pytest.approx(quantile, abs=4e-4)


def test_samples_of_one_prompt_are_one_observation() -> None:
    """Means 1, 2, 6 of three prompts: std sqrt(7), so 4.3027 * sqrt(7) / sqrt(3), however often each was drawn."""
    expected = 4.3027 * math.sqrt(7 / 3)
    assert half_width([1, 2, 6], [0, 1, 2]) == pytest.approx(expected)
    assert half_width([1, 1, 2, 2, 6, 6], [5, 5, 3, 3, 9, 9]) == pytest.approx(expected)
    assert half_width([0, 2, 1, 3, 7, 5], [0, 0, 1, 1, 2, 2]) == pytest.approx(expected)
    assert half_width([1, 2, 6, math.nan], [0, 1, 2, 3]) == pytest.approx(expected)
    assert math.isnan(half_width([1, 2, 3], [0, 0, 0]))


def test_what_is_missing_widens_the_interval_of_a_sum() -> None:
    """By hand: means 3 and 10; influences (x - 3) / 3 and (y - 10) / 2 over prompts 0 to 2, of which y has two."""
    x, y, nan = [1.0, 2.0, 6.0], [9.0, math.nan, 11.0], math.nan
    assert mean_of_totals([x, y], [1.0, 0.5], [0, 1, 2]).value == pytest.approx(3 + 0.5 * 10)
    influence = [-2 / 3 - 0.25, -1 / 3, 1 + 0.25]
    expected = 12.7062 * math.sqrt(2 / 1 * math.fsum(v**2 for v in influence))  # two prompts, so t of 1
    assert mean_of_totals([x, y], [1.0, 0.5], [0, 1, 2]).half_width == pytest.approx(expected)
    alone = half_width(x, [0, 1, 2])
    assert mean_of_totals([x, y], [1.0, 0.0], [0, 1, 2]).half_width == alone  # a monitor takes no part
    assert mean_of_totals([x, [nan] * 3], [1.0, 1.0], [0, 1, 2]).half_width == alone
    assert math.isnan(mean_of_totals([x, [nan, nan, 1.0]], [1.0, 1.0], [0, 1, 2]).half_width)
    assert math.isnan(mean_of_totals([[nan], [1.0]], [1.0, 0.0], [0]).value)


def test_intervals_hold_the_truth_where_scores_are_missing_by_prompt() -> None:
    """1,000 made-up evaluations of 40 prompts whose true sum is 0; one reward scores half of the prompts alone."""
    rng = np.random.default_rng(0)
    prompt = np.repeat(np.arange(40), 2)
    inside = filled_inside = 0
    for _ in range(1000):
        of_prompt = rng.normal(size=(40, 2))
        x, y = (of_prompt[prompt] + 0.7 * rng.normal(size=(80, 2))).T
        total = x + y
        y = np.where((rng.random(40) < 0.5)[prompt], np.nan, y)
        columns = x.tolist(), y.tolist()
        mean = mean_of_totals(columns, (1, 1), prompt.tolist())
        inside += abs(mean.value) <= mean.half_width
        filled_inside += abs(mean.value) <= half_width((x + np.where(np.isnan(y), np.nanmean(y), y)).tolist(), prompt)
        whole = mean_of_totals((x.tolist(), (total - x).tolist()), (1, 1), prompt.tolist()).half_width
        assert whole == pytest.approx(half_width(total.tolist(), prompt.tolist()), rel=1e-12)
    assert 0.935 < inside / 1000 < 0.975
    assert filled_inside / 1000 < 0.88  # what filling gaps with means would give


# --- headline ------------------------------------------------------------------------------------------------------


def test_the_change_is_paired(tmp_path: Path) -> None:
    """Every sample gains 0.05 where the samples differ by far more: only the pairs show it."""
    folder = make_run(tmp_path / "run", gain=0.025)
    _, nice, length = headline(read(folder))
    assert nice.paired
    assert nice.change == pytest.approx(0.05, abs=0.001)
    assert nice.width < 0.001 < 0.03 < nice.before_width
    assert (nice.verdict, length.verdict, length.change) == ("better", "even", 0)
    page = text_of(report.write(folder))
    assert "▲ +0.050 ±" in page
    assert "better" in page
    assert "the interval of the change is of paired differences" in page
    for place in folder.glob("samples/*/scores.json"):
        place.unlink()
    _, nice, _ = headline(read(folder))
    assert (nice.paired, nice.verdict) == (False, "even")
    assert nice.width == pytest.approx(nice.before_width + nice.after_width)
    assert "cannot be paired" in text_of(report.write(folder))


def test_the_paired_change_of_the_sum_is_made_of_its_parts(tmp_path: Path) -> None:
    """A reward that scored 10 of 20 prompts: the sum's change is 0.5 of its change, its interval that of 10 pairs."""
    folder = make_run(tmp_path / "run", gain=0.025)
    for place in folder.glob("samples/*/scores.json"):
        kept = json.loads(place.read_text())
        kept["scores"]["nice"][10:] = [None] * 10
        mean = math.fsum(kept["scores"]["nice"][:10]) / 10
        kept["scores"]["reward"][10:] = [0.5 * mean + 0.5] * 10  # as evaluations fill it
        place.write_text(json.dumps(kept))
    reward, nice, length = headline(read(folder))
    assert length.change == length.width == 0
    assert reward.change == pytest.approx(0.5 * nice.change)
    assert reward.width == pytest.approx(0.5 * nice.width)


@pytest.mark.parametrize(("weight", "verdict"), [(0.5, "better"), (-0.5, "worse")])
def test_what_is_better_follows_the_weight(tmp_path: Path, weight: float, verdict: str) -> None:
    reward, nice, _ = headline(read(make_run(tmp_path / "run", weight=weight)))
    assert (nice.verdict, reward.verdict) == (verdict, verdict)


def test_a_monitor_is_marked_and_one_trained_reward_needs_no_sum(tmp_path: Path) -> None:
    found = headline(read(make_run(tmp_path / "run", weight=0)))
    assert [(c.name, c.monitor, c.verdict) for c in found] == [("nice", True, "better"), ("length", False, "even")]


def test_weights_go_by_name_where_a_forced_resume_added_a_reward(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", weight=0)
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    settings["rewards"].insert(0, {"use": "my_rewards:late", "weight": 2.0})
    settings["rewards"].append({"use": "length", "weight": 3.0})
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    last = json.loads(rows[-1]) | {"rewards/late/mean": 1.0, "rewards/length-2/mean": 1.0}
    (folder / "metrics.jsonl").write_text("\n".join([*rows[:-1], json.dumps(last)]) + "\n")
    found = read(folder).weights
    assert found == {"reward": 1.0, "nice": 0, "length": 1.0, "late": 2.0, "length-2": 3.0}


def test_other_held_out_prompts_are_not_paired(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    path = folder / "samples/step_000004/scores.json"
    path.write_text(path.read_text().replace("0" * 64, "1" * 64))
    assert [c.paired for c in headline(read(folder))] == [False] * 3


# --- the page ------------------------------------------------------------------------------------------------------


def test_warnings_are_shown_once_with_their_steps(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    rows = [{"step": s, "message": "Too quiet."} for s in (2, 3, 4, 9)] + [{"step": 0, "message": EVIL}]
    write_rows(folder / "warnings.jsonl", rows)
    page = report.write(folder).read_text()
    assert "2 warnings Too quiet. steps 2-4, 9 <script>" in shown(page).replace("  ", " ")
    assert "before the first step" in page
    assert "<script" not in page
    write_rows(folder / "warnings.jsonl", [{"step": 1, "message": f"Warning {i}."} for i in range(6)])
    assert "<summary>6 warnings</summary>" in report.write(folder).read_text()


def test_groups_pairs_and_grid(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=40, every=4)
    page = text_of(report.write(folder))
    assert "Best: a prompt mean reward 0.812" in page  # (1 + 7/8 + 6/8 + 5/8) / 4
    assert "Worst: a prompt mean reward 0.312" in page
    assert "nice 0.62 length – reward 0.62 advantage -1.50" in page
    assert [s for s in range(0, 41, 4) if f"step {s} nice" in page] == [0, 8, 12, 20, 28, 32, 40]  # seven of eleven
    assert "16 gained, 0 lost and 0 did not change" in page
    assert re.search(r"nice 0\.\d\d → 1\.\d\d \(\+1\.0\d\)", page)


def test_improvements_and_regressions_are_both_there(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    path = folder / "samples/step_000004/samples.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for n, change in ((3, -5.0), (7, -2.0), (11, 9.0)):
        rows[n] |= {"reward": rows[n]["reward"] + change}
    write_rows(path, rows)
    page = text_of(report.write(folder))
    gained = page[page.index("Gained most") : page.index("Lost most")]
    lost = page[page.index("Lost most") : page.rindex("Best and worst groups")]
    assert re.findall(r"a prompt (\d+) step", gained)[0] == "11"
    assert re.findall(r"a prompt (\d+) step", lost) == ["3", "7"]


def test_the_same_prompt_is_found_whatever_its_row(tmp_path: Path) -> None:
    """After a resume with other eval settings, rows of two evaluations need not stand in the same place."""
    folder = make_run(tmp_path / "run")
    path = folder / "samples/step_000004/samples.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    write_rows(path, rows[::-1][:10])
    page = text_of(report.write(folder))
    assert "Of 10 held-out samples that were kept, 10 gained" in page
    assert "none kept" in page


def test_a_run_that_is_still_going_says_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(rows[:3]) + '\n{"step": 4, "rew')
    page = text_of(report.write(folder))
    assert "3 steps of 4 planned" in page
    assert "damaged lines" not in page  # a torn last line is ordinary


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("metrics.jsonl", "{"),
        ("metrics.jsonl", "\0\0\0"),
        ("metrics.jsonl", "7"),
        ("eval.jsonl", '{"reward": 1}'),
        ("warnings.jsonl", "}"),
    ],
)
def test_a_damaged_line_is_reported_and_the_rest_is_read(tmp_path: Path, name: str, bad: str) -> None:
    folder = make_run(tmp_path / "run")
    write_rows(folder / "warnings.jsonl", [{"step": s, "message": "Hm."} for s in (1, 2, 3)])
    lines = (folder / name).read_text().splitlines()
    (folder / name).write_text("\n".join([lines[0], bad, *lines[2:]]) + "\n")
    page = text_of(report.write(folder))
    assert f"{name} has damaged lines, which are left out here: 2." in page
    assert "4 steps" in page
    journal = Journal(folder, 3)  # a resume keeps the good rows
    assert journal.last_evaluation == (0 if name == "eval.jsonl" else 2)
    kept, bad_lines = report.read_journal(folder / name)
    assert bad_lines == []
    assert [row["step"] for row in kept][:2] == ([0] if name == "eval.jsonl" else [1, 3])
    lacking = ["metrics.jsonl lacks the rows of some steps: 2"] if name == "metrics.jsonl" else []
    assert journal.damage == [f"{name} had damaged lines, which the resume left out: 2", *lacking]


def test_any_half_written_file(tmp_path: Path) -> None:
    """Files cut anywhere, pictures cut or missing: always a page, and nothing but whole pictures on it."""
    whole = make_run(tmp_path / "whole", side=96, name="näme")
    paths = [p for p in whole.rglob("*") if p.is_file() and p.suffix in (".jsonl", ".json", ".png")]
    draw = np.random.default_rng(1)
    for attempt in range(4):
        folder = tmp_path / f"cut-{attempt}"
        shutil.copytree(whole, folder)
        for path in (folder / p.relative_to(whole) for p in draw.choice(np.array(paths, dtype=object), 30)):
            if draw.random() < 0.3:
                path.unlink(missing_ok=True)
            elif path.is_file():
                path.write_bytes(path.read_bytes()[: int(draw.integers(0, path.stat().st_size))])
        page = report.write(folder).read_text()
        assert 'src=""' not in page
        assert "picture missing" in page


def test_it_is_written_at_once_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "run")
    before = report.write(folder).read_bytes()
    assert report.write(folder).read_bytes() == before  # the same run, the same page

    def full(self: Path, *args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(RunError, match=r"report\.html cannot be written: .*No space left"):
            report.write(folder)
    assert (folder / "report.html").read_bytes() == before
    assert not list(folder.glob(".*"))


def test_long_texts_are_cut(tmp_path: Path) -> None:
    page = text_of(report.write(make_run(tmp_path / "run", text="\ud83d " + "word " * 2000)))
    assert "\\ud83d word" in page  # half a character, which no page can hold
    assert "… and 8802 more characters" in page


def test_everything_from_data_is_escaped(tmp_path: Path) -> None:
    folders = [
        make_run(tmp_path / n, name=f"<b>{EVIL}", prompt=EVIL, text=EVIL, gain=g) for n, g in (("a", 0), ("b", 1))
    ]
    for page in (report.write(folders[0]).read_text(), report.compare(*folders).read_text()):
        assert "<script" not in page
        assert "<b>" + EVIL[:4] not in page
        assert page.count("</svg>") == page.count("<svg") >= 10
        assert page.count("</style>") == 1 + page.count("<svg")  # matplotlib's own
        assert "&lt;script&gt;alert(" in page
        assert "{{ 7*7 }}" in page


def test_a_long_run_gives_a_small_page_quickly(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=1000, every=100, side=256)
    on_disk = sum(p.stat().st_size for p in folder.rglob("*.png"))
    start = time.perf_counter()
    path = report.write(folder)
    seconds = time.perf_counter() - start
    size = path.stat().st_size
    print(f"{size / 2**20:.2f} MiB from {on_disk / 2**20:.0f} MiB of pictures in {seconds:.2f} s")
    assert on_disk > 20 * 2**20
    assert 2**19 < size < 5 * 2**20
    assert seconds < 9
    assert "bold: mean of 20 steps" in text_of(path)


# --- charts --------------------------------------------------------------------------------------------------------

MONITORS = ("ssim", "aesthetic (monitor)", "clip-score (monitor)", "structure (monitor)")
LONG = ("the-agreement-of-the-picture-with-" + "very-" * 12 + "long prompts", "W" * 70, *(f"r{i}" for i in range(9)))


def texts_of(svg: str) -> list[tuple[str, float, float, float]]:
    """(text, left end, right end, place from the top) of a chart's texts, by the font that it was laid out with."""
    texts = []
    for style, text in re.findall(r"<text ([^>]*)>(.*?)</text>", svg):
        size, (x, y) = re.findall(r"font-size: (\d+)px", style)[0], re.findall(r"([-\d.]+) ([-\d.]+)\)", style)[0]
        width = TextPath((0, 0), html.unescape(text), size=float(size)).get_extents().width
        left = float(x) - width * (1 if "anchor: end" in style else 0.5 if "anchor: middle" in style else 0)
        texts.append((html.unescape(text), left, left + width, float(y)))
    return texts


@pytest.mark.parametrize("names", [("low", "high"), MONITORS, MONITORS[:3], LONG], ids=len)
def test_the_names_of_lines_are_whole(names: tuple[str, ...]) -> None:
    lines = [Line(name=name, steps=[1, 2], values=[0, i], colour=i, dash=i) for i, name in enumerate(names)]
    svg = _chart("Entropy", "nats", lines)["svg"]
    width, height = map(float, re.findall(r'viewBox="0 0 (\S+) (\S+)"', svg)[0])
    texts = texts_of(svg)
    said = "".join(text for text, *_ in texts)
    assert all(re.sub(r"\s", "", name) in re.sub(r"\s", "", said) for name in names)
    assert all(left >= 0 and right <= width and 0 < y < height for _, left, right, y in texts)
    assert (height > 2.7 * 72) == (names is LONG)  # it grows only with many rows of names


@pytest.mark.parametrize("level", [0.0129, 413.0, -2.0, 0.0])
def test_rounding_is_no_spread(level: float) -> None:
    values = [level, level + 1e-15 * max(level, 1), level]
    svg = _chart("Spread inside groups", "std", [Line(name="std", steps=[1, 2, 3], values=values)])["svg"]
    ticks = [text.replace("\N{MINUS SIGN}", "-") for text, *_ in texts_of(svg)]
    assert all(len(tick) < 8 and "e" not in tick for tick in ticks)
    heights = sorted(float(tick) for tick in ticks if tick not in ("1", "2", "3"))
    assert heights[0] < level < heights[-1]


def test_equal_lines_are_all_seen() -> None:
    lines = [Line(name=f"{i}", steps=[1, 2], values=[0, 0], colour=i, dash=i) for i in range(3)]
    svg = _chart("Clipped decisions", "share", lines)["svg"]
    drawn = [re.search(rf"stroke: var\(--line-{i}\); stroke-width: (\S+?)[;\"]", svg) for i in range(3)]
    widths = [float(found[1]) for found in drawn if found]
    assert len(widths) == 3
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > widths[1] > widths[2]


MANY = ("the-agreement-of-the-picture-with-" + "very-" * 12 + "long prompts", "W" * 70, "日本語の報酬", *LONG[2:])


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A run of 14 lines: the weighted sum and 13 rewards."""
    folder = make_run(tmp_path / "run")
    for name in ("metrics.jsonl", "eval.jsonl"):
        rows = read_rows(folder / name)
        more = {key: i / 20 for i, one in enumerate(MANY[:11]) for key in (one, f"rewards/{one}/mean")}
        write_rows(folder / name, [{**row, **more} for row in rows])
    return folder


def test_no_two_of_many_lines_look_alike(many: Path) -> None:
    """By colour and dashes; these are as long as the line is wide."""
    svg = charts([read(many)])[0]["svg"]
    styles = re.findall(r"(?:dasharray: ([^;]*);[^\"]*?)?stroke: var\(--line-(\d)\); stroke-width: ([\d.]+)", svg)
    looks = {
        (colour, *(round(float(dash) / float(width), 1) for dash in dashes.split(",") if dash))
        for dashes, colour, width in styles
        if float(width) >= 1.6  # no marker
    }
    assert len(looks) == 14, looks


@pytest.mark.parametrize("pictures", [True, False])
def test_the_names_in_the_picture_of_a_run_are_beside_its_curves(many: Path, *, pictures: bool) -> None:
    if not pictures:
        shutil.rmtree(many / "samples")
    drawn = figure(many)
    area = drawn.subfigs[0] if pictures else drawn
    with quiet():
        drawn.canvas.draw()
    axes, legend = drawn.axes[0].get_tightbbox(), area.legends[0].get_window_extent()
    assert area.bbox.x0 <= legend.x0 < legend.x1 <= area.bbox.x1
    assert 0 <= legend.y0 < legend.y1 <= axes.y0
    assert axes.height > 150  # of 320


def test_names_in_a_script_that_the_font_lacks_are_no_warnings(many: Path) -> None:
    """Warnings are errors in this suite; a browser has fonts for them."""
    report.write(many)
    report.compare(many, shutil.copytree(many, many.with_name("other")))
    assert "日本語の報酬" in (many / "report.html").read_text(encoding="utf-8")


# --- real runs -----------------------------------------------------------------------------------------------------

SMALL = ["trainer.prompts_per_step=3", "trainer.group_size=4", "trainer.minibatches=1", "run.eval_samples=2"]


def train(folder: Path, *overrides: str, resume: bool = False, preset: str = "toy-flow") -> Path:
    config, _ = presets.read_config(preset, [*SMALL, f"run.dir={folder}", *overrides])
    run.train(config, resume=resume)
    return folder


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flow") / "flow"
    return train(folder, "trainer.steps=5", "run.eval_every=2", "run.save_every=1")


def test_best_and_worst_groups_are_kept(flow: Path) -> None:
    assert sorted(p.name for p in (flow / "groups").iterdir()) == [f"step_00000{n}" for n in (1, 2, 4, 5)]
    metrics = read_rows(flow / "metrics.jsonl")
    for place in (flow / "groups").iterdir():
        rows = read_rows(place / "samples.jsonl")
        means = {side: sum(row["reward"] for row in rows if row["place"] == side) / 4 for side in ("best", "worst")}
        assert [row["place"] for row in rows] == ["best"] * 4 + ["worst"] * 4
        assert len({row["group"] for row in rows}) == len({row["prompt"] for row in rows}) == 2
        assert means["best"] >= metrics[int(place.name[-1]) - 1]["reward"] >= means["worst"]
        for row in rows:
            assert row["scores"] == {"ring": row["reward"]}
            with Image.open(place / row["file"]) as shown_point:
                assert shown_point.size == (96, 96)
        for side in ("best", "worst"):
            assert sum(row["advantage"] for row in rows if row["place"] == side) == pytest.approx(0, abs=1e-4)


def test_one_group_has_no_worst(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", "trainer.steps=1", "trainer.prompts_per_step=1", "run.eval_every=0")
    rows = read_rows(folder / "groups/step_000001/samples.jsonl")
    assert [row["place"] for row in rows] == ["best"] * 4


def test_every_prompt_is_shown_before_any_twice(flow: Path) -> None:
    """16 held-out prompts with two samples each; 16 are kept, and the scores of all 32."""
    rows = read_rows(flow / "samples/step_000000/samples.jsonl")
    assert len({row["prompt"] for row in rows}) == len(rows) == 16
    scored = json.loads((flow / "samples/step_000004/scores.json").read_text())
    assert scored["prompt"] == [i for i in range(16) for _ in range(2)]
    evaluation = read_rows(flow / "eval.jsonl")[2]
    assert sum(scored["scores"]["ring"]) / 32 == pytest.approx(evaluation["ring"])
    assert half_width(scored["scores"]["ring"], scored["prompt"]) == pytest.approx(evaluation["ring/ci95"])


def test_a_resume_cuts_samples_and_groups_beyond_the_checkpoint(flow: Path, tmp_path: Path) -> None:
    folder = tmp_path / "again"
    shutil.copytree(flow, folder)
    for step in (4, 5):
        shutil.rmtree(folder / f"checkpoints/step_00000{step}")
    Journal(folder, 3)
    assert sorted(p.name for p in folder.glob("groups/*")) == ["step_000001", "step_000002"]
    assert sorted(p.name for p in folder.glob("samples/*")) == ["step_000000", "step_000002"]
    train(folder, "trainer.steps=5", "run.eval_every=2", "run.save_every=1", resume=True)
    for path in sorted((flow / "groups").rglob("*.*")):
        assert path.read_bytes() == (folder / path.relative_to(flow)).read_bytes(), path.name


def test_what_can_draw_itself_is_shown_as_a_picture(tmp_path: Path) -> None:
    class Patch:
        def _repr_png_(self) -> bytes:
            picture(40).save(tmp_path / "patch.png")
            return (tmp_path / "patch.png").read_bytes()

        def __repr__(self) -> str:
            return "a patch"

    prompt, outputs = Prompt(text="p", image=picture(1), target=picture(2)), (Patch(), (1, 2), "half \ud83d")
    save_outputs(tmp_path / "out", [Sample(prompt=prompt, output=x, group=0) for x in outputs])
    patch, pair, text = read_rows(tmp_path / "out/samples.jsonl")
    assert (patch["output"], pair["output"], text["output"]) == ("a patch", "(1, 2)", "half \ud83d")
    assert (tmp_path / "out" / patch["file"]).read_bytes() == (tmp_path / "patch.png").read_bytes()
    assert "file" not in pair
    with Image.open(tmp_path / "out" / pair["source"]) as source:
        assert source.tobytes() == picture(1).tobytes()


# --- two runs ------------------------------------------------------------------------------------------------------


def test_a_comparison(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a", gain=0.1), make_run(tmp_path / "b", gain=0.2, steps=6)
    assert report.compare(a, b) == b / "compare.html"
    page = (b / "compare.html").read_text()
    words = shown(page)
    assert re.search(r"nice A [^B]* B [^B]* B − A ▲ \+0\.(399|40\d) ± 0\.00", words)  # 3 x 0.2 against 2 x 0.1
    assert "B is better" in words
    assert "trainer.steps 4 6" in words
    assert "run.dir" not in words
    assert "The versions are the same." in words
    assert "A, step 4" in words
    assert "B, step 6" in words
    assert page.count("<svg") == 10
    assert "B: nice" in page


def test_a_comparison_of_runs_that_share_little(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", text="x")
    b = make_run(tmp_path / "b", text="y", name="other", prompt="else")
    (b / "versions.json").write_text('{"grpokit": "0.2.0"}')
    words = text_of(report.compare(a, b))
    assert "their weighted sums are not compared" in words
    assert "grpokit 0.1.0 0.2.0" in words
    assert "The same prompts" not in words
    assert "rewards.0.name nice other" in words
    (a / "eval.jsonl").unlink()
    assert "At least one of the runs has no evaluation" in text_of(report.compare(a, b))


def test_the_command(tmp_path: Path, call: Call) -> None:
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    assert call("report", "a", "b") == Done(0, "comparison: b/compare.html\n", "")
    for words, error in (
        (("a", a), f"a and {a} are the same run folder; a comparison needs two runs."),
        (("a", "c"), "c is not a run folder: it has no config.yaml."),
        ((a, b, "c"), "Give one run folder for its report, or two to compare; got 3."),
    ):
        assert call("report", *words) == Done(2, "", f"error: {error}\n")
    with pytest.raises(UsageError, match="is not a run folder"):
        report.compare(tmp_path, b)


# --- in a browser --------------------------------------------------------------------------------------------------

LOOK = """
<script>
addEventListener("load", () => {
  document.querySelectorAll("details").forEach(d => d.open = true);
  const all = [...document.querySelectorAll("main *")];
  const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const numbers = c => c.match(/[\\d.]+/g).map(Number);
  const behind = e => { for (; e; e = e.parentElement) { const c = numbers(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
  const contrast = e => { const s = getComputedStyle(e), a = e.closest("svg") ? s.fill : s.color;
    const [x, y] = [light(numbers(a).slice(0, 3)), light(behind(e))].sort((p, q) => q - p);
    return (x + .05) / (y + .05); };
  const words = all.filter(e => [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()) && !e.closest("defs"));
  const strokes = all.filter(e => e.closest("svg") && e.tagName == "path" && getComputedStyle(e).stroke != "none"
    && parseFloat(getComputedStyle(e).strokeWidth) > 1.2);
  const lines = strokes.map(e => { const [x, y] = [light(numbers(getComputedStyle(e).stroke).slice(0, 3)),
    light(behind(e))].sort((p, q) => q - p); return (x + .05) / (y + .05); });
  const cut = e => { const t = e.getBoundingClientRect(), s = e.closest("svg").getBoundingClientRect();
    return t.left < s.left || t.right > s.right || t.top < s.top || t.bottom > s.bottom; };
  const rolls = e => [getComputedStyle(e).overflowX, getComputedStyle(e).overflowY].includes("auto");
  parent.postMessage(JSON.stringify({
    width: innerWidth, needs: document.documentElement.scrollWidth,
    images: [...document.images].map(i => [i.naturalWidth, i.alt]),
    requests: performance.getEntriesByType("resource").map(r => r.name).filter(n => !n.startsWith("data:")),
    contrast: Math.min(...words.map(contrast)), lines: Math.min(...lines), strokes: lines.length,
    cut: [...document.querySelectorAll("svg text")].filter(cut).map(e => e.textContent),
    unreachable: all.filter(e => rolls(e) && e.tabIndex < 0).map(e => e.outerHTML.slice(0, 80)),
    dark: matchMedia("(prefers-color-scheme: dark)").matches, scripts: document.querySelectorAll("main script").length,
  }), "*");
});
</script>
"""
FRAME = """<!doctype html><body>
<script>addEventListener("message", m => { document.body.dataset.found = m.data; })</script>
<iframe src="looked-at.html" style="width: {width}px; height: 800px; border: 0"></iframe></body>"""


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium")

    def call(page: Path, *options: str, dark: bool = False) -> subprocess.CompletedProcess[str]:
        flags = ["headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "hide-scrollbars"]
        flags += ["disable-background-networking", "disable-component-update", "disable-sync"]
        flags += ["window-size=1600,900", "virtual-time-budget=5000", f"user-data-dir={tmp_path / 'profile'}"]
        flags += ["force-dark-mode", "blink-settings=preferredColorScheme=0"] if dark else []
        words = [str(CHROMIUM), *(f"--{flag}" for flag in flags), *options, page.as_uri()]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)

    return call


def console(browse: Callable[..., subprocess.CompletedProcess[str]], page: Path) -> list[str]:
    done = browse(page, "--enable-logging=stderr", "--v=0", "--dump-dom")
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def look(
    browse: Callable[..., subprocess.CompletedProcess[str]], page: Path, *, width: int, dark: bool
) -> dict[str, Any]:
    """What a script finds in the page, in a frame as narrow as a phone, which chromium's own window cannot be.

    The page's policy must be widened for that, which no other test does.
    """
    copy = page.with_name("looked-at.html")
    text = page.read_text(encoding="utf-8")
    assert text.count("style-src 'unsafe-inline'") == 1
    text = text.replace("style-src 'unsafe-inline'", "style-src 'unsafe-inline'; script-src 'unsafe-inline'")
    copy.write_text(text.replace("</body>", LOOK + "</body>"), encoding="utf-8")
    frame = page.with_name("frame.html")
    frame.write_text(FRAME.replace("{width}", str(width)))
    found = re.search(r'data-found="([^"]*)"', browse(frame, "--dump-dom", dark=dark).stdout)
    assert found, "the script did not run"
    return json.loads(html.unescape(found[1]))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind; with pictures, with texts, with markup in the data, and two runs."""
    folder = tmp_path_factory.mktemp("pages")
    pictures = make_run(folder / "pictures", side=96, steps=200, every=50)
    write_rows(pictures / "warnings.jsonl", [{"step": s, "message": f"Step {s} was odd."} for s in range(8)])
    texts = make_run(folder / "texts", text="<think>" + "1+2" * 80, name="a-name-that-is-" + "very-" * 9 + "long")
    evil = make_run(folder / "evil", name=EVIL, prompt=EVIL, text=EVIL)
    write_rows(evil / "warnings.jsonl", [{"step": 1, "message": EVIL}])
    shutil.copytree(pictures, folder / "other")
    return {
        "pictures": report.write(pictures),
        "texts": report.write(texts),
        "evil": report.write(evil),
        "two": report.compare(pictures, folder / "other"),
    }


@pytest.mark.parametrize("name", ["pictures", "texts", "evil", "two"])
@pytest.mark.parametrize(("width", "dark"), [(1440, False), (390, True)])
def test_in_a_browser(
    browse: Callable[..., subprocess.CompletedProcess[str]],
    pages: dict[str, Path],
    name: str,
    width: int,
    dark: bool,
) -> None:
    found = look(browse, pages[name], width=width, dark=dark)
    assert (found["width"], found["dark"]) == (width, dark)
    assert found["needs"] <= found["width"]  # nothing makes the page scroll sideways
    assert all(pixels > 0 and alt.strip() for pixels, alt in found["images"])
    assert len(found["images"]) >= 6
    assert found["requests"] == []
    assert found["scripts"] == 0
    assert found["contrast"] >= 4.5
    assert found["strokes"] > 10
    assert found["lines"] >= 3
    assert found["cut"] == []
    assert found["unreachable"] == []  # whatever scrolls takes the keyboard's focus


@pytest.mark.parametrize("name", ["pictures", "evil", "two"])
def test_the_console_stays_silent(
    browse: Callable[..., subprocess.CompletedProcess[str]], pages: dict[str, Path], name: str
) -> None:
    assert console(browse, pages[name]) == []


def test_the_policy_would_stop_and_name_a_request(
    browse: Callable[..., subprocess.CompletedProcess[str]], pages: dict[str, Path]
) -> None:
    """So the silence above means something."""
    spoilt = pages["texts"].with_name("spoilt.html")
    extra = '<img src="http://127.0.0.1:9/x.png" alt="x"><script>document.title = 1</script></main>'
    spoilt.write_text(pages["texts"].read_text(encoding="utf-8").replace("</main>", extra), encoding="utf-8")
    said = "\n".join(console(browse, spoilt))
    assert "127.0.0.1:9/x.png" in said
    assert "inline script" in said
