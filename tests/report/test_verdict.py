"""The figures of the report: intervals over prompts, and paired changes between two evaluations."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from grpokit import report
from grpokit.evaluation.intervals import half_width, mean_of_totals, student_t
from grpokit.report.pictures import Inlined
from grpokit.report.verdict import headline, verdict
from grpokit.report.view import view
from grpokit.run_folder.reader import read_run
from made_runs import make_run, picture, read_rows, write_rows

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
    _, nice, length = headline(read_run(folder))
    assert nice.shared == 20
    assert nice.change == pytest.approx(0.05, abs=0.001)
    assert nice.width < 0.001 < 0.03 < nice.before_width
    assert (nice.verdict, length.verdict, length.change) == ("better", "even", 0)
    content = view([read_run(folder)], [Inlined()])["runs"][0]
    assert content["verdict"] == "Rewards rose: 0.570 → 0.594 (+0.025 ± 0.00029)"
    assert "the change and its interval are of differences paired by prompt" in content["basis"]
    for place in folder.glob("samples/*/scores.json"):
        place.unlink()
    _, nice, _ = headline(read_run(folder))
    assert (nice.shared, nice.verdict, nice.width) == (0, "unknown", None)
    assert nice.change == pytest.approx(0.05, abs=0.001)


def test_the_paired_change_of_the_sum_is_made_of_its_parts(tmp_path: Path) -> None:
    """A reward that scored 10 of 20 prompts: the sum's change is 0.5 of its change, its interval that of 10 pairs."""
    folder = make_run(tmp_path / "run", gain=0.025)
    for place in folder.glob("samples/*/scores.json"):
        kept = json.loads(place.read_text())
        kept["scores"]["nice"][10:] = [None] * 10
        mean = math.fsum(kept["scores"]["nice"][:10]) / 10
        kept["scores"]["reward"][10:] = [0.5 * mean + 0.5] * 10  # as evaluations fill it
        place.write_text(json.dumps(kept))
    reward, nice, length = headline(read_run(folder))
    assert length.change == length.width == 0
    assert reward.change == pytest.approx(0.5 * nice.change)
    assert reward.width == pytest.approx(0.5 * nice.width)


@pytest.mark.parametrize(("weight", "verdict"), [(0.5, "better"), (-0.5, "worse")])
def test_what_is_better_follows_the_weight(tmp_path: Path, weight: float, verdict: str) -> None:
    reward, nice, _ = headline(read_run(make_run(tmp_path / "run", weight=weight)))
    assert (nice.verdict, reward.verdict) == (verdict, verdict)


def test_a_monitor_is_marked_and_one_trained_reward_needs_no_sum(tmp_path: Path) -> None:
    found = headline(read_run(make_run(tmp_path / "run", weight=0)))
    assert [(c.name, c.monitor, c.verdict) for c in found] == [("nice", True, "better"), ("length", False, "even")]


def test_a_statistic_is_neither_better_nor_worse(tmp_path: Path) -> None:
    """The monitor `brightness` describes pictures, so its fall raises no alarm; trained on, it is a reward as any."""
    for weight, verdict_of in ((0, "unknown"), (0.5, "worse")):
        run = make_run(tmp_path / f"{weight}", weight=weight, gain=-0.2, reward={"use": "brightness"})
        by_name = {change.name: change for change in headline(read_run(run))}
        assert by_name["nice"].change == pytest.approx(-0.4, abs=0.01)
        assert by_name["nice"].verdict == verdict_of


def test_weights_go_by_name_where_a_forced_resume_added_a_reward(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", weight=0)
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    settings["rewards"].insert(0, {"use": "my_rewards:late", "weight": 2.0})
    settings["rewards"].append({"use": "length", "weight": 3.0})
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    last = json.loads(rows[-1]) | {"rewards/late/mean": 1.0, "rewards/length-2/mean": 1.0}
    (folder / "metrics.jsonl").write_text("\n".join([*rows[:-1], json.dumps(last)]) + "\n")
    found = read_run(folder).weights
    assert found == {"reward": 1.0, "nice": 0, "length": 1.0, "late": 2.0, "length-2": 3.0}


def test_other_held_out_prompts_are_independent(tmp_path: Path) -> None:
    """Welch's interval, with the degrees of freedom of one sample; prompts that both have are still paired."""
    folder = make_run(tmp_path / "run")
    path = folder / "samples/step_000004/scores.json"
    kept = json.loads(path.read_text())
    kept["prompts"] = [f"other {n}" for n in range(20)]
    path.write_text(json.dumps(kept))
    apart = headline(read_run(folder))
    assert [c.shared for c in apart] == [0] * 3
    assert apart[1].width == pytest.approx(math.hypot(apart[1].before_width, apart[1].after_width))
    assert "count as independent" in view([read_run(folder)], [Inlined()])["runs"][0]["basis"]
    kept["prompts"][:6] = json.loads((folder / "samples/step_000000/scores.json").read_text())["prompts"][:6]
    path.write_text(json.dumps(kept))
    assert [c.shared for c in headline(read_run(folder))] == [6] * 3
    assert "paired by the 6 prompts that both have" in view([read_run(folder)], [Inlined()])["runs"][0]["basis"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gain": 0.2}, "Rewards rose: "),
        ({"gain": -0.2}, "Rewards fell: "),
        ({"gain": 0.2, "weight": -0.5}, "Rewards fell: "),  # their weighted sum
        ({"gain": 0.0}, "Rewards did not change clearly: "),
        ({"gain": 0.2, "weight": 0}, "The reward length did not change clearly: "),
        ({"steps": 1, "every": 2}, "Rewards, step 0: "),
    ],
)
def test_the_verdict_is_one_sentence(tmp_path: Path, options: dict[str, float], words: str) -> None:
    assert view([read_run(make_run(tmp_path / "run", **options))], [Inlined()])["runs"][0]["verdict"].startswith(words)


