"""What a user sees who lacks a reward's dependency: the command that brings it, and nothing else.

Another Python gets an import hook that refuses the third-party packages which the plugin's distribution declares, and
builds the reward. Packages that grpokit itself needs are left alone: nobody has grpokit without them.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Mapping
from typing import Any

from grpokit import registry
from grpokit.specs import RewardSpec
from grpokit.testing.core import NotChecked, expect, in_new_python

_CODE = """
import json, sys
blocked, name, params = json.loads({given!r})
class Refuses:
    def find_spec(self, module, path=None, target=None):
        if module.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {{module!r}}", name=module)
sys.meta_path.insert(0, Refuses())
from grpokit import registry
from grpokit.errors import GrpokitError
try:
    registry.create("reward", name, params)
except GrpokitError as error:
    print("said", error)
except Exception as error:
    print("raised", repr(error))
else:
    print("built")
"""


def check_missing(spec: RewardSpec, params: Mapping[str, Any]) -> None:
    """Build a reward without its third-party packages; the message must hold the spec's `install`."""
    plugins = [p for p, s in registry.specs("reward") if (s.name, s.factory) == (spec.name, spec.factory)]
    if not plugins:
        raise NotChecked(f"no installed plugin announces the reward '{spec.name}'")
    blocked = third_party(plugins[0].package)
    if not blocked:
        raise NotChecked(f"{plugins[0].package} needs no package beyond those of grpokit")
    given = json.dumps([blocked, f"{plugins[0].name}:{spec.name}", dict(params)], default=str)
    done = in_new_python(_CODE.format(given=given))
    said = done.stdout.strip() or done.stderr.strip()[-400:]
    expect(
        said.startswith("said") and spec.install in said,
        f"that building the reward without {', '.join(blocked)} says {spec.install!r}",
        {"built": "a reward that was built and would fail later"}.get(said, said.removeprefix("said ")),
        "an import inside a function, or a try around it; import at the top of the factory's module",
    )


def third_party(package: str) -> list[str]:
    """The top-level modules of the packages that a distribution declares and grpokit does not, without extras."""
    ours = _required("grpokit") | {"grpokit"}
    wanted = {name for name in _required(package) - ours if not name.startswith("grpokit-")}
    modules = importlib.metadata.packages_distributions()
    return sorted(m for m, names in modules.items() if {_canonical(n) for n in names} & wanted)


def _required(package: str) -> set[str]:
    lines = importlib.metadata.requires(package) or []
    plain = [line for line in lines if not re.search(r";.*\bextra\b", line)]
    return {_canonical(re.match(r"[\w.-]+", line)[0]) for line in plain}  # type: ignore[index]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
