"""Brings a name that is taken."""
