"""A hook asks for an argument that it does not get."""

from grpokit import hookimpl


@hookimpl
def grpokit_step_end(reports):
    pass
