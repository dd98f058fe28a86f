"""Leaves when it is imported."""

raise SystemExit("no licence")
