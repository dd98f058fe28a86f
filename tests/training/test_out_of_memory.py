"""Where memory runs out, work is done again in halves: the same numbers, the new size told, nothing half done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grpokit import Prompt, RunError, Seeds, Trace, Trainer, evaluate
from grpokit.evaluation.held_out import draw
from grpokit.sampling import derive_seeds
from grpokit.training.out_of_memory import fitting
from grpokit.training.rollout_parts import Call, call_at, concatenate_rollouts
from tiny_policies import OBJECTIVES_BY_NAME, TinyGaussian, TinyTokens, digit_sum, nearness

PROMPTS = [str(i) for i in range(12)]
NO_ROOM = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.9 is free."
)


class Small(TinyTokens):
    """A device that holds so many rows or positions at a time; the fault comes in the middle of the work."""

    def __init__(
        self, *, drawing: int = 99, scoring: int = 99, positions: int = 999, after: int = 0, **options
    ) -> None:
        super().__init__(**options)
        self.drawing, self.scoring, self.positions, self.after = drawing, scoring, positions, after
        self.drawn: list[int] = []

    def rollout(self, prompts, group_size, *, seeds, evaluate=False):
        self.drawn.append(len(prompts) * group_size)
        if self.drawn[-1] > self.drawing:
            raise torch.OutOfMemoryError(NO_ROOM)
        return super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)

    def logprobs(self, rollout, steps):
        found = super().logprobs(rollout, steps)
        full = rollout.rows > self.scoring or found.logprobs.numel() > self.positions
        if full and len(self.scored) > self.after:
            raise torch.OutOfMemoryError(NO_ROOM)
        return found


class SmallGaussian(Small, TinyGaussian):
    def __init__(self, **options) -> None:
        TinyGaussian.__init__(self)
        self.drawing, self.scoring, self.positions, self.after, self.drawn = 99, 99, 999, 0, []
        vars(self).update(options)


def make(policy: TinyTokens, reward=digit_sum, prompts=PROMPTS, **options) -> Trainer:
    defaults = {"prompts_per_step": 4, "group_size": 4, "micro_batch_size": 16, "learning_rate": 1e-2, "device": "cpu"}
    return Trainer(policy, [reward], prompts, **(defaults | options))


def trained(trainer: Trainer, steps: int) -> tuple[torch.Tensor, list[str]]:
    warnings = [line for _ in range(steps) for line in trainer.step().warnings]
    return torch.cat([p.detach().flatten() for p in trainer.updates.parameters]), warnings


@pytest.mark.parametrize("name", ["grpo", "gspo"])
@pytest.mark.parametrize(("room", "fitted"), [(5, 4), *(pytest.param(n, n, marks=pytest.mark.slow) for n in (8, 1))])
def test_micro_batches_are_halved_with_the_same_result(name: str, room: int, fitted: int) -> None:
    options = {"objective": OBJECTIVES_BY_NAME[name](kl_coef=0.1), "updates_per_rollout": 2}
    trainer = make(Small(scoring=room, slices=3), **options)
    found, warnings = trained(trainer, 3)
    expected, _ = trained(make(TinyTokens(slices=3), **options), 3)
    assert torch.allclose(found, expected, rtol=0, atol=2e-6)
    assert trainer.sizes.micro_batch_size == fitted
    assert warnings == [
        f"memory ran out while scoring samples with 16 rows at a time: trainer.micro_batch_size is now {fitted}. The "
        "work was repeated, with the same result to rounding"
    ]


@pytest.mark.parametrize(
    ("size", "prompts", "room", "passes", "allowed"),
    [
        (64, 2, 4, [8, 4], 4),
        (12, 4, 8, [12, 4], 6),
        (5, 4, 3, [4, 2], 2),
        pytest.param(64, 2, 1, [8, 4, 2, 1], 1, marks=pytest.mark.slow),
    ],
)
def test_halving_starts_at_the_rows_of_the_largest_pass(
    size: int, prompts: int, room: int, passes: list[int], allowed: int
) -> None:
    """Groups have 4 rows. No pass is repeated as it was, and the warning has the rows that did not fit."""
    policy = Small(scoring=room)
    trainer = make(policy, micro_batch_size=size, prompts_per_step=prompts)
    _, (warning,) = trained(trainer, 1)
    assert [rows for rows, _ in policy.scored][: len(passes)] == passes
    assert f"with {passes[0]} rows at a time: trainer.micro_batch_size is now {allowed}." in warning
    assert trainer.sizes.micro_batch_size == allowed


@pytest.mark.parametrize(("tokens", "largest", "fitted"), [(1000, 112, 56), (90, 84, 42), (24, 24, 24)])
def test_a_bound_on_decisions_is_reduced_where_there_is_one(tokens: int, largest: int, fitted: int) -> None:
    """Of 16 rows with up to 7 decisions 8 fit, as one repetition finds; the bound on rows stays, for short ones."""
    trainer = make(Small(positions=60), micro_batch_tokens=tokens)
    found, warnings = trained(trainer, 3)
    expected, _ = trained(make(TinyTokens()), 3)
    assert torch.allclose(found, expected, rtol=0, atol=2e-6)
    assert (trainer.sizes.micro_batch_tokens, trainer.sizes.micro_batch_size) == (fitted, 16)
    assert warnings == [
        f"memory ran out while scoring samples with {largest} decisions at a time: trainer.micro_batch_tokens "
        f"is now {fitted}. The work was repeated, with the same result to rounding"
    ] * (fitted < tokens)


def test_a_fault_in_the_middle_of_a_gradient_leaves_nothing_of_it() -> None:
    """The first micro-batches have already added to gradients and tallies when memory runs out."""
    options = {"micro_batch_size": 8}
    fine = make(TinyTokens(slices=2), **options)
    faulty = make(Small(scoring=4, slices=2, after=3), **options)  # the fourth scoring is the one that fails
    a, b = fine.step(), faulty.step()
    assert faulty.sizes.micro_batch_size == 4
    for name in ("loss", "grad_norm", "entropy", "ratio/max", "clip_ratio/low_mean"):
        assert b.metrics[name] == pytest.approx(a.metrics[name], rel=1e-5, abs=1e-7), name


@pytest.mark.parametrize(("policy", "reward"), [(Small, digit_sum), (SmallGaussian, nearness)])
@pytest.mark.parametrize("room", [4, *(pytest.param(room, marks=pytest.mark.slow) for room in (8, 3, 1))])
def test_rollouts_are_drawn_in_pieces_with_the_same_result(policy: type[Small], reward, room: int) -> None:
    trainer = make(policy(drawing=room), reward)
    found, warnings = trained(trainer, 3)
    expected, _ = trained(make(policy(), reward), 3)
    assert torch.allclose(found, expected, rtol=0, atol=2e-6)
    fitted = next(n for n in (16, 8, 4, 2, 1) if n <= room)
    assert trainer.sizes.rollout_batch_size == fitted
    assert max(trainer.policy.drawn[-16 // fitted :]) == fitted
    (warning,) = warnings
    assert f"trainer.rollout_batch_size is now {fitted}" in warning


def test_rollout_batch_size_may_be_given() -> None:
    trainer = make(Small(), rollout_batch_size=6)
    report = trainer.step()
    assert trainer.policy.drawn == [4, 4, 4, 4]  # whole groups where they fit
    assert report.warnings == []
    assert make(Small()).step().metrics["reward"] == report.metrics["reward"]


class Filling(Small):
    """A device on which there is room for two rows at a time from the third call on."""

    def rollout(self, prompts, group_size, *, seeds, evaluate=False):
        self.drawing = 2 if len(self.drawn) >= 2 else 99
        return super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)


def test_only_the_call_that_failed_is_drawn_again() -> None:
    expected = make(TinyTokens()).step()
    trainer = make(Filling(), rollout_batch_size=4)
    report = trainer.step()
    assert trainer.policy.drawn == [4, 4, 4, 2, 2, 2, 2]
    assert [s.output for s in report.rollout.samples] == [s.output for s in expected.rollout.samples]
    policy = Filling()
    drawn = draw(policy, PROMPTS[:4], seed=1, samples_per_prompt=4, batch_size=4)
    assert policy.drawn == [4, 4, 4, 2, 2, 2, 2]
    whole = draw(TinyTokens(), PROMPTS[:4], seed=1, samples_per_prompt=4)
    assert [s.output for s in drawn] == [s.output for s in whole]


def test_sizes_that_memory_forced_are_resumed(tmp_path: Path) -> None:
    trainer = make(Small(drawing=8, scoring=5))
    trainer.step()
    trainer.save(tmp_path / "here")
    same, other = make(TinyTokens()), make(TinyTokens(), micro_batch_size=2)
    for resumed in (same, other):
        resumed.load(tmp_path / "here")
    assert (same.sizes.micro_batch_size, same.sizes.rollout_batch_size) == (4, 8)
    sizes = other.sizes  # of which one was changed, and counts as it is
    assert (sizes.micro_batch_size, sizes.rollout_batch_size) == (2, 8)
    make(TinyTokens()).save(tmp_path / "untouched")
    same.load(tmp_path / "untouched")
    assert (same.sizes.micro_batch_size, same.sizes.rollout_batch_size) == (16, None)


def test_a_bound_on_decisions_that_memory_forced_is_resumed(tmp_path: Path) -> None:
    trainer = make(Small(positions=60), micro_batch_tokens=90)
    trainer.step()
    trainer.save(tmp_path / "here")
    same, other, none = (make(TinyTokens(), micro_batch_tokens=tokens) for tokens in (90, 80, None))
    for resumed in (same, other, none):
        resumed.load(tmp_path / "here")
    assert [resumed.sizes.micro_batch_tokens for resumed in (same, other, none)] == [42, 80, None]


def test_evaluations_shrink_too() -> None:
    prompts = [Prompt(text=str(i)) for i in range(5)]
    policy = Small(drawing=3)
    few = draw(policy, prompts, seed=1, samples_per_prompt=2)
    assert [s.output for s in few] == [s.output for s in draw(TinyTokens(), prompts, seed=1, samples_per_prompt=2)]
    assert (
        evaluate(policy, [digit_sum], prompts).summary.means
        == evaluate(TinyTokens(), [digit_sum], prompts).summary.means
    )


@pytest.mark.parametrize(
    ("where", "what", "options"),
    [
        ("drawing", "drawing samples", {}),
        ("scoring", "scoring samples", {}),
        ("scoring", "scoring samples", {"micro_batch_tokens": 40}),
    ],
)
def test_a_single_row_that_does_not_fit_stops_with_remedies(where: str, what: str, options: dict[str, int]) -> None:
    trainer = make(Small(**{where: 0}), **options)
    with pytest.raises(
        RunError,
        match=rf"Out of memory while {what}, with a single row at a time: CUDA out of memory\. "
        r"Tried to allocate 2\.50 GiB\. Remedies: mixed_precision: bf16, LoRA",
    ):
        trainer.step()


def test_other_errors_are_not_taken_for_memory() -> None:
    def attempt(size: int) -> int:
        raise RuntimeError("shape mismatch")

    with pytest.raises(RuntimeError, match="shape mismatch"):
        fitting(attempt, 8, what="scoring")


def test_the_failed_attempt_is_let_go_before_the_next() -> None:
    """The exception's frames hold what did not fit; were they kept, no smaller piece would fit either."""
    import gc
    import weakref

    seen: list[weakref.ref[torch.Tensor]] = []

    def attempt(size: int) -> int:
        gc.collect()
        assert all(ref() is None for ref in seen)
        big = torch.zeros(size)
        seen.append(weakref.ref(big))
        if size > 2:
            raise torch.OutOfMemoryError(NO_ROOM)
        return size

    assert fitting(attempt, 16, what="scoring") == (2, 2)
    assert len(seen) == 4


