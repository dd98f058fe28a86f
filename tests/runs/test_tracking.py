"""What a run gives its trackers: TensorBoard's files and W&B's offline mode, a resume, and a tracker that fails."""

from __future__ import annotations

import json
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from grpokit.errors import UsageError
from grpokit.evaluation.held_out import Evaluation
from grpokit.rewards.scoring import score_samples
from grpokit.rewards.terms import RewardTerm
from grpokit.runs import tracking
from grpokit.runs import train as run
from grpokit.tracking import trackers
from grpokit.types import Prompt, Sample
from small_runs import rows, train, write_prompts

HOSTILE = "a|b <script>alert(1)</script> [x](y)"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_prompts(["1", "2"])
    return tmp_path


def killed_at_step_3_and_resumed(**settings: Any) -> None:
    """The resume begins after step 2, so step 3 is taken twice."""

    def kill(report: Any) -> None:
        if report.step == 3:
            raise RuntimeError("the machine went away")

    settings |= {"eval__every": 2, "run__save_every": 2}
    with pytest.raises(RuntimeError, match="went away"):
        train("out", watcher=run.Watcher(step=kill), **settings)
    shutil.rmtree("out/checkpoints/step_000003")  # a kill would not have left it
    train("out", resume=True, **settings)


def pictures() -> Evaluation:
    """Two pictures; the reward cannot score the second."""
    samples = [
        Sample(prompt=Prompt(text=text), output=Image.new("RGB", (8, 6), color), group=i)
        for i, (text, color) in enumerate(((HOSTILE, "red"), ("draw a sea", "blue")))
    ]
    scores = score_samples([RewardTerm(name="sharp", reward=lambda _: [0.25, float("nan")])], samples)
    return Evaluation(samples=samples, prompts=[sample.prompt for sample in samples], scores=scores)


def show_pictures(*started: trackers.Tracker) -> None:
    shown = tracking.Tracking()
    shown._trackers = list(started)
    shown.evaluation(4, pictures())
    for tracker in started:
        tracker.finish()


def test_tensorboard_has_every_step_once_after_a_resume() -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    killed_at_step_3_and_resumed(trackers__use=["tensorboard"], trackers__tags=["first"])
    found = events.EventAccumulator("out/tensorboard", size_guidance={events.TENSORS: 0}).Reload()
    assert [event.step for event in found.Scalars("reward")] == [1, 2, 3, 4, 5, 6]
    held_out = rows("out/eval.jsonl")
    for name, part, reward in (
        ("reward", "means", "reward"),
        ("reward/ci95", "ci95", "reward"),
        ("digits", "means", "digits"),
    ):
        logged = found.Scalars(f"eval/{name}")
        assert [event.step for event in logged] == [0, 2, 4, 6]
        assert [event.value for event in logged] == pytest.approx([row[part][reward] for row in held_out])
    tables = found.Tensors("samples/text_summary")
    assert [event.step for event in tables] == [0, 2, 4, 6]
    config = found.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert f"      dir: {Path('out').absolute()}\n" in config
    assert "      - first\n" in config
    assert "_hparams_/session_start_info" in found.PluginTagToContent("hparams")


