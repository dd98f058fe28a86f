"""Rewards behind HTTP: what goes over the wire, the service, and the run's end of it."""
