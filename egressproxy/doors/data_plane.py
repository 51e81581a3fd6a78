"""The data plane with all products, for processes that serve."""

from __future__ import annotations

import egressproxy.doors.products  # noqa: F401 (they register)
from egressproxy.gateway.server.gateway_server import GatewayServer

__all__ = ("GatewayServer",)
