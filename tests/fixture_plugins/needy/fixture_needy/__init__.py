"""Its rewards need a package that is not installed."""
