"""grpokit-diagnosis: why a reward does not move, what it taught, and what it looks at.

`diagnosis` finds causes: `symptom` says what the reward did, `probe` measures, and `looks` judge. `panels` puts the
result on a run's page. `statistics` and `taught` say what a reward taught. The names in `__init__.pyi` are public, and
are imported on first use, since listing plugins must stay fast.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
