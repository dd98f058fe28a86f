"""grpokit-clip: the rewards `aesthetic`, how well a picture is liked, and `clip-score`, how well it fits its prompt.

`plugin` announces them, `weights` finds or fetches files, `loading` makes a CLIP model of them, `tower` shares it and
its embeddings, `head` is the aesthetic predictor, `reward` computes the scores. Nothing is imported here, so that
listing plugins stays fast.
"""
