"""A run's config: its `schema`, the YAML with places that it is read from, and the presets of plugins."""
