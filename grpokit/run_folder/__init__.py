"""The format of a run folder: the names and rows of its files, what reads and writes them, and its lock."""
