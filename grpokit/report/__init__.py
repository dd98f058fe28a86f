"""A run folder -> a page that opens offline, or that follows the run while it trains.

`scores`, `samples` and `curves` decide what to show of it; `view` puts that into one JSON object, which the program in
`templates` draws. `page` freezes it into a file, `watch` serves it, and `index` lists the runs of a folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grpokit.report.index import runs_in as runs_in
from grpokit.report.index import write_index as write_index
from grpokit.report.page import alarm as alarm
from grpokit.report.page import compare as compare
from grpokit.report.page import write as write
from grpokit.run_folder.reader import read_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["alarm", "compare", "figure", "runs_in", "write", "write_index"]


def figure(run: Path) -> Figure:
    """A run's reward over the steps and, where it draws pictures, samples of the same prompts before and after.

    Raises:
        UsageError: it is not a run folder.
        ImportError: matplotlib is not installed.
    """
    from grpokit.report.run_figure import drawn

    return drawn(read_run(run))
