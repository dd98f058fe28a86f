"""From a config to GiB and seconds on a card: asks the policy's plan what a step needs, and adds up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from grpokit import registry
from grpokit.config.schema import RunConfig
from grpokit.errors import PluginError, UsageError
from grpokit.registry.specs import PolicySpec, RewardSpec
from grpokit_plan.cards import Card
from grpokit_plan.needs import BANDWIDTH, LAUNCH, MOMENTS, REPLAY, Job, Moment, Needs, Part, Work


def needs_of(
    config: RunConfig,
    *,
    reference: bool,
    entropy: bool = False,
    whole_groups: bool = False,
    prompt_tokens: int | None = None,
    policy: str = "",
) -> tuple[Job, Needs]:
    """Ask the plan of the config's policy, and add its rewards' models; weights are not loaded.

    Args:
        config: of the run, or of a phase.
        reference: whether its objective or a modifier needs the reference's log-probs.
        entropy: whether a modifier needs entropies.
        whole_groups: whether its objective looks at whole groups.
        prompt_tokens: of a prompt; None for the plan's own assumption.
        policy: the name of the policy that learns, if a factory gives several.

    Raises:
        UsageError: the policy has no plan, or a setting cannot be used.
    """
    job = Job.of(
        config.trainer,
        reference=reference,
        entropy=entropy,
        whole_groups=whole_groups,
        prompt_tokens=prompt_tokens,
        pictures=_pictures(config),
        policy=policy,
    )
    use = config.policy.use
    with config.at("policy"):
        spec = registry.spec_of("policy", use)
        if not (isinstance(spec, PolicySpec) and spec.plan):
            raise UsageError(
                f"The policy '{use}' has no plan, so its memory and time are not known before it is loaded. A plugin "
                'adds one with PolicySpec(plan="package.module:function").'
            )
        parameters = registry.parameters("policy", use, config.policy.params)
        needs = registry.call(spec.plan, {"parameters": parameters, "job": job}, what="plan")
    if not isinstance(needs, Needs):
        raise PluginError(
            f"The plan '{spec.plan}' returned an object of type {type(needs).__name__}; expected grpokit_plan.Needs.",
            page="plan#a-plan-for-your-own-policy",
        )
    if config.trainer.device == "cpu":
        note = "The config trains on the CPU (trainer.device), but this is the plan for a GPU."
        needs = replace(needs, assumptions=(note, *needs.assumptions))
    rewards = Part(name="rewards", bytes=_rewards(config))
    return job, replace(needs, parts=(*needs.parts, rewards))


def _pictures(config: RunConfig) -> bool:
    """Whether prompts may bring pictures, as far as the config says; lines of a text file have those of `images`."""
    return config.data.images is not None or not str(config.data.prompts).endswith(".txt")


def _rewards(config: RunConfig) -> float:
    """Bytes of the rewards that compute on this machine's GPU, as far as their plugins say."""
    total = 0.0
    for reward in config.rewards:
        if reward.placement is not None or reward.params.get("device") == "cpu":
            continue
        spec = registry.spec_of("reward", reward.use)
        if isinstance(spec, RewardSpec):
            total += spec.gpu_memory * max(1, reward.workers)
    return total


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A step on a card.

    Attributes:
        card: the GPU.
        needs: of the policy.
    """

    card: Card
    needs: Needs

    @property
    def moments(self) -> list[Moment]:
        """The moments that differ from others, in their order."""
        named: set[Moment] = set()
        for part in self.needs.parts:
            if tuple(part.moments) != MOMENTS:
                named.update(part.moments)
        return [moment for moment in MOMENTS if moment in named] or ["train"]

    def parts(self) -> Mapping[str, Mapping[Moment, float]]:
        """Name -> moment -> bytes, in the order of the plan."""
        table: dict[str, dict[Moment, float]] = {}
        for part in self.needs.parts:
            row = table.setdefault(part.name, {})
            for moment in part.moments:
                row[moment] = row.get(moment, 0.0) + part.bytes
        return table

    def sums(self) -> Mapping[Moment, float]:
        """Moment -> bytes in all."""
        rows = self.parts().values()
        sums: dict[Moment, float] = {}
        for moment in self.moments:
            sums[moment] = sum(row.get(moment, 0.0) for row in rows)
        return sums

    @property
    def peak(self) -> tuple[Moment, float]:
        """The moment that takes most, and its bytes."""
        sums = self.sums()
        moment = max(sums, key=lambda name: sums[name])
        return moment, sums[moment]

    @property
    def fits(self) -> bool:
        """Whether the peak fits into what the card has room for."""
        return self.peak[1] <= self.card.usable

    def seconds(self) -> Mapping[str, float]:
        """Phase -> seconds, in the order of the plan; empty if the card's speeds are not known."""
        if self.card.bandwidth is None or self.card.bf16 is None or self.card.fp32 is None:
            return {}
        times: dict[str, float] = {}
        for work in self.needs.works:
            peak = self.card.bf16 if work.dtype == "bf16" else self.card.fp32
            seconds = _seconds(work, peak * work.mfu, self.card.bandwidth * BANDWIDTH)
            times[work.phase] = times.get(work.phase, 0.0) + seconds
        return times


def _seconds(work: Work, speed: float, bandwidth: float) -> float:
    busy = max(work.flop / speed, work.bytes / bandwidth)
    if work.captured:
        return work.times * (busy + work.kernels * REPLAY)
    return work.times * max(busy, work.kernels * LAUNCH)
