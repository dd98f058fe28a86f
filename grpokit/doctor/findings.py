"""What a probe finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a probe saw.

    Attributes:
        area: the probe, such as "torch".
        state: "ok", "note" for what breaks nothing, "problem" for what must be mended.
        what: what is there, in a sentence without a full stop.
        advice: what it means and what to do; empty if all is well.
        page: of the documentation, as in `GrpokitError`.
    """

    area: str
    state: State
    what: str
    advice: str = ""
    page: str = ""
