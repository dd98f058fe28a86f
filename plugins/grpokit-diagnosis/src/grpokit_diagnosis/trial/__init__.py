"""`grpokit try`: one reward on a few pictures or texts, and which part of each its score comes from.

`inputs` reads what is tried, `parts` divides it, `measure` scores it with and without each part, `trial` does
all of it, and `sentences`, `heat_map` and `page` show what came of it.
"""
