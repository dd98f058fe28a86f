"""benchmarks/methods.py: the choice of a rate, equal seconds and paired intervals by hand, and a run of each stage."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import methods
import pytest
from methods import BASELINE, SUITES, Study, key

from grpokit import Prompt, Sample
from grpokit_toy.flow import Point


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """Two methods with one seed for choosing and three for measuring, 10 steps, and nothing run."""
    suite = SUITES["toy-flow"]
    few = {name: suite.methods[name] for name in (BASELINE, "nft")}
    small = replace(suite, methods=few, steps=10, choosing=(9,), measuring=(1, 2, 3), columns=())
    monkeypatch.setitem(SUITES, "toy-flow", small)
    return Study("toy-flow", tmp_path / "results.json")


def ran(study: Study, method: str, rate: float, seed: int, **rewards: float) -> None:
    """Note a run, with its rewards by step."""
    study.runs[key(method, rate, seed)] = {step[1:]: {"reward": reward} for step, reward in rewards.items()}


def test_a_rate_at_the_edge_asks_for_the_next_one(study: Study) -> None:
    assert study.choice("nft") == (None, [1e-3, 3e-3, 1e-2])
    for rate, reward in ((1e-3, 0.2), (3e-3, 0.4), (1e-2, 0.6)):
        ran(study, "nft", rate, 9, _10=reward)
    assert study.choice("nft") == (None, [3e-2])
    study.runs[key("nft", 3e-2, 9)] = {"failed": "diverged"}
    assert study.choice("nft") == (1e-2, [])


def test_equal_seconds_and_differences_by_seed(study: Study) -> None:
    study.known["seconds"] = {BASELINE: 0.2, "nft": 0.1}
    assert study.equal_seconds("nft") == 20
    for method, best in ((BASELINE, 3e-3), ("nft", 3e-3)):
        for rate in (1e-3, 3e-3, 1e-2):
            ran(study, method, rate, 9, _10=float(rate == best))
    for seed, reward in ((1, 0.1), (2, 0.3), (3, 0.5)):
        ran(study, BASELINE, 3e-3, seed, _10=reward)
        ran(study, "nft", 3e-3, seed, _10=reward + 0.1, _20=reward + 0.2)
    # three seeds 0.2 apart: 4.303 * 0.2 / sqrt(3) = 0.497, and no spread in the differences
    assert study.cells("nft", 10) == ["0.400 ± 0.497", "+0.100 ± 0.000"]
    assert study.cells("nft", 20) == ["0.500 ± 0.497", "+0.200 ± 0.000"]
    assert "| nft | 0.003 | 0.400 ± 0.497 | +0.100 ± 0.000 | 0.50 | 20 |" in methods.table(study)


def test_shape_of_a_spot_and_of_a_whole_ring() -> None:
    def scores(points: list[tuple[float, float]]) -> dict[str, float]:
        prompt = Prompt(text="a ring of radius 2")
        samples = [Sample(prompt=prompt, output=Point(xy, radius=2.0), group=0) for xy in points]
        return methods.shape(samples, len(points))

    assert scores([(2, 0), (2, 0)]) == {"spread": 0, "one-sidedness": 1}
    whole = scores([(2, 0), (0, 2), (-2, 0), (0, -2)])
    assert whole == {"spread": pytest.approx((4 / 3) ** 0.5), "one-sidedness": pytest.approx(0)}


@pytest.mark.slow
def test_every_method_runs_and_goes_on_from_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = SUITES["toy-flow"]
    short = ["trainer.prompts_per_step=4", "trainer.group_size=4"]
    quick = replace(suite, settings=[*suite.settings, *short], steps=1, samples=4)
    files = {teacher: tmp_path / teacher for teacher in suite.teachers}
    for teacher, file in files.items():
        found = methods.teach(quick, teacher, 1e-3, 1, file)
        assert set(found["1"]) >= {"reward", teacher}
    for name, settings in suite.methods.items():
        taught = [methods.taught_by(files)] if name == methods.STUDENT else []
        found = methods.run(quick, [*settings, *taught], 1e-3, 1, [1, 2])
        assert set(found) == {"1", "2", "drawn"}
        assert 0 <= found["2"]["reward"] <= 1
        json.dumps(found)
