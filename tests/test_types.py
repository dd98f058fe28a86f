"""What a rollout knows about its rows without asking the device."""

from __future__ import annotations

from dataclasses import replace

import torch
from PIL import Image

from grpokit import Decisions, Prompt, Rollout, Sample, Trace

MASK = torch.tensor([[1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0]], dtype=torch.bool)
GROUPS = torch.tensor([9, 4, 9, 4])


def rollout(mask: torch.Tensor = MASK) -> Rollout:
    return Rollout(
        samples=[Sample(prompt=Prompt(text="p"), output=i, group=g) for i, g in enumerate(GROUPS.tolist())],
        groups=GROUPS,
        old=Decisions(logprobs=torch.zeros(mask.shape)),
        mask=mask,
        max_decisions=4,
        trace=Trace(per_group={"radius": torch.tensor([0.4, 0.9])}),
    )


def test_a_length_ends_at_the_last_decision() -> None:
    whole = rollout()
    assert whole.lengths.tolist() == [2, 4, 0, 3]  # not the number of decisions: row 1 begins late and has a gap
    part = whole.select(torch.tensor([3, 0]))
    assert (part.lengths.tolist(), part.host_mask.tolist()) == ([3, 2], MASK[[3, 0]].tolist())
    shorter = replace(whole, mask=MASK & torch.tensor([True, True, False, False]))
    assert shorter.lengths.tolist() == [2, 2, 0, 2]  # not those of the rollout that it was made from
    assert rollout(torch.zeros(4, 0, dtype=torch.bool)).lengths.tolist() == [0, 0, 0, 0]


def test_a_row_finds_its_group_in_the_trace() -> None:
    whole = rollout()
    assert whole.trace.per_group["radius"][whole.group_index].tolist() == torch.tensor([0.9, 0.4, 0.9, 0.4]).tolist()
    part = whole.select(torch.tensor([2, 0]))
    assert (part.group_index.tolist(), part.trace.per_group["radius"].tolist()) == ([0, 0], [torch.tensor(0.9).item()])


def test_the_first_picture_of_a_prompt_is_its_image() -> None:
    a, b, c = (Image.new("RGB", (n, n)) for n in (1, 2, 3))
    one, two = Prompt(text="p", image=a), Prompt(text="p", images=[a, b])
    assert (one.images, two.image, two.images) == ((a,), a, (a, b))
    assert (Prompt("p").text, Prompt(text="p").image, Prompt(text="p").images) == ("p", None, ())
    assert replace(two, text="q").images == (a, b)
    assert replace(two, image=c).images == (c, b)
