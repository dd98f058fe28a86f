"""Fifteen plugins, each broken in a way of its own."""
