"""Transparent listeners: where redirected connections go, by what clients say first, and what policy says of it."""

from __future__ import annotations

import os
from ipaddress import ip_address
from typing import Any

import pytest

from egressproxy.errors import Denied, Reason
from egressproxy.gateway.listeners import redirection, transparent_connection
from egressproxy.model.authority import parse_authority
from egressproxy.net.original_destination import NotRedirected
from egressproxy.protocols.tls.client_hello import ACCESS_DENIED, UNRECOGNIZED_NAME
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_connect import client_hello
from tests.gateway.kit import OK, OK_PASSED
from tests.support import manifests as m
from tests.support.conversation import Conversation

DIALLED = "93.184.216.99"
GET = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
GET_SENT = b"GET / HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\n\r\n"


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The kernel says that clients have dialled this."""

    def say(where: str | Exception) -> None:
        def destination_of(_transport: object) -> Any:
            if isinstance(where, Exception):
                raise where
            return parse_authority(where.encode())

        monkeypatch.setattr(transparent_connection, "destination_of", destination_of)

    say(f"{DIALLED}:443")
    return say


def transparent(*more: m.Manifest, allow: tuple[str, ...] = ("a.example",), **sections: Any) -> list[m.Manifest]:
    listener = {"name": "redirected", "port": 15901, "protocol": "egressproxy.io/transparent"}
    return [m.gateway(listener), m.policy(allow, **sections), *more]


def by_address(**sections: Any) -> list[m.Manifest]:
    """The address that is dialled is allowed as such."""
    return transparent(allow=(), destinations={"allow": [{"cidrs": [f"{DIALLED}/32"]}]}, **sections)


def is_dialled(talk: Conversation, address: str, port: int) -> None:
    """By the address itself."""
    talk.names.zone[address] = (ip_address(address),)
    talk.dialled(address, port)


# --- TLS -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_tls_goes_to_the_name_of_its_clienthello(converse: Start, dialled: Any, size: int):
    """The name is resolved here: where the client was going does not matter, but for the port."""
    talk = converse(transparent())
    hello = client_hello("a.example")
    for at in range(0, len(hello), size):
        talk.client >> hello[at : at + size]
    talk.dialled("a.example", 443)
    talk.origin << hello
    talk.origin >> b"server hello"
    talk.client << b"server hello"
    talk.client.ends()
    talk.origin.ends()
    record = talk.record()
    assert (record["kind"], record["authority"], record["listener"], record["status"]) == (
        "tunnel", "a.example:443", "redirected", 200,
    )  # fmt: skip


@pytest.mark.parametrize("where", [f"{DIALLED}:8443", "[2001:db8::9]:8443"])
def test_the_port_is_the_one_that_was_dialled(converse: Start, dialled: Any, where: str):
    dialled(where)
    talk = converse(transparent())
    talk.client >> client_hello("a.example")
    talk.dialled("a.example", 8443)


def test_a_name_that_is_not_allowed_gets_an_alert(converse: Start, dialled: Any):
    talk = converse(transparent())
    talk.client >> client_hello("b.example")
    talk.client << ACCESS_DENIED
    talk.client.is_closed()
    assert talk.record()["reason"] == "destination_not_allowed"
    talk.no_dial()


def test_a_name_of_the_inside_gets_an_alert(converse: Start, dialled: Any):
    talk = converse(transparent())
    talk.names.zone["a.example"] = (ip_address("10.0.0.1"),)
    talk.client >> client_hello("a.example")
    talk.client << ACCESS_DENIED
    talk.client.is_closed()
    assert talk.record()["reason"] == "resolved_denied"


def test_tls_without_a_name_goes_by_the_address(converse: Start, dialled: Any):
    talk = converse(by_address())
    talk.client >> client_hello(None)
    is_dialled(talk, DIALLED, 443)
    talk.origin << client_hello(None)[:3]


def test_tls_without_a_name_to_an_address_that_is_not_allowed_is_refused(converse: Start, dialled: Any):
    talk = converse(transparent())
    talk.client >> client_hello(None)
    talk.client << ACCESS_DENIED
    talk.client.is_closed()
    record = talk.record()
    assert (record["reason"], record["authority"]) == ("destination_not_allowed", f"{DIALLED}:443")


def test_an_allowed_address_does_not_allow_the_names_that_are_asked_for_there(converse: Start, dialled: Any):
    talk = converse(by_address())
    talk.client >> client_hello("b.example")
    talk.client << ACCESS_DENIED
    talk.client.is_closed()


def test_tls_to_port_80_goes_by_its_name_too(converse: Start, dialled: Any):
    dialled(f"{DIALLED}:80")
    talk = converse(transparent())
    talk.client >> client_hello("a.example")
    talk.dialled("a.example", 80)
    second = talk.connect()
    second >> client_hello("b.example")
    second << ACCESS_DENIED
    second.is_closed()


@pytest.mark.parametrize("broken", [b"\x16\x03\x01\x00\x05\x02abcd", b"\x80\x2e\x01\x03\x01" + bytes(9)])
def test_a_malformed_clienthello_is_no_opaque_stream(converse: Start, dialled: Any, broken: bytes):
    talk = converse(by_address())
    talk.client >> broken
    talk.client.is_closed()
    record = talk.record()
    assert (record["reason"], record["authority"]) == ("not_tls", f"{DIALLED}:443")
    talk.no_dial()


def test_half_a_clienthello_is_waited_for_and_no_longer(converse: Start, dialled: Any):
    talk = converse(by_address())
    talk.client >> client_hello("a.example")[:50]
    talk.after(5)
    talk.client.is_open()
    talk.after(60)
    talk.client.is_closed()
    assert talk.record()["reason"] == "client_timeout"
    talk.no_dial()


# --- HTTP ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [1, 1000])
def test_http_goes_to_its_host_and_each_request_by_itself(converse: Start, dialled: Any, size: int):
    dialled(f"{DIALLED}:80")
    talk = converse(transparent(allow=("a.example", "b.example")))
    for at in range(0, len(GET), size):
        talk.client >> GET[at : at + size]
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.client >> GET.replace(b"a.example", b"b.example")
    talk.dialled("b.example", 80)
    talk.origin << GET_SENT.replace(b"a.example", b"b.example")
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.client >> GET.replace(b"a.example", b"c.example")
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (403, "destination_not_allowed")
    assert [(each["kind"], each["authority"]) for each in talk.records] == [
        ("request", "a.example:80"), ("request", "b.example:80"), ("request", "c.example:80"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "status", "reason"),
    [
        (GET.replace(b"a.example", b"a.example:9999"), 421, "misdirected"),
        (GET.replace(b"Host: a.example", b"Host: a b"), 400, "bad_host"),
        (GET.replace(b"GET /", b"GET https://a.example/"), 400, "bad_target"),
        (b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n", 405, "method_not_allowed"),
        (b"GET / HTTP/1.0\r\n\r\n", 403, "destination_not_allowed"),  # the address is not allowed
        (GET.replace(b"a.example", b"127.0.0.1"), 403, "destination_not_allowed"),
        (GET.replace(b"\r\n\r\n", b"\r\nVia: 1.1 gw\r\n\r\n"), 508, "loop_detected"),
    ],
)
def test_what_http_may_not_ask_for(converse: Start, dialled: Any, request_: bytes, status: int, reason: str):
    dialled(f"{DIALLED}:80")
    talk = converse(transparent())
    talk.client >> request_
    got, _, _, error = talk.client.answer()
    assert (got, error["reason"]) == (status, reason)
    talk.no_dial()


def test_http_on_another_port_is_http(converse: Start, dialled: Any):
    dialled(f"{DIALLED}:8080")
    talk = converse(transparent())
    talk.client >> GET
    talk.dialled("a.example", 8080)
    talk.origin << GET_SENT.replace(b"a.example", b"a.example:8080")


def test_a_route_serves_redirected_requests(converse: Start, dialled: Any):
    dialled(f"{DIALLED}:80")
    route = m.http_route("r", m.prefix_rule("/", "a"), hostnames=["a.example"])
    talk = converse(transparent(m.backend("a", "a.example", 80), route, allow=()))
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED
    assert talk.record()["route"] == "agents/r"


# --- everything else -----------------------------------------------------------------------------------------------
def test_who_is_redirected_may_ask_the_gateway_by_its_name(converse: Start, dialled: Any):
    for host, where in ((b"egress.internal", f"{DIALLED}:80"), (b"EGRESS.internal.", f"{DIALLED}:8080")):
        dialled(where)
        talk = converse(transparent())
        talk.client >> b"GET /check?url=http://b.example/ HTTP/1.1\r\nHost: " + host + b"\r\n\r\n"
        talk.client.take(rb'HTTP/1.1 200 OK\r\n.*?\r\n\r\n\{"url": "http://b.example/", "allowed": false, .*\}')
        talk.no_dial()
    dialled(f"{DIALLED}:443")
    talk = converse(transparent())
    talk.client >> client_hello("egress.internal")
    talk.client << ACCESS_DENIED
    talk.no_dial()


def test_what_is_neither_goes_to_the_address(converse: Start, dialled: Any):
    dialled(f"{DIALLED}:5432")
    talk = converse(by_address())
    talk.client >> b"\x00\x00\x00\x08query"
    is_dialled(talk, DIALLED, 5432)
    talk.origin << b"\x00\x00\x00\x08query"
    talk.origin >> b"answer"
    talk.client << b"answer"


def test_what_is_neither_is_refused_where_the_address_is_not_allowed(converse: Start, dialled: Any):
    talk = converse(transparent())
    talk.client >> b"SSH-2.0-OpenSSH\r\n"
    talk.client.is_closed()
    record = talk.record()
    assert (record["reason"], record["authority"]) == ("destination_not_allowed", f"{DIALLED}:443")
    talk.no_dial()


def test_a_client_that_waits_for_its_server_is_tunnelled_after_a_second(converse: Start, dialled: Any):
    dialled(f"{DIALLED}:2222")
    talk = converse(by_address())
    talk.no_dial()
    talk.after(1.5)
    is_dialled(talk, DIALLED, 2222)
    talk.origin >> b"220 mail.example ESMTP\r\n"
    talk.client << b"220 mail.example ESMTP\r\n"


def test_a_client_that_waits_is_waited_for_where_the_address_is_not_allowed(converse: Start, dialled: Any):
    """A browser opens connections ahead of what it will ask for."""
    talk = converse(transparent())
    talk.after(10)
    talk.client.is_open()
    talk.client >> client_hello("a.example")
    talk.dialled("a.example", 443)


def test_silence_has_an_end(converse: Start, dialled: Any):
    talk = converse(transparent())
    talk.after(200)
    talk.client.is_closed()
    assert not talk.records


def test_without_a_limit_silence_has_none(converse: Start, dialled: Any):
    talk = converse(transparent(traffic={"timeouts": {"requestHeaders": "0s"}}))
    talk.after(200)
    talk.client.is_open()
    talk.client >> client_hello("a.example")
    talk.dialled("a.example", 443)


def test_tls_behind_silence_is_checked_as_in_a_connect_to_the_address(converse: Start, dialled: Any):
    talk = converse(by_address())
    talk.after(1.5)
    is_dialled(talk, DIALLED, 443)
    talk.client >> client_hello("b.example")
    talk.client << UNRECOGNIZED_NAME
    talk.client.is_closed()
    assert talk.record()["reason"] == "sni_mismatch"


def test_half_a_line_is_opaque_where_the_client_ends_with_it(converse: Start, dialled: Any):
    dialled(f"{DIALLED}:7")
    talk = converse(by_address())
    talk.client >> b"QUIT"
    talk.client.ends()
    is_dialled(talk, DIALLED, 7)
    talk.origin << b"QUIT"


# --- where from ----------------------------------------------------------------------------------------------------
def test_a_connection_that_was_not_redirected_is_closed(converse: Start):
    """Without a fixture: on sockets the kernel itself says so, in memory there is no socket."""
    talk = converse(transparent())
    talk.client.is_closed()
    assert talk.record()["reason"] == "not_redirected"
    assert "redirect with nftables" in talk.record()["detail"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotRedirected(2, "the connection was made to this listener"), "not_redirected"),
        (Denied(Reason.LOOP_DETECTED, "a connection of our own", status=508), "loop_detected"),
    ],
)
def test_what_ends_a_connection_at_once(converse: Start, dialled: Any, error: Exception, reason: str):
    dialled(error)
    talk = converse(transparent())
    talk.client >> client_hello("a.example")
    talk.client.is_closed()
    assert talk.record()["reason"] == reason
    talk.no_dial()


class Accepted:
    """A transport, and its socket."""

    def get_extra_info(self, _name: str) -> Accepted:
        return self

    def getpeername(self) -> tuple[str, int]:
        return "10.9.0.7", 40000


@pytest.mark.parametrize(
    ("owner", "is_of_this_machine", "raised"),
    [
        (None, False, None),  # another machine's, or of a container
        (os.geteuid() + 1, True, None),
        (os.geteuid(), True, Denied),
        (None, True, NotRedirected),  # a kernel without inet_diag would say so of all
    ],
)
def test_whose_connections_are_taken(
    monkeypatch: pytest.MonkeyPatch, owner: int | None, is_of_this_machine: bool, raised: type[Exception] | None
):
    found = parse_authority(f"{DIALLED}:443".encode())
    monkeypatch.setattr(redirection, "original_destination", lambda _sock: found)
    monkeypatch.setattr(redirection, "owner_of", lambda _local, _remote: owner)
    monkeypatch.setattr(redirection, "is_local", lambda _address: is_of_this_machine)
    accepted: Any = Accepted()
    if raised is None:
        assert redirection.destination_of(accepted) is found
    else:
        with pytest.raises(raised):
            redirection.destination_of(accepted)


def test_one_connection_too_many_is_closed(converse: Start, dialled: Any):
    talk = converse(transparent(limits={"connections": 1}))
    talk.counts_octets = False
    talk.connect().is_closed()
    assert talk.metrics.connections_rejected == {"connection_limit": 1}


# --- who asks ------------------------------------------------------------------------------------------------------
def test_a_client_is_known_by_its_address_for_requests_and_tunnels(converse: Start, dialled: Any):
    dialled(f"{DIALLED}:80")
    table = [{"cidrs": ["10.0.0.0/8"], "namespace": "team", "serviceAccount": "robot"}]
    identity = {"required": True, "address": {"clients": table}}
    talk = converse(transparent(identity=identity))
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED
    assert talk.record()["service_account"] == "robot"
    stranger = talk.connect(address="192.0.2.7")
    stranger >> GET
    assert stranger.answer()[0] == 403
