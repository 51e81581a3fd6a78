"""CertificateWatch: warns of certificates in service that end soon, and notices when one begins or ends to be valid."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from egressproxy.model.certificate import CertificateState, Validity

log = logging.getLogger("egressproxy")

#: How often certificates are looked at, in seconds.
LOOK_S: Final = 3600.0
#: How long after a change of state it is told, so that clocks agree on it.
LEEWAY_S: Final = 1.0


class CertificateWatch:
    """`validities` are those of the certificates in service. Belongs to the event loop."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        """`on_change` is called when a certificate begins or ends to be valid: reading the configuration says so."""
        self.validities: Sequence[Validity] = ()
        self._on_change = on_change
        self._reported: set[Validity] = set()
        self._has_others = asyncio.Event()

    def show(self, validities: Sequence[Validity]) -> None:
        """Watch these from now on, those of another configuration."""
        self.validities = validities
        self._tell_late()
        self._has_others.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            self._has_others.clear()
            looked_s = time.time()
            changes_s = min((each.next_change_s(looked_s) for each in self.validities), default=looked_s + LOOK_S)
            wait_s = min(max(changes_s - looked_s, 0.0) + LEEWAY_S, LOOK_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_others.wait(), wait_s)
                continue
            self._tell_late()
            if any(each.next_change_s(looked_s) <= time.time() for each in self.validities):
                log.info("a certificate has begun or ended to be valid: the configuration is read again")
                self._on_change()

    def _tell_late(self) -> None:
        """Warn of those that end soon, once of each. It is no warning of the configuration, which has no fault."""
        now_s = time.time()
        late = {each for each in self.validities if each.state(now_s) is CertificateState.LATE}
        known, self._reported = self._reported, late
        for each in sorted(late - known):
            log.warning("%s", each.sentence(now_s))
