"""The rollout record: what is kept comes back exactly, another reward ranks it, and every step can be drawn again."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from command_line import Call
from grpokit import (
    DataError,
    Decisions,
    Prompt,
    Rollout,
    RunError,
    Sample,
    StepReport,
    Trace,
    UsageError,
    advantages,
    reward_totals,
)
from grpokit.config import presets
from grpokit.run_folder import rollout_record as record
from grpokit.run_folder.rollout_record import Described
from grpokit.runs import build
from grpokit.runs.redraw import redraw
from grpokit.runs.rescore import kendall_tau, rescore
from grpokit.training import checkpoint
from whole_runs import assert_same_record, train_preset

STEPS = 6
ROWS = 8
SMALL = (f"trainer.steps={STEPS}", "data.limit=10", "run.save_every=2", "run.keep_last=2", "run.record=true")
LETTERS = "rewards=[{use: 'tiny_rewards:letters', name: letters}]"
REWARDS = {"toy-lm": "length", "toy-glyph": "ssim", "toy-flow": "ring"}  # quick ones
PARTS = ["decisions", "log-probs", "prompts", "outputs", "rewards", "advantages", "metrics"]


def train(preset: str, folder: Path, *overrides: str, **options: bool) -> None:
    train_preset(preset, folder, *SMALL, *overrides, **options)


@pytest.fixture(scope="module", params=list(REWARDS))
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, without_report: None
) -> tuple[str, Path]:
    """A preset and its recorded run; its checkpoints are those after the steps 4 and 6."""
    folder = tmp_path_factory.mktemp(request.param) / "run"
    train(request.param, folder, f"rewards=[{{use: {REWARDS[request.param]}, weight: 0.5}}]")
    return request.param, folder


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory, without_report: None) -> Path:
    """A recorded run that writes texts, scored by their length; its checkpoints are after the steps 4, 5 and 6."""
    folder = tmp_path_factory.mktemp("lm") / "run"
    train("toy-lm", folder, LETTERS, "run.save_every=1", "run.keep_last=3")
    return folder


@pytest.fixture
def copy(lm: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(lm, tmp_path / "copy"))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def step_of(outputs: Sequence[Any], *, step: int = 1, weights: Sequence[float] = (1.0,), **changes: Any) -> StepReport:
    """A step of two groups, as a trainer would report it."""
    count = len(outputs)
    prompts = [Prompt(text="one"), Prompt(text="two")]
    groups = [7] * (count // 2) + [9] * (count - count // 2)
    given: dict[str, Any] = {
        "step": step,
        "metrics": {},
        "rollout": Rollout(
            samples=[Sample(prompt=prompts[g == 9], output=x, group=g) for x, g in zip(outputs, groups, strict=True)],
            groups=torch.tensor(groups),
            old=Decisions(logprobs=-torch.arange(2.0 * count).reshape(count, 2)),
            mask=torch.tensor([[True, True], [True, False]]).repeat(count, 1)[:count],
            max_decisions=2,
            trace=Trace(per_row={"tokens": torch.arange(2 * count).reshape(count, 2)}),
        ),
        "rewards": torch.zeros(count, 1, dtype=torch.float64),
        "reward_names": ["old"],
        "advantages": torch.zeros(count),
        "prompts": [0, 1],
    }
    given |= changes
    totals = reward_totals.totals(given["rewards"], torch.tensor(weights), given["rollout"].groups)
    return StepReport(**given, totals=totals)


def test_the_record_is_what_the_run_did(recorded: tuple[str, Path]) -> None:
    preset, folder = recorded
    assert record.steps(folder) == list(range(1, STEPS + 1))
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    prompts, _ = build.prompts(presets.read_config(str(folder))[0])
    for row in metrics:
        kept = record.read(folder, row["step"])
        assert kept.reward_names == [REWARDS[preset]]
        assert float(kept.rewards.mean()) == row[f"rewards/{REWARDS[preset]}/mean"]
        assert torch.equal(kept.total, 0.5 * kept.rewards[:, 0])
        assert [prompts[i].text for i in kept.prompts] == kept.texts
        expected = advantages.group(kept.rewards, torch.tensor([0.5]), kept.groups)
        assert torch.equal(kept.advantages, expected.float().double())
        table = parquet.read_table(record.folder_of(folder, row["step"]) / record.SAMPLES)
        assert table["decisions"].to_pylist() == [sum(mask) for mask in table["mask"].to_pylist()]
        trace = record.read_trace(folder, row["step"])
        assert table["logprobs"].to_pylist() == trace["old.logprobs"].tolist()
        assert table["mask"].to_pylist() == trace["mask"].tolist()


@pytest.mark.parametrize("mode", [*record._AS_PNG, *record._AS_BYTES])
def test_pictures_come_back_bit_for_bit(mode: str, tmp_path: Path) -> None:
    noise = np.random.default_rng(3).integers(0, 256, (5, 7, 4), dtype=np.uint8)
    if mode == "I;16":
        picture = Image.fromarray(noise.astype(np.uint16)[:, :, 0] * 257 + 3)
    elif mode in ("I", "F"):
        picture = Image.fromarray(noise[:, :, 0].astype({"I": np.int32, "F": np.float32}[mode]) * -3)
    elif mode == "P":
        picture = Image.fromarray(noise[:, :, :3]).quantize(9)
        picture.info["transparency"] = 4
    elif mode in ("LAB", "HSV"):
        picture = Image.merge(mode, [Image.fromarray(noise[:, :, i]) for i in range(3)])
    else:
        picture = Image.fromarray(noise).convert(mode)
    assert picture.mode == mode
    record.write(tmp_path, step_of([picture, picture.copy()]))
    for back in record.read(tmp_path, 1).outputs:
        assert (back.mode, back.size, back.tobytes()) == (mode, (7, 5), picture.tobytes())
        assert record.identity(back) == record.identity(picture)
    other = picture.copy()
    other.putpixel((6, 4), 1 if picture.getpixel((6, 4)) in (0, 255, 65535) else 0)
    assert record.identity(other) != record.identity(picture)


def test_a_picture_that_cannot_be_kept_exactly_is_refused(tmp_path: Path) -> None:
    odd = Image.new("PA", (2, 2))
    with pytest.raises(UsageError, match=r"output of row 1 is a picture of the mode 'PA'.*expected one of 1, L, LA"):
        record.write(tmp_path, step_of([Image.new("L", (2, 2)), odd]))
    assert not any((tmp_path / "rollouts").iterdir())


@pytest.mark.parametrize(
    "output",
    [
        "",
        "an ümlaut\n\x00 and a line",
        (0.1, -2),
        [3.0, math.nan, math.inf],
        1 / 3,
        True,
        7,
        (1, 2),
        [True, 0, 0.5],
        np.float32(1.1),
        np.int64(3),
        torch.tensor([[0.1, math.nan]]),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.tensor([2**53, -1]),
        torch.zeros(2, 0),
        np.float32([[1.1], [-0.0]]),
        np.array([True, False]),
    ],
    ids=repr,
)
def test_texts_and_numbers_come_back_as_they_were(output: Any, tmp_path: Path) -> None:
    record.write(tmp_path, step_of([output, output]))
    back = record.read(tmp_path, 1).outputs[1]
    assert record.identity(back) == record.identity(output)
    assert not isinstance(back, Described)
    assert type(back) is type(output)
    if isinstance(output, (tuple, list)):
        assert [type(x) for x in back] == [type(x) for x in output]
    if isinstance(output, (torch.Tensor, np.ndarray)):
        assert (back.dtype, back.shape) == (output.dtype, output.shape)


class Board:
    """An output that a record can only describe; its `repr` names an address."""


def test_numbers_of_numpy_in_a_tuple_come_back_as_numbers(tmp_path: Path) -> None:
    output = (np.float32(0.1), np.int64(2))
    record.write(tmp_path, step_of([output, output]))
    back = record.read(tmp_path, 1).outputs[0]
    assert back == output
    assert [type(x) for x in back] == [float, int]


@pytest.mark.parametrize("output", [Board(), ("a", 1), torch.tensor([2**53 + 1]), "\ud800", {"x": 1}, []])
def test_other_outputs_are_described(output: Any, tmp_path: Path) -> None:
    record.write(tmp_path, step_of([output, output]))
    back = record.read(tmp_path, 1).outputs[0]
    assert isinstance(back, Described)
    assert " at 0x" not in back.text
    assert record.identity(back) == record.identity(output)


def test_scores_that_are_missing_advantages_of_decisions_and_info(tmp_path: Path) -> None:
    plain = step_of(["a", "b"])
    infos = [{"why": "end", "tokens": (1, 2), "net": torch.nn.Identity}, {}]
    samples = [
        Sample(prompt=s.prompt, output=s.output, group=s.group, info=i)
        for s, i in zip(plain.rollout.samples, infos, strict=True)
    ]
    rollout = Rollout(**{**vars(plain.rollout), "samples": samples})
    rewards = torch.tensor([[1.0, math.nan], [math.nan, math.nan]], dtype=torch.float64)
    each = torch.tensor([[1.0, 2.0], [3.0, 100.0]])
    record.write(
        tmp_path,
        step_of(
            ["a", "b"], rollout=rollout, rewards=rewards, reward_names=["x", "y"], advantages=each, weights=[2.0, 1.0]
        ),
    )
    kept = record.read(tmp_path, 1)
    assert torch.equal(kept.rewards.isnan(), rewards.isnan())
    assert kept.rewards[0, 0] == 1.0
    assert kept.total[0] == 2.0
    assert math.isnan(kept.total[1])
    assert kept.advantages.tolist() == [1.5, 3.0]  # the second row's second decision is masked
    assert kept.infos == [{"why": "end", "tokens": [1, 2]}, {}]  # as JSON gives it back
    table = parquet.read_table(tmp_path / "rollouts/step_000001/samples.parquet")
    assert table["rewards/y"].to_pylist() == [None, None]
    assert table["advantages"].to_pylist() == [[1.0, 2.0], [3.0, 100.0]]
    assert table["prompt_index"].to_pylist() == [0, 1]


def test_tensors_that_share_memory_are_kept_each(tmp_path: Path) -> None:
    whole = torch.arange(8, dtype=torch.bfloat16).reshape(2, 4)
    plain = step_of(["a", "b"])
    trace = Trace(per_row={"all": whole, "half": whole[:, :2], "same": whole}, per_group={"wide": whole[:, :1]})
    record.write(tmp_path, step_of(["a", "b"], rollout=Rollout(**{**vars(plain.rollout), "trace": trace})))
    back = record.read_trace(tmp_path, 1)
    assert torch.equal(back["per_row.half"], whole[:, :2])
    assert torch.equal(back["per_row.same"], whole)
    assert back["per_group.wide"].dtype == torch.bfloat16


def test_half_a_record_is_damaged(tmp_path: Path) -> None:
    record.write(tmp_path, step_of(["a", "b"]))
    record.write(tmp_path, step_of(["c", "d"], step=2))
    rollouts = tmp_path / "rollouts"
    shutil.copytree(rollouts / "step_000002", rollouts / ".step_000003.partial")
    shutil.copytree(rollouts / "step_000002", rollouts / "step_000004")
    (rollouts / "step_000004" / record.TRACE).unlink()
    assert record.steps(tmp_path) == [1, 2, 4]  # to leave the last out would be another run, without a word
    with pytest.raises(RunError, match=r"step_000004/trace\.safetensors is damaged"):
        record.read_trace(tmp_path, 4)
    record.cut(tmp_path, 1)
    assert [p.name for p in rollouts.iterdir()] == ["step_000001"]
    record.write(tmp_path, step_of(["e", "f"]))  # in the place of the old one
    assert record.read(tmp_path, 1).outputs == ["e", "f"]


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("grpokit.run_folder.rollout_record.save_file", full)
    with pytest.raises(RunError, match=r"rollouts/step_000001 cannot be written: .*No space left"):
        record.write(tmp_path, step_of(["a", "b"]))
    assert not any((tmp_path / "rollouts").iterdir())


@pytest.mark.parametrize("step", [1, 3])
def test_a_resumed_run_has_each_step_once(lm: Path, copy: Path, step: int, without_report: None) -> None:
    for place in (copy / "checkpoints").iterdir():
        shutil.rmtree(place)
    train("toy-lm", copy, LETTERS, f"trainer.steps={step}", overwrite=True)
    shutil.copytree(record.folder_of(lm, STEPS), record.folder_of(copy, STEPS))  # recorded, but not in a checkpoint
    shutil.copytree(record.folder_of(lm, 2), copy / "rollouts" / ".step_000005.partial")
    train("toy-lm", copy, LETTERS, resume=True)
    assert_same_record(lm, copy)


@pytest.mark.parametrize(("step", "start"), [(1, None), (3, None), (5, 4), (6, 4)])
def test_a_step_drawn_again_is_equal(recorded: tuple[str, Path], step: int, start: int | None) -> None:
    _, folder = recorded
    before = tree(folder)
    found = redraw(folder, step)
    assert found.equal
    assert found.start == (None if start is None else folder / "checkpoints" / f"step_{start:06d}")
    assert list(found.parts) == PARTS
    assert tree(folder) == before


def tampered(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = record.folder_of(folder, 2) / record.TRACE
    kept = load_file(path)
    change(kept)
    save_file(kept, path)


def differing(folder: Path) -> dict[str, str]:
    return {part: difference for part, difference in redraw(folder, 2).parts.items() if difference}


def test_one_bit_of_a_decision(copy: Path) -> None:
    path = record.folder_of(copy, 2) / record.TRACE
    raw = bytearray(path.read_bytes())
    header = int.from_bytes(raw[:8], "little")
    place = json.loads(raw[8 : 8 + header])["per_row.tokens"]["data_offsets"][0]
    width = load_file(path)["per_row.tokens"][0].nbytes
    raw[8 + header + place + 5 * width] ^= 1  # the first token of row 5
    path.write_bytes(raw)
    assert differing(copy) == {"decisions": "per_row.tokens in 1 of 8 rows (5)"}


def test_log_probs_that_are_off(copy: Path) -> None:
    def change(kept: dict[str, torch.Tensor]) -> None:
        kept["old.logprobs"][[1, 3], 0] += torch.tensor([0.125, 0.25])

    tampered(copy, change)
    assert differing(copy) == {"log-probs": "old.logprobs in 2 of 8 rows (1, 3), by up to 0.25"}


def test_a_mask_of_another_shape_and_an_advantage(copy: Path) -> None:
    def change(kept: dict[str, torch.Tensor]) -> None:
        kept["mask"] = kept["mask"][:, :3].contiguous()
        kept["advantages"][7] = -kept["advantages"][7] - 1
        del kept["per_group.prompt"]

    tampered(copy, change)
    found = differing(copy)
    assert "mask is torch.bool [8, " in found["decisions"]
    assert "was torch.bool [8, 3]" in found["decisions"]
    assert "per_group.prompt is new" in found["decisions"]
    assert found["advantages"].startswith("advantages in 1 of 8 rows (7)")


def test_a_text_and_a_score(copy: Path) -> None:
    path = record.folder_of(copy, 2) / record.SAMPLES
    table = parquet.read_table(path)
    columns = {name: table[name].to_pylist() for name in ("output", "rewards/letters")}
    columns["output"][4] += "!"
    columns["rewards/letters"][0] = None
    for name, column in columns.items():
        table = table.set_column(table.column_names.index(name), name, [column])
    parquet.write_table(table, path)
    assert differing(copy) == {"outputs": "1 of 8 rows (4)", "rewards": "1 of 8 rows (0)"}


def test_a_changed_metric(copy: Path) -> None:
    path = copy / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1]["grad_norm"] += 1
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert differing(copy)["metrics"].startswith("grad_norm ")


@pytest.mark.parametrize("recorded", ["toy-glyph"], indirect=True)
def test_a_pixel_and_a_torn_picture(recorded: tuple[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(recorded[1], tmp_path / "copy"))
    path = record.folder_of(folder, 2) / "0002.png"
    with Image.open(path) as picture:
        picture.load()
    value = picture.getpixel((0, 0))
    picture.putpixel((0, 0), (value[0] ^ 1, *value[1:]) if isinstance(value, tuple) else value ^ 1)
    picture.save(path)
    assert differing(folder) == {"outputs": "1 of 8 rows (2)"}
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 255
    path.write_bytes(raw)
    with pytest.raises(RunError, match=r"0002\.png is damaged: .*delete .*step_000002"):
        redraw(folder, 2)


@pytest.mark.parametrize("name", [record.SAMPLES, record.TRACE])
def test_a_torn_file_is_named(name: str, copy: Path) -> None:
    path = record.folder_of(copy, 2) / name
    raw = bytearray(path.read_bytes())
    raw[30 if name == record.SAMPLES else 9] ^= 255  # in a page of data, in the header
    path.write_bytes(raw)
    with pytest.raises(RunError, match=rf"step_000002/{name} is damaged: \w+: .*delete .*step_000002"):
        redraw(copy, 2)


def test_a_changed_version_is_named_as_the_likely_cause(copy: Path) -> None:
    versions = json.loads((copy / "versions.json").read_text())
    (copy / "versions.json").write_text(json.dumps(versions | {"torch": "1.0"}))
    assert redraw(copy, 2).equal  # it is no finding where nothing differs

    def change(kept: dict[str, torch.Tensor]) -> None:
        kept["advantages"][0] += 1

    tampered(copy, change)
    lines = list(redraw(copy, 2).lines())
    assert lines[0].endswith("it differs from that of the run")
    assert "  outputs: equal to the bit" in lines
    assert "  advantages: advantages in 1 of 8 rows (0), by up to 1" in lines
    assert lines[-1] == f"Changed since then: torch 1.0 -> {torch.__version__}."


def test_a_resume_with_other_versions_does_not_hide_the_first_ones(copy: Path) -> None:
    path = record.folder_of(copy, 2) / record.SAMPLES
    table = parquet.read_table(path)
    kept = json.loads(table.schema.metadata[b"grpokit"])
    kept["conditions"] |= {"torch": "1.0", "threads": 64}
    parquet.write_table(table.replace_schema_metadata({"grpokit": json.dumps(kept)}), path)
    changes = redraw(copy, 2).changes
    assert changes == {"threads": (64, 1), "torch": ("1.0", torch.__version__)}


def test_trackers_do_not_hear_of_it(copy: Path) -> None:
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(text.replace("use: []", "use: [tensorboard]"))
    assert presets.read_config(str(copy))[0].trackers.use == ["tensorboard"]
    before = tree(copy)
    assert redraw(copy, 6).equal
    assert tree(copy) == before


def test_other_weights_make_other_samples(copy: Path) -> None:
    place = copy / "checkpoints" / "step_000004"
    weights = Path("policy.safetensors")
    (place / weights).write_bytes((copy / "checkpoints" / "step_000005" / weights).read_bytes())
    state = json.loads((place / "state.json").read_text())
    state["files"][weights.as_posix()] = checkpoint._digest(place / weights)
    del state["digest"]
    (place / "state.json").write_text(json.dumps({**state, "digest": checkpoint._digest_of(state)}))
    shutil.rmtree(copy / "checkpoints" / "step_000005")
    found = redraw(copy, 5)
    assert not found.equal
    assert f"{ROWS} of {ROWS} rows" in found.parts["log-probs"]
    assert found.parts["prompts"] == ""


def test_a_checkpoint_from_the_middle_of_a_step_is_no_start(copy: Path) -> None:
    place = copy / "checkpoints" / "step_000005"
    state = checkpoint.read_state(place)
    state["parts"]["position"]["updates_done"] = 1
    (place / "state.json").write_text(json.dumps({**state, "digest": checkpoint._digest_of(state)}))
    found = redraw(copy, 6)
    assert found.equal
    assert found.start == copy / "checkpoints" / "step_000004"


def test_without_a_record_the_metrics_are_compared(copy: Path) -> None:
    shutil.rmtree(copy / "rollouts")
    assert redraw(copy, 3).parts == {"metrics": ""}


@pytest.mark.parametrize(
    ("x", "y", "tau"),
    [
        ([1, 2, 3, 4], [2, 3, 5, 7], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4], [2, 1, 4, 3], 1 / 3),  # 4 pairs agree, 2 do not
        ([1, 2, 3], [1, 1, 2], 2 / math.sqrt(3 * 2)),  # one pair is tied in y
        ([1, 1, 2, 2], [1, 2, 1, 2], 0.0),
        ([0, 1, 0], [1, 2, 3], 0.0),
        ([1, 1, 1], [1, 2, 3], math.nan),
        ([1], [2], math.nan),
        ([], [], math.nan),
    ],
)
def test_kendall_tau_by_hand(x: list[float], y: list[float], tau: float) -> None:
    assert kendall_tau(torch.tensor(x), torch.tensor(y)) == pytest.approx(tau, abs=1e-15, nan_ok=True)


def test_kendall_tau_agrees_with_counting_pairs() -> None:
    draw = torch.Generator().manual_seed(1)
    for _ in range(20):
        x, y = torch.randint(0, 4, (2, 9), generator=draw).tolist()
        pairs = [(x[i] - x[j], y[i] - y[j]) for i in range(9) for j in range(i)]
        agree, against = sum(a * b > 0 for a, b in pairs), sum(a * b < 0 for a, b in pairs)
        only_x, only_y = sum(a != 0 for a, _ in pairs), sum(b != 0 for _, b in pairs)
        expected = (agree - against) / math.sqrt(only_x * only_y)
        assert kendall_tau(torch.tensor(x), torch.tensor(y)) == pytest.approx(expected)


def write_run(folder: Path) -> None:
    """A run of two steps with two groups of three each, small enough to be worked out by hand."""
    folder.mkdir()
    (folder / "prompts.txt").write_text("one\ntwo\n")
    config = f"""
