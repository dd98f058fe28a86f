"""What the page calls a metric: plain words in place of the keys of `metrics.jsonl`.

`docs/metrics.md` says what each of them means; this file has only their short names, in the order of the page.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

_WORDS = {
    "reward": "reward",
    "reward_std": "spread of the reward inside groups",
    "frac_reward_zero_std": "groups with equal rewards",
    "unscored_rows": "samples that no reward could score",
    "loss": "loss",
    "kl": "KL to the reference",
    "entropy": "entropy",
    "entropy_coef": "weight of the entropy bonus",
    "grad_norm": "norm of the gradient",
    "learning_rate": "learning rate",
    "step": "step",
    "step_time": "seconds of the step",
    "phase": "phase",
    "phase_step": "step of the phase",
    "advantage/mean": "mean advantage",
    "advantage/std": "spread of the advantages",
    "advantage/abs_max": "largest advantage",
    "clip_ratio/low_mean": "decisions clipped below",
    "clip_ratio/high_mean": "decisions clipped above",
    "ratio/min": "smallest importance ratio",
    "ratio/max": "largest importance ratio",
    "logprob_diff/mean": "mean difference of log-probs",
    "logprob_diff/max": "largest difference of log-probs",
    "logprob_diff/signed_mean": "mean signed difference of log-probs",
    "logprob_diff/ess": "effective sample size",
    "length/mean": "mean decisions of a sample",
    "length/max": "most decisions of a sample",
    "completions/clipped_ratio": "texts cut at the length limit",
    "completions/mean_terminated_length": "mean tokens of texts that ended",
    "completions/min_terminated_length": "fewest tokens of a text that ended",
    "completions/max_terminated_length": "most tokens of a text that ended",
    "positions_per_decision": "positions scored for each decision",
    "off_policy_mask/mean": "decisions left out as off-policy",
    "vespo/phi_mean": "mean weight of VESPO",
    "dynamic_sampling/attempts": "draws until groups differed",
    "dynamic_sampling/replaced": "groups that were drawn again",
    "dynamic_sampling/reward_before": "reward before groups were drawn again",
    "time/rollout": "drawing samples",
    "time/reward": "scoring",
    "time/logprobs": "log-probs",
    "time/backward": "backward pass",
    "time/optimizer": "optimizer",
    "memory/peak_mb": "peak memory",
}
_OF_A_REWARD = {
    "mean": "{}",
    "std": "spread of {}",
    "unscored": "samples that {} could not score",
    "failed": "samples on which {} failed",
    "seconds": "seconds for {}",
}


def words(key: str, rewards: Iterable[str] = ()) -> str:
    """A metric in plain words; one that is not known here loses at least its slashes and underscores.

    Args:
        key: as in `metrics.jsonl`.
        rewards: the names of the run's rewards, which may hold slashes.

    >>> words("clip_ratio/low_mean"), words("rewards/ocr/std"), words("mine/new_one")
    ('decisions clipped below', 'spread of ocr', 'mine: new one')
    """
    if key in _WORDS:
        return _WORDS[key]
    if match := re.fullmatch(rf"rewards/(.+)/({'|'.join(_OF_A_REWARD)})", key, re.DOTALL):
        return _OF_A_REWARD[match[2]].format(match[1])
    if pair := correlation_pair(key, rewards):
        return f"correlation of {pair[0]} and {pair[1]}"
    return key.replace("/", ": ").replace("_", " ")


def correlation_pair(key: str, rewards: Iterable[str]) -> tuple[str, str] | None:
    """The two rewards of a metric `correlation/<one>/<other>`, or None.

    >>> correlation_pair("correlation/ocr/ssim", ["ssim", "ocr"])
    ('ocr', 'ssim')
    """
    pair = key.removeprefix("correlation/")
    if pair == key:
        return None
    names = list(rewards)
    for one, other in itertools.product(names, names):
        if f"{one}/{other}" == pair:
            return one, other
    return None
