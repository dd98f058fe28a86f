"""A run event that raises."""

from asyncio import CancelledError

from grpokit import hookimpl


@hookimpl
def grpokit_step_end(report):
    raise CancelledError(f"no connection in step {report.step}")
