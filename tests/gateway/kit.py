"""What the conversations of these tests share: configurations, and messages that are said over and over."""

from __future__ import annotations

from typing import Any

from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.manifests import Manifest

VIA = b"Via: 1.1 gw\r\n"
GET = b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"
GET_SENT = b"GET / HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
OK_PASSED = b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nContent-Length: 2\r\n\r\nhi"
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


def connect(authority: str) -> bytes:
    return f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode()


def forward(*more: Manifest, allow: tuple[str, ...] = ("a.example",), **sections: Any) -> list[Manifest]:
    """A forward proxy that allows these names; `sections` go into its policy."""
    return [m.gateway(m.forward_listener(3128)), m.policy(allow, **sections), *more]


def reverse(*rules: Manifest, objects: tuple[Manifest, ...] = (), **sections: Any) -> list[Manifest]:
    """A plain listener with one route to the backend `a` (a.example:80), or with these rules."""
    return [
        m.gateway(m.http_listener(8080)),
        m.policy(**sections),
        m.backend("a", "a.example", 80),
        m.http_route("route", *(rules or (m.prefix_rule("/", "a"),))),
        *objects,
    ]


def exchange(talk: Conversation, *, is_new: bool = True) -> None:
    """One GET from head to end, on a new upstream connection or on the one that was used before."""
    talk.client >> GET
    if is_new:
        talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED
