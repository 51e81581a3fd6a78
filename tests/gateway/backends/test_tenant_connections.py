"""The connections of HTTP/2 of many tenants to one target."""

from __future__ import annotations

from typing import Any, cast

import pytest

from egressproxy.errors import LimitExceeded
from egressproxy.filters.testing import exchange
from egressproxy.gateway.backends.http2_connections import LEAST, MAX_TENANTS, TenantConnections
from egressproxy.gateway.backends.upstream_hosts import tenant_of_client
from tests.support.builds import of_sources

#: An object of the test stands for the connections of one tenant.
pytestmark = of_sources


class Connections:
    """Those of one tenant."""

    def __init__(self) -> None:
        self.is_empty = self.is_all_idle = self.is_retired = False

    def retire(self) -> None:
        self.is_retired = True


def made() -> TenantConnections:
    return TenantConnections(cast("Any", Connections), tenant_of_client)


def of(every: TenantConnections, tenant: str) -> Connections:
    return cast("Connections", every._of_tenant(exchange("GET", "http://a.example/", identity=f"{tenant}/robot")))


def test_each_tenant_has_its_own():
    every = made()
    assert of(every, "a") is of(every, "a") is not of(every, "b")
    assert of(every, "-") is not of(every, "a")


def test_tenants_whose_connections_have_closed_are_forgotten():
    every = made()
    for number in range(100_000):
        of(every, f"t{number}").is_empty = True
    assert len(every._of) <= LEAST


def test_their_number_is_bounded_and_idle_ones_make_way():
    every = made()
    first = of(every, "t0")
    for number in range(1, MAX_TENANTS):
        of(every, f"t{number}")
    with pytest.raises(LimitExceeded, match="too many tenants"):
        of(every, "another")
    first.is_all_idle = True
    of(every, "another")
    assert first.is_retired
    assert len(every._of) == MAX_TENANTS
