"""The running build: the sources, or partly compiled by mypyc (`make wheel`).

A compiled installation has the sources beside the compiled modules, and both do the same. Where EGRESSPROXY_PURE is set
(to anything but 0), the sources run: for comparison, and for a debugger.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Sequence
from functools import cache
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Final

COMPILED: Final = "compiled"
PURE: Final = "pure"
PURE_VARIABLE: Final = "EGRESSPROXY_PURE"
#: A module that every compiled build has compiled; finding it imports no other.
_SAMPLE: Final = "egressproxy.model.fields"


class _Sources:
    """Finds modules of egressproxy in their sources alone: an entry of `sys.meta_path`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("egressproxy."):
            return None
        for folder in path or ():
            found = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(fullname, target)
            if found is not None:
                return found
        return None


def run_sources() -> None:
    """From here on the sources are imported, where EGRESSPROXY_PURE asks for it: call it before any other import."""
    if os.environ.get(PURE_VARIABLE, "0") not in ("", "0"):
        sys.meta_path.insert(0, _Sources())  # the first that finds a module has found it


def name() -> str:
    """COMPILED or PURE."""
    from importlib.util import find_spec  # takes longer than all of this module

    found = find_spec(_SAMPLE)
    return PURE if found is None or str(found.origin).endswith(".py") else COMPILED


@cache
def release() -> str:
    """Which release this process began with: the version, and a checksum of the names and sizes of the package's files,
    as they are at the first call. It takes some milliseconds.
    """
    found: list[str] = []
    folders = [os.path.dirname(os.path.abspath(__file__))]
    start = len(folders[0])
    for folder in folders:
        with os.scandir(folder) as entries:
            for each in entries:
                if each.name.endswith((".py", ".so")):
                    found.append(f"{each.path[start:]} {each.stat().st_size}")
                elif each.is_dir() and each.name != "__pycache__":
                    folders.append(each.path)
    return f"{sys.modules['egressproxy'].__version__}+{zlib.crc32(chr(10).join(sorted(found)).encode()):08x}"


def is_release(other: str) -> bool:
    """Whether this process runs the files that `release` of another one has seen."""
    return release() == other
