"""reasoning-gym needs a C compiler to be installed. Where there is none the tests are left out, but not in CI."""

from __future__ import annotations

import os
from importlib.util import find_spec

if find_spec("reasoning_gym") is None and "CI" not in os.environ:
    collect_ignore_glob = ["test_*.py"]
