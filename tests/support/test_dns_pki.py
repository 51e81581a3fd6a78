"""The kit itself is proved against real clients of the protocols: dnspython and ssl."""

from __future__ import annotations

import socket
import ssl
import threading

import dns.exception
import dns.resolver
import pytest

from tests.support.dns import DnsServer, Fault
from tests.support.pki import Pki


def resolver(server: DnsServer, tcp: bool = False) -> dns.resolver.Resolver:
    made = dns.resolver.Resolver(configure=False)
    made.nameservers = [server.host]
    made.port = server.port
    made.lifetime = made.timeout = 0.5 if not tcp else 2
    return made


def addresses(server: DnsServer, name: str, kind: str = "A", tcp: bool = False) -> list[str]:
    return [record.to_text() for record in resolver(server, tcp).resolve(name, kind, tcp=tcp)]


def test_names_wildcards_aliases_and_families_are_answered_over_both_transports():
    names = {"a.test": ["127.0.0.2", "::1"], "*.wild.test": ["127.0.0.3"]}
    with DnsServer(names, aliases={"b.test": "a.test"}) as server:
        assert addresses(server, "a.test") == ["127.0.0.2"]
        assert addresses(server, "a.test", "AAAA", tcp=True) == ["::1"]
        assert addresses(server, "x.y.wild.test") == ["127.0.0.3"]
        assert addresses(server, "b.test") == ["127.0.0.2"]
        assert server.asked("a.test") == 2
        assert server.queries[1] == ("a.test", "AAAA", "tcp")


def test_a_name_that_is_not_there_and_a_family_that_is_not_there_are_told_apart():
    with DnsServer({"a.test": ["127.0.0.2"]}) as server:
        with pytest.raises(dns.resolver.NXDOMAIN):
            addresses(server, "none.test")
        with pytest.raises(dns.resolver.NoAnswer):
            addresses(server, "a.test", "AAAA")
        server.set("none.test", "127.0.0.9")
        assert addresses(server, "none.test") == ["127.0.0.9"]


def test_faults_are_played():
    with DnsServer({"a.test": ["127.0.0.2"], "t.test": ["127.0.0.4"]}) as server:
        server.faults["a.test"] = Fault.SERVFAIL
        with pytest.raises(dns.resolver.NoNameservers):
            addresses(server, "a.test")
        server.faults["t.test"] = Fault.TRUNCATED
        assert addresses(server, "t.test") == ["127.0.0.4"]  # dnspython repeats it over TCP
        assert {transport for name, _, transport in server.queries if name == "t.test"} == {"udp", "tcp"}
        server.faults["a.test"] = Fault.SILENCE
        with pytest.raises(dns.exception.Timeout):
            addresses(server, "a.test")


@pytest.mark.parametrize(("asked", "accepted"), [("origin.test", True), ("other.test", False)])
def test_a_leaf_is_good_for_its_names_and_for_no_other(asked: str, accepted: bool):
    pki = Pki()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        try:
            pki.server_context("origin.test").wrap_socket(connection, server_side=True).close()
        except (ssl.SSLError, OSError):
            connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    with socket.create_connection(listener.getsockname()) as client:
        if accepted:
            pki.client_context().wrap_socket(client, server_hostname=asked).close()
        else:
            with pytest.raises(ssl.SSLCertVerificationError):
                pki.client_context().wrap_socket(client, server_hostname=asked)
    thread.join()
    listener.close()
