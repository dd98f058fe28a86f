"""Scores for held-out prompts and for samples in files."""
