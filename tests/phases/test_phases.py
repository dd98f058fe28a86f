"""Runs in phases: their files, their resume, and their mistakes."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file

import two_halves
from grpokit import Decisions, Prompt, RunError, UsageError, registry
from grpokit.config.evaluation import of_rewards
from grpokit.config.schema import parse, to_dict
from grpokit.runs import build, build_rewards
from grpokit.runs import train as run
from grpokit.runs.export import export
from grpokit.runs.replay import replay
from grpokit.runs.rescore import ranking_table as rescore_table
from grpokit.runs.rescore import rescore
from grpokit.training import checkpoint
from small_runs import rows, write_prompts
from two_halves import Writer
from whole_runs import assert_same, assert_same_record

CONFIG = """
policy: {use: "two_halves:both"}
data: {prompts: prompts.jsonl}
eval: {prompts: held_out.jsonl, every: 2}
rewards: [{use: "two_halves:first_is_high"}, {use: "two_halves:second_is_high"}]
trainer: {prompts_per_step: 2, group_size: 4, learning_rate: 0.3, device: cpu, kl_coef: 0.02}
phases:
  - {name: a, policy: first, steps: 2, rewards: [{use: "two_halves:first_is_high", weight: 2}]}
  - {name: b, policy: second, steps: 1, trainer: {learning_rate: 0.5}}
rounds: 2
run: {dir: out, threads: 1, save_every: 1, keep_last: null, record: true}
"""


@pytest.mark.parametrize("held", ["none", "first", "second"])
def test_a_reference_that_moves_needs_a_kl_in_one_of_its_phases(held: str) -> None:
    coefficients = {name: 0.1 if name == held else 0.0 for name in ("first", "second")}
    phases = [{"name": n, "policy": n, "steps": 1, "trainer": {"kl_coef": x}} for n, x in coefficients.items()]
    config = parse(yaml.safe_dump({**yaml.safe_load(CONFIG), "phases": phases}), "c.yaml")
    policies = two_halves.both()
    policies["first"].reference_moves = True
    terms = build_rewards.rewards(config)
    refused = pytest.raises(UsageError, match="no KL reads it, as kl_coef is 0")
    with nullcontext() if held == "first" else refused:
        build.trainer(config, policies, terms, [Prompt(text="1")] * 2)


def test_a_phase_may_have_no_reward() -> None:
    phases = [{"name": "a", "steps": 1, "rewards": []}, {"name": "b", "steps": 1}]
    text = yaml.safe_dump({**yaml.safe_load(CONFIG), "phases": phases})
    views = [view for _, view in parse(text, "c.yaml").phased()]
    assert [len(view.rewards) for view in views] == [0, 2]


class StoppedError(Exception):
    """Ends a run in a test."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_prompts([str(number) for number in range(5)])
    write_prompts([str(number) for number in range(6, 9)], "held_out.jsonl")
    return tmp_path


def train(*overrides: str, text: str = CONFIG, **options: Any) -> run.Result:
    return run.train(parse(text, "c.yaml", overrides), **options)


def test_a_run_has_one_folder() -> None:
    result = train()
    assert (result.steps, result.planned) == (6, 6)
    metrics = rows("out/metrics.jsonl")
    assert [(row["step"], row["phase"], row["phase_step"]) for row in metrics] == [
        *[(1, "a", 1), (2, "a", 2), (3, "b", 1), (4, "a", 3), (5, "a", 4), (6, "b", 2)]
    ]
    assert [row["learning_rate"] for row in metrics] == [0.3, 0.3, 0.5] * 2
    assert "rewards/second_is_high/mean" not in metrics[0]
    assert metrics[0]["reward"] == pytest.approx(2 * metrics[0]["rewards/first_is_high/mean"])
    assert metrics[2]["reward"] == pytest.approx(
        metrics[2]["rewards/first_is_high/mean"] + metrics[2]["rewards/second_is_high/mean"]
    )
    evaluations = rows("out/eval.jsonl")
    assert [row["step"] for row in evaluations] == [0, 2, 4, 6]
    assert all({"first_is_high", "second_is_high"} <= set(row["means"]) for row in evaluations)
    state = checkpoint.read_state(Path("out/checkpoints/step_000004"))
    assert state["step"] == 4
    assert state["parts"]["course"]["stretches"] == [
        {"phase": "a", "planned": 2, "steps": 2},
        {"phase": "b", "planned": 1, "steps": 1},
        {"phase": "a", "planned": 2, "steps": 1},
    ]
    page = Path("out/report.html").read_text()
    assert "first_is_high" in page
    assert "phase" in page


