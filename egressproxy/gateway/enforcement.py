"""What a denial does: it ends the request, or in Report mode it is noted and the request goes on."""

from __future__ import annotations

from egressproxy.errors import Denied, Reason
from egressproxy.ir.policy import Mode
from egressproxy.model.exchange import Exchange

__all__ = ["enforce", "lifted"]


def enforce(x: Exchange, mode: Mode, denied: Denied | None) -> None:
    """Raise the denial, or in Report mode, if that may lift it, note that it would have been one."""
    if denied is not None:
        x.note_denials(lifted(mode, denied))


def lifted(mode: Mode, denied: Denied) -> Reason:
    """The reason of a denial that mode Report lifts, to be noted. Raises every other denial."""
    if mode is not Mode.REPORT or denied.is_firm:
        try:
            raise denied
        finally:
            del denied  # its traceback holds this frame: no cycle
    return denied.reason
