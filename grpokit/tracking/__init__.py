"""How a run is followed from outside: reports of steps, trackers, progress and memory."""