def test_tensorboard_shows_pictures_with_prompts_and_scores_as_text(folder: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    show_pictures(*trackers.start(["tensorboard"], folder))
    found = events.EventAccumulator(str(folder / "tensorboard")).Reload()
    assert found.Tags()["images"] == ["samples/00_a_b_script_alert_1_script_x_y", "samples/01_draw_a_sea"]
    (image,) = found.Images("samples/01_draw_a_sea")
    assert (image.step, image.width, image.height) == (4, 8, 6)
    table = found.Tensors("samples/text_summary")[0].tensor_proto.string_val[0].decode().splitlines()
    assert table[0] == "|  | prompt | reward | sharp | output |"
    assert table[2].startswith(r"| 00 | a&#124;b &lt;script&gt;alert(1)&lt;/script&gt; \[x\](y) | 0.250 | 0.250 |")
    assert table[3] == "| 01 | draw a sea | not scored | not scored | picture |"


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_PROJECT", "WANDB_NAME", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)


def records(folder: Path) -> list[Any]:
    """What W&B has written under a folder, run by run; its own process writes on when a run has ended here."""
    deadline = time.monotonic() + 20
    while True:
        found = list(written(folder))
        kinds = [record.WhichOneof("record_type") for record in found]
        if kinds.count("exit") == kinds.count("header") > 0 or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def written(folder: Path) -> Iterator[Any]:
    """A LevelDB log behind a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    for path in sorted(folder.rglob("run-*.wandb"), key=lambda path: path.stat().st_mtime):
        content, at, data = path.read_bytes(), 7, b""
        while at + 7 <= len(content):
            if 32768 - at % 32768 < 7:  # a block's end has no room for a header
                at += 32768 - at % 32768
                continue
            length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
            data += content[at + 7 : at + 7 + length]
            at += 7 + length
            if kind in (1, 4):  # a whole record, or its last part
                record = wandb_internal_pb2.Record()
                record.ParseFromString(data)
                data = b""
                yield record


def history(folder: Path) -> list[dict[str, Any]]:
    return [
        {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records(folder)
        if record.WhichOneof("record_type") == "history"
    ]


@pytest.mark.slow
def test_wandb_has_a_run_for_each_offline_session_and_every_step_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline(monkeypatch)
    killed_at_step_3_and_resumed(
        trackers__use=["wandb"], trackers__project="letters", trackers__name="warm", trackers__tags=["first", "cpu"]
    )
    runs = [record.run for record in records(folder) if record.WhichOneof("record_type") == "run"]
    assert {(own.project, own.display_name, tuple(own.tags)) for own in runs} == {("letters", "warm", ("first", "cpu"))}
    first, second = dict.fromkeys(own.run_id for own in runs)
    assert {own.run_group for own in runs} == {first}
    state = json.loads(Path("out/trackers.json").read_text())
    assert (state["wandb"], state["group"]) == (second, first)
    entries = history(folder)
    assert [row["step"] for row in entries if "loss" in row] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in entries if "eval/reward" in row] == [0, 2, 4, 6]
    assert [row["eval/digits"] for row in entries if "eval/digits" in row] == [
        row["means"]["digits"] for row in rows("out/eval.jsonl")
    ]
    configs = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.config.update}
        for record in records(folder)
        if record.WhichOneof("record_type") == "config"
    ]
    assert any(config.get("run", {}).get("dir") == str(Path("out").absolute()) for config in configs)


@pytest.mark.parametrize(("mode", "goes_on"), [("online", True), ("offline", False)])
def test_wandb_goes_on_in_one_run_where_it_has_a_connection(
    monkeypatch: pytest.MonkeyPatch, mode: str, goes_on: bool
) -> None:
    wandb = pytest.importorskip("wandb")
    settings = SimpleNamespace(mode=mode)
    monkeypatch.setattr(wandb, "setup", lambda: SimpleNamespace(settings=settings))
    session = tracking._wandb_session({"wandb": "earlier", "step": 3})
    assert (session["id"] == "earlier") is goes_on
    assert session.get("group") == (None if goes_on else "earlier")


@pytest.mark.slow
def test_wandb_shows_pictures_in_a_table_and_with_captions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offline(monkeypatch)
    show_pictures(*trackers.start(["wandb"], folder, options={"wandb": {"dir": str(folder)}}))
    (table,) = (json.loads(path.read_text()) for path in folder.rglob("media/table/eval/*.table.json"))
    assert table["columns"] == ["prompt", "output", "reward", "sharp"]
    assert table["data"] == [[HOSTILE, "Image", 0.25, 0.25], ["draw a sea", "Image", None, None]]
    assert len(list(folder.rglob("media/images/eval/*.png"))) == 2
    assert f"{HOSTILE}\nreward 0.250, sharp 0.250" in json.dumps(history(folder), ensure_ascii=False).replace(
        "\\n", "\n"
    )


class Flaky:
    """A tracker whose server answers only now and then: 1 for an answer."""

    name, requires_logging_directory = "mlflow", False

    def __init__(self, project: str, answers: list[int] | None = None, **_: Any) -> None:
        self.project, self.answers, self.steps, self.calls = project, list(answers or []), [], 0

    def start(self) -> None:
        pass

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.config = values

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        self.calls += 1
        if self.answers and not self.answers.pop(0):
            raise ConnectionError("no route to host")
        self.steps.append(step)

    def finish(self) -> None:
        raise ConnectionError("no route to host")


@pytest.mark.parametrize(("answers", "steps", "calls"), [([1, 0, 0, 1, 0], [1, 4, 6], 6), ([0, 0, 0], [], 3)])
def test_a_failing_tracker_is_warned_of_once_and_stops_nothing(
    answers: list[int], steps: list[int], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Flaky] = []

    def build(project: str, **own: Any) -> Flaky:
        made.append(Flaky(project, answers=answers))
        return made[-1]

    kind: Any = build
    kind.requires_logging_directory = False
    monkeypatch.setitem(trackers.LOGGER_TYPE_TO_CLASS, "mlflow", kind)
    monkeypatch.setattr(trackers, "get_available_trackers", lambda: [SimpleNamespace(value="mlflow")])
    lines: list[str] = []
    Path("prompts.jsonl").write_text('{"prompt": "1"}\n{"prompt": "2"}\n')
    result = train("out", trackers__use=["mlflow"], eval__prompts=None, watcher=run.Watcher(say=lines.append))
    assert (result.steps, made[0].steps, made[0].calls) == (6, steps, calls)
    assert made[0].config["policy.use"] == "switched:Switched"
    (line,) = [line for line in lines if "tracker" in line]
    assert line.startswith(
        "warning: the tracker 'mlflow' failed (ConnectionError: no route to host); training continues"
    )
    (row,) = [row for row in rows("out/warnings.jsonl") if "tracker" in row["message"]]
    assert row["message"] in line


def test_a_missing_package_is_one_message_before_anything_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "get_available_trackers", lambda: [])
    Path("out").mkdir()
    Path("out/precious.txt").touch()
    with pytest.raises(UsageError, match=r"^The tracker 'comet_ml' is not installed\. Run: pip install comet_ml$"):
        train("out", overwrite=True, trackers__use=["comet_ml"])
    assert Path("out/precious.txt").is_file()


def test_a_tracker_that_cannot_start_leaves_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(project: str, **_: Any) -> None:
        raise PermissionError("log in first")

    kind: Any = refuse
    kind.requires_logging_directory = False
    monkeypatch.setitem(trackers.LOGGER_TYPE_TO_CLASS, "mlflow", kind)
    monkeypatch.setattr(trackers, "get_available_trackers", lambda: [SimpleNamespace(value="mlflow")])
    with pytest.raises(UsageError, match=r"'mlflow' cannot be started: PermissionError: log in first\. Fix that"):
        train("out", trackers__use=["mlflow"])
    assert not Path("out").exists()
