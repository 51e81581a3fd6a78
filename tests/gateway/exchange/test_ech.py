"""ClientHellos with Encrypted Client Hello: refused where the name counts, and told of with the name that they show."""

from __future__ import annotations

from typing import Any

import pytest

from egressproxy.protocols.tls.client_hello import ACCESS_DENIED
from tests.gateway.conftest import Start
from tests.gateway.kit import ESTABLISHED, connect, forward
from tests.gateway.listeners.test_stream_connection import by_name
from tests.protocols.tls.test_client_hello import extension, message, records, server_name

HELLO = records(message(server_name(b"a.example") + extension(0xFE0D, bytes(64))), 40)
NAMELESS = records(message(extension(0xFE0D, bytes(64))))


def told(talk: Any, outer_name: str, listener: str) -> None:
    assert talk.record()["detail"] == f"ClientHello with ECH, outer name {outer_name}"
    assert talk.metrics.ech_hellos.counted == {("agents/gw", listener, outer_name): 1}


@pytest.mark.parametrize(("hello", "outer_name"), [(HELLO, "a.example"), (NAMELESS, "-")])
def test_in_a_tunnel_it_is_refused_even_where_the_outer_name_is_right(
    converse_on: Start, hello: bytes, outer_name: str
):
    talk = converse_on(forward())
    talk.client >> connect("a.example:443")
    talk.dialled("a.example", 443)
    talk.client << ESTABLISHED
    talk.client >> hello
    talk.client << ACCESS_DENIED
    talk.client.is_closed()
    assert talk.record()["reason"] == "sni_mismatch"
    told(talk, outer_name, "forward")


def test_mode_report_lets_it_pass_and_tells(converse_on: Start):
    talk = converse_on(forward(mode="Report"))
    talk.client >> connect("a.example:443")
    talk.dialled("a.example", 443)
    talk.client << ESTABLISHED
    talk.client >> HELLO
    talk.origin << HELLO
    talk.client.ends()
    talk.origin.ends()
    assert talk.record()["would_deny"] == ["sni_mismatch"]
    told(talk, "a.example", "forward")


def test_a_tls_listener_goes_by_the_outer_name_and_tells(converse_on: Start):
    talk = converse_on(by_name())
    talk.client >> HELLO
    talk.dialled("a.example", 443)
    talk.origin << HELLO
    talk.client.ends()
    talk.origin.ends()
    assert talk.record()["reason"] == "-"
    told(talk, "a.example", "tls")


def test_an_entry_that_takes_any_name_does_not_look(converse: Start):
    entry = {"hostnames": ["a.example"], "sni": "Any"}
    talk = converse(forward(allow=(), destinations={"allow": [entry]}))
    talk.client >> connect("a.example:443")
    talk.dialled("a.example", 443)
    talk.client << ESTABLISHED
    talk.client >> HELLO
    talk.origin << HELLO
    assert not talk.metrics.ech_hellos.counted
