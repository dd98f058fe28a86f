"""Checks that every distribution has the same version, that their bounds on each other allow it, and perhaps a tag.

`python tools/versions.py v0.2.0` is the first step of a release. Without a tag it prints the version.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def projects(root: Path = ROOT) -> dict[str, dict[str, Any]]:
    """File -> the table `project` of each distribution."""
    files = [root / "pyproject.toml", *sorted(root.glob("plugins/*/pyproject.toml"))]
    return {str(path.relative_to(root)): tomllib.loads(path.read_text())["project"] for path in files}


def versions(root: Path = ROOT) -> dict[str, str]:
    """Where a version is stated -> the version."""
    stated = {place: project["version"] for place, project in projects(root).items()}
    cited = re.search(r"^version: (\S+)$", (root / "CITATION.cff").read_text(), re.MULTILINE)
    return stated | {"CITATION.cff": cited[1] if cited else "none"}


def wrong_bounds(every: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The requirements of our distributions on each other that are not of the form `~=` or exclude their version."""
    ours = {project["name"]: project["version"] for project in every.values()}
    for place, project in every.items():
        for requirement in map(Requirement, [*project["dependencies"], *extras(project)]):
            bound, version = requirement.specifier, ours.get(requirement.name)
            if version and ([each.operator for each in bound] != ["~="] or not bound.contains(version)):
                yield f"{place} requires {requirement}; expected {requirement.name}~={version}."


def extras(project: dict[str, Any]) -> list[str]:
    """The requirements of all extras."""
    return [each for requirements in project.get("optional-dependencies", {}).values() for each in requirements]


def complaint(stated: dict[str, str], tag: str = "", changelog: str = "") -> str:
    """What is wrong in one sentence; empty where nothing is."""
    if len(set(stated.values())) > 1:
        return f"The versions differ: {', '.join(f'{place} has {version}' for place, version in stated.items())}."
    version = next(iter(stated.values()))
    if tag and tag != f"v{version}":
        return f"The tag is {tag}, and the packages have the version {version}; expected the tag v{version}."
    if tag and f"\n## {version}" not in changelog:
        return f"CHANGELOG.md has no section '## {version}'. Rename 'Unreleased' before the release."
    return ""


if __name__ == "__main__":
    stated, tag = versions(), sys.argv[1] if len(sys.argv) > 1 else ""
    wrong = [complaint(stated, tag, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")), *wrong_bounds(projects())]
    if any(wrong):
        sys.exit("\n".join(filter(None, wrong)))
    print(next(iter(stated.values())))
