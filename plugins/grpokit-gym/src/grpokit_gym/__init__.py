"""Environments of gymnasium as worlds for grpokit: a small network acts, and a group starts in one state.

Importing the package is cheap; gymnasium and torch come with the policy's modules.
"""

__version__ = "0.1.0"
