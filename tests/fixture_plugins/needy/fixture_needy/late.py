"""Needs an engine when built."""


class Score:
    def __init__(self):
        import a_missing_engine  # noqa: F401
