"""A plugin as it should be."""
