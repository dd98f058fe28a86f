"""grpokit-http: rewards behind HTTP, the placement `http` and the command `serve-reward`.

`plugin` announces them, `reward` is the run's end, `service` and its `command` are the other, and `wire` is what goes
between them. `client` asks any server, also for other plugins. Nothing is imported here, so that listing plugins stays
fast.
"""
