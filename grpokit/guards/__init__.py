"""Observers of a training step: they follow it from outside, warn, and stop it where it would be silently wrong."""
