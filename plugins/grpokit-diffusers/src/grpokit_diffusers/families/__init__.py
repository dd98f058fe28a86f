"""The families that this package knows, one file each."""
