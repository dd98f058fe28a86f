"""Checks of `rollout`: shapes, seeds, batches, and that an output belongs to the decisions beside it."""

from __future__ import annotations

import torch

from grpokit.errors import RunError
from grpokit.testing.check import expect, expect_untouched, random_states, seed_random_states
from grpokit.testing.policy.case import Case, all_logprobs, gap, same_decisions, same_output
from grpokit.training.rollout_calls import calls, concatenate_rollouts
from grpokit.types import Rollout, Seeds


def shapes(case: Case) -> None:
    """Groups, samples, masks and numbers are what the trainer counts on."""
    policy, seeds = case.factory(), case.seeds()
    rollout = case.rollout(policy, seeds=seeds)
    _places(case, rollout, seeds)
    _places(case, case.rollout(policy, seeds=seeds, evaluate=True), seeds)
    old, mask = rollout.old.logprobs, rollout.mask
    expect(mask.dtype == torch.bool, "a mask of booleans", f"{mask.dtype}", "a mask of floats or integers")
    expect(mask.any(-1).all(), "at least one decision in every row", "a row that is masked out",
           "a mask that is the wrong way round")  # fmt: skip
    longest = int(mask.sum(-1).max())
    expect(longest <= rollout.max_decisions, f"at most max_decisions={rollout.max_decisions} in a row", f"{longest}",
           "max_decisions that counts the prompt, or another setting's length")  # fmt: skip
    expect(not old.requires_grad, "old log-probs without gradient", "a graph", "no torch.no_grad() around rollout")
    expect(old[mask].isfinite().all(), "finite log-probs of decisions", f"{old[mask][~old[mask].isfinite()][:3]}",
           "a decision that truncation had ruled out, or a standard deviation of 0")  # fmt: skip
    for steps in policy.slices(rollout):
        view = policy.logprobs(rollout, steps)
        wanted = tuple(mask[:, steps].shape)
        expect(tuple(view.logprobs.shape) == wanted, f"log-probs {wanted} for {steps}",
               f"{tuple(view.logprobs.shape)}", "the slice was ignored, or a dimension kept")  # fmt: skip
        if view.mean is None and rollout.action_dims == 1:
            found = view.logprobs.detach()[mask[:, steps]]
            highest = float(found.max()) if len(found) else 0.0
            expect(highest <= 1e-4, "log-probs of choices at or below 0", f"{highest}",
                   "probabilities or logits instead of log-probs")  # fmt: skip


