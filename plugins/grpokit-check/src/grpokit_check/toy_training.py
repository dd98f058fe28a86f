"""A training of a few steps, for checks of what takes part in one."""

from __future__ import annotations

from typing import Any

from grpokit import Trainer
from grpokit.doctor.toy import Table, ones, toy_prompts
from grpokit.rewards.terms import Rewards


def toy_trainer(rewards: Rewards = (ones,), **settings: Any) -> Trainer:
    """A trainer with two minibatches and two rounds over them for each step."""
    usual = {"steps": 6, "prompts_per_step": 4, "group_size": 4, "updates_per_rollout": 2, "minibatches": 2}
    return Trainer(
        Table(),
        rewards,
        toy_prompts(),
        **{**usual, "learning_rate": 0.05, "device": "cpu", "progress": False, **settings},
    )
