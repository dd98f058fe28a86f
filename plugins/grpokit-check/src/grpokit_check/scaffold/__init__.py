"""Writes the package of a new plugin."""