policy: {{use: toy-lm}}
data: {{prompts: {folder / "prompts.txt"}}}
rewards: [{{use: "tiny_rewards:letters"}}]
"""
    (folder / "config.yaml").write_text(config)
    steps = [
        (["a", "bb", "ccc", "a", "bbb", "cc"], [0, 1, 0, 1, 2, 2], [-0.5, 1, -0.5, -1, 0.5, 0.5]),
        (["a", "bb", "ccc", "aaaaa", "b", "cc"], [3, 3, 3, math.nan, 1, 0], [0, 0, 0, 0, 0.7, -0.7]),
    ]
    for number, (outputs, rewards, own) in enumerate(steps, start=1):
        kept = torch.tensor(rewards, dtype=torch.float64)[:, None]
        record.write(folder, step_of(outputs, step=number, rewards=kept, advantages=torch.tensor(own), weights=[2.0]))


def test_rescore_by_hand(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    found = rescore(tmp_path / "run", "tiny_rewards:letters", {"factor": 2.0})
    assert list(found.rankings) == ["old", "reward"]
    old, total = found.rankings.values()
    # tau-b: 0 (one pair for, one against), 2 / sqrt(2 * 3), a constant group, and -1 over the two rows that are scored
    assert old.tau == pytest.approx((0 + 2 / math.sqrt(6) - 1) / 3)
    assert (old.compared, old.groups) == (3, 4)
    assert old.best_changed == pytest.approx(2 / 3)  # "ccc" for "bb"; "bbb" shares the first place; "cc" for "b"
    assert (old.first, old.last) == (1.0, 2.0)
    assert total.first == 2.0
    assert found.flipped == 2  # "ccc" of the first step, "b" of the second
    assert (found.steps, len(found.scores), int(found.scores.isnan().sum())) == (2, 12, 0)
    assert (found.new.first, found.new.last) == (4.0, pytest.approx(2 * 14 / 6))


def test_the_same_reward_agrees_and_its_opposite_disagrees(lm: Path, tmp_path: Path) -> None:
    written: list[Any] = []
    same = rescore(lm, "tiny_rewards:letters", write=written.append)
    assert [(n, r.tau, r.best_changed) for n, r in same.rankings.items()] == [
        ("letters", 1.0, 0.0),
        ("reward", 1.0, 0.0),
    ]
    assert same.flipped == 0
    assert same.new.first == same.rankings["letters"].first
    kept = [record.read(lm, step) for step in record.steps(lm)]
    assert [row["score"] for row in written] == torch.cat([step.rewards[:, 0] for step in kept]).tolist()
    assert [row["step"] for row in written] == [step for step in range(1, STEPS + 1) for _ in range(ROWS)]
    assert [row["group"] for row in written] == torch.cat([step.groups for step in kept]).tolist()
    opposite = rescore(lm, "tiny_rewards:negated")
    assert [r.tau for r in opposite.rankings.values()] == [-1.0, -1.0]
    assert opposite.flipped == sum(int((step.advantages != 0).sum()) for step in kept) > 0
    assert opposite.rankings["letters"].compared == same.rankings["letters"].compared > 0


def test_pictures_and_points_score_as_they_did(recorded: tuple[str, Path]) -> None:
    preset, folder = recorded
    found = rescore(folder, REWARDS[preset])
    assert found.flipped == 0
    assert not found.scores.isnan().any()
    assert found.new.first == pytest.approx(next(iter(found.rankings.values())).first, abs=0)
    assert all(r.tau == pytest.approx(1.0, abs=1e-12) or not r.compared for r in found.rankings.values())


def test_rows_that_cannot_be_scored_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    record.write(tmp_path / "run", step_of(["?", "bb", "?", "?", "?", "?"], step=3))
    found = rescore(tmp_path / "run", "tiny_rewards:letters")
    assert found.scores.isnan().sum() == 5
    assert found.new.last == 2.0
    assert (found.rankings["old"].compared, found.rankings["old"].groups) == (3, 6)


def test_prompts_that_have_changed_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "run" / "prompts.txt").write_text("one\nthree\n")
    with pytest.raises(DataError, match=r"step 1 was drawn for 'two' as prompt 1 \(counted from 0\), but that is now"):
        rescore(tmp_path / "run", "tiny_rewards:letters")
    (tmp_path / "run" / "prompts.txt").write_text("one\n")
    with pytest.raises(DataError, match="there is only 1 prompt now"):
        rescore(tmp_path / "run", "tiny_rewards:letters")


def test_targets_that_have_changed_are_refused(tmp_path: Path) -> None:
    lines = [{"prompt": prompt, "target": prompt} for prompt in ("12+25", "30+14")]
    sums = tmp_path / "sums.jsonl"
    sums.write_text("\n".join(map(json.dumps, lines)))
    train("toy-lm", tmp_path / "run", LETTERS, f"data={{prompts: {sums}}}", "trainer.steps=1")
    assert len(rescore(tmp_path / "run", "exact-match").scores) == ROWS
    lines[1]["target"] = "44"
    sums.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(DataError, match=r"other training prompts: 1 of 2 prompts changed, first the target of"):
        rescore(tmp_path / "run", "exact-match")


def test_outputs_that_are_only_described_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    record.write(tmp_path / "run", step_of([Board(), Board()]))
    with pytest.raises(UsageError, match=r"of step 1 cannot be scored again: row 0 is recorded only as '<.*Board"):
        rescore(tmp_path / "run", "tiny_rewards:letters")


def test_rescore_prints_a_table(tmp_path: Path, call: Call) -> None:
    write_run(tmp_path / "run")
    done = call("score", "run", "--reward", "tiny_rewards:letters", "factor=2", "--out", "scores.jsonl")
    assert (done.code, done.err) == (0, "")
    assert len((tmp_path / "scores.jsonl").read_text().splitlines()) == 12
    table = [line.split() for line in done.out.splitlines()]
    assert table[0] == ["reward", "tau", "other", "best", "groups", "first", "third", "last", "third"]
    assert table[1] == ["letters", "(new)", "4.000", "4.667"]
    assert table[2] == ["old", "-0.061", "66.7%", "3", "of", "4", "1.000", "2.000"]
    assert table[3][:2] == ["reward", "-0.061"]
    assert "12 samples of 2 steps scored again, 0 of them could not be scored" in done.out
    assert "2 of 12 advantages (16.7%) would have had the other sign" in done.out


def test_redraw_says_equal_with_0_and_different_with_1(copy: Path, call: Call) -> None:
    done = call("redraw", copy, "--step", 2)
    start = "from the policy that the config builds"
    assert (done.code, done.err) == (0, f"Repeating step 1 first, {start}.\n")
    assert done.out == f"step 2 drawn again {start}: equal to the bit ({', '.join(PARTS)})\n"
    (record.folder_of(copy, 2) / record.SAMPLES).write_bytes((record.folder_of(copy, 3) / record.SAMPLES).read_bytes())
    done = call("redraw", copy, "--step", 2)
    assert done.code == 1
    assert "\n  decisions: equal to the bit\n" in done.out
    assert "\n  prompts: 8 of 8 rows (0, 1, 2, 3, 4 and 3 more)\n" in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["redraw", "nowhere", "--step", "1"], "nowhere is not a run folder: it has no config.yaml."),
        (["score", "run", "--reward", "lenght"], "There is no reward called 'lenght' (did you mean 'length'?)"),
        (["score", "run", "--reward", "mse"], "The reward 'mse' scores pictures, but the policy 'toy-lm' makes"),
        (["score", "run", "--reward", "length", "max=3"], "has no parameter 'max'"),
        (["score", "run", "--reward", "length", "3"], "parameter '3' is not of the form key=value"),
        (["score", "run", "--reward", "length", "--reward", "mse"], "with one reward at a time."),
        (["redraw", "run", "--step", "7"], "run has no step 7 to compare with: it has completed the steps 1 to 6."),
        (["redraw", "plain", "--step", "1"], "has no step 1 to compare with: it has completed no step yet."),
    ],
)
def test_bad_input(words: list[str], message: str, lm: Path, tmp_path: Path, call: Call) -> None:
    (tmp_path / "run").symlink_to(lm)
    (tmp_path / "plain").mkdir()
    shutil.copy(lm / "config.yaml", tmp_path / "plain")
    before = tree(tmp_path)
    done = call(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert message in done.err
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "words", [["train", "toy-lm", "run.record=true", "run.dir=new"], ["score", "run", "--reward", "length"]]
)
def test_without_pyarrow_the_command_says_so_first(words: list[str], lm: Path, tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(lm)
    script = (
        f"import sys; sys.modules['pyarrow'] = None; sys.argv = {['grpokit', *words]}\n"
        "from grpokit.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: The rollout record needs pyarrow. Run: pip install 'grpokit[record]'\n"
    assert done.stdout == ""
    assert not (tmp_path / "new").exists()


def test_a_run_without_a_record_keeps_none_and_needs_no_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_report: None
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    train("toy-flow", tmp_path / "new", "run.record=false", "trainer.steps=1", "eval.samples=1")
    assert not (tmp_path / "new" / "rollouts").exists()
    assert redraw(tmp_path / "new", 1).parts == {"metrics": ""}
