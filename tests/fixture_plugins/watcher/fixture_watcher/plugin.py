"""A run event that raises."""

from grpokit import hookimpl


@hookimpl
def grpokit_step_end(report):
    raise RuntimeError(f"no connection in step {report.step}")
