"""Whether a plugin and this grpokit were written for each other, and what to install if not."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING

from grpokit.registry.specs import API, OLDEST_API, Spec

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet


def readable(spec: Spec) -> bool:
    """Whether a spec was written for a plugin API that this grpokit reads."""
    return type(spec.api) is int and OLDEST_API <= spec.api <= API


def refusal(spec: Spec, package: str) -> str:
    """The message that this grpokit does not read a spec, and what to install."""
    if type(spec.api) is not int:
        return f"{spec.kind} '{spec.name}' has api={spec.api!r}; expected a whole number, such as api={API}."
    interfaces = str(API) if OLDEST_API == API else f"{OLDEST_API} to {API}"
    return (
        f"{spec.kind} '{spec.name}' is written for plugin API {spec.api}, and grpokit {_version()} reads "
        f"{interfaces}. {_remedy(package, grpokit_is_older=spec.api > API)}"
    )


def mismatch(package: str) -> str:
    """The message that a distribution's bound excludes this grpokit, and what to install; empty if it does not."""
    bound = _bound(package)
    if bound.contains(_version(), prereleases=True):
        return ""
    version = importlib.metadata.version(package)
    return (
        f"{package} {version} is written for grpokit{bound}, and this is grpokit {_version()}. "
        f"{_remedy(package, grpokit_is_older=_begins_later(bound))}"
    )


def _remedy(package: str, *, grpokit_is_older: bool) -> str:
    if not grpokit_is_older:  # the version keeps pip from going back to an older grpokit
        return f"{package} is older. Run: pip install --upgrade {package} 'grpokit>={_version()}'"
    bound = _bound(package)
    wanted = "grpokit" if bound.contains(_version(), prereleases=True) else f"'grpokit{bound}'"
    return f"grpokit is older. Run: pip install --upgrade {wanted}"


def _version() -> str:
    """Of this grpokit, as pip sees it."""
    return importlib.metadata.version("grpokit")


def _bound(package: str) -> SpecifierSet:
    """The versions of grpokit that a distribution says it works with."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    requirements = map(Requirement, importlib.metadata.requires(package) or () if package else ())
    for each in requirements:
        if each.name == "grpokit" and "extra" not in str(each.marker):
            return each.specifier
    return SpecifierSet()


def _begins_later(bound: SpecifierSet) -> bool:
    """Whether a bound begins after this grpokit."""
    from packaging.version import Version

    beginnings = [each.version for each in bound if each.operator in (">=", "~=", "==", ">")]
    lowest = [Version(version.removesuffix(".*")) for version in beginnings]
    return any(version > Version(_version()) for version in lowest)
