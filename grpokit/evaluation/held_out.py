"""Scores a policy on held-out prompts, with the same prompts and the same random draws every time.

So the results before and after training differ only by the weights.
"""

from __future__ import annotations

from collections.abc import Iterable

from grpokit.data import as_prompts
from grpokit.errors import UsageError
from grpokit.evaluation.evaluation import Evaluation
from grpokit.policy import Policy
from grpokit.processes.fsdp2 import gathered
from grpokit.processes.team import Team
from grpokit.rewards.scoring import Scoring, join_scores
from grpokit.rewards.terms import Rewards, as_terms
from grpokit.sampling import derive_seeds
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.contract import check_policy
from grpokit.training.out_of_memory import Halving
from grpokit.types import Prompt, Sample


def draw(
    policy: Policy,
    prompts: Iterable[str | Prompt],
    *,
    seed: int = 42,
    samples_per_prompt: int = 1,
    batch_size: int = 64,
    evaluate: bool = True,
    stream: str = "evaluate",
    mixed_precision: str = "no",
    team: Team | None = None,
) -> list[Sample]:
    """Draw samples without training, in batches; the batch size does not change the samples.

    Args:
        policy: the policy, on any device, such as `grpokit.load` returns.
        prompts: P texts or prompts, in any iterable; not a single text.
        seed: all randomness follows from it.
        samples_per_prompt: G.
        batch_size: the most samples at a time; halved if memory runs out.
        evaluate: use the policy's settings for evaluation, not those of training.
        stream: "evaluate" draws what `evaluate` scores with the same seed, "sample" what `grpokit sample` draws.
        mixed_precision: "no", "bf16" or "fp16", as in training.
        team: the processes that share out the prompts; each draws its own.

    Returns:
        P * G samples, each prompt's next to each other; `output` has the picture or text.

    Raises:
        UsageError: `policy` is not a policy, a number is below 1, mixed_precision has another value, or the policy
            cannot read a prompt.
    """
    check_policy(policy)
    prompts = as_prompts(prompts)
    if samples_per_prompt < 1 or batch_size < 1:
        raise UsageError(f"samples_per_prompt is {samples_per_prompt} and batch_size {batch_size}; expected 1 or more.")
    seeds = derive_seeds(seed, stream=stream, step=0, prompts=len(prompts), group_size=samples_per_prompt)
    share = (team or Team()).share(len(prompts))
    prompts = prompts[share.start : share.stop]
    seeds = seeds.select(share)
    checked = CheckedPolicy(policy, mixed_precision=mixed_precision)
    fit = Halving(max(1, min(batch_size, len(seeds.row))))
    with gathered():  # by all processes, also by one without prompts
        if not prompts:
            return []
        rollouts = checked.rollouts(prompts, samples_per_prompt, seeds, fit=fit, evaluate=evaluate)
        return [sample for rollout in rollouts for sample in rollout.samples]


def evaluate(
    policy: Policy,
    rewards: Rewards,
    prompts: Iterable[str | Prompt],
    *,
    seed: int = 42,
    samples_per_prompt: int = 1,
    batch_size: int = 64,
    mixed_precision: str = "no",
    as_in_training: bool = False,
    team: Team | None = None,
) -> Evaluation:
    """Draw samples on held-out prompts and score them.

    Args:
        policy: the policy.
        rewards: as for `Trainer`.
        prompts: held-out texts or prompts.
        seed: all randomness follows from it, so the draws before and after training are the same.
        samples_per_prompt: samples for each prompt.
        batch_size: the most samples at a time; halved if memory runs out.
        mixed_precision: "no", "bf16" or "fp16", as in training.
        as_in_training: draw with the policy's settings for training, not those for evaluation, which may be greedy.
        team: the processes that share out the prompts. Process 0 gets all samples, the others their own, and all get
            the scores.
    """
    terms = as_terms(rewards)
    team = team or Team()
    prompts = as_prompts(prompts)
    with team.failing_together():
        samples = draw(
            policy,
            prompts,
            seed=seed,
            samples_per_prompt=samples_per_prompt,
            batch_size=batch_size,
            evaluate=not as_in_training,
            mixed_precision=mixed_precision,
            team=team,
        )
        scores = join_scores(terms, team.gather(Scoring(terms, samples).result()))
        everyone = [sample for part in team.gather_in_first(samples) for sample in part]
    own = everyone or samples
    return Evaluation(samples=own, prompts=[sample.prompt for sample in own], scores=scores)
