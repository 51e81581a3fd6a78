"""ConfigurationLog: the latest configurations that were put into service or rejected, for people. Kept in memory."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from time import time
from typing import Any, Final

from egressproxy.processes.loader.loader import Loader
from egressproxy.processes.loader.process import LoadingFailed

log = logging.getLogger(__name__)

KEPT: Final = 20
#: The most problems of one, and characters of each.
MAX_PROBLEMS: Final = 50
MAX_PROBLEM: Final = 500
#: Specs that are larger together (compressed, in bytes) are not compared, since reloads wait for it: with so many, some
#: 3,000 routes, a comparison takes a second.
MAX_COMPARED: Final = 64 * 1024
#: The most comparisons that wait, each with its specs.
MAX_WAITING: Final = 4


class ConfigurationLog:
    """Belongs to the event loop. Specs are compared by the loader, one after the other, and not kept."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._comparing: set[asyncio.Task[None]] = set()

    def in_service(self, number: int, by: str, objects: int, specs: tuple[bytes, bytes]) -> None:
        """This configuration came into service. `specs`: those before and now, compressed; b"" before the first."""
        before, after = specs
        entry = {
            "time": time(), "number": number, "result": "in service", "by": by, "objects": objects, "problems": [],
            "diff": "" if before == after else None,
        }  # fmt: skip
        self._kept.append(entry)
        is_small = len(before) + len(after) <= MAX_COMPARED and len(self._comparing) < MAX_WAITING
        if before and before != after and is_small:
            task = asyncio.create_task(self._compare(entry, specs))
            self._comparing.add(task)
            task.add_done_callback(self._comparing.discard)

    def rejected(self, number: int, by: str, problems: Sequence[object]) -> None:
        """A configuration was rejected; that with this number stays in service."""
        shown = [str(each)[:MAX_PROBLEM] for each in problems[:MAX_PROBLEMS]]
        if len(problems) > MAX_PROBLEMS:
            shown.append(f"… and {len(problems) - MAX_PROBLEMS} more")
        self._kept.append({
            "time": time(), "number": number, "result": "rejected", "by": by, "objects": None, "problems": shown,
            "diff": None,
        })  # fmt: skip

    def told(self) -> list[dict[str, Any]]:
        """The configurations, the newest first."""
        return list(reversed(self._kept))

    async def _compare(self, entry: dict[str, Any], specs: tuple[bytes, bytes]) -> None:
        try:
            entry["diff"] = await self._loader.differences(*specs)
        except (LoadingFailed, OSError) as error:
            log.debug("two configurations are not compared: %s", error)
