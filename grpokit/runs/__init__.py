"""Runs: a config, a folder and the loop that fills it, and what is done with a finished run."""