def test_the_verdict_names_a_monitor_that_fell(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", gain=-0.2, weight=0))
    by_name = {change.name: change for change in headline(run)}
    length, nice = by_name["length"], by_name["nice"]
    assert nice.monitor
    risen = replace(length, verdict="better", change=0.1)
    assert verdict(run, [risen, nice], "") == (
        "The reward length rose: 0.500 → 0.500 (+0.100 ± 0.000). But nice fell: 0.139 → -0.261 (-0.400 ± 0.00058)"
    )
    even = replace(nice, name="even", verdict="even", change=-0.01)
    assert "even" not in verdict(run, [risen, nice, even], "")
    assert "But" not in verdict(run, [length, nice], "")


def test_monitors_speak_where_no_trained_reward_is_scored(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", gain=-0.2, weight=0))
    by_name = {change.name: change for change in headline(run)}
    unscored = replace(by_name["length"], before=None, after=None, change=None)
    assert verdict(run, [by_name["nice"], unscored], "") == (
        "The reward length could not be scored on held-out prompts. The monitor nice fell: 0.139 → -0.261 (-0.400 ± "
        "0.00058)."
    )
    statistic = replace(by_name["nice"], verdict="unknown")
    assert "The monitor nice went: " in verdict(run, [statistic, unscored], "")


@pytest.mark.parametrize(
    ("blank", "words"),
    [(16, "But 16 of 16 held-out samples after step 4 are alike, "), (15, "But 15 of 16 "), (14, "")],
)
def test_nothing_is_good_where_all_outputs_are_one(tmp_path: Path, blank: int, words: str) -> None:
    """Blank pictures with some grain, as a reward for small files draws them; the pictures of step 0 differ."""
    folder = make_run(tmp_path / "run", gain=0.2)
    place = folder / "samples/step_000004"
    for n in range(blank):
        grain = np.random.default_rng(n).integers(240, 247, (40 + n, 40, 3)).astype(np.uint8)
        Image.fromarray(grain).save(place / f"{n:04d}.png")
    write_rows(
        place / "samples.jsonl", [{**row, "target_text": row["prompt"]} for row in read_rows(place / "samples.jsonl")]
    )
    run = view([read_run(folder)], [Inlined()])["runs"][0]
    assert (run["mood"], words in run["verdict"]) == ("alarmed" if words else "better", True)
    assert bool(words) == ("all outputs become one?" in report.alarm(folder)) == bool(run["alarm"])


@pytest.mark.parametrize(
    ("targets", "sources", "rows", "alarmed"),
    [
        (["4", "5"], False, 16, True),  # one answer to all questions
        (["4"], False, 16, False),  # which is the right one
        ([None], False, 16, False),  # as the same return in all episodes
        (["4", "5"], False, 3, False),
        (["4", "5"], True, 16, True),  # one text, which asks the same of many pictures
        (["4", "5"], None, 16, False),  # one prompt, which has one answer
    ],
)
def test_one_answer_to_all_prompts(
    tmp_path: Path, targets: list[str | None], sources: bool | None, rows: int, alarmed: bool
) -> None:
    folder = make_run(tmp_path / "run", gain=0.2, text=" 4")
    place = folder / "samples/step_000004"
    kept = read_rows(place / "samples.jsonl")[:rows]
    for n, row in enumerate(kept):
        row["target_text"] = targets[n % len(targets)]
        if row["target_text"] is None:
            del row["target_text"]
        if sources is not False:
            row |= {"prompt": "how many?", "turn": n}
        if sources:
            picture(8 * n).save(place / f"{n}.source.png")
            row["source"] = f"{n}.source.png"
    write_rows(place / "samples.jsonl", kept)
    assert (view([read_run(folder)], [Inlined()])["runs"][0]["mood"] == "alarmed") == alarmed


@pytest.mark.parametrize(("change", "words"), [(0.1, "rose, although its weight is negative: "), (-0.1, "fell: ")])
def test_the_verdict_on_a_reward_that_got_worse(tmp_path: Path, change: float, words: str) -> None:
    run = read_run(make_run(tmp_path / "run"))
    length = next(each for each in headline(run) if each.name == "length")
    assert verdict(run, [replace(length, verdict="worse", change=change)], "").startswith(f"The reward length {words}")


@pytest.mark.parametrize(
    ("lost", "weight", "words"),
    [
        (0, 0.5, ""),
        (5, 0.5, "nice scored 15 of 20 samples"),
        (20, 0.5, "nice scored no sample"),
        (20, 0, ""),  # a monitor is no part of what is trained
    ],
)
def test_nothing_rose_where_part_of_the_objective_is_missing(
    tmp_path: Path, lost: int, weight: float, words: str
) -> None:
    folder = make_run(tmp_path / "run", gain=0.2, weight=weight)
    rows = read_rows(folder / "eval.jsonl")
    if lost == 20:
        write_rows(folder / "eval.jsonl", [{**row, "means": {**row["means"], "nice": None}} for row in rows])
    for place in folder.glob("samples/*/scores.json"):
        kept = json.loads(place.read_text())
        kept["scores"]["nice"][:lost] = [None] * lost
        place.write_text(json.dumps(kept))
    run = view([read_run(folder)], [Inlined()])["runs"][0]
    assert ("rose" in run["verdict"], run["mood"]) == (
        not words and weight > 0,
        "" if words else "better" if weight else "even",
    )
    assert run["verdict"].endswith(words)
    assert (run["scores"][0]["verdict"] == "unknown") == bool(words or not weight)
