"""A run event raises."""
