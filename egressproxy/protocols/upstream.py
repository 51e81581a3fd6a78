"""Upstream: what carries one exchange to a backend, whatever the version of HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

from egressproxy.protocols.http1.upstream import UpstreamConnection

if TYPE_CHECKING:  # HTTP/2 takes memory, and not everybody has a backend that speaks it
    from egressproxy.protocols.http2.upstream_stream import UpstreamStream

Upstream = Union[UpstreamConnection, "UpstreamStream"]
