"""grpokit: post-train image generators, and any other stochastic generator, with GRPO.

The public interface is in `__init__.pyi`. Its names are imported on first use (SPEC 1 of Scientific Python), so
`import grpokit` costs nothing and does not import torch.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
