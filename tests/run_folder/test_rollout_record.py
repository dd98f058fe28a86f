"""The rollout record: what is kept comes back exactly, another reward ranks it, and every step can be drawn again."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from command_line import Call, embedded
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
from grpokit.config.evaluation import of_rewards
from grpokit.run_folder import names
from grpokit.run_folder import rollout_record as record
from grpokit.run_folder.rollout_record import Described
from grpokit.runs import build
from grpokit.runs.replay import replay
from grpokit.runs.rescore import Ranking, kendall_tau, ranking_table, rescore
from grpokit.training import checkpoint
from whole_runs import assert_same_record, train_preset

STEPS = 6
ROWS = 8
SMALL = (f"trainer.steps={STEPS}", "data.limit=10", "run.save_every=2", "run.keep_last=2", "run.record=true")
LETTERS = "rewards=[{use: 'tiny_rewards:letters', name: letters}]"
REWARDS = {"toy-lm": "length", "toy-glyph": "ssim", "toy-flow": "ring"}  # quick ones
PARTS = ["prompts", "decisions", "log-probs", "outputs", "rewards", "advantages", "metrics"]


def train(preset: str, folder: Path, *overrides: str, **options: bool) -> None:
    train_preset(preset, folder, *SMALL, *overrides, **options)


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=() if name == "toy-lm" else pytest.mark.slow) for name in REWARDS]
)
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
    assert record.recorded_steps(folder) == list(range(1, STEPS + 1))
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    prompts, _ = build.prompts(presets.read_config(str(folder))[0])
    for row in metrics:
        kept = record.read_step(folder, row["step"])
        assert kept.reward_names == [REWARDS[preset]]
        rewards, totals, groups = (kept.tensors[name] for name in ("rewards", "totals", "groups"))
        assert float(rewards.mean()) == row[f"rewards/{REWARDS[preset]}/mean"]
        assert torch.equal(totals, 0.5 * rewards[:, 0])
        assert [prompts[own["prompt_index"]].text for own in kept.rows] == [own["prompt"] for own in kept.rows]
        assert torch.equal(kept.tensors["advantages"], advantages.group(rewards, torch.tensor([0.5]), groups).float())
        assert [own["scores"][REWARDS[preset]] for own in kept.rows] == rewards[:, 0].tolist()
        assert [own["decisions"] for own in kept.rows] == kept.tensors["mask"].sum(-1).tolist()


@pytest.mark.parametrize("mode", [*record._AS_PNG, "CMYK", "F", "HSV", "I", "LAB", "RGBX", "YCbCr"])
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
    record.write_step(tmp_path, step_of([picture, picture.copy()]))
    for back in record.read_step(tmp_path, 1).outputs:
        assert (back.mode, back.size, back.tobytes()) == (mode, (7, 5), picture.tobytes())
        assert back.getpalette() == picture.getpalette()


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
        ("a", 1),
        {"x": [1, None]},
        [],
        "\ud800",
        np.float32(1.1),
        np.int64(3),
        torch.tensor([[0.1, math.nan]]),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.tensor([2**53 + 1, -1]),
        torch.zeros(2, 0),
        np.float32([[1.1], [-0.0]]),
        np.array([True, False]),
    ],
    ids=repr,
)
def test_texts_and_numbers_come_back_as_they_were(output: Any, tmp_path: Path) -> None:
    record.write_step(tmp_path, step_of([output, output]))
    back = record.read_step(tmp_path, 1).outputs[1]
    assert repr(back) == repr(output)
    assert type(back) is type(output)
    if isinstance(output, (tuple, list)):
        assert [type(x) for x in back] == [type(x) for x in output]
    if isinstance(output, (torch.Tensor, np.ndarray)):
        assert (back.dtype, back.shape) == (output.dtype, output.shape)


class Board:
    """An output that a record can only describe; its `repr` names an address."""


def test_numbers_of_numpy_in_a_tuple_come_back_as_numbers(tmp_path: Path) -> None:
    output = (np.float32(0.1), np.int64(2))
    record.write_step(tmp_path, step_of([output, output]))
    back = record.read_step(tmp_path, 1).outputs[0]
    assert back == output
    assert [type(x) for x in back] == [float, int]


def test_other_outputs_are_described(tmp_path: Path) -> None:
    record.write_step(tmp_path, step_of([Board(), Board()]))
    for back in record.read_step(tmp_path, 1).outputs:
        assert isinstance(back, Described)
        assert " at 0x" not in back.text


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
    record.write_step(
        tmp_path,
        step_of(
            ["a", "b"], rollout=rollout, rewards=rewards, reward_names=["x", "y"], advantages=each, weights=[2.0, 1.0]
        ),
    )
    kept = record.read_step(tmp_path, 1)
    assert torch.equal(kept.tensors["rewards"].nan_to_num(-1), rewards.nan_to_num(-1))
    assert torch.equal(kept.tensors["advantages"], each)
    assert [row["reward"] for row in kept.rows] == [2.0, None]
    assert [row["scores"]["y"] for row in kept.rows] == [None, None]
    assert [row["advantage"] for row in kept.rows] == [1.5, 3.0]  # the second row's second decision is masked
    assert [row["info"] for row in kept.rows] == [{"why": "end", "tokens": [1, 2]}, {}]  # as JSON gives it back
    assert [row["prompt_index"] for row in kept.rows] == [0, 1]


def test_tensors_that_share_memory_are_kept_each(tmp_path: Path) -> None:
    whole = torch.arange(8, dtype=torch.bfloat16).reshape(2, 4)
    plain = step_of(["a", "b"])
    trace = Trace(per_row={"all": whole, "half": whole[:, :2], "same": whole}, per_group={"wide": whole[:, :1]})
    record.write_step(tmp_path, step_of(["a", "b"], rollout=Rollout(**{**vars(plain.rollout), "trace": trace})))
    back = record.read_step(tmp_path, 1).tensors
    assert torch.equal(back["per_row.half"], whole[:, :2])
    assert torch.equal(back["per_row.same"], whole)
    assert back["per_group.wide"].dtype == torch.bfloat16


@pytest.mark.parametrize("name", [names.ROWS, names.TRACE])
def test_a_torn_or_missing_file_is_named(name: str, tmp_path: Path) -> None:
    record.write_step(tmp_path, step_of(["a", "b"]))
    path = record.folder_of(tmp_path, 1) / name
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(RunError, match="step_000001 is damaged"):
        record.read_step(tmp_path, 1)
    path.unlink()
    with pytest.raises(RunError, match="step_000001 is damaged"):
        record.read_step(tmp_path, 1)
    record.write_step(tmp_path, step_of(["e", "f"]))  # in the place of the old one
    assert record.read_step(tmp_path, 1).outputs == ["e", "f"]


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("grpokit.run_folder.rollout_record.save_file", full)
    with pytest.raises(RunError, match=r"rollouts/step_000001 cannot be written: .*No space left"):
        record.write_step(tmp_path, step_of(["a", "b"]))
    assert not any((tmp_path / "rollouts").iterdir())


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 3])
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
    found = replay(folder, step)
    assert found.equal
    assert found.start == (None if start is None else folder / "checkpoints" / f"step_{start:06d}")
    assert list(found.parts) == PARTS
    assert tree(folder) == before


def tampered(folder: Path, change: Callable[[dict[str, torch.Tensor]], None], **conditions: Any) -> None:
    path = record.folder_of(folder, 2) / names.TRACE
    kept = record.read_step(folder, 2)
    change(kept.tensors)  # type: ignore[arg-type]
    notes = {"rewards": kept.reward_names, "conditions": {**kept.conditions, **conditions}}
    save_file(dict(kept.tensors), path, metadata={"grpokit": json.dumps(notes)})


def test_what_differs_is_named_with_its_rows(copy: Path) -> None:
    """One bit of a token, two log-probs, a tensor of another shape, an advantage, a text and a score."""

    def change(kept: dict[str, torch.Tensor]) -> None:
        kept["per_row.tokens"][5, 0] ^= 1
        kept["old.logprobs"][[1, 3], 0] += torch.tensor([0.125, 0.25])
        kept["mask"] = kept["mask"][:, :3].contiguous()
        kept["advantages"][7] = -kept["advantages"][7] - 1
        kept["rewards"][0, 0] += 1
        del kept["per_group.prompt"]

    tampered(copy, change, torch="1.0", threads=64)
    path = record.folder_of(copy, 2) / names.ROWS
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[6]["output"] += "!"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = replay(copy, 2)
    parts = dict(found.parts)
    decisions = parts.pop("decisions")
    for words in ("per_row.tokens in 1 of 8 rows (5)", "mask was torch.bool [8, 3]", "per_group.prompt was nothing"):
        assert words in decisions
    assert parts.pop("advantages").startswith("advantages in 1 of 8 rows (7), by up to ")
    assert parts == {
        "log-probs": "old.logprobs in 2 of 8 rows (1, 3), by up to 0.25",
        "prompts": "",
        "outputs": "outputs in 1 of 8 rows (6)",
        "rewards": "rewards in 1 of 8 rows (0), by up to 1",
        "metrics": "",
    }
    assert found.changes == {"threads": (64, 1), "torch": ("1.0", torch.__version__)}
    lines = list(found.lines())
    assert lines[0].endswith("it differs from the run's")
    assert "  metrics: equal to the bit" in lines
    assert "torch 1.0 -> " in lines[-1]


@pytest.mark.parametrize("recorded", ["toy-glyph"], indirect=True)
def test_one_pixel(recorded: tuple[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(recorded[1], tmp_path / "copy"))
    path = record.folder_of(folder, 2) / "0002.png"
    with Image.open(path) as picture:
        picture.load()
    value = picture.getpixel((0, 0))
    picture.putpixel((0, 0), (value[0] ^ 1, *value[1:]) if isinstance(value, tuple) else value ^ 1)
    picture.save(path)
    differences = {part: what for part, what in replay(folder, 2).parts.items() if what}
    assert differences == {"outputs": "outputs in 1 of 8 rows (2)"}


def test_trackers_do_not_hear_of_it(copy: Path) -> None:
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(text.replace("use: []", "use: [tensorboard]"))
    assert presets.read_config(str(copy))[0].trackers.use == ["tensorboard"]
    before = tree(copy)
    assert replay(copy, 6).equal
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
    found = replay(copy, 5)
    assert not found.equal
    assert f"{ROWS} of {ROWS} rows" in found.parts["log-probs"]
    assert found.parts["prompts"] == ""


def test_a_checkpoint_from_the_middle_of_a_step_is_no_start(copy: Path) -> None:
    place = copy / "checkpoints" / "step_000005"
    state = checkpoint.read_state(place)
    state["parts"]["position"]["updates_done"] = 1
    (place / "state.json").write_text(json.dumps({**state, "digest": checkpoint._digest_of(state)}))
    found = replay(copy, 6)
    assert found.equal
    assert found.start == copy / "checkpoints" / "step_000004"


def test_without_a_record_the_metrics_are_compared(copy: Path) -> None:
    shutil.rmtree(copy / "rollouts")
    assert replay(copy, 3).parts == {"metrics": ""}


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
        record.write_step(
            folder, step_of(outputs, step=number, rewards=kept, advantages=torch.tensor(own), weights=[2.0])
        )


def test_another_best_by_hand() -> None:
    """The first place of the first group is shared; in the second no sample is best under both."""
    old, new = torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 0.5, 2.0, 0.0, 1.0])
    ranking = Ranking()
    ranking.add(1, old[:3], new[:3], torch.zeros(3))
    assert ranking.changed == 0
    ranking.add(2, old, new, torch.arange(6) // 3)
    assert (ranking.changed, len(ranking.taus), ranking.groups) == (1, 3, 3)


def test_rescore_by_hand(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    found = rescore(tmp_path / "run", of_rewards(["tiny_rewards:letters"], ["factor=2.0"]))
    assert list(found.rankings) == ["old", "reward"]
    old = found.rankings["old"]
    # tau-b: 0 (one pair for, one against), 2 / sqrt(2 * 3), a constant group, and -1 over the two rows that are scored
    assert old.taus == pytest.approx([0, 2 / math.sqrt(6), -1])
    assert old.groups == 4
    assert old.changed == 2  # "ccc" for "bb"; "bbb" shares the first place; "cc" for "b"
    assert found.thirds(old.means) == ["1.000", "2.000"]
    assert found.thirds(found.rankings["reward"].means)[0] == "2.000"
    assert found.flipped == 2  # "ccc" of the first step, "b" of the second
    assert (list(found.scores), len(found.column), int(found.column.isnan().sum())) == ([1, 2], 12, 0)
    assert next(iter(ranking_table(found)))[-2:] == ("4.000", f"{2 * 14 / 6:.3f}")


def test_the_same_reward_agrees_and_its_opposite_disagrees(lm: Path, tmp_path: Path) -> None:
    same = rescore(lm, of_rewards(["tiny_rewards:letters"], []))
    assert list(same.rankings) == ["letters", "reward"]
    assert all({*ranking.taus} == {1.0} and not ranking.changed for ranking in same.rankings.values())
    assert same.flipped == 0
    new, letters, _ = ranking_table(same)
    assert new[-2:] == letters[-2:]
    kept = [record.read_step(lm, step) for step in record.recorded_steps(lm)]
    evaluations = list(same.evaluations())
    assert [step for step, _, _ in evaluations] == list(range(1, STEPS + 1))
    for (_, evaluation, _), step in zip(evaluations, kept, strict=True):
        assert evaluation.scores.matrix[:, 0].tolist() == [row["scores"]["letters"] for row in step.rows]
        assert torch.equal(evaluation.scores.groups, step.tensors["groups"])
    opposite = rescore(lm, of_rewards(["tiny_rewards:negated"], []))
    assert all({*ranking.taus} == {-1.0} for ranking in opposite.rankings.values())
    assert opposite.flipped == sum(int((step.tensors["advantages"] != 0).sum()) for step in kept) > 0


def test_pictures_and_points_score_as_they_did(recorded: tuple[str, Path]) -> None:
    preset, folder = recorded
    found = rescore(folder, of_rewards([REWARDS[preset]], []))
    assert found.flipped == 0
    assert not found.column.isnan().any()
    ranking = found.rankings[REWARDS[preset]]
    assert {step: float(scores.matrix.mean()) for step, scores in found.scores.items()} == ranking.means
    assert all(tau == pytest.approx(1.0, abs=1e-12) for tau in ranking.taus)


def test_rows_that_cannot_be_scored_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    record.write_step(tmp_path / "run", step_of(["?", "bb", "?", "?", "?", "?"], step=3))
    found = rescore(tmp_path / "run", of_rewards(["tiny_rewards:letters"], []))
    assert found.column.isnan().sum() == 5
    assert float(found.scores[3].matrix.nanmean()) == 2.0
    assert (len(found.rankings["old"].taus), found.rankings["old"].groups) == (3, 6)


def test_prompts_that_have_changed_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "run" / "prompts.txt").write_text("one\nthree\n")
    with pytest.raises(DataError, match="Step 1 was drawn for prompts that"):
        rescore(tmp_path / "run", of_rewards(["tiny_rewards:letters"], []))
    (tmp_path / "run" / "prompts.txt").write_text("one\n")
    with pytest.raises(DataError, match="Step 1 was drawn for prompts that"):
        rescore(tmp_path / "run", of_rewards(["tiny_rewards:letters"], []))


def test_targets_that_have_changed_are_refused(tmp_path: Path) -> None:
    lines = [{"prompt": prompt, "target": prompt} for prompt in ("12+25", "30+14")]
    sums = tmp_path / "sums.jsonl"
    sums.write_text("\n".join(map(json.dumps, lines)))
    train("toy-lm", tmp_path / "run", LETTERS, f"data={{prompts: {sums}}}", "trainer.steps=1")
    assert len(rescore(tmp_path / "run", of_rewards(["exact-match"], [])).column) == ROWS
    lines[1]["target"] = "44"
    sums.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(DataError, match=r"other training prompts: 1 of 2 prompts changed, first the target of"):
        rescore(tmp_path / "run", of_rewards(["exact-match"], []))


def test_outputs_that_are_only_described_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    record.write_step(tmp_path / "run", step_of([Board(), Board()]))
    with pytest.raises(UsageError, match=r"of step 1 cannot be scored again: row 0 is recorded only as '<.*Board"):
        rescore(tmp_path / "run", of_rewards(["tiny_rewards:letters"], []))


def test_rescore_prints_a_table(tmp_path: Path, call: Call) -> None:
    write_run(tmp_path / "run")
    done = call("evaluate", "run/rollouts", "--reward", "tiny_rewards:letters", "factor=2", "--out", "kept")
    assert (done.code, done.err) == (0, "")
    page = embedded(tmp_path / "kept/report.html")["runs"][0]
    (line,) = page["charts"][0]["lines"]
    assert (line["x"], line["y"]) == ([1, 2], pytest.approx([4.0, 14 / 3], rel=1e-4))
    assert done.out.endswith("report: kept/report.html\n")
    table = [line.split() for line in done.out.splitlines()]
    assert table[0] == ["reward", "tau", "other", "best", "groups", "first", "third", "last", "third"]
    assert table[1] == ["letters", "(new)", "4.000", "4.667"]
    assert table[2] == ["old", "-0.061", "66.7%", "3", "of", "4", "1.000", "2.000"]
    assert table[3][:2] == ["reward", "-0.061"]
    assert "12 samples of 2 steps scored again, 0 of them could not be scored" in done.out
    assert "2 of 12 advantages (16.7%) would have had the other sign" in done.out


def test_a_rescore_that_fails_in_a_later_step_leaves_the_earlier_result(tmp_path: Path, call: Call) -> None:
    write_run(tmp_path / "run")
    words = ["evaluate", "run/rollouts", "--reward", "tiny_rewards:letters", "--out", "kept"]
    assert call(*words).code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "kept").rglob("*") if path.is_file()}
    record.write_step(tmp_path / "run", step_of([Board(), Board()], step=2))
    done = call(*words)
    assert (done.code, done.out) == (2, "")
    assert {path: path.read_bytes() for path in (tmp_path / "kept").rglob("*") if path.is_file()} == before


def test_a_reward_that_scores_nothing_of_a_record(tmp_path: Path, call: Call) -> None:
    write_run(tmp_path / "run")
    done = call("evaluate", "run/rollouts", "--reward", "exact-match", "--out", "kept")
    assert done.code == 2
    assert "12 of them could not be scored" in done.out
    assert (tmp_path / "kept/report.html").is_file()
    assert done.err == (
        "error: exact-match scored no sample of run. It may need a target or a source, which the run's prompts do not "
        "have.\n"
    )


def test_replay_says_equal_with_0_and_different_with_1(copy: Path, call: Call) -> None:
    done = call("replay", copy, "--step", 2)
    start = "from the policy that the config builds"
    assert (done.code, done.err) == (0, "Repeating 1 step first, from the beginning.\n")
    assert done.out == f"step 2 drawn again {start}: equal to the bit ({', '.join(PARTS)})\n"
    (record.folder_of(copy, 2) / names.ROWS).write_bytes((record.folder_of(copy, 3) / names.ROWS).read_bytes())
    done = call("replay", copy, "--step", 2)
    assert done.code == 1
    assert "\n  decisions: equal to the bit\n" in done.out
    assert "\n  prompts: prompts in 8 of 8 rows (0, 1, 2, 3, 4 and 3 more)\n" in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["replay", "nowhere", "--step", "1"], "nowhere is not a run folder: it has no config.yaml."),
        (
            ["evaluate", "run/rollouts", "--reward", "lenght"],
            "There is no reward called 'lenght' (did you mean 'length'?)",
        ),
        (
            ["evaluate", "run/rollouts", "--reward", "mse"],
            "The reward 'mse' scores pictures, but the policy 'toy-lm' makes",
        ),
        (["evaluate", "run/rollouts", "--reward", "length", "max=3"], "has no parameter 'max'"),
        (["evaluate", "run/rollouts", "--reward", "length", "3"], "parameter '3' is not of the form key=value"),
        (["evaluate", "run/rollouts", "--reward", "length", "--reward", "mse"], "with one reward at a time."),
        (["evaluate", "run", "--against", "run/rollouts", "--reward", "length"], "--against run/rollouts: expected a"),
        (["replay", "run", "--step", "7"], "run has no step 7 to compare with: it has completed 6."),
        (["replay", "plain", "--step", "1"], "has no step 1 to compare with: it has completed 0."),
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


def test_a_run_without_a_record_keeps_none(tmp_path: Path, without_report: None) -> None:
    train("toy-flow", tmp_path / "new", "run.record=false", "trainer.steps=1", "eval.samples=1")
    assert not (tmp_path / "new" / "rollouts").exists()
    assert replay(tmp_path / "new", 1).parts == {"metrics": ""}
