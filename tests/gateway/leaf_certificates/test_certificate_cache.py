"""Leaves that are kept: minted in a thread, once for all who wait, and renewed before they end."""

from __future__ import annotations

import asyncio
import gc
import ssl
import sys
import time
from contextlib import suppress

import pytest

from egressproxy.app import SWITCH_S
from egressproxy.errors import GatewayFault, Reason
from egressproxy.gateway.leaf_certificates import certificate_cache
from egressproxy.gateway.leaf_certificates.certificate_cache import RENEWED_S, CertificateCache, CertificateCaches
from egressproxy.gateway.leaf_certificates.certificate_signer import CertificateSigner
from egressproxy.gateway.leaf_certificates.minting import LEAF_S, new_ca
from egressproxy.model.secret import SecretBytes
from egressproxy.telemetry.counters import Interceptions


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def cache(clock: Clock | None = None, days: int = 30) -> tuple[CertificateCache, Interceptions]:
    ca_pem, key = new_ca("tests", time.time(), days)
    counted = Interceptions()
    return CertificateCache((ca_pem, key, "agents/default"), counted, CertificateSigner(), clock or Clock()), counted


def connected(context: ssl.SSLContext, host: str, **of_client: object) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both sides of a connection to a server with this context. `of_client`: attributes of the client's context."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(up, down, server_side=True)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    for name, value in of_client.items():
        setattr(trusting, name, value)
    client = trusting.wrap_bio(down, up, server_hostname=host)
    for side in (client, server, client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return client, server


def subject(context: ssl.SSLContext, host: str) -> str:
    """The name in the certificate that a server with this context shows."""
    client, _ = connected(context, host)
    der = client.getpeercert(binary_form=True)
    assert der is not None
    from cryptography import x509

    return x509.load_der_x509_certificate(der).subject.rfc4514_string()


async def test_a_leaf_is_minted_at_the_first_use_and_kept():
    leaves, counted = cache()
    assert leaves.known("a.example") is None
    context = await leaves.context("a.example")
    assert subject(context, "a.example") == "CN=a.example"
    assert leaves.known("a.example") is context
    assert await leaves.context("a.example") is context
    assert await leaves.context("b.example") is not context
    assert counted.minted == 2


async def test_a_handshake_brings_no_ticket_which_costs_more_than_it_saves():
    leaves, _ = cache()
    context = await leaves.context("a.example")
    assert context.num_tickets == 0


async def test_clients_without_tickets_fill_no_memory_with_their_sessions(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(certificate_cache, "MAX_SESSIONS", 2)
    leaves, counted = cache()
    first = await leaves.context("a.example")
    for _ in range(3):
        assert leaves.known("a.example") is first
        sides = connected(first, "a.example", maximum_version=ssl.TLSVersion.TLSv1_2, options=ssl.OP_NO_TICKET)
        for side in (*sides, *sides):  # a session stays where both have said their close_notify
            with suppress(ssl.SSLWantReadError):
                side.unwrap()
    assert leaves.known("a.example") is None
    assert await leaves.context("a.example") is not first
    assert counted.minted == 1, "the certificate is the same"


async def test_all_who_wait_for_one_name_get_one_leaf_and_who_leaves_keeps_nobody_waiting():
    leaves, counted = cache()
    tasks = [asyncio.ensure_future(leaves.context("a.example")) for _ in range(5)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    found = await asyncio.gather(*tasks[1:])
    assert len({id(each) for each in found}) == 1
    assert counted.minted == 1


async def test_a_leaf_is_renewed_before_it_ends():
    clock = Clock()
    leaves, _ = cache(clock)
    first = await leaves.context("a.example")
    clock.now += LEAF_S - RENEWED_S - 1
    assert leaves.known("a.example") is first
    clock.now += 2
    assert leaves.known("a.example") is None
    assert await leaves.context("a.example") is not first


async def test_what_was_not_asked_for_the_longest_goes_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(certificate_cache, "MAX_LEAVES", 2)
    leaves, _ = cache()
    await leaves.context("a.example")
    await leaves.context("b.example")
    assert leaves.known("a.example") is not None
    await leaves.context("c.example")
    assert leaves.known("b.example") is None
    assert leaves.known("a.example") is not None


async def test_too_many_names_at_one_time_are_told_to_come_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(certificate_cache, "MAX_MINTING", 1)
    leaves, _ = cache()
    first = asyncio.ensure_future(leaves.context("a.example"))
    await asyncio.sleep(0)
    with pytest.raises(GatewayFault) as refused:
        await leaves.context("b.example")
    assert (refused.value.reason, refused.value.status) == (Reason.OVERLOADED, 503)
    await first


async def test_one_client_that_asks_for_many_names_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(certificate_cache, "MAX_MINTING_OF_CLIENT", 2)
    leaves, counted = cache()
    first = [asyncio.ensure_future(leaves.context(f"{n}.example", "10.0.0.1")) for n in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(GatewayFault, match="too many certificates"):
        await leaves.context("c.example", "10.0.0.1")
    await leaves.context("c.example", "10.0.0.2")
    await asyncio.gather(*first)
    await leaves.context("d.example", "10.0.0.1")
    assert counted.minted == 4


async def test_a_ca_that_has_expired_is_told_with_its_policy():
    clock = Clock()
    leaves, _ = cache(clock, days=1)
    clock.now += 2 * 86400
    with pytest.raises(GatewayFault) as told:
        await leaves.context("a.example")
    assert told.value.reason is Reason.INTERCEPTION_FAILED
    assert told.value.rule == "EgressPolicy agents/default"
    assert "expired" in told.value.detail


async def test_what_is_no_ca_is_told_with_its_policy():
    leaves = CertificateCache(("x", SecretBytes(b"y"), "agents/default"), Interceptions(), CertificateSigner())
    with pytest.raises(GatewayFault) as told:
        await leaves.context("a.example")
    assert "not PEM" in told.value.detail


async def test_contexts_are_kept_for_fewer_names_than_leaves(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(certificate_cache, "MAX_CONTEXTS", 2)
    leaves, counted = cache()
    first = await leaves.context("a.example")
    await leaves.context("b.example")
    assert leaves.known("a.example") is first
    await leaves.context("c.example")
    assert leaves.known("b.example") is None
    assert leaves.known("a.example") is first
    assert subject(await leaves.context("b.example"), "b.example") == "CN=b.example"
    assert counted.minted == 3, "the leaf of b.example was there"


@pytest.mark.nightly
async def test_five_thousand_names_are_minted_without_a_stall_of_the_loop():
    """Each at its first use, while the loop looks at its clock all the time."""
    leaves, counted = cache()
    await leaves.context("first.example")
    worst, seen, is_over = 0.0, time.perf_counter(), False

    async def watch() -> None:
        nonlocal worst, seen
        while not is_over:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            worst, seen = max(worst, now - seen), now

    between = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)  # as `run` does
    gc.collect()
    gc.freeze()
    watching = asyncio.ensure_future(watch())
    await asyncio.sleep(0.01)
    try:
        for first in range(0, 5000, 100):
            await asyncio.gather(
                *(leaves.context(f"h{n}.example", f"10.0.0.{n % 100}") for n in range(first, first + 100))
            )
    finally:
        is_over = True
        await watching
        gc.unfreeze()
        sys.setswitchinterval(between)
    assert counted.minted == 5001
    assert worst < 0.05, f"the loop stood still for {worst * 1e3:.1f} ms"


ONE, TWO = ("chain", SecretBytes(b"key"), "agents/one"), ("other", SecretBytes(b"key"), "agents/one")


def test_a_ca_that_is_still_there_keeps_its_leaves_and_one_minter_serves_all():
    counted = Interceptions()
    before = CertificateCaches()
    one = before.of(ONE, counted)
    after = CertificateCaches(before)
    assert after.of(ONE, counted) is one is after.of(ONE, counted)
    assert after.of(TWO, counted)._signer is one._signer


def test_a_ca_that_was_gone_for_a_while_begins_anew():
    counted = Interceptions()
    before = CertificateCaches()
    one = before.of(ONE, counted)
    between = CertificateCaches(before)
    between.forget_known()
    assert CertificateCaches(between).of(ONE, counted) is not one
    assert between.of(ONE, counted) is not one
