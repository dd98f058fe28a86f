"""Checks of `rollout`: shapes, seeds, batches, and that an output belongs to its own decisions."""

from __future__ import annotations

import torch
from accelerate.utils import set_seed
from PIL import Image

from grpokit.errors import RunError, a_type
from grpokit.training.rollout_parts import concatenate_rollouts
from grpokit.types import Rollout, Seeds
from grpokit_check.check import NotChecked, expect, expect_untouched, random_states
from grpokit_check.policy.case import (
    ROUNDED,
    Case,
    all_logprobs,
    expect_close,
    same_decisions,
    same_output,
    scored_slices,
)


def shapes(case: Case) -> None:
    """Groups, samples, masks and log-probs have the form that the trainer needs."""
    policy, seeds = case.build(), case.seeds()
    rollout = case.rollout(policy, seeds=seeds)
    _places(case, rollout, seeds)
    _places(case, case.rollout(policy, seeds=seeds, evaluate=True), seeds)
    old, mask = rollout.old.logprobs, rollout.mask
    expect(mask.dtype == torch.bool, "a mask of booleans", f"{mask.dtype}", "a mask of floats or integers")
    expect(mask.any(), "at least one decision in a rollout", "rows that are all masked out",
           "an inverted mask, or settings that leave nothing to train on")  # fmt: skip
    longest = int(mask.sum(-1).max())
    expect(longest <= rollout.max_decisions, f"at most max_decisions={rollout.max_decisions} in a row", f"{longest}",
           "max_decisions that counts the prompt, or another setting's length")  # fmt: skip
    expect(not old.requires_grad, "old log-probs without gradient", "a graph", "no torch.no_grad() around rollout")
    expect(old[mask].isfinite().all(), "finite log-probs of decisions", f"{old[mask][~old[mask].isfinite()][:3]}",
           "a decision that truncation excludes, or a standard deviation of 0")  # fmt: skip
    for steps, new in scored_slices(policy, rollout):
        shape = tuple(mask[:, steps].shape)
        expect(tuple(new.logprobs.shape) == shape, f"log-probs of the shape {shape} for {steps}",
               f"{tuple(new.logprobs.shape)}", "a slice that is ignored, or a dimension too many")  # fmt: skip
        if new.mean is None and rollout.action_dims == 1:
            logprobs = new.logprobs.detach()[mask[:, steps]]
            highest = float(logprobs.max()) if len(logprobs) else 0.0
            expect(highest <= 1e-4, "log-probs of at most 0 for choices", f"{highest}",
                   "probabilities or logits instead of log-probs")  # fmt: skip


