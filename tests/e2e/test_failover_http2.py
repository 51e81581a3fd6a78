"""Failover of the real process between providers of HTTP/2, one of which dies and comes back again and again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.test_failover import NAMES, Tally, caller
from tests.gateway.faults import HTTP2, Seen
from tests.support import manifests as m
from tests.support.fault_proxy import Fault, FaultProxy, When
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import until

#: What the provider does, one after the other: everything that ends before a byte of content, and between, its death.
DISEASES: list[Fault | None] = [None]
for _wanted in HTTP2:
    _is_lost = _wanted.seen is Seen.RIGHT or (_wanted.seen is Seen.CUT and _wanted.sends_content)
    if not _is_lost and _wanted.fault.name not in ("a-window-that-never-opens", "half-open"):
        DISEASES += [_wanted.fault, None] if len(DISEASES) % 10 == 0 else [_wanted.fault]
_FEW = ("stall", "rst-REFUSED_STREAM", "goaway-below", "http1", "reset-after-head")
SOME = [None, *(disease for disease in DISEASES if disease is not None and disease.name in _FEW)]


def config(listener: int, proxies: list[FaultProxy]) -> list[m.Manifest]:
    return [
        m.gateway(m.http_listener(listener)),
        m.policy(cidrs=["127.0.0.0/8"]),
        *(m.ip_backend(proxy.name, proxy.port, protocol="H2C") for proxy in proxies),
        m.failover("any", *(proxy.name for proxy in proxies), firstByte="700ms"),
        m.http_route("route", m.prefix_rule("/", "any")),
    ]


async def fall_ill(proxy: FaultProxy, tally: Tally, diseases: list[Fault | None]) -> None:
    """Ill until it has harmed requests, then well until it serves again."""
    for disease in diseases:
        harmed, answered = proxy.harmed, tally.answered
        if disease is None:
            proxy.down()
            await until(lambda: tally.answered > answered + 100)  # noqa: B023
            proxy.up()
        else:
            proxy.fault = disease
            await until(lambda: proxy.harmed > harmed)  # noqa: B023
            proxy.fault = None
        served = tally.by[proxy.name]
        await until(lambda: tally.by[proxy.name] > served + 10)  # noqa: B023
    tally.is_over = True


async def drill(port: int, tally: Tally, proxies: list[FaultProxy], diseases: list[Fault | None]) -> None:
    for proxy in proxies:
        proxy.start()
    try:
        await asyncio.gather(
            fall_ill(proxies[0], tally, diseases), *(caller(port, number, tally) for number in range(16))
        )
    finally:
        for proxy in proxies:
            proxy.close()


@pytest.mark.parametrize(
    ("requests", "diseases"),
    [(2_000, SOME), pytest.param(30_000, DISEASES, marks=pytest.mark.nightly)],
    ids=["some", "all"],
)
def test_no_request_is_lost_while_one_of_three_providers_of_http_2_dies_and_returns(
    tmp_path: Path, requests: int, diseases: list[Fault | None]
):
    assert all(disease is None or disease.when is not When.ACCEPT for disease in diseases)
    port, tally = free_port(), Tally(requests)
    proxies = [FaultProxy(name, is_http2=True) for name in NAMES]
    with GatewayProcess(tmp_path, config(port, proxies)) as gateway:
        asyncio.run(drill(port, tally, proxies, diseases))
        assert tally.lost == []
        assert tally.answered >= requests
        left = gateway.metric("egress_failovers_total", backend="agents/first")
        assert 0 < left < tally.answered / 10