def calls(seeds: Seeds, group_size: int, size: int) -> list[Call]:
    made: list[Call] = []
    while (row := sum(len(call.seeds.row) for call in made)) < len(seeds.row):
        made.append(call_at(row, seeds, group_size, size))
    return made


# --- cutting and joining --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "expected"),
    [(99, [(3, 4)]), (12, [(3, 4)]), (8, [(2, 4), (1, 4)]), (5, [(1, 4)] * 3), (3, [(1, 3), (1, 1)] * 3)],
)
def test_calls_are_whole_groups_where_they_fit(size: int, expected: list[tuple[int, int]]) -> None:
    seeds = derive_seeds(1, stream="train", step=0, prompts=3, group_size=4)
    cut = calls(seeds, 4, size)
    assert [(len(d.seeds.group), d.group_size) for d in cut] == expected
    assert torch.cat([d.seeds.row for d in cut]).tolist() == seeds.row.tolist()
    assert all(len(d.seeds.row) <= max(size, 1) for d in cut)


def test_parts_of_other_lengths_are_filled_up_under_the_mask() -> None:
    class Ragged(TinyTokens):
        """Its rollout is as long as its longest row."""

        def rollout(self, prompts, group_size, *, seeds, evaluate=False):
            found = super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)
            longest = int(found.mask.sum(-1).max())
            tokens = {"tokens": found.trace.per_row["tokens"][:, :longest]}
            return type(found)(
                samples=found.samples,
                groups=found.groups,
                old=found.old.select(decisions=slice(0, longest)),
                mask=found.mask[:, :longest],
                max_decisions=found.max_decisions,
                trace=type(found.trace)(per_row=tokens, per_group=found.trace.per_group),
            )

    prompts = [Prompt(text=text) for text in PROMPTS[:4]]
    seeds = derive_seeds(3, stream="train", step=0, prompts=4, group_size=3)
    policy = Ragged()
    with torch.no_grad():
        whole = policy.rollout(prompts, 3, seeds=seeds)
        parts = [policy.rollout(prompts[d.prompts], d.group_size, seeds=d.seeds) for d in calls(seeds, 3, 1)]
    assert len({part.mask.shape[1] for part in parts}) > 1
    joined = concatenate_rollouts(parts)
    assert joined.mask.tolist() == whole.mask.tolist()
    real = [torch.where(x.mask, x.old.logprobs, 0) for x in (joined, whole)]
    assert torch.allclose(*real, rtol=0, atol=1e-6)
    assert joined.trace.per_group["number"].tolist() == whole.trace.per_group["number"].tolist()
    assert joined.groups.tolist() == whole.groups.tolist()
    assert [s.output for s in joined.samples] == [s.output for s in whole.samples]
    assert torch.equal(
        torch.where(joined.mask, joined.trace.per_row["tokens"], 0),
        torch.where(whole.mask, whole.trace.per_row["tokens"], 0),
    )


