"""grpokit-preference: the rewards `pickscore`, `hpsv2` and `imagereward`, trained on which pictures people preferred.

`plugin` announces them, `scoring` is what they share, `pictures` prepares pictures, `files` finds or fetches weights,
and each reward has a module with its model and its published formula. Nothing is imported here, so that listing plugins
stays fast.
"""
