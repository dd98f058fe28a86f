"""Runs rewards: from samples to the matrix [B, R] of scores. `scoring` is the story; the rest serves it."""
