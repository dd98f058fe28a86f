"""Fails otherwise."""

raise RuntimeError("the engine's library is too old")
