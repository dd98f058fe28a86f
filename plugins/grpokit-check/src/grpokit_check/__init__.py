"""The conformance kit: what every component must do, as named checks.

The names in `__init__.pyi` and those of `scaffold.write`, which writes the packages of `grpokit new`, are public; the
other modules are private. Each kind of component has a generator of `Check` records, such as `policy_checks`. Run them
with `parametrize_with_checks` in pytest, with `outcomes` in a program, or with `grpokit check NAME` on the command
line. `ladder` measures how easily a reward is fooled, and `LadderReport` is its result. `example_samples` are built-in
samples for a reward.

Names are imported on first use: they import torch, and listing plugins must stay fast.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
