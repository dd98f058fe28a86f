"""What a run keeps and what it says when it cannot go on: checkpoints kept, failures that lose nothing, versions."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from command_line import write_no_report
from grpokit import ConfigError, RewardError, RunError, Sample, Trainer, UsageError
from grpokit.config import schema
from grpokit.run_folder.journal import Journal
from grpokit.run_folder.lock import locked
from grpokit.run_folder.start import initialised
from grpokit.runs import train as run
from grpokit.tracking.step_report import StepReport
from grpokit.training import checkpoint
from grpokit.training.updates import Updates
from small_runs import STEPS, rows, train, write_prompts
from switched import Switch, Switched, reward


@pytest.fixture(autouse=True)
def prepared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    Switch.off()
    if "drawn" not in request.fixturenames:
        write_no_report(monkeypatch)
    monkeypatch.chdir(tmp_path)
    write_prompts([str(i) for i in range(1, 9)])


def kept(folder: str) -> list[str]:
    return sorted(p.name for p in Path(folder, "checkpoints").iterdir())


def steady(folder: str) -> list[dict[str, Any]]:
    noise = re.compile("time|seconds|memory")
    return [{k: v for k, v in row.items() if not noise.search(k)} for row in rows(f"{folder}/metrics.jsonl")]


# --- which checkpoints are kept -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "expected"), [(1, [6]), (2, [5, 6]), (None, [1, 2, 3, 4, 5, 6]), (9, [1, 2, 3, 4, 5, 6])]
)
def test_the_last_checkpoints_are_kept(keep: int | None, expected: list[int]) -> None:
    train("out", run__save_every=1, run__keep_last=keep)
    assert kept("out") == [f"step_{n:06d}" for n in expected]


def test_the_best_by_a_held_out_score_is_kept_beside_them() -> None:
    train("out", trainer__learning_rate=0.3, eval__every=1, run__best="digits", run__keep_last=1)
    scores = {row["step"]: row["means"]["digits"] for row in rows("out/eval.jsonl") if row["step"] > 0}
    best = max(scores, key=lambda step: (scores[step], -step))  # the first of equals
    assert best != STEPS, "the test needs a run whose best is not its last"
    assert kept("out") == ["best", f"step_{best:06d}", f"step_{STEPS:06d}"]
    assert checkpoint.read_state(Path("out/checkpoints/best"))["step"] == best
    train("all", trainer__learning_rate=0.3, run__save_every=1, run__keep_last=None)
    a = load_file("out/checkpoints/best/policy.safetensors")
    b = load_file(f"all/checkpoints/step_{best:06d}/policy.safetensors")
    assert all(torch.equal(a[name], b[name]) for name in b)


@pytest.mark.parametrize(("weight", "best"), [(1.0, [False, True, False, True]), (-0.5, [False, True, True, False])])
def test_the_best_of_a_score_is_by_the_sign_of_its_weight(weight: float, best: list[bool], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    names = [f"out/{name}.jsonl" for name in ("metrics", "eval", "warnings")]
    for name in names:
        Path(name).touch()
    found = []
    for step, mean in enumerate([0.0, 0.5, 0.2, 0.7]):  # that before training is no checkpoint
        with Path("out/eval.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "means": {"digits": mean}, "ci95": {}}) + "\n")
        found.append(Journal(Path("out"), step).is_best("digits", weight=weight))
    assert found == best


def test_the_best_of_a_penalty_is_its_lowest() -> None:
    penalty = [{"use": "switched:reward", "name": "digits", "weight": -1}]
    settings = {
        "policy": {"use": "switched:Switched"},
        "data": {"prompts": "prompts.jsonl"},
        "eval": {"prompts": "prompts.jsonl", "every": 1},
        "rewards": penalty,
        "trainer": {"steps": STEPS, "prompts_per_step": 2, "group_size": 4, "learning_rate": 0.3, "device": "cpu"},
        "run": {"dir": "out", "threads": 1, "best": "digits"},
    }
    run.train(schema.parse(json.dumps(settings), "test", []))
    scores = {row["step"]: row["means"]["digits"] for row in rows("out/eval.jsonl") if row["step"] > 0}
    assert len(set(scores.values())) > 1, "the test needs a run that changes"
    assert checkpoint.read_state(Path("out/checkpoints/best"))["step"] == min(scores, key=lambda s: (scores[s], s))


@pytest.mark.parametrize(
    ("scores", "weight", "passed"),
    [([1.0, 2.0, 1.5, 2.0], 1.0, 2), ([1.0, 2.0, 3.0], 1.0, 0), ([1.0, 2.0, 3.0], -1.0, 2), ([], 1.0, 0)],
)
def test_evaluations_without_gain_are_counted_from_the_best(
    scores: list[float], weight: float, passed: int, tmp_path: Path
) -> None:
    journal = Journal(tmp_path, 0)
    journal.evaluations = [{"step": step, "means": {"digits": score}} for step, score in enumerate(scores)]
    assert journal.evaluations_without_gain("digits", weight=weight) == passed


def test_a_run_ends_when_its_score_has_stopped_rising() -> None:
    """Also if it is resumed, and it goes on with more patience."""
    rule = {"reward": "digits", "patience": 1}
    changes = {"trainer__learning_rate": 0.3, "trainer__steps": 50, "eval__every": 1}
    ended = train("out", **changes, run__stop=rule)
    scores = [row["means"]["digits"] for row in rows("out/eval.jsonl")]
    assert (ended.interrupted, ended.steps) == (False, len(scores) - 1)
    assert ended.steps < 50
    assert scores[-1] <= max(scores[:-1]) == scores[-2]
    assert train("out", **changes, run__stop=rule, resume=True).steps == ended.steps
    patient = train("out", **changes, run__stop={**rule, "patience": 3}, resume=True)
    scores = [row["means"]["digits"] for row in rows("out/eval.jsonl")]
    assert ended.steps < patient.steps < 50
    assert patient.steps - scores.index(max(scores)) == 3


def test_the_best_is_the_same_after_a_resume() -> None:
    train("straight", eval__every=1, run__best="digits")
    train("out", eval__every=1, run__best="digits", run__save_every=1, run__keep_last=None)
    for name in ("step_000004", "step_000005", "step_000006"):
        shutil.rmtree(Path("out/checkpoints", name))
    train("out", eval__every=1, run__best="digits", resume=True)
    a, b = (load_file(f"{f}/checkpoints/best/policy.safetensors") for f in ("straight", "out"))
    assert all(torch.equal(a[name], b[name]) for name in b)
    assert rows("out/eval.jsonl") == rows("straight/eval.jsonl")


def test_a_best_that_nothing_measures_is_refused_before_the_run() -> None:
    with pytest.raises(
        UsageError, match=r"no held-out score 'digit' \(did you mean 'digits'\?\)\. The scores are reward, digits"
    ):
        train("out", run__best="digit")
    assert not Path("out").exists()
    with pytest.raises(ConfigError, match="'digits' is a held-out score, but the config names no"):
        train("out", run__best="digits", eval__prompts=None)
    assert not Path("out").exists()


def test_a_checkpoint_holds_config_and_versions() -> None:
    train("out")
    notes = checkpoint.read_state(Path(f"out/checkpoints/step_{STEPS:06d}"))["notes"]
    assert notes["config"]["trainer"]["learning_rate"] == 0.02
    assert notes["versions"] == json.loads(Path("out/versions.json").read_text())
    files = {p.name for p in Path(f"out/checkpoints/step_{STEPS:06d}").rglob("*") if p.is_file()}
    assert files == {"state.json", "optimizer.safetensors", "policy.safetensors"}  # nothing pickled


# --- failures lose nothing ------------------------------------------------------------------------------------------


def test_a_guard_that_stops_keeps_the_last_good_state(drawn: None) -> None:
    def act(samples: Sequence[Sample]) -> None:
        Switch.logprobs_are_nan = samples[0].group >= 6  # steps have two groups: in the fourth

    Switch.before_reward = act
    with pytest.raises(RunError) as caught:
        train("out")
    first, second = str(caught.value).splitlines()
    assert first.startswith("The loss is nan in step 4, update 1; this update was not made")
    assert second == (
        f"The state after step 3 is saved in {Path.cwd()}/out/checkpoints/step_000003; correct the cause, "
        "then continue with --resume."
    )
    assert json.loads(Path("out/end.json").read_text()) == {"state": "failed", "planned": STEPS, "message": first}
    assert "The loss is nan in step 4" in Path("out/report.html").read_text()
    Switch.off()
    train("out", resume=True)
    train("straight")
    assert steady("out") == steady("straight")
    assert Path("out/end.json").read_text() == Path("straight/end.json").read_text()


def test_a_failure_between_two_updates_saves_the_weights_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    update = Updates.make

    def then_break(self: Updates, step: int, *, decided: int) -> tuple[float, bool]:
        made = update(self, step, decided=decided)
        Switch.logprobs_are_nan = (step, self.done) == (3, 1)  # after the first of the two updates of the third step
        return made

    monkeypatch.setattr(Updates, "make", then_break)
    with pytest.raises(RunError, match=r"The loss is nan in step 3, update 2") as caught:
        train("out", trainer__updates_per_rollout=2)
    assert str(caught.value).endswith(
        f"\nThe weights after 1 of 2 updates of step 3 are saved in {Path.cwd()}/out/checkpoints/step_000002; "
        "correct the cause, then continue with --resume, which draws that step again."
    )
    monkeypatch.setattr(Updates, "make", update)
    Switch.off()
    assert train("out", trainer__updates_per_rollout=2, resume=True).steps == STEPS
    assert [row["step"] for row in steady("out")] == list(range(1, STEPS + 1))
    said = next(row for row in rows("out/warnings.jsonl") if "middle of step 3" in row["message"])
    assert said["step"] == 2
    assert "was saved in the middle of step 3, when 1 of its 2 updates were made" in said["message"]


def test_a_step_that_the_journal_lacks_is_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when a step is written down: a checkpoint of it would leave a gap in metrics.jsonl."""
    write = Journal.step

    def full(self: Journal, report: StepReport) -> None:
        if report.step == 4:
            raise RunError("metrics.jsonl cannot be written: No space left on device.")
        write(self, report)

    monkeypatch.setattr(Journal, "step", full)
    with pytest.raises(
        RunError, match=r"device\.\nThis state was not saved: .* continue from .*/out/checkpoints/step_000002 with"
    ):
        train("out", run__save_every=2)
    monkeypatch.setattr(Journal, "step", write)
    train("out", run__save_every=2, resume=True)
    train("straight")
    assert steady("out") == steady("straight")


