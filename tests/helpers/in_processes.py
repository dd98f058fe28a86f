"""What each process of a test does: trainings of tiny policies, and what goes wrong in one of them."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from following_reward import Usual
from grpokit import (
    Correction,
    Modifier,
    Phase,
    PhasedTrainer,
    Prompt,
    RunError,
    Sample,
    Signal,
    Step,
    Trainer,
    advantages,
    create,
)
from grpokit.processes.team import is_sharded, local
from grpokit.rewards.terms import RewardTerm
from grpokit.runs import train as run
from grpokit.tracking.step_report import StepReport
from grpokit_toy.lm import ToyLM
from tiny_policies import OBJECTIVES_BY_NAME, TinyGaussian, TinyTokens, digit_sum, nearness
from whole_runs import train_preset

PROMPTS = [str(i) for i in range(12)]
SIZES = {"prompts_per_step": 4, "group_size": 3, "micro_batch_size": 4, "learning_rate": 1e-2, "device": "cpu"}
STEPS = 5
TWICE = {"updates_per_rollout": 2, "minibatches": 2}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "kl": ("grpo", {**TWICE, "kl_coef": 0.1}),
    "token mean": ("dapo", TWICE),
    "fixed length": ("dr_grpo", {}),
    "whole sequences": ("gspo", TWICE),
    "shares of 0, 1, 0 and 1": ("grpo", {"prompts_per_step": 2}),
    "one group": ("grpo", {"prompts_per_step": 1}),
    "shares of 1, 2, 1 and 2": ("dapo", {"prompts_per_step": 6, "minibatches": 3}),
    "one draws in pieces": ("grpo", {"rollout_batch_size": 2}),
    "weights of sequences": ("grpo", {"prompts_per_step": 1, "correction": Correction(per="sequence")}),
    "top entropy": ("grpo", {"modifiers": {"entropy-filter": {"share": 0.4}}, **TWICE}),
    "dynamic sampling": ("grpo", {"dynamic_sampling": 3, "group_size": 2}),
    "an entropy target": ("grpo", {"entropy_coef": 0.01, "modifiers": {"entropy-target": {"target": 1.0}}}),
    "some rows are left out": ("grpo", {"modifiers": {"in_processes:HalfOfEachGroup": {}}, **TWICE, "kl_coef": 0.1}),
    "rows have few decisions": ("grpo", {"group_size": 5, "reward": "seldom"}),
}


class HalfOfEachGroup(Modifier):
    """Leaves every second row out, and counts the first of each group by half; the KL acts on that one alone."""

    def rows(self, signal: Signal, step: Step) -> Signal:
        places = torch.arange(len(signal.weights))
        first = places % 3 == 0
        weights = torch.where(first, 0.5, 1.0) * (places % 2 == 0)
        return replace(signal, weights=weights.double(), kl_weights=first.double())


class Cramped(TinyTokens):
    """In process 1 there is room for two rows at a time."""

    def logprobs(self, rollout: Any, steps: Any) -> Any:
        if rollout.rows > 2 and rank() == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().logprobs(rollout, steps)


def length(samples: Sequence[Sample]) -> list[float]:
    return [len(sample.output) for sample in samples]


def seldom(samples: Sequence[Sample]) -> list[float]:
    """NaN for some rows, and equal for others."""
    return [float("nan") if "1" in sample.output else float("3" in sample.output) for sample in samples]


def make(objective: str = "grpo", policy: Any = None, reward: str = "", **options: Any) -> Trainer:
    options = dict(options)
    kl = {name: options.pop(name) for name in ("kl_coef", "entropy_coef") if name in options}
    terms = [RewardTerm(name="sum", reward=digit_sum), RewardTerm(name="length", reward=length, weight=0.1)]
    if reward:
        terms = [RewardTerm(name="seldom", reward=seldom)]
    modifiers = [create("modifier", name, own) for name, own in options.pop("modifiers", {}).items()]
    return Trainer(
        policy or TinyTokens(dtype=torch.float64, slices=2),
        terms,
        PROMPTS,
        steps=STEPS,
        objective=OBJECTIVES_BY_NAME[objective](**kl),
        modifiers=modifiers,
        progress=False,
        **{**SIZES, **options},
    )


def learned(trainer: Trainer) -> tuple[list[Any], list[dict[str, float]], list[list[str]]]:
    """The weights after five steps, their metrics, and their warnings."""
    reports = [trainer.step() for _ in range(trainer.completed, STEPS)]
    parameters = [p.detach() for module in trainer.policy.modules().values() for p in module.parameters()]
    weights = [(p.full_tensor() if is_sharded(p) else p).tolist() for p in parameters]
    return weights, [dict(report.metrics) for report in reports], [list(report.warnings) for report in reports]


def all_cases() -> dict[str, Any]:
    cases = {name: learned(make(objective, **options)) for name, (objective, options) in CASES.items()}
    to_go = learned(make(advantage=advantages.returns_to_go, dynamic_sampling=2))
    return {
        **cases,
        "a loss scaler": with_a_loss_scaler(),
        "a reward that learns": with_a_reward_that_learns(),
        "returns to go": to_go,
    }


def other_policies() -> dict[str, Any]:
    cramped = learned(make(policy=Cramped(dtype=torch.float64), kl_coef=0.1))
    return {"cramped": cramped, "single precision": learned(make(policy=TinyTokens())), "gaussian": gaussian()}


def with_a_reward_that_learns() -> Any:
    """Two of four processes have no rows."""
    terms = [RewardTerm(name="usual", reward=Usual())]
    policy = TinyTokens(dtype=torch.float64)
    trainer = Trainer(policy, terms, PROMPTS, steps=STEPS, progress=False, **{**SIZES, "prompts_per_step": 2})
    return learned(trainer)


def with_a_loss_scaler() -> Any:
    """As in fp16, which needs a GPU; the scaler itself runs anywhere. Two of four processes have no rows."""
    trainer = make(prompts_per_step=2)
    trainer.updates.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    return learned(trainer)


def gaussian() -> Any:
    policy = TinyGaussian()
    trainer = Trainer(
        policy, [nearness], PROMPTS, steps=STEPS, objective=OBJECTIVES_BY_NAME["grpo"](kl="gaussian", kl_coef=0.1),
        progress=False, **SIZES,
    )  # fmt: skip
    return learned(trainer)


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def broken(samples: Sequence[Sample]) -> list[float]:
    if rank() == 1:
        raise ValueError("no room on the disk")
    return digit_sum(samples)


def endless(samples: Sequence[Sample]) -> list[float]:
    if rank() == 1:
        os._exit(9)
    return digit_sum(samples)


class Diverging(TinyTokens):
    def logprobs(self, rollout: Any, steps: Any) -> Any:
        found = super().logprobs(rollout, steps)
        if rank() == 1 and found.logprobs.requires_grad:
            found.logprobs.data[0, 0] = torch.nan
        return found


class Forgetful(TinyTokens):
    """Fails in process 1 when another phase has changed its weights."""

    told = 0

    def updated(self, version: int) -> None:
        self.told += 1
        if self.told == 2 and rank() == 1:
            raise RunError("An average is gone.")


def steps_of(how: str) -> str:
    if how == "another phase":
        policy = Forgetful()
        trainers = [Trainer(policy, [digit_sum], PROMPTS, steps=1, seed=seed, **SIZES) for seed in (0, 1)]
        phases = [Phase(name=name, trainer=each, steps=1) for name, each in zip("ab", trainers, strict=True)]
        return str(len(list(PhasedTrainer(phases))))
    if how == "weights":
        make(policy=TinyTokens(seed=rank()))
        return "built"
    reward = {"raises": broken, "dies": endless}.get(how, digit_sum)
    policy = {"not finite": Diverging, "a pass": Refusing}.get(how, TinyTokens)()
    skip = {"on_error": "skip", "skip_limit": 0.3} if how == "raises too often" else {}
    term = RewardTerm(name="it", reward=broken if skip else reward, **skip)
    sharding = "fsdp2" if how == "a pass" else None
    trainer = Trainer(policy, [term], PROMPTS, steps=3, progress=False, sharding=sharding, **SIZES)
    trainer.step()
    return "a step"


def train(
    folder: Path, steps: int, stop_after: int | None = None, resume: bool = False, overrides: Sequence[str] = ()
) -> int:
    """Train toy-lm; returns the number of steps that are complete."""

    def end(report: StepReport) -> None:
        if report.step == stop_after:
            raise RuntimeError("the end of the test")

    options = ("run.save_every=1", "eval.every=2", "run.record=true", "run.keep_last=2", "trainer.device=cpu")
    small = (f"trainer.steps={steps}", "trainer.kl_coef=0.05", "data.limit=20")
    watcher = run.Watcher(step=end) if stop_after else None
    return train_preset("toy-lm", folder, *small, *options, *overrides, watcher=watcher, resume=resume).steps


_calls = 0


def _is_turn(call: int) -> bool:
    """Whether this is process 1 and its reward is called for that time."""
    global _calls
    _calls += 1
    return rank() == 1 and _calls == call


def fails_later(samples: Sequence[Sample]) -> list[float]:
    """In process 1, in the second step."""
    if _is_turn(3):  # the first call is an evaluation
        raise ValueError("the model of the reward is gone")
    return length(samples)


def told_to_stop(samples: Sequence[Sample]) -> list[float]:
    """Process 1 gets SIGTERM in the second step."""
    if _is_turn(3):  # the first call is an evaluation
        os.kill(os.getpid(), signal.SIGTERM)
    return length(samples)


def killed_once(samples: Sequence[Sample]) -> list[float]:
    """In process 1, in the third step, where torchrun has not started it a second time."""
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
    if _is_turn(5) and first:  # the first call is an evaluation, and so is the one after two steps
        os.kill(os.getpid(), signal.SIGKILL)
    return length(samples)


def killed_later(samples: Sequence[Sample]) -> list[float]:
    """In process 1, in the second step."""
    if _is_turn(3):  # the first call is an evaluation
        os.kill(os.getpid(), signal.SIGKILL)
    return length(samples)


class SlowToSave(ToyLM):
    def state_dict(self) -> Any:
        time.sleep(2)
        return super().state_dict()


def hangs_later(samples: Sequence[Sample]) -> list[float]:
    """In process 1, in the second step."""
    if _is_turn(3):  # the first call is an evaluation
        time.sleep(3600)
    return length(samples)


def other_prompts(split: str) -> list[Prompt]:
    return [Prompt(text=text, target="3") for text in ("1+2", f"3+{rank()}")]


def differ(folder: Path, override: str) -> int:
    """A run for which process 1 was given another config, or finds other prompts."""
    prompts = "data={use: 'in_processes:other_prompts'}"
    return train(folder, 1, overrides=[override] * rank() if override else [prompts])


def fail(how: str, folder: Path, *overrides: str) -> int:
    """A run in which something goes wrong."""
    changes = [f"rewards=[{{use: 'in_processes:{how}'}}]"]
    if how == "full disk":
        changes = []
        if rank() == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return train(folder, 3, overrides=[*changes, "run.process_timeout=3", *overrides])


def is_second(groups: Any) -> bool:
    """Whether these are groups of the second step, of two in each."""
    return 2 <= min(groups) < 4


class Stopping(ToyLM):
    """Something goes wrong in the second step.

    Args:
        how: what; "... alone" in process 1 only.
    """

    def __init__(self, how: str, **options: Any) -> None:
        super().__init__(**options)
        self.how, self.step, self.turn = how, 0, not how.endswith(" alone") or rank() == 1

    def rollout(self, prompts: Any, group_size: int, *, seeds: Any, evaluate: bool = False) -> Any:
        self.step = 0 if evaluate else seeds.step + 1
        if self.step == 2 and self.how == "an engine is gone" and rank() == 1:
            raise ConnectionError("the engine is gone")
        return super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)

    def logprobs(self, rollout: Any, steps: slice) -> Any:
        found = super().logprobs(rollout, steps)
        if self.step == 2 and torch.is_grad_enabled():
            if self.how == "log-probs raise":
                raise KeyError("a layer is gone")
            if self.how == "log-probs differ":
                return replace(found, logprobs=found.logprobs - 1.0)
        return found

    def updated(self, version: int) -> None:
        if self.step == 2 and self.turn and self.how.startswith("updated raises"):
            raise OSError("the average is gone")


def odd(samples: Sequence[Sample], how: str = "") -> list[float]:
    """Nothing to learn from in the second step."""
    if is_second([sample.group for sample in samples]):
        return [float("nan") if how == "rewards are NaN" else 0.0] * len(samples)
    return [9.0 + sum(map(ord, sample.output)) % 7 for sample in samples]


def odd_advantages(rewards: torch.Tensor, weights: torch.Tensor, groups: torch.Tensor, how: str = "") -> torch.Tensor:
    found = advantages.group(rewards, weights, groups)
    if is_second(groups.tolist()) and len(rewards) > 2:  # not the trial of a set-up
        if how == "advantages raise":
            raise ZeroDivisionError("no row is left")
        return found * torch.nan if how == "advantages are NaN" else found[1:]
    return found


ENDLESS = {"trainer.max_zero_std_steps": "1", "rewards": "[{use: 'in_processes:odd', how: '%s'}]"}
ADVANTAGE = {"trainer.advantage": "{use: 'in_processes:odd_advantages', how: '%s'}"}
POLICY = {"policy": "{use: 'in_processes:Stopping', how: '%s'}"}
STOPPED: dict[str, tuple[str, dict[str, str]]] = {
    "no spread": ("all samples of every group got the same rewards", ENDLESS),
    "rewards are NaN": ("scored no row", ENDLESS),
    "advantages are NaN": ("8 of them not finite", ADVANTAGE),
    "advantages have a wrong shape": ("The advantage function gave (7,) values", ADVANTAGE),
    "advantages raise": ("ZeroDivisionError", ADVANTAGE),
    "log-probs raise": ("KeyError", POLICY),
    "log-probs differ": ("In step 2 logprobs() gives other log-probs", POLICY),
    "updated raises": ("OSError", POLICY),
    "updated raises alone": ("OSError", POLICY),
    "an engine is gone": ("ConnectionError", POLICY),
    "an engine is gone, dynamic sampling": ("ConnectionError", {**POLICY, "trainer.dynamic_sampling": "2"}),
    "no spread, dynamic sampling": ("got the same rewards", {**ENDLESS, "trainer.dynamic_sampling": "2"}),
}


def stop(how: str, folder: Path, *overrides: str) -> int:
    """A run of three steps, of which the second fails."""
    options = {name: value.replace("%s", how.partition(",")[0]) for name, value in STOPPED[how][1].items()}
    small = ("trainer.steps=3", "trainer.device=cpu", "data.limit=20", "run.process_timeout=30", "run.save_every=0")
    changes = [f"{name}={value}" for name, value in options.items()]
    return train_preset("toy-lm", folder, *small, *changes, *overrides).steps


class Layered(TinyTokens):
    """With blocks, whose weights can be spread over processes.

    Args:
        adapter: only a small addition to each block trains.
    """

    def __init__(self, *, adapter: bool = False, **options: Any) -> None:
        super().__init__(**options)
        width, generator = 24, torch.Generator().manual_seed(1)
        first, last = self.net[0], self.net[-1]
        self.net = _Net(first.in_features, width, last.out_features, adapter=adapter)
        for name, p in self.net.named_parameters():
            p.data = torch.randn(p.shape, generator=generator, dtype=first.weight.dtype) * (0.3 if p.ndim > 1 else 0.1)
            p.requires_grad_(not adapter or "adapter" in name)


class _Net(torch.nn.Module):
    def __init__(self, given: int, width: int, wanted: int, *, adapter: bool) -> None:
        super().__init__()
        self.read, self.head = torch.nn.Linear(given, width), torch.nn.Linear(width, wanted)
        self.blocks = torch.nn.ModuleList(_Block(width, adapter=adapter) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.read(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class _Block(torch.nn.Module):
    def __init__(self, width: int, *, adapter: bool) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)
        self.adapter = torch.nn.Linear(width, width, bias=False) if adapter else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        more = self.down(self.up(x).tanh())
        return x + more if self.adapter is None else x + more + self.adapter(x)


class Refusing(Layered):
    def logprobs(self, rollout: Any, steps: Any) -> Any:
        if rank() == 1 and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().logprobs(rollout, steps)


class Inexact(Layered):
    """Draws as an engine would, whose log-probs are not training's."""

    def rollout(self, *arguments: Any, **options: Any) -> Any:
        return replace(super().rollout(*arguments, **options), exact=False)


