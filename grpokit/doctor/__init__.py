"""Looks at an environment and says what is wrong with it: `examine`.

`probes` look at one area each. Each runs in a process of its own (`isolated`), so a library that crashes on import
stops no other probe. `self_test` trains a tiny policy.
"""

from __future__ import annotations

from grpokit.doctor.findings import Finding as Finding
from grpokit.doctor.isolated import examine as examine