class Digits(TinyTokens):
    """Reads its prompt digit by digit, padded on the left to the longest prompt of the call.

    Either prompts and tokens lie in one tensor, or in two with the prompts' mask beside them.
    """

    def __init__(self, *, apart: bool) -> None:
        super().__init__()
        self.apart = apart

    def rollout(self, prompts, group_size, *, seeds, evaluate=False):
        found = super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)
        width = max(len(s.prompt.text) for s in found.samples)
        digits = torch.tensor([[int(c) for c in s.prompt.text.rjust(width, "0")] for s in found.samples])
        real = torch.tensor([[c != " " for c in s.prompt.text.rjust(width)] for s in found.samples])
        tokens = found.trace.per_row["tokens"]
        one, two = {"all": torch.cat([digits, tokens], dim=1)}, {"digits": digits, "real": real, "tokens": tokens}
        return replace(found, trace=Trace(per_row=two if self.apart else one))

    def logprobs(self, rollout, steps):
        trace = dict(rollout.trace.per_row)
        if not self.apart:
            width = trace["all"].shape[1] - self.length
            trace = {"digits": trace["all"][:, :width], "tokens": trace["all"][:, width:]}
            trace["real"] = torch.ones_like(trace["digits"], dtype=torch.bool)
        number = torch.zeros(rollout.rows, dtype=torch.int64)
        for digit, real in zip(trace["digits"].T, trace["real"].T, strict=True):
            number = torch.where(real, 10 * number + digit, number)
        number = torch.stack([number[rollout.groups == group][0] for group in rollout.groups.unique()])
        plain = Trace(per_row={"tokens": trace["tokens"]}, per_group={"number": number})
        return super().logprobs(replace(rollout, trace=plain), steps)


