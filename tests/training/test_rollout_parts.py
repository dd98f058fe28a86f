"""How a step's rollout is drawn in parts."""

from __future__ import annotations

import pytest

from grpokit.sampling import derive_seeds
from grpokit.settings import TrainerSettings
from grpokit.training.rollout_parts import call_at
from grpokit_plan import Job


@pytest.mark.parametrize("size", [1, 3, 8, 12, 16, 25, 32, 99])
def test_drawing_is_planned_in_the_calls_that_a_trainer_makes(size: int) -> None:
    seeds, made = derive_seeds(0, stream="train", step=0, prompts=4, group_size=8), []
    while (row := sum(len(call.seeds.row) for call in made)) < 32:
        made.append(call_at(row, seeds, 8, size))
    settings = TrainerSettings(prompts_per_step=4, group_size=8, rollout_batch_size=size)
    plan = Job.of(settings, reference=False, prompt_tokens=None)
    assert plan.rollout_calls == len(made)
    assert plan.rollout_rows == max(len(call.seeds.row) for call in made)
    assert plan.rollout_prompts == max(len(call.seeds.group) for call in made)