def _places(case: Case, rollout: Rollout, seeds: Seeds) -> None:
    size = len(seeds.row) // len(seeds.group)
    expected = seeds.group_ids.repeat_interleave(size).tolist()
    expect(rollout.groups.tolist() == expected, f"the groups {expected}", f"{rollout.groups.tolist()}",
           "groups counted from 0; take seeds.group_ids, each repeated for its samples")  # fmt: skip
    groups = [sample.group for sample in rollout.samples]
    expect(groups == expected, f"samples of the groups {expected}", f"{groups}", "a Sample.group counted from 0")
    for row, sample in enumerate(rollout.samples):
        prompt = case.prompts[row // size]
        expect(sample.prompt is prompt or sample.prompt == prompt, f"the prompt {prompt.text!r} in row {row}",
               f"{sample.prompt.text!r}", "rows that are not in the order of the prompts")  # fmt: skip


def seeded(case: Case) -> None:
    """The same seeds give the same rollout, other seeds another one."""
    policy, seeds = case.build(), case.seeds()
    set_seed(0)
    first = case.rollout(policy, seeds=seeds)
    set_seed(0)
    _expect_same(first, case.rollout(policy, seeds=seeds), "a rollout with the same seeds")
    set_seed(0)
    other = case.rollout(policy, seeds=case.seeds(step=1))
    same = all(same_decisions(first, i, other, i, 0.0) for i in range(first.rows))
    expect(not same, "other decisions with other seeds", "the same ones in every row",
           "seeds.row is not used; draw with grpokit.sampling.uniforms(seeds.row, ...)")  # fmt: skip


def _expect_same(a: Rollout, b: Rollout, what: str) -> None:
    differing = [
        i for i in range(a.rows)
        if not same_decisions(a, i, b, i, 0.0) or not same_output(a.samples[i].output, b.samples[i].output)
    ]  # fmt: skip
    expect(not differing, f"that {what} is the same rollout", f"other decisions or outputs in rows {differing}",
           "a draw from a generator that keeps its state between calls, or a counter")  # fmt: skip


def global_rng(case: Case) -> None:
    """`rollout` and `logprobs` neither read nor change the global random states."""
    policy = case.build()
    set_seed(1)
    before = random_states()
    first = case.rollout(policy)
    all_logprobs(policy, first)
    expect_untouched(before, "rollout or logprobs")
    set_seed(2)
    second = case.rollout(policy)
    differing = [i for i in range(first.rows) if not same_decisions(first, i, second, i, 0.0)]
    expect(not differing, "the same rollout under another global seed", f"other decisions in rows {differing}",
           "torch.rand, torch.multinomial or random.random without a generator from the seeds")  # fmt: skip


def batch_size(case: Case) -> None:
    """A prompt alone, and a row alone, give the decisions that they give in the whole batch."""
    policy, seeds, size = case.build(), case.seeds(), case.group_size
    if case.low_precision:
        raise NotChecked(ROUNDED)
    whole = case.rollout(policy, seeds=seeds)
    for p in range(len(case.prompts)):
        for first, rows in ((p * size, size), (p * size + 1, 1)):
            part = case.rollout(policy, seeds=seeds, row=first, rows=rows)
            differing = [first + i for i in range(rows)
                     if not same_decisions(part, i, whole, first + i, case.tolerance)]  # fmt: skip
            expect(not differing, f"{part.rows} rows of prompt {p} with the decisions they have among {whole.rows}",
                   f"other decisions in rows {differing}",
                   "a draw by the row's place in the batch, or padding to the longest of the batch")  # fmt: skip


def joined(case: Case) -> None:
    """Rows that are drawn one by one and joined have the log-probs of their draws."""
    policy, seeds = case.build(), case.seeds(group_size=2)
    parts = [case.rollout(policy, seeds=seeds, row=row, rows=1) for row in range(len(seeds.row))]
    cause = "a trace whose shape depends on the batch; give it one size, or let it grow at the end of axis 1"
    try:
        whole = concatenate_rollouts(parts)
    except RunError as error:
        expect(False, "rows drawn one by one that can be joined into a rollout", str(error), cause)
    for row, part in enumerate(parts):
        again = all_logprobs(policy, whole.select(torch.tensor([row])))
        expect(torch.equal(whole.mask[row].nonzero(), part.mask[0].nonzero()),
               f"the mask that row {row} was drawn with", f"{whole.mask[row].tolist()}", cause)  # fmt: skip
        expect_close(case, again[whole.mask[row : row + 1]], all_logprobs(policy, part)[part.mask],
                     part.mask[part.mask], f"the log-probs that row {row} had alone", cause)  # fmt: skip


def scored_is_sampled(case: Case) -> None:
    """An output belongs to the decisions in its own row of the trace."""
    policy, seeds, size = case.build(), case.seeds(), case.group_size
    whole = case.rollout(policy, seeds=seeds)
    for row, sample in enumerate(whole.samples):
        if case.decode is not None:
            output = case.decode(whole.select(torch.tensor([row])))[0]
        else:  # a row that is drawn alone cannot be exchanged with another
            one = case.rollout(policy, seeds=seeds, row=row, rows=1)
            output = one.samples[0].output
            if not same_decisions(one, 0, whole, row, case.tolerance):
                continue
        expect(same_output(output, sample.output), f"the output of the decisions of row {row}, {output!r}",
               f"{sample.output!r}", "an output decoded from a second draw, or from another row")  # fmt: skip
    for p in range(len(case.prompts)):
        rows = range(p * size, (p + 1) * size)
        different = not all(same_decisions(whole, rows[0], whole, row, case.tolerance) for row in rows)
        alike = all(same_output(whole.samples[rows[0]].output, whole.samples[row].output) for row in rows)
        expect(not (different and alike and len(rows) > 3),
               f"different outputs for the different decisions of prompt {p}", f"the same output {len(rows)} times",
               "an output that is not decoded from the drawn decisions")  # fmt: skip


def outputs(case: Case) -> None:
    """The outputs of training and of evaluation are of the kind that the policy's spec declares."""
    expected = {"text": str, "image": Image.Image}[case.makes]
    policy = case.build()
    for evaluate in (False, True):
        for row, sample in enumerate(case.rollout(policy, evaluate=evaluate).samples):
            expect(isinstance(sample.output, expected),
                   f"outputs of the type {expected.__name__}, since the spec says makes={case.makes!r}",
                   f"{a_type(sample.output)} in row {row}{' of an evaluation' if evaluate else ''}",
                   "another kind in the spec, or an array or tensor that is not yet a picture or a text")  # fmt: skip


def evaluate(case: Case) -> None:
    """`evaluate=True` works, is seeded, and does not change later training samples."""
    policy, seeds = case.build(), case.seeds()
    before = case.rollout(policy, seeds=seeds)
    first = case.rollout(policy, seeds=seeds, evaluate=True)
    _expect_same(first, case.rollout(policy, seeds=seeds, evaluate=True), "an evaluation with the same seeds")
    logprobs = first.old.logprobs[first.mask]
    expect(bool(logprobs.isfinite().all()), "finite log-probs of an evaluation's decisions",
           f"{logprobs.tolist()[:3]} ...",
           "settings without random draws, which have no log-probs; mask these decisions out, or give 0")  # fmt: skip
    after = case.rollout(policy, seeds=seeds)
    _expect_same(before, after, "a training rollout after an evaluation")
    expect_close(case, all_logprobs(policy, after), all_logprobs(case.build(), before), before.mask,
                 "the same log-probs after an evaluation",
                 "a setting that evaluation changes and does not restore")  # fmt: skip
