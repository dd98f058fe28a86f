"""grpokit-pyiqa: the reward `pyiqa`, image quality by any metric of the package pyiqa.

`plugin` announces it, `scoring` computes with pyiqa and without grpokit, and `reward` makes a grpokit reward of it;
`unscorable` looks at prompts. Nothing is imported here, so that listing plugins stays fast.
"""
