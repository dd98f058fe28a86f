"""grpokit-lpips: the reward `lpips`, how alike a picture and its prompt's target picture look.

`plugin` announces it, `trunk` finds and reads the backbone's weights, `reward` computes the score. Nothing is imported
here, so that listing plugins stays fast.
"""
