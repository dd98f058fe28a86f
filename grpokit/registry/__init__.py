"""Plugins: what is installed (`plugins`, `installed`, `find`), and objects built by their names (`create`).

Light: listing plugins imports neither torch nor what a plugin's factories need.
"""

from __future__ import annotations

from grpokit.registry.factories import call as call
from grpokit.registry.factories import create as create
from grpokit.registry.factories import explained as explained
from grpokit.registry.factories import resolve as resolve
from grpokit.registry.loading import Plugin as Plugin
from grpokit.registry.loading import find as find
from grpokit.registry.loading import installed as installed
from grpokit.registry.loading import notify as notify
from grpokit.registry.loading import plugins as plugins
from grpokit.registry.loading import remedy as remedy
from grpokit.registry.loading import spec_of as spec_of
