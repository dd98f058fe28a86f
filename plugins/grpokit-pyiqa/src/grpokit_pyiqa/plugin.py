"""Announces the reward `pyiqa` to grpokit.

A light module: it imports only grpokit. The reward's own module, which needs pyiqa, is imported when a run asks for the
reward; a missing dependency then ends in the command under `install`.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import RewardSpec, hookimpl


@hookimpl
def grpokit_rewards() -> Iterator[RewardSpec]:
    """Yield the reward `pyiqa`; its range is that of the metric."""
    yield RewardSpec(
        api=1,
        name="pyiqa",
        factory="grpokit_pyiqa.reward:PyIQAReward",
        summary="image quality by a metric of pyiqa, some of which compare with the target picture (higher is better)",
        accepts={"image"},
        unscorable="grpokit_pyiqa.unscorable:target",
        install="pip install 'grpokit[pyiqa]'",
        examples="grpokit_pyiqa.examples:pairs",
    )
