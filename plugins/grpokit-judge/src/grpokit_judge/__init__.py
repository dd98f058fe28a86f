"""grpokit-judge: the reward `vlm-judge`, a rating of each picture by a vision-language model behind a URL.

`plugin` announces it, `reward` asks and scores, `questions` writes what is asked, `ratings` reads the answer, `calls`
sends one request with its tries and its place in the rate limit, and `usage` counts tokens and money. Nothing is
imported here, so that listing plugins stays fast.
"""
