"""benchmarks/glm_image.py: the model's sizes, the meter, every part on the tiny model, its tables and bad options."""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import glm_image
import pytest
import torch
from glm_image_job import meter, model, parts, training
from glm_image_job.job import PROMPTS, TINY, Job
from glm_image_job.meter import Measured, Meter
from glm_image_job.parts import PARTS, Table
from glm_image_job.training import Steps

from grpokit import Prompt
from grpokit_glm_image.policy import GlmImageAR
from grpokit_glm_image.prompts import PromptEncoder
from grpokit_plan import Needs, Part, Work
from grpokit_plan.cards import Card
from grpokit_plan.estimate import Estimate

GIB = 2**30
SMALL = dataclasses.replace(TINY, prompts=1)


@pytest.fixture(scope="module")
def released() -> Any:
    return model.released_pipeline(torch.device("meta"))


def test_the_released_sizes(released: Any) -> None:
    counts = {part: sum(p.numel() for p in getattr(released, part).parameters()) for part in model._MODELS}
    assert counts == {
        "vision_language_encoder": 10_114_245_632 - 1_159_607_808 - 39_849_472,  # without vision tower and codebook
        "transformer": 6_926_882_880,
        "vae": 406_100_643,
        "text_encoder": 217_657_472,
    }
    ar = released.vision_language_encoder
    assert ar.model.language_model.embed_tokens.weight.shape == (168_064, 4096)
    assert ar.lm_head.weight.shape == (16_512, 4096)
    assert {p.dtype for part in model._MODELS for p in getattr(released, part).parameters()} == {torch.bfloat16}
    assert torch.get_default_dtype() == torch.float32
    assert model.bytes_per_token(ar) == 2 * (8_158_760_960 + 4096 + 67_633_152)


def test_prompts_are_read_with_the_released_ids(released: Any) -> None:
    config = released.vision_language_encoder.config
    encoder = PromptEncoder(released.processor, config, size=(1024, 1024), edits=False, context=131_072)
    assert [(grid.rows, grid.columns) for grid in encoder.target.grids] == [(16, 16), (32, 32)]
    for text in PROMPTS:
        own = encoder.encode(Prompt(text=text)).tokens.tolist()
        assert own[-1] == 16_384  # begins the picture
        assert all(16_512 <= token < 168_064 for token in own[:-1])
        assert 90 <= len(own) <= 110


class Usage:
    """Stands in for the memory of a device.

    Attributes:
        now: GiB in use.
        highest: since the last reset.
    """

    def __init__(self) -> None:
        self.seconds, self.now, self.highest = 0.0, 1.0, 1.0

    def reset(self) -> None:
        self.highest = self.now

    def growth(self) -> float:
        return 1024 * self.highest

    def work(self, seconds: float, *, most: float, left: float) -> None:
        self.seconds += seconds
        self.highest, self.now = max(self.highest, most), left


def test_the_innermost_phase_gets_seconds_and_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = Usage()
    monkeypatch.setattr("lm_job.clock.time.perf_counter", lambda: usage.seconds)
    monkeypatch.setattr(meter, "Memory", lambda cuda: usage)
    watch = Meter(cuda=False)

    class Decoder:
        def pictures(self) -> str:
            usage.work(5, most=9, left=2)
            return "pictures"

    decoder = Decoder()
    watch.watch(decoder, "pictures", "decode")
    assert decoder.pictures() == "pictures"  # before the step: not counted
    watch.start()
    with watch("rollout"):
        usage.work(2, most=4, left=3)
        decoder.pictures()
        usage.work(3, most=2.5, left=2)
    with watch("train"):
        usage.work(1, most=6, left=5)
    usage.work(7, most=5, left=2)
    taken = watch.stop()
    assert taken.seconds == {"other": 7, "rollout": 5, "decode": 5, "train": 1}
    assert taken.peaks == {"other": 5, "rollout": 4, "decode": 9, "train": 6}


