"""Progress bars of transformers: on a terminal only, and once for each model.

Elsewhere a bar leaves lines that nobody wants to read. A check builds a policy twenty times, and one bar is enough.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import constants
from transformers.utils import logging

_SHOWN: set[str] = set()


@contextmanager
def progress_bars(what: str) -> Iterator[None]:
    """Inside the context, transformers shows its bars where they are of use; HF_HUB_DISABLE_PROGRESS_BARS goes first.

    Args:
        what: is done here; the second time it has no bar.
    """
    able = constants.HF_HUB_DISABLE_PROGRESS_BARS is None and logging.is_progress_bar_enabled()
    hidden = able and (what in _SHOWN or not sys.stderr.isatty())
    _SHOWN.add(what)
    if hidden:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if hidden:
            logging.enable_progress_bar()
