"""grpokit-ray: the placement `ray`, which runs a reward as actors of a Ray cluster.

`plugin` announces it, `reward` is the run's end, `cluster` opens and closes Ray, and `replica` is what an actor does.
Nothing is imported here, so that listing plugins stays fast.
"""