@pytest.mark.parametrize("steps", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 4, 5))])
def test_a_resume_is_exact_at_every_step(steps: int) -> None:
    train("run.dir=whole")

    def step(report: Any) -> None:
        if report.step == steps + 1:
            raise StoppedError

    with pytest.raises(StoppedError):
        train("run.dir=half", watcher=run.Watcher(step=step))
    train("run.dir=half", resume=True)
    assert_same(Path("whole"), Path("half"))
    assert_same_record(Path("whole"), Path("half"))


def test_a_step_is_drawn_again_in_its_phase() -> None:
    train("run.save_every=2")
    for step in (2, 3, 6):
        assert replay(Path("out"), step).equal


def test_more_rounds_go_on_where_fewer_ended() -> None:
    train("run.dir=whole")
    train("run.dir=half", "rounds=1")
    train("run.dir=half", resume=True)
    keys = ("step", "phase", "loss", "reward")
    whole, half = ([[row[key] for key in keys] for row in rows(f"{name}/metrics.jsonl")] for name in ("whole", "half"))
    assert whole == half
    with pytest.raises(UsageError, match=r"phases\.0\.steps: 2 -> 3"):
        train("run.dir=half", "phases.0.steps=3", resume=True)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_forced_resume_with_other_steps_comes_to_its_end(steps: int) -> None:
    train("rounds=1")
    result = train(f"phases.0.steps={steps}", resume=True, force=True)
    assert (result.steps, result.planned) == (3 + steps + 1,) * 2
    assert "".join(row["phase"] for row in rows("out/metrics.jsonl")) == "aab" + "a" * steps + "b"


def test_a_resume_in_the_middle_of_a_step_counts_the_updates_of_its_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    score = Writer.logprobs
    scored = 0

    def broken(self: Writer, rollout: Any, steps: slice) -> Decisions:
        nonlocal scored
        decisions = score(self, rollout, steps)
        trained = self.own == 1 and torch.is_grad_enabled()
        scored += trained
        return Decisions(logprobs=decisions.logprobs * float("nan")) if trained and scored == 2 else decisions

    updates = ("run.save_every=0", "phases.1.trainer.updates_per_rollout=3")
    monkeypatch.setattr(Writer, "logprobs", broken)
    with pytest.raises(RunError, match=r"after 1 of 3 updates of step 3 are saved"):
        train(*updates)
    monkeypatch.setattr(Writer, "logprobs", score)
    train(*updates, resume=True)
    assert "in the middle of step 3, when 1 of its 3 updates" in Path("out/warnings.jsonl").read_text()


def test_a_reward_of_several_phases_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    create = registry.create

    def counted(kind: str, name: str, params: Any, **options: Any) -> Any:
        built.append((kind, name))
        return create(kind, name, params, **options)

    monkeypatch.setattr(registry, "create", counted)
    with build_rewards.all_rewards(parse(CONFIG, "c.yaml")) as (terms, own_terms):
        assert [name for kind, name in built if kind == "reward"] == [
            "two_halves:first_is_high",
            "two_halves:second_is_high",
        ]
        assert own_terms.keys() == {"a"}  # the other phase has the run's
        assert own_terms["a"][0].reward is terms[0].reward
        assert [term.weight for term in own_terms["a"]] == [2.0]
    own = parse(CONFIG, "c.yaml", ["phases.0.rewards.0.use=tiny_rewards:letters", "phases.0.rewards.0.factor=2.0"])
    with build_rewards.all_rewards(own) as (terms, own_terms):
        assert own_terms["a"][0].reward is not terms[0].reward


def test_a_config_survives_its_own_text() -> None:
    config = parse(CONFIG, "c.yaml")
    text = yaml.safe_dump(to_dict(config))
    again = parse(text, "again.yaml")
    assert to_dict(again) == to_dict(config)
    (_, first), (_, second) = again.phased()
    assert (first.trainer.learning_rate, second.trainer.learning_rate) == (0.3, 0.5)
    assert (first.trainer.steps, second.trainer.steps) == (4, 2)
    plain = to_dict(parse(CONFIG[: CONFIG.index("phases:")] + "run: {dir: out}", "c.yaml"))
    assert not {"phases", "rounds"} & set(plain)


