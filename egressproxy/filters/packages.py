"""Filter types of installed packages, by their entry points of the group `egressproxy.filters`.

The name of an entry point is the filter type, its value refers to a `FilterType`. A package is imported when a
configuration names one of its types; before, only its metadata is read. A broken package closes only the places that
use its types. Its code runs with the gateway's privileges.

The environment variable EGRESSPROXY_FILTER_PACKAGES lists the allowed packages, separated by commas; `none` disables
all. Default: all are allowed.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from egressproxy.filters.base import Filter, FilterContext, FilterType, Rejected, UnusableReference

GROUP: Final = "egressproxy.filters"
SWITCH: Final = "EGRESSPROXY_FILTER_PACKAGES"
#: The domains of the built-in types and of their published names.
_RESERVED: Final = (".egressproxy.io", ".gateway.networking.k8s.io")
_NAME: Final = re.compile(r"(?P<domain>[a-z0-9][a-z0-9.-]*\.[a-z0-9-]+)/[A-Za-z][A-Za-z0-9]*:v[0-9][a-z0-9]*")


@dataclass(frozen=True, slots=True)
class PackagedType:
    """A filter type of a package. `problem`: the reason why it is unusable, if known before `load`."""

    name: str
    package: str  # name and version
    value: str
    problem: str
    _entry_point: EntryPoint

    @property
    def is_imported(self) -> bool:
        return self._entry_point.module in sys.modules

    def load(self) -> FilterType:
        """Import the package and return the type. Raises ValueError with the reason and the place."""
        if self.problem:
            raise ValueError(self.problem)
        try:
            found = self._entry_point.load()
        except (Exception, SystemExit) as error:
            raise ValueError(f"{_place(error)}{type(error).__name__}: {error}") from None
        if not isinstance(found, FilterType):
            raise ValueError(f"{self.value} is {type(found).__name__}, not an egressproxy.filters.FilterType")
        if found.name != self.name:
            raise ValueError(f"{self.value} has the name {found.name}, and its entry point {self.name}")
        if not found.phases:
            raise ValueError(f"{self.value} names no phases")
        return replace(found, package=self.package, build=_reporting(found))


def packaged_types() -> dict[str, PackagedType]:
    """The types of installed packages, by name, without an import. For duplicate names the first package wins."""
    allowed = os.environ.get(SWITCH)
    names = None if allowed is None else {_normalized(name) for name in allowed.split(",")}
    found: dict[str, PackagedType] = {}
    for entry_point in installed():
        package = _package(entry_point)
        version = entry_point.dist.version if entry_point.dist is not None else ""
        problem = _problem(entry_point.name)
        if names is not None and _normalized(package) not in names:
            problem = f"{SWITCH} switches its package off"
        made = PackagedType(entry_point.name, f"{package} {version}".strip(), entry_point.value, problem, entry_point)
        before = found.setdefault(made.name, made)
        if before is not made and before.problem and not problem:
            found[made.name] = made
    return found


@cache
def installed() -> tuple[EntryPoint, ...]:
    """The entry points of the group, sorted by package, cached: the search reads many small files."""
    return tuple(sorted(entry_points(group=GROUP), key=lambda each: (_normalized(_package(each)), each.value)))


def _problem(name: str) -> str:
    match = _NAME.fullmatch(name)
    if match is None:
        return f"the entry point {name} is not named domain/Kind:version, as acme.example.com/Stamp:v1"
    if f".{match['domain']}".endswith(_RESERVED):
        return f"the domain {match['domain']} is that of built-in types; a package names its types under its own"
    return ""


def _package(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist is not None else "-"


def _normalized(package: str) -> str:
    """Source: PEP 503, normalized names."""
    return re.sub(r"[-_.]+", "-", package.strip()).lower()


def _reporting(kind: FilterType) -> Callable[[FilterContext], Filter]:
    """The type's `build`, with errors reduced to type and place: UnusableReference if the config refers to Secrets."""

    def built(context: FilterContext) -> Filter:
        try:
            return kind.build(context)
        except (Exception, SystemExit) as error:
            from egressproxy.filters.author_errors import not_built

            why = not_built(error, "" if isinstance(error, Rejected) else _place(error), "the filter")
        raise UnusableReference(why) if kind.secret_refs(context.config) else ValueError(why)

    return built


def _place(error: BaseException) -> str:
    """The location of the error, `file:line: `."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
