"""A run folder -> one self-contained HTML page that opens offline.

`reading` takes in what the run wrote, `scores` and `samples` decide what to show of it, `charts` draws curves as
inline SVG, `page` puts it into the templates, which escape everything that came from data.
"""

from __future__ import annotations

from grpokit.report.charts import figure as figure
from grpokit.report.page import alarm as alarm
from grpokit.report.page import compare as compare
from grpokit.report.page import write as write
from grpokit.report.reading import ATTRIBUTION as ATTRIBUTION
from grpokit.report.reading import listed as listed
from grpokit.report.reading import read_attributions as read_attributions
from grpokit.report.reading import read_journal as read_journal

__all__ = ["ATTRIBUTION", "alarm", "compare", "figure", "listed", "read_attributions", "read_journal", "write"]
