"""grpokit-grounding: the rewards `box-iou`, `box-format` and `crop-match`, for texts that answer with a box.

`plugin` announces them, `boxes` reads and compares boxes, `reward` finds the answer in a text and scores it,
`crop_match` has another reward score what the box encloses, and `scenes` draws the synthetic pictures of the preset
`grounding-scenes`. Nothing is imported here, so that listing plugins stays fast.
"""
