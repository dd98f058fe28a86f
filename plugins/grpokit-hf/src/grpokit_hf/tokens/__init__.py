"""Decisions that are tokens: drawn in groups, packed without padding, and scored again."""