def _places(case: Case, rollout: Rollout, seeds: Seeds) -> None:
    size = len(seeds.row) // len(seeds.group)
    wanted = seeds.group_ids.repeat_interleave(size).tolist()
    expect(rollout.groups.tolist() == wanted, f"the groups {wanted}", f"{rollout.groups.tolist()}",
           "groups counted from 0; take seeds.group_ids, each repeated for its samples")  # fmt: skip
    found = [s.group for s in rollout.samples]
    expect(found == wanted, f"samples of the groups {wanted}", f"{found}", "a group counted from 0 in Sample.group")
    for row, sample in enumerate(rollout.samples):
        prompt = case.prompts[row // size]
        expect(sample.prompt is prompt or sample.prompt == prompt, f"the prompt {prompt.text!r} in row {row}",
               f"{sample.prompt.text!r}", "rows that are not in the order of the prompts")  # fmt: skip


def seeded(case: Case) -> None:
    """The same seeds give the same rollout, other seeds another one."""
    policy, seeds = case.factory(), case.seeds()
    seed_random_states(0)
    first = case.rollout(policy, seeds=seeds)
    seed_random_states(0)
    _expect_same(first, case.rollout(policy, seeds=seeds), "a rollout with the same seeds")
    seed_random_states(0)
    other = case.rollout(policy, seeds=case.seeds(step=1))
    same = all(same_decisions(first, i, other, i, 0.0) for i in range(first.rows))
    expect(not same, "other decisions with other seeds", "the same ones in every row",
           "seeds.row is not used; draw with grpokit.sampling.uniforms(seeds.row, ...)")  # fmt: skip


def _expect_same(a: Rollout, b: Rollout, what: str) -> None:
    wrong = [
        i for i in range(a.rows)
        if not same_decisions(a, i, b, i, 0.0) or not same_output(a.samples[i].output, b.samples[i].output)
    ]  # fmt: skip
    expect(not wrong, f"that {what} is the same rollout", f"other decisions or outputs in rows {wrong}",
           "a draw from a generator that lives on between calls, or a counter")  # fmt: skip


def global_rng(case: Case) -> None:
    """Rollout and logprobs neither read nor move the global random states."""
    policy = case.factory()
    seed_random_states(1)
    before = random_states()
    first = case.rollout(policy)
    all_logprobs(policy, first)
    expect_untouched(before, "rollout or logprobs")
    seed_random_states(2)
    second = case.rollout(policy)
    wrong = [i for i in range(first.rows) if not same_decisions(first, i, second, i, 0.0)]
    expect(not wrong, "the same rollout under another global seed", f"other decisions in rows {wrong}",
           "torch.rand, torch.multinomial or random.random without a generator from the seeds")  # fmt: skip


def batch_size(case: Case) -> None:
    """A prompt alone, and a row alone, give what they give in the whole batch."""
    policy, seeds, size = case.factory(), case.seeds(), case.group_size
    whole = case.rollout(policy, seeds=seeds)
    for p in range(len(case.prompts)):
        for rows in (slice(p * size, (p + 1) * size), slice(p * size + 1, p * size + 2)):
            part = case.alone(policy, seeds, p, rows)
            wrong = [row for i, row in enumerate(range(rows.start, rows.stop))
                     if not same_decisions(part, i, whole, row, case.tolerance)]  # fmt: skip
            expect(not wrong, f"that {part.rows} rows of prompt {p} alone are what they are among {whole.rows}",
                   f"other decisions in rows {wrong}",
                   "a draw by the row's place in the batch, or padding to the longest of the batch")  # fmt: skip


def joined(case: Case) -> None:
    """A rollout that was drawn row by row and joined is scored as it was drawn."""
    policy, seeds = case.factory(), case.seeds()
    with torch.no_grad():
        parts = [
            policy.rollout(case.prompts[draw.prompts], draw.group_size, seeds=draw.seeds)
            for draw in calls(seeds, case.group_size, 1)
        ]
    cause = "a trace that knows the size of its batch; give it one size, or let it grow at the end of axis 1"
    try:
        whole = concatenate_rollouts(parts)
    except RunError as error:
        expect(False, "rows drawn one by one that can be joined to a rollout", str(error), cause)
    for row, part in enumerate(parts):
        again = all_logprobs(policy, whole.select(torch.tensor([row])))
        expect(torch.equal(whole.mask[row].nonzero(), part.mask[0].nonzero()), f"the mask of row {row} as it was drawn",
               f"{whole.mask[row].tolist()}", cause)  # fmt: skip
        found = gap(again[whole.mask[row : row + 1]], all_logprobs(policy, part)[part.mask], part.mask[part.mask])
        expect(found <= case.tolerance, f"the log-probs of row {row} as it was drawn alone", f"a gap of {found:.3g}",
               cause)  # fmt: skip


def scored_is_sampled(case: Case) -> None:
    """An output belongs to the decisions in its own row of the trace."""
    policy, seeds, size = case.factory(), case.seeds(), case.group_size
    whole = case.rollout(policy, seeds=seeds)
    if case.decode is not None:
        for row in range(whole.rows):
            made = case.decode(whole.select(torch.tensor([row])))[0]
            expect(same_output(made, whole.samples[row].output), f"what the decisions of row {row} decode to, {made!r}",
                   f"{whole.samples[row].output!r}",
                   "an output decoded from a second draw, or from another row")  # fmt: skip
    for row in range(whole.rows):  # a row that is drawn alone cannot be mixed up with another
        one = case.alone(policy, seeds, row // size, slice(row, row + 1))
        if same_decisions(one, 0, whole, row, case.tolerance):
            expect(same_output(one.samples[0].output, whole.samples[row].output),
                   f"the output that the decisions of row {row} have alone, {one.samples[0].output!r}",
                   f"{whole.samples[row].output!r}", "outputs in another order than the decisions")  # fmt: skip
    for p in range(len(case.prompts)):
        rows = range(p * size, (p + 1) * size)
        different = not all(same_decisions(whole, rows[0], whole, row, case.tolerance) for row in rows)
        alike = all(same_output(whole.samples[rows[0]].output, whole.samples[row].output) for row in rows)
        expect(not (different and alike and len(rows) > 3), f"outputs of prompt {p} as different as the decisions",
               f"the same output {len(rows)} times", "an output that is not decoded from what was drawn")  # fmt: skip


def evaluation(case: Case) -> None:
    """`evaluate=True` works, is seeded, and leaves training samples as they were."""
    policy, seeds = case.factory(), case.seeds()
    before = case.rollout(policy, seeds=seeds)
    first = case.rollout(policy, seeds=seeds, evaluate=True)
    _expect_same(first, case.rollout(policy, seeds=seeds, evaluate=True), "an evaluation with the same seeds")
    found = first.old.logprobs[first.mask]
    expect(bool(found.isfinite().all()), "finite log-probs of an evaluation's decisions", f"{found.tolist()[:3]} ...",
           "settings under which nothing is drawn, so that there are none; mask these out, or give 0")  # fmt: skip
    after = case.rollout(policy, seeds=seeds)
    _expect_same(before, after, "a training rollout after an evaluation")
    difference = gap(all_logprobs(policy, after), after.old.logprobs, after.mask) - gap(
        all_logprobs(case.factory(), before), before.old.logprobs, before.mask
    )
    expect(difference <= case.tolerance, "the same log-probs after an evaluation", f"a gap larger by {difference:.2g}",
           "a setting that evaluation changes and does not put back")  # fmt: skip
