"""What the tests of other libraries' environments share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from grpokit_capsule import world as world_module


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPOKIT_CAPSULES", str(tmp_path_factory.getbasetemp() / "capsules"))
        yield
    for copy in world_module._processes.values():
        copy.end()
    world_module._processes.clear()
