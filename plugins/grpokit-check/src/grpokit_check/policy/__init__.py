"""Checks of policies."""
