"""Toy policies for grpokit: real GRPO on a laptop's CPU in minutes.

They follow the same contract as the large models' policies, so the conformance checks, the tutorials and the tests
of the core run on them. Importing the package is cheap; torch comes with the policy modules.
"""

__version__ = "0.1.0"
