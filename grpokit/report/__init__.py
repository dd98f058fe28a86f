"""A run folder -> a page that opens offline, or that follows the run while it goes on.

`reading` takes in what the run wrote; `scores`, `samples` and `curves` decide what to show of it; `view` puts that into
one JSON object, which the program in `templates` draws. `page` freezes it into a file, `watch` serves it.
"""

from __future__ import annotations

from grpokit.report.page import alarm as alarm
from grpokit.report.page import compare as compare
from grpokit.report.page import write as write
from grpokit.report.reading import ATTRIBUTION as ATTRIBUTION
from grpokit.report.reading import END as END
from grpokit.report.reading import MACHINE as MACHINE
from grpokit.report.reading import listed as listed
from grpokit.report.reading import read_journal as read_journal
from grpokit.report.samples import kept as kept
from grpokit.report.story import figure as figure

__all__ = [
    "ATTRIBUTION",
    "END",
    "MACHINE",
    "alarm",
    "compare",
    "figure",
    "kept",
    "listed",
    "read_journal",
    "write",
]