def measured(part: str, job: Job) -> list[dict[str, str]]:
    """The rows of a part, by the names of their columns."""
    head, *rows = PARTS[part](job).rows
    assert all(len(row) == len(head) for row in rows)
    return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """The autoregressive halves that parts have built, each before the next one."""
    models: list[weakref.ref[Any]] = []

    def build(job: Job) -> Any:
        pipeline = model.build(job)
        assert all(earlier() is None for earlier in models), "two models are in memory"
        assert pipeline.vision_language_encoder.dtype == pipeline.transformer.dtype == torch.bfloat16
        models.append(weakref.ref(pipeline.vision_language_encoder))
        return pipeline

    for module in (parts, training):
        monkeypatch.setattr(module, "build", build)
    return models


@pytest.mark.slow
def test_memory_with_and_without_checkpointing(built: list[weakref.ref[Any]]) -> None:
    rows = measured("memory", SMALL)
    assert [(row["prompts x group"], row["checkpointing"]) for row in rows] == [("1 x 2", "on"), ("1 x 2", "off")]
    assert len(built) == 2
    for row in rows:
        step, plan = map(float, re.findall(r"[\d.e-]+", row["whole step"]))
        assert step >= 0
        assert 0.001 < plan < 0.01  # GiB, for a model of half a million weights and micro-batches of two
    on, off = (float(row["train"].split("(")[1].rstrip(")")) for row in rows)
    assert on < off  # the plan knows of checkpointing


@pytest.mark.usefixtures("small_draft")
def test_seconds_of_phases_add_up() -> None:
    ours, plan = measured("phases", SMALL)
    assert (ours.pop(""), plan.pop("")) == ("measured", "plan")
    for row in (ours, plan):
        seconds = {name: float(cell) for name, cell in row.items()}
        without = seconds.pop("sum without")
        guided = seconds.pop("sum with guidance")
        assert guided == pytest.approx(sum(seconds.values()) - seconds["pictures, no guidance"], rel=0.02)
        assert without == pytest.approx(sum(seconds.values()) - seconds["pictures, guidance 1.5"], rel=0.02)
        assert all(taken > 0 for name, taken in seconds.items() if name != "other")
    assert plan["pictures, guidance 1.5"] == f"{2 * float(plan['pictures, no guidance']):.3g}"


@pytest.mark.slow
def test_decoding_is_held_against_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "bandwidth", lambda cuda: 1e6)  # so slow that all figures have digits
    for row, drawn in zip(measured("tokens", TINY), (2, 4), strict=True):
        step, floor = float(row["ms per token"]), float(row["floor, ms per token"])
        assert row["rows"] == str(drawn)
        assert float(row["seconds"]) == pytest.approx(260 * step / 1e3, rel=0.01)
        assert float(row["tokens/s"].replace(",", "")) == pytest.approx(1e3 * drawn / step, rel=0.01)
        # 2 layers of 64 x (2 x 64 + 2 x 32 + 3 x 96), 160 biases and 4 norms of 64, the last norm, and 80 x 64
        weights = 2 * (64 * 480 + 160 - 32 + 4 * 64) + 64 + 80 * 64
        assert floor == pytest.approx(2 * weights / 1e6 * 1e3, rel=0.01)
        assert float(row["share of floor"].rstrip("%")) == pytest.approx(100 * floor / step, rel=0.01)


