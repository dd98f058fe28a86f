"""grpokit-methods: objectives of recent papers that are more than a ratio times an advantage.

`plugin` announces them; each has a module of its own. Nothing is imported here, so that listing plugins stays fast.
"""
