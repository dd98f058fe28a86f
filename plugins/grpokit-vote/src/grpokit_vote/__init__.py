"""grpokit-vote: people as a reward, the reward `human-vote` and the command `vote`.

`plugin` announces them. `ballots` are the files by which a run asks and people answer, `answers` turns votes into
numbers, `reward` is the run's end, and `service` with its `page` the people's. `taste` is a model of the voter.
Nothing is imported here, so that listing plugins stays fast.
"""
