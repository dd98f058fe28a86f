"""How easily a reward is fooled: its ladders."""
