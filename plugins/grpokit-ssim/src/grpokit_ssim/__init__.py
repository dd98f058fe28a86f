"""grpokit-ssim: `ssim` and `mse` compare a picture with its prompt's target picture, `structure` with its source.

`plugin` announces them, `reward` computes them. Nothing is imported here, so that listing plugins stays fast.
"""
