"""Code of a plugin that forks: the copy ends where that code ends, and takes no part in the run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpokit import Observer, Pending, Portion, Prompt, Sample, Trainer, registry
from grpokit.advantages import group
from grpokit.config import schema
from grpokit.data import check_prompts
from grpokit.objectives import GRPO
from grpokit.processes.rendezvous import join
from grpokit.registry import entry_points
from grpokit.rewards.scoring import score_samples
from grpokit.rewards.terms import RewardTerm
from grpokit.runs.build_rewards import close
from grpokit.runs.export import export
from grpokit.tracking.trackers import Tracker
from grpokit.training import checkpoint
from small_runs import rows, train, write_prompts
from tiny_policies import TinyTokens, digit_sum

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
SAMPLES = [Sample(prompt=Prompt(text="p"), output=str(i), group=0) for i in range(3)]


def returns(samples: Sequence[Sample]) -> list[float]:
    os.fork()
    return [float(s.output) for s in samples]


def raises(samples: Sequence[Sample]) -> list[float]:
    if os.fork() == 0:
        raise SystemExit(1)
    return [float(s.output) for s in samples]


class Elsewhere:
    def submit(self, samples: Sequence[Sample]) -> Pending:
        os.fork()
        answer: Future[Portion] = Future()
        answer.set_result(Portion(rows=range(len(samples)), values=[0.0] * len(samples)))
        return Pending([answer])

    def close(self) -> None: ...


class Closing(Elsewhere):
    def close(self) -> None:
        os.fork()


def forking(method: Any) -> Any:
    """The method, but its first call forks before it begins."""
    forked: list[int] = []

    def call(*arguments: Any, **options: Any) -> Any:
        if not forked:
            forked.append(os.getpid())
            os.fork()
        return method(*arguments, **options)

    return call


def step(policy: TinyTokens | None = None, **settings: Any) -> None:
    Trainer(
        policy or TinyTokens(), [digit_sum], ["1"], prompts_per_step=1, group_size=2, device="cpu", **settings
    ).step()


def forking_policy(method: str) -> TinyTokens:
    """As an environment may do whose rollouts run in processes."""
    return type("Forking", (TinyTokens,), {method: forking(getattr(TinyTokens, method))})()


def forking_exporter() -> TinyTokens:
    return type("Forking", (TinyTokens,), {"export": forking(lambda policy, folder, merge: {})})()


def forking_observer(moment: str) -> Observer:
    return type("Forking", (Observer,), {moment: forking(getattr(Observer, moment))})()


def logged(values: Mapping[str, Any], step: int | None) -> None: ...


def forking_factory() -> object:
    os.fork()
    return object()


@contextmanager
def copy_ended() -> Iterator[None]:
    """What is done inside forks this process; the copy must end in there."""
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(9)  # or it would go on with the tests
    _, status = os.wait()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize(
    "work",
    [
        lambda: score_samples([RewardTerm(name="r", reward=returns)], SAMPLES),
        lambda: score_samples([RewardTerm(name="r", reward=raises)], SAMPLES),
        lambda: score_samples([RewardTerm(name="r", reward=Elsewhere())], SAMPLES),
        lambda: close([RewardTerm(name="r", reward=Closing())]),
        *[
            partial(step, forking_policy(method))
            for method in ("rollout", "logprobs", "updated", "during", "slices", "check")
        ],
        *[
            partial(step, observers={"o": forking_observer(m)})
            for m in ("scored", "weighted", "differentiated", "updated")
        ],
        lambda: step(advantage=forking(group)),
        lambda: step(objective=type("Forking", (GRPO,), {"__call__": forking(GRPO.__call__)})()),
        lambda: registry.create("policy", f"{__name__}:forking_factory"),
        lambda: check_prompts(forking_policy("check"), ["1"]),
        lambda: Tracker(SimpleNamespace(name="t", log=forking(logged)), warn=print).log({"loss": 1.0}, step=1),
        lambda: Tracker(SimpleNamespace(name="t", finish=forking(lambda: None)), warn=print).finish(),
    ],
)
def test_the_copy_ends(work: Callable[[], Any]) -> None:
    with copy_ended():
        work()


@pytest.mark.parametrize("method", ["rollout", "logprobs", "check"])
def test_a_run_whose_policy_forks_has_each_step_once(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_prompts(["1", "2"])
    with copy_ended():
        train("run", policy={"use": f"{__name__}:forking_policy", "method": method}, trainer__steps=3)
    assert [row["step"] for row in rows("run/metrics.jsonl")] == [1, 2, 3]
    assert [row["step"] for row in rows("run/eval.jsonl")] == [0, 3]


def test_the_copy_of_an_export_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_prompts(["1", "2"])
    train("run", policy={"use": f"{__name__}:forking_exporter"}, trainer__steps=1)
    config = schema.parse(Path("run/config.yaml").read_text(), "run", [])
    with copy_ended():
        export(config, Path("run/checkpoints/step_000001"), Path("exported"))
    assert Path("exported/README.md").is_file()


@pytest.mark.parametrize("method", ["state_dict", "load_state_dict"])
def test_the_copy_of_a_checkpoints_part_ends(tmp_path: Path, method: str) -> None:
    parts = {"policy": forking_policy(method)}
    with copy_ended():
        checkpoint.save(tmp_path / "saved", parts, step=1, notes={}, team=join(), together=False)
        checkpoint.load_parts(tmp_path / "saved", parts)


def test_the_copy_of_a_plugins_light_module_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "forking_plugin.py").write_text("import os\nos.fork()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with copy_ended():
        entry_points.load_plugin(EntryPoint("forking", "forking_plugin", "grpokit"))


def test_the_copy_of_an_import_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "forking_module.py").write_text("import os\nos.fork()\ndef reward(samples): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with copy_ended():
        registry.create("reward", "forking_module:reward")


@pytest.mark.parametrize("work", [registry.observers, lambda: registry.notify("grpokit_step_end")])
def test_the_copy_of_a_plugin_that_watches_ends(work: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = SimpleNamespace(grpokit_step_end=lambda: [os.fork()], grpokit_observers=lambda: [{"o": os.fork()}])
    plugin = SimpleNamespace(name="forking", package="forking", manager=SimpleNamespace(hook=hooks))
    monkeypatch.setattr("grpokit.registry.entry_points.plugins", lambda: [plugin])
    with copy_ended():
        assert len(work()) == (work is registry.observers)
