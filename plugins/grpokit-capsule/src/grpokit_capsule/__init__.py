"""grpokit-capsule: rewards and worlds in environments of their own, and the command `capsules`.

`plugin` announces them. `environments` builds what they need, `reward`, `world` and `copy` are the run's end, and
`runner` is the one file that runs inside, with those in `inside` for other libraries. Nothing is imported here, so that
listing plugins stays fast.
"""
