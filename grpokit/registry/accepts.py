"""Whether a reward can score a kind of output, as far as its plugin declares it."""

from __future__ import annotations

from grpokit.errors import UsageError
from grpokit.registry.name_lookup import installed, spec_of
from grpokit.registry.specs import RewardSpec

# Any other kind is named after its plugin, as in "toy:points".
_NOUNS = {"image": "pictures", "text": "texts", "episode": "episodes"}


def check_accepts(reward: str, kind: str, *, what: str) -> None:
    """Refuse outputs of a kind that a reward does not accept.

    Args:
        reward: its name; one that no plugin announces may accept everything.
        kind: "image", "text", "episode", or another such as "my-plugin:points".
        what: what is of this kind, such as "the policy 'toy-lm' makes"; the name of the kind follows it.

    Raises:
        UsageError: the reward scores other kinds; the message lists the installed rewards for this one.
    """
    spec = spec_of("reward", reward)
    if not isinstance(spec, RewardSpec) or kind in spec.accepts:
        return
    noun = _NOUNS.get(kind, kind)
    rewards = [other for _, other in installed("reward")]
    others = sorted({other.name for other in rewards if kind in getattr(other, "accepts", ())})
    raise UsageError(
        f"The reward '{spec.name}' scores {' and '.join(_NOUNS.get(k, k) for k in sorted(spec.accepts))}, but {what} "
        f"{noun}. Installed rewards for {noun}: {', '.join(others) or 'none'}."
    )
