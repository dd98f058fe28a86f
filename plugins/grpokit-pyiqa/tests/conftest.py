"""A cache of weights of the tests' own, so that no test needs the network or published weights."""

import pytest
from pyiqa.utils import download_util


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """The folder in which pyiqa looks for its weights."""
    monkeypatch.setattr(download_util, "DEFAULT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"
