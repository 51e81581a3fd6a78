"""SOCKS5 listeners: what a client asks for there is decided, carried and counted as a CONNECT is."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from egressproxy.errors import Denied, GatewayFault, Reason, UpstreamFault
from egressproxy.filters.base import Filter
from egressproxy.gateway.listeners.socks_connection import reply_code
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.protocols.socks5.messages import ReplyCode
from egressproxy.protocols.socks5.server import reply
from egressproxy.protocols.tls.client_hello import ACCESS_DENIED, UNRECOGNIZED_NAME
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_connect import client_hello
from tests.gateway.kit import GET_SENT, OK, OK_PASSED
from tests.support import manifests as m
from tests.support.conversation import Conversation, scripted_filter
from tests.support.tokens import TokenIssuer

HELLO = b"\x05\x01\x00"
CHOSEN = b"\x05\x00"
CONNECTED = reply(None)
CLUSTER = TokenIssuer()


def socks(*more: m.Manifest, allow: tuple[str, ...] = ("a.example",), **sections: Any) -> list[m.Manifest]:
    """A SOCKS5 listener that allows these names."""
    listener = {"name": "socks", "port": 1080, "protocol": "egressproxy.io/socks5"}
    return [m.gateway(listener), m.policy(allow, **sections), *more]


def asks(host: str, port: int, command: int = 1) -> bytes:
    name = host.encode()
    return bytes((5, command, 0, 3, len(name))) + name + port.to_bytes(2, "big")


def asks_address(octets: bytes, port: int) -> bytes:
    return bytes((5, 1, 0, 1 if len(octets) == 4 else 4)) + octets + port.to_bytes(2, "big")


def greet(talk: Conversation) -> None:
    talk.client >> HELLO
    talk.client << CHOSEN


def is_refused(talk: Conversation, request: bytes, code: ReplyCode, reason: str) -> dict[str, Any]:
    """The client is told so and its connection closed, and the log says why."""
    greet(talk)
    talk.client >> request
    talk.client << reply(code)
    talk.client.is_closed()
    record = talk.record()
    assert (record["reason"], record["method"]) == (reason, "CONNECT")
    return record


def test_a_name_is_resolved_here_and_bytes_go_both_ways(converse: Start):
    talk = converse(socks())
    greet(talk)
    talk.client >> asks("a.example", 22) + b"early"
    talk.dialled("a.example", 22)
    talk.client << CONNECTED
    talk.origin << b"early"
    talk.origin >> b"SSH-2.0-server\r\n"
    talk.client << b"SSH-2.0-server\r\n"
    talk.client.ends()
    talk.origin.ends()
    record = talk.record()
    assert (record["kind"], record["method"], record["authority"], record["status"], record["listener"]) == (
        "tunnel", "CONNECT", "a.example:22", 200, "socks",
    )  # fmt: skip


def test_what_has_passed_here_before_is_refused(converse: Start):
    talk = converse(socks())
    talk.client >> b"\x05\x02\x00\xe6"
    talk.client << b"\x05\xe6"
    via = b"1.1 other, 1.1 gw"
    talk.client >> b"\x01" + len(via).to_bytes(2, "big") + via
    talk.client << CHOSEN
    talk.client >> asks("a.example", 22)
    talk.client << reply(ReplyCode.NOT_ALLOWED)
    talk.client.is_closed()
    assert (talk.record()["status"], talk.record()["reason"]) == (508, "loop_detected")


def test_a_client_may_say_all_at_once_and_in_single_bytes(converse: Start):
    talk = converse(socks())
    for octet in HELLO + asks("a.example", 22) + b"early":
        talk.client >> bytes((octet,))
    talk.dialled("a.example", 22)
    talk.client << CHOSEN + CONNECTED
    talk.origin << b"early"


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (asks("b.example", 443), "destination_not_allowed"),
        (asks("a.example.evil.example", 443), "destination_not_allowed"),
        (asks_address(b"\x5d\xb8\xd8\x01", 443), "destination_not_allowed"),
        (asks_address(b"\x7f\x00\x00\x01", 443), "destination_not_allowed"),
        (asks_address(bytes(15) + b"\x01", 443), "destination_not_allowed"),
        (asks_address(bytes(10) + b"\xff\xff\x7f\x00\x00\x01", 443), "destination_not_allowed"),
        (asks("127.0.0.1", 443), "destination_not_allowed"),
    ],
)
def test_what_policy_does_not_allow_is_refused_with_code_2(converse: Start, request_: bytes, reason: str):
    talk = converse(socks())
    is_refused(talk, request_, ReplyCode.NOT_ALLOWED, reason)
    talk.no_dial()


def test_a_name_of_the_inside_is_refused_with_code_2(converse: Start):
    talk = converse(socks())
    talk.names.zone["a.example"] = (ip_address("127.0.0.1"),)
    is_refused(talk, asks("a.example", 443), ReplyCode.NOT_ALLOWED, "resolved_denied")


@pytest.mark.parametrize(
    "host",
    ["", "a:1", "a.example:443", "user@a.example", "a b", "0x7f.1", "a.example\0", "[::1", "ä.example", "2130706433"],
)
def test_what_is_no_host_is_refused(converse: Start, host: str):
    talk = converse(socks())
    is_refused(talk, asks(host, 443), ReplyCode.GENERAL_FAILURE, "bad_host")


def test_port_0_is_no_port(converse: Start):
    talk = converse(socks())
    is_refused(talk, asks("a.example", 0), ReplyCode.GENERAL_FAILURE, "bad_host")


@pytest.mark.parametrize("command", [2, 3], ids=["BIND", "UDP ASSOCIATE"])
def test_bind_and_udp_are_refused_with_code_7(converse: Start, command: int):
    talk = converse(socks())
    greet(talk)
    talk.client >> asks("a.example", 443, command)
    talk.client << reply(ReplyCode.COMMAND_NOT_SUPPORTED)
    talk.client.is_closed()
    record = talk.record()
    assert (record["reason"], record["status"]) == ("method_not_allowed", 405)


def test_an_unknown_address_type_is_refused_with_code_8(converse: Start):
    talk = converse(socks())
    greet(talk)
    talk.client >> b"\x05\x01\x00\x02\x00"
    talk.client << reply(ReplyCode.ADDRESS_TYPE_NOT_SUPPORTED)
    talk.client.is_closed()
    assert talk.record()["reason"] == "not_socks"


def test_a_client_of_http_is_told_in_http_what_to_write(converse: Start):
    talk = converse(socks())
    talk.client >> b"CONNECT a.example:443 HTTP/1.1\r\n\r\n"
    status, phrase, _, error = talk.client.answer()
    assert (status, error["reason"]) == (400, "not_socks")
    assert b"write socks5h:// in place of http://" in phrase
    talk.client.is_closed()


@pytest.mark.parametrize("said", [b"\x04\x01\x00\x50\x01\x02\x03\x04\x00", b"\x16\x03\x01\x00\x05", b"\x00"])
def test_a_client_of_something_else_is_told_nothing(converse: Start, said: bytes):
    talk = converse(socks())
    talk.client >> said
    talk.client.is_closed()
    assert talk.record()["reason"] == "not_socks"


def test_a_client_that_stops_in_its_request_is_dropped_in_time(converse: Start):
    talk = converse(socks())
    greet(talk)
    talk.client >> asks("a.example", 22)[:-1]
    talk.after(61)
    talk.client.is_closed()
    assert talk.record()["reason"] == "client_timeout"
    talk.no_dial()


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (UpstreamFault(Reason.DNS_NXDOMAIN, "no such name"), ReplyCode.HOST_UNREACHABLE),
        (UpstreamFault(Reason.CONNECT_REFUSED, "refused"), ReplyCode.CONNECTION_REFUSED),
        (UpstreamFault(Reason.CONNECT_FAILED, "no way"), ReplyCode.NETWORK_UNREACHABLE),
        (UpstreamFault(Reason.CONNECT_TIMEOUT, "too slow"), ReplyCode.TTL_EXPIRED),
        (GatewayFault(Reason.INTERNAL, "internal"), ReplyCode.GENERAL_FAILURE),
        (Denied(Reason.DESTINATION_DENIED, "denied"), ReplyCode.NOT_ALLOWED),
    ],
)
def test_each_failure_has_its_code(fault: Any, code: ReplyCode):
    assert reply_code(fault) is code


def test_a_failed_lookup_is_told(converse: Start):
    talk = converse(socks())
    talk.names.faults["a.example"] = lambda: UpstreamFault(Reason.DNS_NXDOMAIN, "no such name")
    is_refused(talk, asks("a.example", 22), ReplyCode.HOST_UNREACHABLE, "dns_nxdomain")


class Refuses(Filter):
    def request_headers(self, x: Exchange) -> LocalResponse:
        return LocalResponse(451)


def test_a_filter_that_answers_refuses(converse: Start):
    talk = converse(socks(extensions=[scripted_filter("no")]), filters={"no": Refuses()})
    greet(talk)
    talk.client >> asks("a.example", 22)
    talk.client << reply(ReplyCode.NOT_ALLOWED)
    talk.client.is_closed()
    assert talk.record()["status"] == 451


# --- what is said inside -------------------------------------------------------------------------------------------
def test_the_name_in_the_clienthello_has_to_be_the_one_that_was_asked_for(converse: Start):
    talk = converse(socks())
    greet(talk)
    talk.client >> asks("a.example", 443)
    talk.dialled("a.example", 443)
    talk.client << CONNECTED
    talk.client >> client_hello("b.example")
    talk.client << UNRECOGNIZED_NAME
    talk.client.is_closed()
    assert talk.record()["reason"] == "sni_mismatch"


def test_http_to_port_80_is_read_and_each_request_is_decided(converse: Start):
    talk = converse(socks(allow=("a.example",)))
    greet(talk)
    talk.client >> asks("a.example", 80)
    talk.client << CONNECTED
    talk.client >> b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.client >> b"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n"
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (400, "bad_host")
    assert [each["kind"] for each in talk.records] == ["tunnel", "request", "request"]


def test_tls_to_port_80_that_policy_does_not_allow_gets_an_alert(converse: Start):
    listener = {"name": "socks", "port": 1080, "protocol": "egressproxy.io/socks5"}
    route = m.http_route("r", m.prefix_rule("/", "a"), hostnames=["a.example"])
    talk = converse([m.gateway(listener), m.policy([]), m.backend("a", "a.example", 80), route])
    greet(talk)
    talk.client >> asks("a.example", 80)
    talk.client << CONNECTED
    talk.client >> client_hello("a.example")
    talk.client << ACCESS_DENIED
    talk.client.is_closed()


# --- who asks ------------------------------------------------------------------------------------------------------
def login(user: bytes, password: bytes) -> bytes:
    return b"\x01" + bytes((len(user),)) + user + bytes((len(password),)) + password


def known(**more: Any) -> list[m.Manifest]:
    return socks(CLUSTER.config_map, identity={"token": {"issuers": [CLUSTER.written]}, **more})


def test_a_password_goes_where_proxy_authorization_goes(converse: Start):
    """A short one cannot be a token: it is refused as one."""
    talk = converse(known())
    talk.client >> b"\x05\x02\x00\x02"
    talk.client << b"\x05\x02"
    talk.client >> login(b"anything", b"not-a-token")
    talk.client << b"\x01\x00"
    talk.client >> asks("a.example", 22)
    talk.client << reply(ReplyCode.NOT_ALLOWED)
    talk.client.is_closed()
    record = talk.record()
    assert (record["reason"], record["status"]) == ("credentials_refused", 407)
    assert "not-a-token" not in str(record)
    talk.no_dial()


def test_who_can_show_nothing_is_not_let_on_where_somebody_has_to_be_known(converse: Start):
    talk = converse(known())
    talk.client >> HELLO
    talk.client << b"\x05\xff"
    talk.client.is_closed()
    assert talk.record()["reason"] == "credentials_required"


def test_who_can_show_nothing_is_served_where_nobody_has_to_be_known(converse: Start):
    talk = converse(known(required=False))
    greet(talk)
    talk.client >> asks("a.example", 22)
    talk.dialled("a.example", 22)
    talk.client << CONNECTED


def test_what_nobody_asks_for_is_taken_and_forgotten(converse: Start):
    talk = converse(socks())
    talk.client >> b"\x05\x01\x02" + login(b"robot", b"word") + asks("a.example", 22)
    talk.dialled("a.example", 22)
    talk.client << b"\x05\x02\x01\x00" + CONNECTED


# --- limits ------------------------------------------------------------------------------------------------------
def test_one_connection_too_many_is_closed(converse: Start):
    talk = converse(socks(limits={"connections": 1}))
    talk.counts_octets = False
    second = talk.connect()
    second.is_closed()
    assert talk.metrics.connections_rejected == {"connection_limit": 1}


def test_one_tunnel_too_many_is_refused(converse: Start):
    talk = converse(socks(limits={"tunnels": 1}))
    greet(talk)
    talk.client >> asks("a.example", 22)
    talk.dialled("a.example", 22)
    talk.client << CONNECTED
    second = talk.connect()
    second >> HELLO + asks("a.example", 22)
    second << CHOSEN + reply(ReplyCode.NOT_ALLOWED)
    second.is_closed()


def test_the_listener_has_neither_tls_nor_a_hostname():
    from tests.support.conversation import compiled_spec

    for wrong in ({"hostname": "a.example"}, {"tls": {"mode": "Passthrough"}}):
        listener = {"name": "socks", "port": 1080, "protocol": "egressproxy.io/socks5", **wrong}
        assert not compiled_spec([m.gateway(listener), m.policy(["a.example"])]).listeners
