"""Checks of rewards."""
