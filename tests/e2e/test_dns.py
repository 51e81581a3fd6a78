"""What the owner of a name may not do by its DNS: the real process, a real name server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get, origins
from tests.support import manifests as m
from tests.support.dns import Rule
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki
from tests.support.process import SharedGateway
from tests.support.waiting import wait_until

DENY = [{"hostnames": ["evil.test", "*.bad.test"]}]


@pytest.fixture
def names() -> Iterator[NameServer]:
    with NameServer({}) as server:
        server.zone |= {
            "good.test": Rule(("127.0.0.1",)),
            "led.test": Rule(("evil.test.",)),
            "far.test": Rule(("led.test.",)),
            "below.test": Rule(("x.bad.test.",)),
            "cdn.test": Rule(("good.test.",)),
            "evil.test": Rule(("127.0.0.1",)),
            "x.bad.test": Rule(("127.0.0.1",)),
        }
        yield server


def objects(port: int, reverse: int, names: NameServer, backend: int, **sections: object) -> list[m.Manifest]:
    section = {"allow": [{"hostnames": ["*.test"]}], "deny": DENY}
    return [
        m.gateway(m.forward_listener(port), m.http_listener(reverse)),
        m.policy(dns=names.address, cidrs=ALLOW_LOOPBACK, destinations=section, **sections),
        m.backend("led", "led.test", backend),
        m.http_route("route", m.prefix_rule("/", "led"), section="http"),
    ]


def test_a_name_that_leads_to_a_denied_one_is_denied_on_every_way(shared: SharedGateway, names: NameServer):
    port, reverse = free_port(), free_port()
    with Origin() as origin, shared.serving(objects(port, reverse, names, origin.port)) as gateway:
        for host in ("led.test", "far.test", "below.test"):
            tunnel = f"CONNECT {host}:{origin.port} HTTP/1.1\r\nHost: {host}:{origin.port}\r\n\r\n".encode()
            for request in (get(host, origin.port), tunnel):
                with client(port) as sock:
                    status, body = ask(sock, request)
                assert (status, b"resolved_denied" in body) == (403, True), (host, request)
                assert b"evil" not in body
                assert b"bad.test" not in body
        with client(reverse) as sock:
            assert ask(sock, get("x", reverse, absolute=False))[0] == 403
        assert origin.accepted == 0
        with client(port) as sock:
            assert ask(sock, get("cdn.test", origin.port))[0] == 200
        record = gateway.wait_for_record(authority=f"far.test:{origin.port}")
        assert "evil.test" in record["detail"]


# --- reverseCheck ------------------------------------------------------------------------------------------------
PLACES = {
    "same.test": "127.0.0.2",
    "below.test": "127.0.0.3",
    "differs.test": "127.0.0.4",
    "none.test": "127.0.0.5",
    "broken.test": "127.0.0.6",
    "literal": "127.0.0.4",
    "hosts.test": "127.0.0.4",
}


@pytest.fixture
def reversing() -> Iterator[NameServer]:
    with NameServer({}) as server:
        for name, address in PLACES.items():
            server.zone[name] = Rule((address,))
        server.zone |= {
            "both.test": Rule(("127.0.0.4", "127.0.0.2")),
            "cdn.test": Rule(("below.test.",)),
            "2.0.0.127.in-addr.arpa": Rule(("other.test", "same.test", "both.test")),
            "3.0.0.127.in-addr.arpa": Rule(("lb-7.below.test",)),
            "4.0.0.127.in-addr.arpa": Rule(("elsewhere.test",)),
            "6.0.0.127.in-addr.arpa": Rule(rcode="SERVFAIL"),
        }
        yield server


def reverse_checked(port: int, names: NameServer, check: str) -> list[m.Manifest]:
    dns = {"servers": [names.address], "reverseCheck": check, "hosts": {"hosts.test": ["127.0.0.4"]}}
    allow = {"allow": [{"hostnames": ["*.test"]}, {"cidrs": ["127.0.0.0/8"]}]}
    policy = m.policy(cidrs=ALLOW_LOOPBACK, destinations=allow)
    policy["spec"]["dns"] = dns
    return [m.gateway(m.forward_listener(port)), policy]


def test_an_address_whose_names_do_not_agree_is_not_dialled(shared: SharedGateway, reversing: NameServer):
    port = free_port()
    with (
        origins() as (origin, accepted),
        shared.serving(reverse_checked(port, reversing, "Enforce")) as gateway,
    ):

        def outcome(host: str) -> tuple[int, bytes]:
            with client(port) as sock:
                return ask(sock, get(host, origin))

        for host in ("same.test", "below.test", "cdn.test", "hosts.test", "127.0.0.4"):
            assert outcome(host)[0] == 200, host
        assert outcome("both.test") == (200, b"127.0.0.2")
        for host in ("differs.test", "none.test"):
            status, body = outcome(host)
            assert (status, b"reverse_dns_denied" in body) == (403, True), host
            assert b"elsewhere" not in body
        status, body = outcome("broken.test")
        assert (status, b"dns_servfail" in body) == (503, True)
        assert set(accepted) == {"127.0.0.2", "127.0.0.3", "127.0.0.4"}
        tunnel = f"CONNECT differs.test:{origin} HTTP/1.1\r\nHost: differs.test:{origin}\r\n\r\n".encode()
        with client(port) as sock:
            assert ask(sock, tunnel)[0] == 403
        record = gateway.wait_for_record(authority=f"differs.test:{origin}")
        assert record["reason"] == "reverse_dns_denied"
        assert record["detail"] == "127.0.0.4: its names are elsewhere.test"
        _, text = gateway.admin(f"/explain?method=GET&url=http://differs.test:{origin}/")
        (address,) = json.loads(text)["backends"][0]["addresses"]
        assert (address["verdict"], address["reverse"]) == ("refuse", "differs: its names are elsewhere.test")
        _, text = gateway.admin("/dns?name=same.test")
        (place,) = json.loads(text)["places"]
        assert (place["verdict"], place["cache"]["state"]) == ("dial", "fresh")
        assert place["cache"]["addresses"] == ["127.0.0.2"]
        assert place["addresses"][0]["reverse"] == "agrees: other.test, same.test, both.test"
        (place,) = json.loads(gateway.admin("/dns?name=broken.test")[1])["places"]
        assert place["error"]["reason"] == "dns_servfail"
        assert gateway.admin("/dns")[0] == gateway.admin("/explain?name=a.test")[0] == 400
        assert gateway.admin("/dns?name=127.0.0.1")[0] == 400
        server = f"udp://{reversing.address}"
        assert gateway.metric("egress_dns_queries_total", server=server, result="noerror") >= 8
        assert gateway.metric("egress_dns_queries_total", server=server, result="servfail") >= 1
        assert gateway.metric("egress_dns_query_duration_seconds_count", server=server) >= 9
        assert gateway.metric("egress_dns_reverse_checks_total", result="differs") >= 3


# --- new names -----------------------------------------------------------------------------------------------------
def test_a_client_that_asks_for_many_new_names_is_refused_and_told_of_in_an_event(two_workers: SharedGateway):
    port = free_port()
    with NameServer({"*": ["127.0.0.1"]}) as names, Origin() as origin:
        policy = m.policy(["*.test"], cidrs=ALLOW_LOOPBACK)
        policy["spec"]["dns"] = {"servers": [names.address], "newNames": {"limit": 3, "window": "1h"}}
        objects = [m.gateway(m.forward_listener(port)), policy]
        with two_workers.serving(objects) as gateway:

            def outcome(host: str) -> tuple[int, bytes]:
                with client(port) as sock:
                    return ask(sock, get(host, origin.port))

            assert [outcome(f"n{number}.a.test")[0] for number in range(3)] == [200] * 3
            for number in range(8):  # whichever worker it comes to
                status, body = outcome(f"c2VjcmV0{number}.a.test")
                assert (status, b"dns_new_names" in body) == (429, True)
                assert names.asked(f"c2VjcmV0{number}.a.test") == 0
                assert outcome("n1.a.test")[0] == 200
            assert outcome("n1.b.test")[0] == 200
            gateway.wait_for_diagnostics("DnsNewNames on Gateway agents/gw")
            assert "c2VjcmV0" not in gateway.admin("/api/v1/events")[1]


# --- servers over TLS ------------------------------------------------------------------------------------------------
def test_a_server_over_tls_is_verified_by_a_ca_of_ones_own_and_keeps_its_connection(shared: SharedGateway):
    pki, other, port = Pki(), Pki(), free_port()
    with NameServer({"*": ["127.0.0.1"]}, pki.server_context("dns.test")) as names, Origin() as origin:

        def objects(name: str, ca_pem: str) -> list[m.Manifest]:
            dns = {
                "servers": [f"tls://127.0.0.1:{names.streams.port}#{name}"],
                "caCertificateRefs": [{"kind": "ConfigMap", "name": "roots"}],
            }
            policy = m.policy(["*.test"], cidrs=ALLOW_LOOPBACK)
            policy["spec"]["dns"] = dns
            return [m.gateway(m.forward_listener(port)), policy, m.config_map("roots", {"ca.crt": ca_pem})]

        def status(host: str) -> int:
            with client(port) as sock:
                return ask(sock, get(host, origin.port))[0]

        with shared.serving(objects("dns.test", pki.ca_pem)) as gateway:
            assert [status(f"n{number}.test") for number in range(4)] == [200] * 4
            assert names.streams.connections == 1
            gateway.replace(objects("dns.test", other.ca_pem))
            wait_until(lambda: status("m.test") == 503)
            wait_until(lambda: names.streams.open == 0)
            told = gateway.wait_for_record(status=503)["detail"]
            assert "the authority that signed it is not known" in told
            assert "expected: name dns.test, signed by ConfigMap agents/roots" in told
            gateway.reload(objects("other.test", pki.ca_pem))
            since = gateway.mark()
            assert status("other.test") == 503
            assert "is for another name" in gateway.wait_for_record(since=since, status=503)["detail"]
