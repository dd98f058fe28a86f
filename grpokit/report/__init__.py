"""A run folder -> a page that opens offline, or that follows the run while it goes on.

`scores`, `samples` and `curves` decide what to show of it; `view` puts that into
one JSON object, which the program in `templates` draws. `page` freezes it into a file, `watch` serves it.
"""

from __future__ import annotations

from grpokit.report.page import alarm as alarm
from grpokit.report.page import compare as compare
from grpokit.report.page import write as write
from grpokit.report.story import figure as figure

__all__ = [
    "alarm",
    "compare",
    "figure",
    "write",
]
