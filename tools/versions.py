"""Checks that every distribution has the same version, and optionally that it is a tag's.

`python tools/versions.py v0.2.0` is the first step of a release. Without a tag it prints the version.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def versions(root: Path = ROOT) -> dict[str, str]:
    """Where a version is stated -> the version."""
    files = [root / "pyproject.toml", *sorted(root.glob("plugins/*/pyproject.toml"))]
    stated = {str(path.relative_to(root)): tomllib.loads(path.read_text())["project"]["version"] for path in files}
    cited = re.search(r"^version: (\S+)$", (root / "CITATION.cff").read_text(), re.MULTILINE)
    return stated | {"CITATION.cff": cited[1] if cited else "none"}


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
    if wrong := complaint(stated, tag, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")):
        sys.exit(wrong)
    print(next(iter(stated.values())))
