"""Finding: what a probe of `doctor` has seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

OK: Final = "ok"
WARNING: Final = "warning"
FAILURE: Final = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """`level` is OK, WARNING or FAILURE; `remedy` says what to do, "" where nothing is to be done."""

    level: str
    topic: str
    seen: str
    remedy: str = ""
