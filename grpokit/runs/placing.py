"""From `placement` in a config to a reward that runs there; plugins announce the kinds of places."""

from __future__ import annotations

from collections.abc import Mapping

from grpokit import registry
from grpokit.config.parts import RewardConfig
from grpokit.errors import ConfigError, PluginError, a_type, shown
from grpokit.registry.specs import PlacementSpec
from grpokit.rewards.submission import Placed

TIMEOUT = 600.0
"""Seconds that a call at another place may take where `reward_timeout` is not set."""


def placed(reward: RewardConfig) -> Placed:
    """Start a reward at the place that its config names.

    Raises:
        UsageError: there is no such kind of place, an option is wrong, or samples cannot be scored there.
    """
    ((kind, options),) = (reward.placement or {}).items()
    spec = registry.spec_of("placement", kind)
    if not isinstance(options, Mapping):
        shorthand = spec.shorthand if isinstance(spec, PlacementSpec) else ""
        if not shorthand:
            raise ConfigError(f"'{kind}' is {shown(options)}; expected its options, as in {{name: value}}.")
        options = {shorthand: options}
    place = registry.create("placement", kind, options)
    with registry.explained(f"The placement '{kind}' of reward '{reward.use}' fails"):
        built = place(reward.use, reward.params, reward.reward_timeout or TIMEOUT)
        if not isinstance(built, Placed):
            raise PluginError(f"The placement '{kind}' gave {a_type(built)}; expected a grpokit.Placed.")
        built.start()
    return built
