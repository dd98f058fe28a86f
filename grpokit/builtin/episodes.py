"""The reward of an episode in an environment, or of a conversation with a world."""

from __future__ import annotations

import math
from collections.abc import Sequence

from grpokit.types import Sample


def episode_return(samples: Sequence[Sample]) -> list[float]:
    """`Sample.info["return"]`, the sum of what an environment or a world gave.

    Args:
        samples: B samples.

    Returns:
        B scores; NaN for a sample of a policy that tells no return.
    """
    return [float(sample.info.get("return", math.nan)) for sample in samples]
