"""Scores of held-out prompts and of samples in files."""
