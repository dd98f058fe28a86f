"""Prompts from files, datasets and lists, and the order in which training meets them.

Every source becomes a `PromptSequence`; pictures are read when a prompt is asked for, but that their files are pictures
is checked at once. The order is a pure function of (seed, step), so a resumed run meets the same prompts.
"""

from __future__ import annotations

from grpokit.data.datasets import read_dataset as read_dataset
from grpokit.data.digests import check_pictures as check_pictures
from grpokit.data.digests import digest as digest
from grpokit.data.digests import digests as digests
from grpokit.data.readers import read_prompts as read_prompts
from grpokit.data.sequences import PromptSequence as PromptSequence
from grpokit.data.sequences import as_prompts as as_prompts
from grpokit.data.sequences import check_prompts as check_prompts
from grpokit.data.sequences import hold_out as hold_out
from grpokit.data.sequences import refuse_pictures as refuse_pictures