@pytest.mark.slow
def test_a_loop_is_scaled_to_all_samples(built: list[weakref.ref[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    together, looped = measured("loop", TINY)
    assert looped[""].endswith("1 measured, scaled to 4")
    assert len(built) == 1
    ratio = float(looped["sum, s"]) / float(together["sum, s"])
    assert float(looped["times"]) == pytest.approx(ratio, rel=0.06)
    for row in (together, looped):
        assert float(row["tokens, s"]) > float(row["pictures, s"]) > 0
    by_hand = (Measured(seconds={"rollout": 6.0, "other": 3.0}, peaks={}, reserved=0.0),)
    by_hand += (Measured(seconds={"rollout": 2.0, "decode": 1.0, "other": 1.0}, peaks={}, reserved=0.0),)
    monkeypatch.setattr(parts, "_both_ways", lambda job: by_hand)
    assert [list(row.values())[1:] for row in measured("loop", TINY)] == [
        ["2", "2", "4", "1.0"],
        ["24", "12", "36", "9.0"],
    ]


@pytest.mark.usefixtures("small_draft")
def test_the_gap_is_that_of_rounding() -> None:
    rows = measured("gap", SMALL)
    assert [row["step"] for row in rows] == ["1", "2"]
    for row in rows:
        mean, signed, most = (float(row[name]) for name in ("mean", "signed mean", "largest"))
        assert 1e-3 < mean < 0.1  # bfloat16, of choices that differ by whole nats
        assert abs(signed) < mean < most < 2


def crafted(**changes: Any) -> Steps:
    """Steps and a plan with known numbers: a card that reads a byte and computes an operation per second."""
    card = Card(name="card", memory=80 * GIB, bandwidth=1 / 0.7, bf16=1 / 0.45, fp32=1.0)
    plan = Needs(
        parts=(
            Part(name="weights", bytes=30 * GIB),
            Part(name="cache", bytes=2 * GIB, moments=["rollout"]),
            Part(name="activations", bytes=5 * GIB, moments=["decode", "train"]),
        ),
        works=(
            Work(phase="rollout", flop=10),
            Work(phase="decode", flop=20),
            Work(phase="reference", flop=3),
            Work(phase="train", flop=4),
            Work(phase="optimizer", flop=1),
        ),
    )
    guided = dataclasses.replace(plan, works=[*plan.works, Work(phase="decode", flop=20)])
    seconds = {"rollout": 11.0, "decode": 99.0, "score": 3.5, "train": 4.5, "optimizer": 0.5, "other": 0.25}
    peaks = {"rollout": 33.0, "decode": 36.0, "score": 31.0, "train": 34.0, "optimizer": 38.0, "other": 30.0}
    values: dict[str, Any] = {
        "counted": [Measured(seconds=seconds, peaks=peaks, reserved=40.0)],
        "micro": 4,
        "metrics": [],
        "pictures": {"quick": 1.0, "guided": 44.0, "plain": 22.0},
        "plans": {
            "quick": Estimate(card=card, needs=plan),
            "guided": Estimate(card=card, needs=guided),
            "plain": Estimate(card=card, needs=plan),
        },
    }
    return Steps(**values | changes)


def test_memory_stands_beside_the_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {(1, True): crafted(), (4, True): crafted(micro=2), (1, False): None, (4, False): None}
    monkeypatch.setattr(parts, "train", lambda job, prompts, checkpointing: found[prompts, checkpointing])
    _, first, second, *failed = parts.memory(Job()).rows
    cells = ["33 (32)", "36 (35)", "31 (30)", "38 (35)", "38 (35)", "40"]  # an update is a part of training
    assert first == ["1 x 8", "on", "4", *cells]
    assert second == ["4 x 8", "on", "2 (4 did not fit)", *cells]
    assert [row[:4] for row in failed] == [["1 x 8", "off", "out of memory", ""], ["4 x 8", "off", "out of memory", ""]]


def test_seconds_stand_beside_the_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = crafted()
    monkeypatch.setattr(parts, "train", lambda job, prompts, rounds, decodes: steps)
    _, ours, plan = parts.phases(Job()).rows
    assert ours == ["measured", "11", "44", "22", "3.5", "4.5", "0.5", "0.25", "63.8", "41.8"]
    assert plan == ["plan", "10", "40", "20", "3", "4", "1", "0", "58", "38"]
    unknown = Estimate(card=Card(name="another", memory=1.0), needs=steps.plans["quick"].needs)
    steps = crafted(plans=dict.fromkeys(steps.plans, unknown))
    assert len(parts.phases(Job()).rows) == 2  # nothing is known of its speed


@pytest.mark.usefixtures("small_draft")
@pytest.mark.parametrize(("fits", "micro"), [(1, 1), (0, None)])
def test_running_out_of_memory_is_a_result(fits: int, micro: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    score = GlmImageAR.logprobs

    def logprobs(policy: GlmImageAR, rollout: Any, *args: Any, **options: Any) -> Any:
        if torch.is_grad_enabled() and rollout.rows > fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has 80 GiB.")
        return score(policy, rollout, *args, **options)

    monkeypatch.setattr(GlmImageAR, "logprobs", logprobs)
    steps = training.train(SMALL, prompts=1)
    assert (steps and steps.micro) == micro


@pytest.mark.usefixtures("small_draft")
def test_pictures_of_all_prompts_take_as_often_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Measured(seconds={"decode": 3.0}, peaks={}, reserved=0.0)
    monkeypatch.setattr(Meter, "stop", lambda self: taken)
    steps = training.train(TINY, prompts=2)
    assert steps is not None
    assert steps.pictures == {"quick": 6.0}


def test_a_model_that_is_still_in_memory_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 3 * GIB)
    with pytest.raises(RuntimeError, match=r"3\.0 GiB are in use before a model is built"):
        model.build(Job())


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the page, with tables of one cell to write into it."""
    copy = Path(shutil.copy(glm_image.PAGE, tmp_path))
    monkeypatch.setattr(glm_image, "PAGE", copy)
    for part in PARTS:
        table = Table(note=f"About {part}.", rows=[["a", "b"], ["1", part]])
        monkeypatch.setitem(glm_image.PARTS, part, lambda job, table=table: table)  # type: ignore[misc]
    return copy


def run(options: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["glm_image.py", *options])
    glm_image.main()


def test_every_table_has_its_place_in_the_page(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    run(["--size", "512", "1024", "--write"], monkeypatch)
    text, printed = page.read_text(), capsys.readouterr().out
    for part in PARTS:
        assert text.count(f"\n| a | b |\n| --- | ---: |\n| 1 | {part} |\n<!-- end of glm-image {part}") == 2
        assert f"## {part}, 512 x 512\n\nA GPU, CUDA" in printed
    versions = rf"torch {re.escape(torch.__version__)}, transformers .*, diffusers .*, peft .*, grpokit .*"
    command = r"`python benchmarks/glm_image.py --size 512 1024 --write`"
    assert re.search(rf"A GPU, CUDA .*; {versions}; \d{{4}}-\d\d-\d\d; {command}\.\n\nAbout gap\.", text)


def test_tiny_figures_say_that_they_mean_nothing(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = page.read_text()
    run(["--tiny", "--part", "gap"], monkeypatch)
    printed = capsys.readouterr().out
    assert "these figures say nothing about GLM-Image" in printed
    assert "## gap, 64 x 64" in printed
    assert "memory" not in printed
    assert page.read_text() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "this needs a GPU, and torch finds none; --tiny tries every part on a CPU"),
        (["--tiny", "--write"], "--write is for figures of a GPU"),
        (["--tiny", "--size", "100"], "--size must be a positive multiple of 32, got 100"),
        (["--tiny", "--loop-samples", "0"], "--loop-samples must be at least 1, got 0"),
        (["--tiny", "--group", "1"], "--group must be at least 2, got 1"),
        (["--tiny", "--guidance", "0.5"], "--guidance must be above 1, got 0.5"),
        (["--tiny", "--part", "speed"], "invalid choice: 'speed'"),
    ],
)
def test_bad_options_are_one_line(
    options: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        run(options, monkeypatch)
    assert words in capsys.readouterr().err.splitlines()[-1]
