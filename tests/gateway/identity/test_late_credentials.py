"""Credentials in trailers: what is taken out of a head does not reach a backend behind the body, either."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import Start
from tests.gateway.exchange.test_http2_both_sides import GRPC
from tests.gateway.h2 import speak_http2
from tests.gateway.identity.test_tokens import CLUSTER, identity
from tests.gateway.kit import OK, OK_PASSED, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.http2 import Http2Origin

TOKEN = CLUSTER.token().encode()
FIELD = {**identity()["token"], "header": "X-Agent-Token"}
LATE = b"X-Sum: 1\r\n%b: late\r\n"
NAMES = [
    b"X-Agent-Token", b"x_agent_token", b"X-AGENT_TOKEN", b"_X-Agent-Token", b"Authorization", b"_authorization",
    b"Proxy-Authorization", b"proxy_authorization_",
]  # fmt: skip


def known(*rules: Any, objects: tuple[Any, ...] = (), **more: Any) -> list[Any]:
    return reverse(*rules, objects=(CLUSTER.config_map, *objects), identity={"token": FIELD}, **more)


def posts(talk: Conversation, name: bytes) -> None:
    talk.client >> b"PUT / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\nX-Agent-Token: " + TOKEN
    talk.client >> b"\r\n\r\n2\r\nhi\r\n0\r\n" + LATE % name + b"\r\n"


def goes_on(talk: Conversation) -> None:
    """The backend gets the body and the other trailer, and nothing of a credential."""
    sent = talk.origin.take(rb"PUT / .*?\r\n\r\n.*?0\r\n(?:[^\r]+\r\n)*\r\n")[0]
    assert sent.endswith(b"\r\n0\r\nX-Sum: 1\r\n\r\n")
    assert b"token" not in sent.lower()


@pytest.mark.parametrize("name", NAMES)
def test_a_trailer_of_the_name_of_a_credential_goes_no_further(converse: Start, name: bytes):
    talk = converse(known())
    posts(talk, name)
    talk.dialled("a.example", 80)
    goes_on(talk)
    talk.origin >> OK
    talk.client << OK_PASSED


def test_nor_in_another_attempt(converse: Start):
    rule = m.prefix_rule("/", "a", retry={"attempts": 1, "codes": [503], "backoff": "0s"})
    talk = converse(known(rule))
    posts(talk, b"X-Agent-Token")
    talk.dialled("a.example", 80)
    goes_on(talk)
    talk.origin >> b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
    goes_on(talk)
    talk.origin >> OK
    talk.client << OK_PASSED


def test_nor_where_the_listener_is_not_the_first_of_its_port(converse: Start):
    listeners = [m.http_listener(8080, name=host, hostname=f"{host}.example") for host in ("b", "a")]
    objects = known()
    objects[0] = m.gateway(*listeners)
    objects[1]["spec"]["targetRefs"][0]["sectionName"] = "a"
    talk = converse(objects)
    posts(talk, b"X-Agent-Token")
    talk.dialled("a.example", 80)
    goes_on(talk)


@pytest.mark.parametrize("speaks", ["HTTP11", "H2C"])
def test_nor_in_http2_and_calls_of_grpc(converse: Start, speaks: str):
    objects = known()
    objects[2] = m.backend("a", "a.example", 80, protocol=speaks)
    talk = converse(objects)
    client = speak_http2(talk)
    fields = [*GRPC, (b"x-agent-token", TOKEN)] if speaks == "H2C" else [(b"x-agent-token", TOKEN)]
    stream = client.ask(b"PUT", b"/", b"a.example", *fields, body=b"\0\0\0\0\2hi", ends=False)
    late = [(b"x-sum", b"1"), (b"x-agent-token", b"late"), (b"x_agent_token", b"late"), (b"authorization", b"late")]
    client.h2.send_headers(stream, late, end_stream=True)
    client.settle()
    if speaks == "HTTP11":
        talk.dialled("a.example", 80)
        assert talk.origin.take(rb"PUT / .*0\r\n((?:[^\r]+\r\n)*)\r\n")[1] == b"x-sum: 1\r\n"
        return
    origin = Http2Origin(talk, talk.dialled("a.example", 80))
    call = origin.waits_for(1)[1]
    assert dict(call.trailers) == {b"x-sum": b"1"}


def test_a_reload_that_takes_the_field_back_lets_none_through_that_is_on_its_way(converse: Start):
    talk = converse(known())
    talk.client >> b"PUT / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\nX-Agent-Token: " + TOKEN
    talk.client >> b"\r\n\r\n2\r\nhi\r\n"
    talk.dialled("a.example", 80)
    talk.settle()
    talk.reload(reverse())
    talk.client >> b"0\r\n" + LATE % b"X-Agent-Token" + b"\r\n"
    goes_on(talk)
