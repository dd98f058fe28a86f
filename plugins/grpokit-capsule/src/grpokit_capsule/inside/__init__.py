"""Worlds made of other libraries' environments. A capsule imports them from this folder; the run never does."""
