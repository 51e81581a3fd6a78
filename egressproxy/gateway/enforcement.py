"""Enforcement of a denial: it ends the request, or in Report mode it is noted and the request goes on."""

from __future__ import annotations

from egressproxy.errors import Denied, Reason
from egressproxy.ir.policy import Mode
from egressproxy.model.exchange import Exchange


def enforce(exchange: Exchange, mode: Mode, denied: Denied | None) -> None:
    """Raise the denial, if there is one; in Report mode, which lifts denials that are not firm, note it only."""
    if denied is not None:
        exchange.note_denials(report_only_denial(mode, denied))


def report_only_denial(mode: Mode, denied: Denied) -> Reason:
    """The reason to note for a denial that this mode lifts. Raises every other denial."""
    if mode is not Mode.REPORT or denied.is_firm:
        try:
            raise denied
        finally:
            del denied  # its traceback holds this frame: no cycle
    return denied.reason