def test_a_full_disk_leaves_the_earlier_checkpoint_whole() -> None:
    train("out", trainer__steps=2, run__save_every=1)
    before = {p: p.read_bytes() for p in Path("out/checkpoints").rglob("*") if p.is_file()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    try:
        with pytest.raises(RunError, match=r"cannot be written: "):
            train("out", resume=True, run__save_every=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert before == {p: p.read_bytes() for p in Path("out/checkpoints").rglob("*") if p.is_file()}
    train("out", resume=True)
    train("straight")
    assert steady("out") == steady("straight")


@pytest.mark.parametrize("full", ["groups/step_000001", "samples/step_000003/scores.json"])
def test_a_full_disk_under_the_samples_loses_no_step(full: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder's name is taken by a file, as good a reason not to write there as any."""
    begin = Journal.__init__

    def occupied(self: Journal, folder: Path, completed: int) -> None:
        begin(self, folder, completed)
        part, step = full.split("/")[:2]
        (folder / part).mkdir(exist_ok=True)
        (folder / part / step).write_text("in the way")

    monkeypatch.setattr(Journal, "__init__", occupied)
    with pytest.raises(
        RunError, match=rf"out/{full.split('/')[0]}.* cannot be written: .*\nThe state after step \d is saved"
    ):
        train("out", eval__every=3)
    monkeypatch.setattr(Journal, "__init__", begin)
    for part in ("groups", "samples"):
        for path in Path("out", part).glob("step_*"):
            if path.is_file():
                path.unlink()
    train("out", eval__every=3, resume=True)
    train("straight", eval__every=3)
    assert steady("out") == steady("straight")


def test_a_damaged_last_checkpoint_names_the_one_before() -> None:
    train("out", run__save_every=1)
    torn = Path("out/checkpoints/step_000006/optimizer.safetensors")
    torn.write_bytes(torn.read_bytes()[:100])
    before = Path("out/metrics.jsonl").read_bytes()
    with pytest.raises(
        UsageError, match=r"step_000006 is damaged: .* Delete .*/out/.* to continue from .*/out/.*_000005"
    ):
        train("out", resume=True)
    assert Path("out/metrics.jsonl").read_bytes() == before
    shutil.rmtree(torn.parent)
    train("out", resume=True)
    train("straight")
    assert steady("out") == steady("straight")


def test_a_checkpoint_of_another_format_is_refused() -> None:
    train("out", trainer__steps=2)
    file = Path("out/checkpoints/step_000002/state.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 4}))
    before = Path("out/metrics.jsonl").read_bytes()
    with pytest.raises(UsageError, match=r"step_000002 has format 4; this grpokit reads format 5\. Start a new run in"):
        train("out", resume=True)
    assert Path("out/metrics.jsonl").read_bytes() == before


def test_another_policy_is_named_as_that_where_it_is_forced() -> None:
    train("out", trainer__steps=2)
    with pytest.raises(
        UsageError, match=r"belongs to another policy, .* \('net/0\.weight', .* with another shape\)\. Resume"
    ):
        train("out", resume=True, force=True, policy__width=8)


class Tied(Switched):
    """Two modules that share a layer, in one order or the other."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = order

    def modules(self) -> dict[str, torch.nn.Module]:
        both = {"a": torch.nn.ModuleDict({"x": self.net[4]}), "b": self.net}
        return {name: both[name] for name in self.order}


def test_a_shared_parameter_has_one_name_in_any_order() -> None:
    first, second = (Trainer(Tied(order), [reward], ["1", "2"], group_size=4, device="cpu") for order in ("ab", "ba"))
    (group,) = second.updates.optimizer.param_groups
    shared = ["a/x.weight", "a/x.bias"]
    assert group["param_names"] == ["b/0.weight", "b/0.bias", "b/2.weight", "b/2.bias", *shared]
    first.step()
    first.save("state")
    second.load("state")
    states = [trainer.updates.optimizer.state for trainer in (first, second)]
    for ours, theirs in zip(first.policy.net.parameters(), second.policy.net.parameters(), strict=True):
        assert torch.equal(states[0][ours]["exp_avg"], states[1][theirs]["exp_avg"])
    assert states[1][second.policy.net[4].bias]["exp_avg"].any()


def test_other_versions_are_told_on_resume() -> None:
    train("out", trainer__steps=3)
    versions = json.loads(Path("out/versions.json").read_text())
    now = versions["torch"]
    versions["torch"] = "1.0.0"
    Path("out/versions.json").write_text(json.dumps(versions))
    train("out", resume=True)
    said = f"{Path.cwd()}/out was started with other versions (torch 1.0.0 -> {now}): the numbers may differ"
    assert {"step": 3, "message": said} in rows("out/warnings.jsonl")


def test_a_converged_policy_ends_the_run_well() -> None:
    result = train("out", trainer__steps=300, trainer__learning_rate=0.05, trainer__max_zero_std_steps=5)
    assert not result.interrupted
    assert result.steps < 300
    assert rows("out/eval.jsonl")[-1]["step"] == result.steps
    assert "so the policy has converged" in rows("out/warnings.jsonl")[-1]["message"]
    assert json.loads(Path("out/end.json").read_text())["state"] == "finished"


def test_a_reward_that_stops_in_an_evaluation_loses_no_step() -> None:
    evaluations = 0

    def act(samples: Sequence[Sample]) -> None:
        nonlocal evaluations
        evaluations += len({s.group for s in samples}) == 8  # a step has 2 groups
        if evaluations == 2:
            raise OSError("gone")

    Switch.before_reward = act
    with pytest.raises(RewardError, match=r"gone.*\nThe state after step 3 is saved in .*/out/checkpoints/step_000003"):
        train("out", eval__every=3)
    Switch.off()
    train("out", eval__every=3, resume=True)
    train("straight", eval__every=3)
    assert rows("out/eval.jsonl") == rows("straight/eval.jsonl")


def test_a_copy_of_a_run_with_a_folder_for_its_best_goes_on() -> None:
    """Many ways to copy a folder put what a link leads to in its place."""
    options = {"eval__every": 1, "run__best": "digits", "trainer__learning_rate": 0.3}
    train("whole", **options)
    train("half", **options, trainer__steps=2)
    shutil.copytree("half", "copy")
    assert not Path("copy/checkpoints/best").is_symlink()
    train("copy", **options, resume=True)
    assert kept("copy") == kept("whole")
    assert os.readlink("copy/checkpoints/best") == os.readlink("whole/checkpoints/best")


def test_without_links_the_best_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on exFAT and some network drives."""

    def refuse(self: Path, *given: Any, **options: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    options = {"eval__every": 1, "run__best": "digits", "trainer__learning_rate": 0.3, "run__keep_last": 1}
    train("links", **options)
    monkeypatch.setattr(Path, "symlink_to", refuse)
    train("out", **options)
    best = Path("out/checkpoints/best")
    assert not best.is_symlink()
    assert checkpoint.read_state(best)["step"] == checkpoint.read_state(Path("links/checkpoints/best"))["step"]
    assert kept("out") == ["best", f"step_{STEPS:06d}"]


@pytest.mark.parametrize("value", [{1, 2}, Path("a"), {"x": torch.ones(1)}])
def test_a_state_that_no_file_can_hold_names_its_part(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state = Switched.state_dict
    monkeypatch.setattr(Switched, "state_dict", lambda self: {**state(self), "odd": value})
    with pytest.raises(RunError, match=r"state of policy: state_dict\(\) should give tensors by name, and plain data"):
        train("out", trainer__steps=1)
    assert not Path("out/metrics.jsonl").exists()  # before the first step


def test_a_converged_run_stays_converged_when_it_is_resumed() -> None:
    options = {
        "trainer__steps": 300,
        "trainer__learning_rate": 0.05,
        "trainer__max_zero_std_steps": 5,
        "run__keep_last": None,
    }
    ended = train("out", **options, run__save_every=1).steps
    assert train("out", **options, resume=True).steps == ended
    for step in (ended, ended - 1, ended - 2):  # in the middle of the quiet steps: the count goes on
        shutil.rmtree(f"out/checkpoints/step_{step:06d}")
    assert train("out", **options, resume=True).steps == ended


def test_a_failure_between_two_updates_leaves_a_clean_checkpoint_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    update = Updates.make

    def then_break(self: Updates, step: int, *, decided: int) -> tuple[float, bool]:
        made = update(self, step, decided=decided)
        Switch.logprobs_are_nan = (step, self.done) == (3, 1)
        return made

    monkeypatch.setattr(Updates, "make", then_break)
    options = {"trainer__updates_per_rollout": 2, "run__save_every": 1}
    with pytest.raises(
        RunError, match=r"step 3, update 2.*\nThe state after step 2 is saved in .*/out/checkpoints/step_000002"
    ):
        train("out", **options)
    monkeypatch.setattr(Updates, "make", update)
    Switch.off()
    train("out", **options, resume=True)
    train("straight", **options)
    assert steady("out") == steady("straight")


def test_a_best_that_could_not_be_marked_is_marked_on_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = checkpoint.mark_best

    def full(place: Path) -> None:
        raise RunError("The checkpoint best cannot be written: No space left on device.")

    monkeypatch.setattr(checkpoint, "mark_best", full)
    options = {"eval__every": 3, "run__best": "digits"}
    with pytest.raises(RunError, match=r"best cannot be written.*\nThe state after step 3 is saved"):
        train("out", **options, trainer__steps=4)
    monkeypatch.setattr(checkpoint, "mark_best", mark)
    train("out", **options, trainer__steps=4, resume=True)
    scores = {row["step"]: row["means"]["digits"] for row in rows("out/eval.jsonl")}
    assert checkpoint.read_state(Path("out/checkpoints/best"))["step"] == max((3, 4), key=lambda s: (scores[s], -s))


def test_a_failed_last_evaluation_says_where_the_state_is(drawn: None) -> None:
    def act(samples: Sequence[Sample]) -> None:
        if Path("out/checkpoints/step_000006").exists():
            raise OSError("gone")

    Switch.before_reward = act
    with pytest.raises(
        RewardError, match=r"gone.*\nThe state after step 6 is saved in .*/out/checkpoints/step_000006; correct"
    ):
        train("out")
    assert Path("out/report.html").is_file()


def test_memory_that_ends_in_an_update_saves_no_half_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    step = torch.optim.AdamW.step
    calls: list[int] = []

    def fail(self: torch.optim.AdamW, *given: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has 79 GiB.")
        return step(self, *given, **options)

    monkeypatch.setattr(torch.optim.AdamW, "step", fail)
    with pytest.raises(
        RunError, match=r"Out of memory while making an update: .*2\.50 GiB\. Rem.*\nThis state was not sa"
    ):
        train("out")
    assert not Path("out/checkpoints").exists()


# --- one process at a time -----------------------------------------------------------------------------------------


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from grpokit.run_folder.lock import locked\n"
    code += "with locked(Path(sys.argv[1])): print('mine', flush=True); sys.stdin.read()"
    place = tmp_path / "new" / "out"
    words = [sys.executable, "-c", code, str(place)]
    first = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdin is not None
    assert first.stdout is not None
    assert first.stdout.readline() == "mine\n"
    with (
        pytest.raises(UsageError, match=rf"^Another process \(process {first.pid} on .*\) is training in .*out\. Wait"),
        locked(place),
    ):
        raise AssertionError
    with locked(tmp_path / "new" / "other"):  # a folder beside it is free
        pass
    first.kill()
    first.communicate()
    with locked(place):  # the file of the killed one is still there
        assert [path.name for path in place.parent.iterdir()] == [".out.lock"]
    assert not list(place.parent.iterdir())


def test_a_lock_leaves_no_folder_behind(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").unlink()
    with locked(tmp_path / "a" / "b" / "out"):
        assert (tmp_path / "a" / "b").is_dir()
    assert not list(tmp_path.iterdir())
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "a" / "b" / "out"):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "out"
    with pytest.raises(UsageError, match=r"The folder .*file/out cannot be made"), locked(place):
        raise AssertionError


def test_a_link_to_a_run_is_that_run(tmp_path: Path) -> None:
    header = ("config.yaml", "versions.json")
    place, link, unmade = tmp_path / "disk" / "run", tmp_path / "out", tmp_path / "unmade"
    link.symlink_to(place)
    unmade.symlink_to(tmp_path / "disk" / "later")
    for folder in (link, unmade, link, link):  # neither is there at first; then one is replaced, twice
        with initialised(folder, resumed=False):
            assert [file.name for file in folder.iterdir()] == [".unfinished"]
            for name in header:
                (folder / name).write_text("{}")
    assert sorted(file.name for file in place.iterdir()) == sorted(header)
    with pytest.raises(ZeroDivisionError), initialised(link, resumed=False):
        raise ZeroDivisionError
    assert not list(place.iterdir())
    assert link.is_symlink()
    assert sorted(entry.name for entry in place.parent.iterdir()) == ["later", "run"]
    with locked(place), pytest.raises(UsageError, match=r"^Another process .* is training in .*/out\. "), locked(link):
        raise AssertionError
