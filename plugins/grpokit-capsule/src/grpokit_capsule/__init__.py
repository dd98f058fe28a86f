"""grpokit-capsule: rewards in environments of their own, the placement `capsule` and the command `capsules`.

`plugin` announces them. `environments` builds what a reward needs, `reward` and `copy` are the run's end, and `runner`
is the one file that runs inside. Nothing is imported here, so that listing plugins stays fast.
"""
