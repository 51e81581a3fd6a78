"""A real gateway from its start to its end, on whatever Python runs this: one answer for each way in.

`make test` runs these a dozen beside what needs no process; `make smoke PYTHON=…` runs them on another Python.
"""

from __future__ import annotations

import os
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get, read_head, read_message, terminate, tls_secret
from tests.support import manifests as m
from tests.support.http2_client import Http2Client, head
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess

FIELDS = b"Accept: */*\r\nUser-Agent: smoke (a test)\r\nX_Y: 1\r\nConnection: keep-alive\r\nCookie: a=b; c=d\r\n"


class World(NamedTuple):
    gateway: GatewayProcess
    forward: int
    https: int
    http: int
    origin: Origin
    pki: Pki
    objects: list[m.Manifest]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One gateway for all of these tests."""
    pki, forward, https, http = Pki(), free_port(), free_port(), free_port()
    front, secure = pki.issue("front.test"), pki.server_context("secure.test")
    folder = tmp_path_factory.mktemp("smoke")
    with NameServer({"*": ["127.0.0.1"]}) as dns, Origin() as origin, Origin(context=secure) as tls_origin:
        objects = [
            m.gateway(
                m.forward_listener(forward),
                m.http_listener(http),
                {"name": "https", "port": https, "protocol": "HTTPS", "tls": terminate("front")},
            ),
            m.policy(["origin.test"], dns=dns.address, cidrs=ALLOW_LOOPBACK),
            tls_secret("front", chain(front), front.private_key_pem.bytes()),
            m.backend("o", "origin.test", origin.port),
            m.config_map("ca", {"ca.crt": pki.ca_pem}),
            m.backend("s", "secure.test", tls_origin.port, tls=True, ca="ca"),
            m.http_route("r", m.prefix_rule("/", "o"), section="https"),
            m.http_route("t", m.prefix_rule("/", "s"), section="http"),
        ]
        with GatewayProcess(folder / "gw", objects) as gateway:
            yield World(gateway, forward, https, http, origin, pki, objects)


def test_it_says_that_it_is_ready(world: World):
    assert world.gateway.admin("/readyz")[0] == world.gateway.admin("/livez")[0] == 200


def test_a_request_in_absolute_form_is_forwarded(world: World):
    request = get("origin.test", world.origin.port).replace(b"\r\n\r\n", b"\r\n" + FIELDS + b"\r\n")
    with client(world.forward) as sock:
        assert [ask(sock, request), ask(sock, request)] == [(200, b"ok"), (200, b"ok")]


def test_a_tunnel_is_opened(world: World):
    with client(world.forward) as sock:
        sock.sendall(b"CONNECT origin.test:%d HTTP/1.1\r\nHost: origin.test\r\n\r\n" % world.origin.port)
        assert read_head(sock).startswith(b"HTTP/1.1 200 ")
        assert ask(sock, get("origin.test", world.origin.port, absolute=False)) == (200, b"ok")


def test_a_destination_that_the_policy_does_not_have_is_denied(world: World):
    with client(world.forward) as sock:
        sock.sendall(get("other.test", world.origin.port))
        answer, body = read_message(sock)
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"other.test" in answer + body


def test_cloud_metadata_is_denied(world: World):
    with client(world.forward) as sock:
        assert ask(sock, get("169.254.169.254", 80))[0] == 403


def test_a_tls_listener_serves_a_route(world: World):
    with client(world.https, world.pki.client_context(), "front.test") as sock:
        assert ask(sock, get("front.test", world.https, absolute=False)) == (200, b"ok")


def test_tls_to_a_backend_is_originated_and_verified(world: World):
    with client(world.http) as sock:
        assert ask(sock, get("any.test", world.http, absolute=False)) == (200, b"ok")


def test_a_client_of_http2_is_answered(world: World):
    context = world.pki.client_context()
    context.set_alpn_protocols(["h2"])
    with client(world.https, context, "front.test") as sock:
        assert isinstance(sock, ssl.SSLSocket)
        assert sock.selected_alpn_protocol() == "h2"
        talk = Http2Client()
        stream = talk.request(head(b"GET", b"/", b"front.test", b"https"))
        while not talk.of(stream).is_whole:
            sock.sendall(talk.outgoing())
            talk.take(sock.recv(65536))
        assert (talk.of(stream).status, bytes(talk.of(stream).data)) == (200, b"ok")


def test_what_was_done_is_in_the_log_and_in_the_metrics(world: World):
    with client(world.forward) as sock:
        ask(sock, get("denied.test", 80))
    record = world.gateway.wait_for_record(authority="denied.test:80")
    assert record["status"] == 403
    assert world.gateway.metric("egress_requests_total") > 0


def test_a_reload_changes_what_is_served(world: World):
    narrower = [*world.objects[:-2], m.http_route("r", m.prefix_rule("/a", "o"), section="https"), world.objects[-1]]
    generation = world.gateway.metric("egress_config_generation")
    world.gateway.replace(narrower)
    world.gateway.wait_for_metric("egress_config_generation", generation + 1)
    with client(world.https, world.pki.client_context(), "front.test") as sock:
        assert ask(sock, get("front.test", world.https, absolute=False))[0] == 404


def test_a_broken_configuration_does_not_replace_a_good_one(world: World):
    failures = world.gateway.metric("egress_config_reloads_total", result="failure")
    world.gateway.replace_text("kind: Gateway\nspec: [")
    world.gateway.wait_for_diagnostics("is rejected")
    assert world.gateway.metric("egress_config_reloads_total", result="failure") == failures + 1
    with client(world.forward) as sock:
        assert ask(sock, get("origin.test", world.origin.port)) == (200, b"ok")


def test_two_workers_drain_what_is_in_flight(tmp_path: Path):
    forward = free_port()
    with NameServer({"*": ["127.0.0.1"]}) as dns, Origin() as origin:
        objects = [
            m.gateway(m.forward_listener(forward)),
            m.policy(["origin.test"], dns=dns.address, cidrs=ALLOW_LOOPBACK),
        ]
        with GatewayProcess(tmp_path / "gw", objects, arguments=["--workers", "2"]) as gateway, client(forward) as sock:
            sock.sendall(b"CONNECT origin.test:%d HTTP/1.1\r\nHost: origin.test\r\n\r\n" % origin.port)
            assert read_head(sock).startswith(b"HTTP/1.1 200 ")
            os.kill(gateway.pid, signal.SIGTERM)
            gateway.wait_for_diagnostics("draining")
            assert ask(sock, get("origin.test", origin.port, absolute=False)) == (200, b"ok")
            sock.close()
            assert gateway.stop() == 0
            assert "stopped\n" in gateway.stderr
