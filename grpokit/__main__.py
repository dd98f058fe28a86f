"""`python -m grpokit` is the `grpokit` command."""

from grpokit.cli import main

main()
