"""The tasks of reasoning-gym for grpokit: prompts from its generators, and its score of an answer.

Importing the package is cheap; reasoning-gym comes with the other modules.
"""

__version__ = "0.1.0"
