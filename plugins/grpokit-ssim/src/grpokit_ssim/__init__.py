"""grpokit-ssim: the rewards `ssim` and `mse`, which compare a picture with its prompt's target picture.

`plugin` announces them, `reward` computes them. Nothing is imported here, so that listing plugins stays fast.
"""
