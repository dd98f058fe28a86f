"""What ends a run in good order."""

from __future__ import annotations

import signal

import pytest

from grpokit.rewards.remote import ENDING
from grpokit.runs.signals import stopping


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_and_the_waiting_for_services(number: signal.Signals) -> None:
    with stopping(tell=False) as stop:
        assert (stop.is_set(), ENDING.is_set()) == (False, False)
        signal.raise_signal(number)
        assert (stop.is_set(), ENDING.is_set()) == (True, True)
    assert not ENDING.is_set()