def test_prompts_padded_on_the_left_survive_a_split_in_a_tensor_of_their_own() -> None:
    prompts = ["3", "104", "15", "1007"]
    whole, split = (make(Digits(apart=True), prompts=prompts, rollout_batch_size=size) for size in (None, 4))
    assert whole.step().metrics["grad_norm"] == pytest.approx(split.step().metrics["grad_norm"], rel=1e-5)
    make(Digits(apart=False), prompts=prompts).step()
    with pytest.raises(RunError, match="log-probs"):  # its tokens begin in another column in each call
        make(Digits(apart=False), prompts=prompts, rollout_batch_size=4).step()


def test_traces_that_cannot_be_joined_say_so() -> None:
    seeds = derive_seeds(3, stream="train", step=0, prompts=2, group_size=2)
    with torch.no_grad():
        parts = [
            TinyGaussian(dims=dims).rollout([Prompt(text="1")], 2, seeds=d.seeds)
            for dims, d in zip((2, 3), calls(seeds, 2, 2), strict=True)
        ]
    with pytest.raises(
        RunError, match=r"trace\.per_row\['path'\] has the shapes \(2, 5, 2\), \(2, 5, 3\); only axis 1"
    ):
        concatenate_rollouts(parts)


@pytest.mark.parametrize(
    "words",
    [
        NO_ROOM,
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    ],
)
def test_memory_has_run_out_in_whatever_words_cuda_says_it(words: str) -> None:
    def attempt(size: int) -> int:
        if size > 2:
            raise RuntimeError(words)
        return size

    assert fitting(attempt, 8, what="drawing samples") == (2, 2)
