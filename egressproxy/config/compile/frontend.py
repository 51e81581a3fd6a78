"""`spec.tls` of a Gateway: what it asks of clients, as its own conditions say it.

Source: Gateway API v1 GatewayTLSConfig, FrontendTLSValidation; GEP-91.
"""

from __future__ import annotations

from egressproxy.config.compile.status import Conditions
from egressproxy.config.resources.gateway import FrontendValidation, Gateway

__all__ = ["frontend_validation", "state_frontend"]


def frontend_validation(gateway: Gateway, port: int) -> FrontendValidation | None:
    """What holds for clients of this port: its own entry, even one that asks for nothing, else the default."""
    tls = gateway.spec.tls
    if tls is None or tls.frontend is None:
        return None
    for entry in tls.frontend.per_port:
        if entry.port == port:
            return entry.tls.validation
    return tls.frontend.default.validation


def state_frontend(gateway: Gateway, conditions: Conditions) -> None:
    """State `InsecureFrontendValidationMode` where clients are let in with any certificate, or none."""
    tls = gateway.spec.tls
    if tls is None or tls.frontend is None:
        return
    places = [("the default", tls.frontend.default), *((f"port {e.port}", e.tls) for e in tls.frontend.per_port)]
    open_to_all = [
        place
        for place, entry in places
        if entry.validation is not None and entry.validation.mode == "AllowInsecureFallback"
    ]
    if open_to_all:
        message = (
            f"clients are let in with any certificate, or none: mode AllowInsecureFallback of {', '.join(open_to_all)}"
        )
        conditions.set("InsecureFrontendValidationMode", True, "ConfigurationChanged", message)
