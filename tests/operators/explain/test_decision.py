"""What is decided about a request that nobody sends is what becomes of it when somebody does."""

from __future__ import annotations

from typing import Any

import pytest

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.gateway.exchange.recent_decisions import KEPT, MAX_PATH, decisions
from egressproxy.operators.explain.decision import decide
from egressproxy.operators.explain.decision_diff import outcome, question_of
from egressproxy.operators.explain.hypothetical_request import HypotheticalRequest
from tests.gateway.conftest import Start
from tests.gateway.kit import GET, exchange, forward
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.manifests import Manifest

RED = {"name": "X-Team", "value": "red"}


def world() -> list[Manifest]:
    """A forward proxy with every kind of answer."""
    rules = [
        m.prefix_rule("/v1", "api"),
        {**m.prefix_rule("/v1", "other"), "matches": [{"path": {"value": "/v1"}, "headers": [RED]}]},
        {"matches": [{"path": {"type": "Exact", "value": "/v1/exact"}, "method": "POST"}], "backendRefs": []},
    ]
    return [
        m.gateway(m.forward_listener(3128)),
        m.policy(
            destinations={
                "allow": [{"hostnames": ["*.open.example"], "ports": [80, 443]}, {"cidrs": ["192.0.2.0/24"]}],
                "deny": [{"hostnames": ["bad.open.example", "denied.example"]}],
            }
        ),
        m.backend("api", "api.example", 80), m.backend("other", "other.example", 80),
        m.backend("denied", "denied.example", 80),
        m.http_route("api", *rules, hostnames=["api.example"]),
        m.http_route("any", m.prefix_rule("/any", "other"), hostnames=["*.example"]),
        m.http_route("denied", m.prefix_rule("/", "denied"), hostnames=["denied.example"]),
        m.tls_route("tls", "api", hostnames=["tls.example"]),
    ]  # fmt: skip


ASKED = [
    ("GET", "http://api.example/v1/x?key=hush", ()),
    ("GET", "http://api.example/v1", (("X-Team", "red"),)),
    ("POST", "http://api.example/v1/exact", ()),
    ("GET", "http://api.example/any", ()),
    ("GET", "http://api.example:8080/v1", ()),
    ("GET", "http://nobody.example/", ()),
    ("GET", "http://b.example/any", ()),
    ("GET", "http://a.open.example/", ()),
    ("GET", "http://a.open.example/", (("Host", "b"),)),
    ("GET", "http://a.open.example:81/", ()),
    ("GET", "http://bad.open.example/", ()),
    ("GET", "http://denied.example/", ()),
    ("GET", "http://192.0.2.1/", ()),
    ("GET", "http://[::1]/", ()),
    ("GET", "http://api.example/v1/../x", ()),
    ("TRACE", "http://a.open.example/", ()),
    ("GET", "http://a.open.example/", (("Via", "1.1 other"),)),
    ("GET", "http://a.open.example/", (("Via", "1.1 other, 1.1 OURS"),)),
    ("CONNECT", "a.open.example:443", (("Via", "1.1 other"),)),
    ("CONNECT", "a.open.example:443", (("Via", "1.1 OURS"),)),
    ("GET", "/origin-form", ()),
    ("CONNECT", "a.open.example:443", ()),
    ("CONNECT", "a.open.example:22", ()),
    ("CONNECT", "bad.open.example:443", ()),
    ("CONNECT", "tls.example:443", ()),
    ("CONNECT", "api.example:443", ()),
]
#: How an exchange ends whose backend is not there: names had nothing against it.
LET_THROUGH = ("-", "upstream_refused", "resolved_denied", "backend_invalid")


def octets(method: str, url: str, fields: tuple[tuple[str, str], ...]) -> bytes:
    host = url if method == "CONNECT" else url.split("/")[2] if "://" in url else "x"
    named = "" if any(name == "Host" for name, _ in fields) else f"Host: {host}\r\n"
    return f"{method} {url} HTTP/1.1\r\n{named}{''.join(f'{n}: {v}{chr(13)}{chr(10)}' for n, v in fields)}\r\n".encode()


def sent(talk: Conversation, request: bytes) -> dict[str, Any]:
    """What the log says of this request, on a connection of its own; no backend is there."""
    count = len(talk.records)
    client = talk.connect()
    client >> request
    talk.settle()
    while talk.dialer.dials:
        dial = talk.dialer.dials.pop(0)
        talk.act(lambda dial=dial: dial.future.set_exception(UpstreamFault(Reason.CONNECT_REFUSED, "no", status=503)))
        talk.settle()
    client.leaves()
    return talk.record(count)


@pytest.mark.parametrize(("method", "url", "fields"), ASKED)
def test_the_decision_is_that_of_traffic(converse: Start, method: str, url: str, fields: tuple[tuple[str, str], ...]):
    talk = converse(world())
    talk.counts_octets = False
    pseudonym = talk.connection_manager.pseudonym
    fields = tuple((name, value.replace("OURS", pseudonym.decode())) for name, value in fields)
    record = sent(talk, octets(method, url, fields))
    if url.startswith("/"):
        with pytest.raises(ValueError, match="no listener takes"):
            decide(talk.snapshot, HypotheticalRequest(method, url, fields))
        return
    decided = decide(talk.snapshot, HypotheticalRequest(method, url, fields), pseudonym)
    if decided.error is None:
        assert record["reason"] in LET_THROUGH
        assert record["route"] == decided.exchange.route
    else:
        assert (record["reason"], record.get("rule", "-")) == (decided.error.reason.value, decided.error.rule)
    assert (record["gateway"], record["listener"]) == (decided.exchange.gateway, decided.exchange.listener)


def test_every_decision_that_is_remembered_can_be_made_again_with_the_same_outcome(converse: Start):
    talk = converse(world())
    talk.counts_octets = False
    asked = [each for each in ASKED if not each[2]]
    for method, url, _ in asked:
        sent(talk, octets(method, url, ()))
    found = list(decisions(talk.connection_manager.accounting.recent, {}))
    assert len(found) == len(asked)
    assert "hush" not in str(found)
    again = [each for each in found if question_of(each) is not None]
    assert len(again) >= len(asked) - 2
    for each in again:
        told = outcome(talk.snapshot, each)
        assert told.is_allowed is (each.reason in LET_THROUGH and each.reason != "resolved_denied"), each


def test_what_is_remembered_is_bounded(converse: Start):
    talk = converse(forward())
    assert talk.connection_manager.accounting.recent.maxlen == KEPT
    exchange(talk)
    talk.client >> GET.replace(b"example/ ", b"example/" + b"x" * 5000 + b" ")
    talk.origin.take(rb"GET /x+ HTTP/1.1\r\n(?:.+\r\n)+\r\n")
    talk.origin >> b"HTTP/1.1 204 No Content\r\n\r\n"
    talk.settle()
    latest, first = decisions(talk.connection_manager.accounting.recent, {})
    assert (first.method, first.authority, first.path, first.is_cut) == ("GET", "a.example:80", "/", False)
    assert (len(latest.path), latest.is_cut) == (MAX_PATH, True)
