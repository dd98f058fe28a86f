"""Says which tests were skipped, and fails a run of CI where a test is skipped that is not on the list below.

A skip is silent: where CI lacks a package or a program, its tests do not run, and the run stays green. So the list has
each skip that CI may have, with its reason. Where CI is not set, the skips are only counted and shown.
"""

from __future__ import annotations

import os
import re

import pytest

_TEXT = r"\[ladder-(letters|blank|extra-text)\]$"
ALLOWED = {  # pattern of a test's id: why it may be skipped in CI
    r"tests/gpu/": "CI has no GPU; make gpu runs them on a fake CUDA device",
    r"tests/test_trainer\.py::test_activation_memory_on_cuda$": "as above",
    r"tests/doctor/test_doctor\.py::test_the_self_test_uses_the_gpu$": "as above",
    r"tests/training/test_optimizers\.py::test_it_goes_on_on_a_gpu": "as above",
    r"plugins/grpokit-hf/tests/tokens/test_(group_decoding|drawing)\.py": "as above",
    r"plugins/grpokit-(clip|lpips|preference)/\S+\[\S*cuda\S*\]$": "as above",
    r"plugins/grpokit-lm/\S+_gguf_file": "the job with an older transformers, which reads such a file wrongly",
    r"plugins/grpokit-ray/tests/test_ray\.py$": "Ray is too large for an environment that everybody installs",
    # Conformance checks that do not apply to a policy's kind of decision.
    r"plugins/grpokit-toy/\S+::test_toy_(lm|glyph)\[(gaussian|target)\]$": "its decisions are tokens",
    r"plugins/grpokit-gym/\S+::test_policy\[(gaussian[02]|target[0-2])\]$": "two of three choose, and one moves",
    r"plugins/grpokit-check/\S+::test_a_good_policy_of_tokens\[(gaussian|target)\]$": "as it says",
    r"plugins/grpokit-check/\S+::test_a_good_policy_of_(gaussian_steps\[target|copies\[gaussian)\]$": "as it says",
    # Conformance checks that do not apply to a reward; a skip of any other check is a surprise.
    r"plugins/grpokit-(grounding|diagnosis)/\S+\[missing-dependency\d?\]$": "it needs no package of its own",
    r"plugins/grpokit-diagnosis/\S+\[(ladder-[a-z-]+|wrong-type)\d?\]$": "a statistic compares with nothing",
    rf"plugins/grpokit-grounding/\S+{_TEXT}": "the built-in texts hold no boxes",
    rf"plugins/grpokit-lm/\S+{_TEXT}": "the built-in texts hold no expressions and mark no answers",
    rf"plugins/grpokit-reasoning-gym/\S+{_TEXT}": "the built-in texts are no questions of a task",
    rf"plugins/grpokit-ssim/\S+{_TEXT}": "it reads no text",
    r"plugins/grpokit-ocr/\S+\[ladder-(identical|blur|noise|jpeg|shift)\]$": "it compares with no picture",
}


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The words of a skip, without its place."""
    place = report.longrepr
    return str(place[2] if isinstance(place, tuple) else place).removeprefix("Skipped: ")


def unlisted(reports: list[pytest.TestReport]) -> list[pytest.TestReport]:
    return [r for r in reports if not any(re.search(pattern, r.nodeid) for pattern in ALLOWED)]


class Skips:
    """Reads the reports that the terminal collects, which with xdist are those of all workers."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    def reports(self) -> list[pytest.TestReport]:
        return self.terminal.stats.get("skipped", [])

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if os.environ.get("CI") and unlisted(self.reports()) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self) -> None:
        reports, others = self.reports(), unlisted(self.reports())
        if not reports:
            return
        listed = len(reports) - len(others)
        counts = f"{len(reports)} skipped: {listed} on the list of tests/helpers/skips.py, {len(others)} not"
        self.terminal.section(counts)
        for report in others:
            self.terminal.line(f"{report.nodeid}: {reason_of(report)}")
        if others and os.environ.get("CI"):
            self.terminal.line(
                "In CI a test that is skipped and not on the list fails the run. Install what it needs in .ci/run or "
                "requirements-dev.txt, or add it to tests/helpers/skips.py with the reason.",
                red=True,
            )


@pytest.hookimpl(trylast=True)  # after the terminal
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:  # the workers of xdist have none
        config.pluginmanager.register(Skips(terminal), "skips-summary")
