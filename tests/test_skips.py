"""A skip that nobody has listed fails CI, and is shown with its reason."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import skips

LISTED = "plugins/grpokit-ssim/tests/test_conformance.py::test_ssim[ladder-blank]"
OTHER = "plugins/grpokit-ssim/tests/test_conformance.py::test_ssim[ladder-blur]"


@pytest.mark.parametrize(
    ("ci", "ids", "code"), [("true", [LISTED, OTHER], 1), ("", [LISTED, OTHER], 0), ("true", [LISTED], 0)]
)
def test_a_skip_that_is_not_listed_fails_ci(
    monkeypatch: pytest.MonkeyPatch, ci: str, ids: list[str], code: int
) -> None:
    monkeypatch.setenv("CI", ci)
    lines: list[str] = []
    reports = [SimpleNamespace(nodeid=name, longrepr=("a.py", 3, "Skipped: does not apply")) for name in ids]
    terminal = SimpleNamespace(
        stats={"skipped": reports}, section=lines.append, line=lambda text, **_: lines.append(text)
    )
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    summary = skips.Skips(terminal)
    summary.pytest_sessionfinish(session)
    summary.pytest_terminal_summary()
    assert session.exitstatus == code
    assert lines[0] == f"{len(ids)} skipped: 1 on the list of tests/helpers/skips.py, {len(ids) - 1} not"
    assert (f"{OTHER}: does not apply" in lines) == (OTHER in ids)
    assert any("fails the run" in line for line in lines) == bool(code)
