"""grpokit-likeness: pictures of your own as the reward `reference-likeness`, and the monitor `reference-nearness`.

`plugin` announces them. `references` reads the pictures, `features` turn pictures into numbers, `head` tells the ones
from the others by `logistic` regression, and `reward` learns during a run. Nothing is imported here, so that listing
plugins stays fast.
"""