SPREAD = {
    "kl": False,
    "weights of sequences": False,
    "whole sequences": True,
    "one group": False,
    "dynamic sampling": True,
}  # case -> whether an adapter trains


def layered(case: str, sharding: str | None) -> Trainer:
    objective, options = CASES[case]
    kind = Inexact if case == "weights of sequences" else Layered
    policy = kind(dtype=torch.float64, slices=2, adapter=SPREAD[case])
    return make(objective, policy=policy, sharding=sharding, **options)


def spread(sharding: str | None) -> dict[str, Any]:
    return {case: learned(layered(case, sharding)) for case in SPREAD}


def spread_and_saved(folder: Path) -> tuple[Any, float]:
    """What it learns, saved after two steps; and how much of the weights and their moments is here."""
    trainer = layered("kl", "fsdp2")
    for _ in range(2):
        trainer.step()
    trainer.save(folder)
    moments = [x for state in trainer.updates.optimizer.state.values() for x in state.values() if x.ndim]
    tensors = [*trainer.updates.parameters, *moments]
    return learned(trainer), sum(local(x).numel() for x in tensors) / sum(x.numel() for x in tensors)


def go_on(folder: Path, sharding: str | None) -> Any:
    trainer = layered("kl", sharding)
    trainer.load(folder)
    return learned(trainer)