MISTAKES = {
    "phases.0.policy=firts": "phases.0.policy: there is no policy 'firts' (did you mean 'first'?): 'two_halves",
    "phases.0={name: a, steps: 2}": "phases.0.policy: no policy is named: 'two_halves:both' gives",
    "phases=[] rounds=1": "line 2: policy: no policy is named: 'two_halves:both' gives the policies first",
    "phases.1.name=a": "phases.1.name=a': config: two phases have the same name",
    "phases.1.name=a/b": "phases.1.name: expected letters, digits, - and _, at most 40, got 'a/b'",
    "trainer.steps=5": "trainer.steps cannot be set with phases",
    "phases.0.trainer={steps: 3}": "steps goes next to the phase's name, as in {name: first, steps: 50}",
    "phases.1.trainer.device=cpu": "device is the same for the whole run: set it in trainer",
    "phases.1.trainer.lr=1": "unknown key 'phases.1.trainer.lr' (did you mean 'trainer.learning_rate'?)",
    "phases.1.polcy=second": "unknown key 'phases.1.polcy' (did you mean 'policy'?). Known keys: name, policy, steps",
    "phases.1.trainer.minibatches=3": "override 'phases.1.trainer.minibatches=3': phases.1.trainer: ",
    "phases=[] rounds=3": "rounds repeats phases, but there are no phases",
    "phases.0.rewards.0.weight=0": "phases.0.rewards: every reward has weight 0",
    "phases.0.rewards.0.use=ssmi": "phases.0.rewards.0: ",
    "phases.1.trainer.kl_coef=null": "trainer.objective: The objective 'grpo': kl_coef must be a finite number",
    "phases.1.trainer.objective=grop": "phases.1.trainer.objective: ",
    "phases=[] rounds=1 policy.use=two_halves:misnamed": "gave policies called ['a/b']",
    "phases=[] rounds=1 policy.use=two_halves:none": "gave policies called []",
    "policy.use=two_halves:one": "there is no policy 'first': 'two_halves:one' gives one policy",
}


@pytest.mark.parametrize(("overrides", "message"), MISTAKES.items(), ids=MISTAKES)
def test_mistakes(overrides: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        train(*re.split(r" (?=[\w.]+=)", overrides))
    assert message in str(error.value), str(error.value)
    assert not Path("out").exists()


def test_phases_of_one_policy() -> None:
    """The same policy learns first from one reward, then from another."""
    phases = "phases=[{name: a, steps: 2, rewards: [{use: 'two_halves:first_is_high'}]}, {name: b, steps: 2}]"
    train("policy.use=two_halves:one", phases, "rounds=1")
    assert [row["phase"] for row in rows("out/metrics.jsonl")] == ["a", "a", "b", "b"]
    assert Path("out/checkpoints/step_000004/policy.safetensors").is_file()
    assert Path("out/checkpoints/step_000004/phases/b/optimizer.safetensors").is_file()


def test_a_reward_of_a_later_phase_is_missing_in_the_first_third() -> None:
    train("rounds=1")
    found = rescore(Path("out"), of_rewards(["two_halves:second_is_high"], []))
    cells = {name: row for name, *row in rescore_table(found)}
    assert cells["second_is_high"][3] == "-"
    assert cells["second_is_high"][4] != "-"


def test_an_export_has_a_folder_for_each_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    train()
    place, config = Path("out/checkpoints/step_000006"), parse(CONFIG, "c.yaml")
    with pytest.raises(UsageError, match=r"The policy 'first' of .* cannot be exported: it has no method export"):
        export(config, place, Path("there"))

    def write(self: Any, folder: Path, *, merge: bool) -> dict[str, str]:
        save_file(dict(self.state_dict()), folder / "half.safetensors")
        return {}

    monkeypatch.setattr("two_halves.Writer.export", write, raising=False)
    export(config, place, Path("there"))
    assert sorted(str(p.relative_to("there")) for p in Path("there").rglob("*.*")) == [
        *["first/README.md", "first/half.safetensors", "second/README.md", "second/half.safetensors"]
    ]
