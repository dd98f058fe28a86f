"""The scorers of imscore as one reward of grpokit, in an environment of its own."""
