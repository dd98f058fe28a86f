"""grpokit-diagnosis: why a reward does not move, what it taught, and what it looks at."""
