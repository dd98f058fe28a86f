"""Building blocks for policies."""
