"""Plugins: what is installed (`plugins`, `installed`, `find`), and objects built by their names (`create`).

It is light: listing plugins imports neither torch nor what a plugin's factories need.
"""

from __future__ import annotations

from grpokit.registry.accepts import check_accepts as check_accepts
from grpokit.registry.columns import ColumnReward as ColumnReward
from grpokit.registry.columns import of_samples as of_samples
from grpokit.registry.compatibility import mismatch as mismatch
from grpokit.registry.compatibility import refusal as refusal
from grpokit.registry.entry_points import Plugin as Plugin
from grpokit.registry.entry_points import answers as answers
from grpokit.registry.entry_points import explained as explained
from grpokit.registry.entry_points import notify as notify
from grpokit.registry.entry_points import observers as observers
from grpokit.registry.entry_points import plugins as plugins
from grpokit.registry.factories import TIMEOUT as TIMEOUT
from grpokit.registry.factories import call as call
from grpokit.registry.factories import create as create
from grpokit.registry.factories import declared_parameters as declared_parameters
from grpokit.registry.factories import parameters as parameters
from grpokit.registry.factories import place as place
from grpokit.registry.factories import placement_of as placement_of
from grpokit.registry.importing import resolve as resolve
from grpokit.registry.name_lookup import clashes as clashes
from grpokit.registry.name_lookup import find as find
from grpokit.registry.name_lookup import full_name as full_name
from grpokit.registry.name_lookup import installed as installed
from grpokit.registry.name_lookup import is_path as is_path
from grpokit.registry.name_lookup import lasting as lasting
from grpokit.registry.name_lookup import named as named
from grpokit.registry.name_lookup import refusals as refusals
from grpokit.registry.name_lookup import spec_of as spec_of
from grpokit.registry.name_lookup import unknown as unknown
from grpokit.registry.shipped import remedy as remedy
