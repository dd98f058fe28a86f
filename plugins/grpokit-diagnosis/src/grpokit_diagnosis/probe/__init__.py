"""What `grpokit diagnose --probe` measures on the parts of a run that are built again; nothing in the run changes."""
