"""grpokit-grounding: the rewards `box-iou` and `box-format`, for texts that answer with a box in a picture.

`plugin` announces them, `boxes` reads and compares boxes, `reward` finds the answer in a text and scores it. Nothing
is imported here, so that listing plugins stays fast.
"""
