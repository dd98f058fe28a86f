"""A ward of sick runs: planted causes of a reward that does not rise, for `grpokit diagnose` to find.

`patients.toml` has the cases, `components` what some of them need, `treatment` trains and measures.
`python tools/ward` is the command.
"""
