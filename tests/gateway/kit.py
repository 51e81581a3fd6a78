"""What the conversations of these tests share: configurations, and messages that are said over and over."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Any

from egressproxy.upstream.endpoint_health import HealthState
from tests.e2e.world import terminate, tls_secret
from tests.support import manifests as m
from tests.support.conversation import Conversation, Peer
from tests.support.manifests import Manifest
from tests.support.pki import Pki, chain

VIA = b"Via: 1.1 gw\r\n"
GET = b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"
GET_SENT = b"GET / HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
OK_PASSED = b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nContent-Length: 2\r\n\r\nhi"
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


def connect(authority: str) -> bytes:
    return f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode()


#: Clients of all tenants share connections to backends.
SHARED = {"connections": {"shareTenants": True}}


def forward(*more: Manifest, allow: tuple[str, ...] = ("a.example",), **sections: Any) -> list[Manifest]:
    """A forward proxy that allows these names; `sections` go into its policy. With `identity` clients share connections
    all the same: tests/gateway/exchange/test_subjects.py is about those that do not.
    """
    if sections.get("identity"):
        sections.setdefault("traffic", SHARED)
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


def visit(talk: Conversation, host: str) -> None:
    """A request for this host, whose connection is idle afterwards."""
    talk.client >> GET.replace(b"a.example", host.encode())
    talk.dialled(host, 80)
    talk.origin.take(rb"GET / .*?\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED


def through_parent(port: int, protocol: str = "HTTP11") -> list[Manifest]:
    """A forward proxy, and a route to the backend `a` (a.example) behind the parent `parent` (parent.example:3128)."""
    routed = (
        m.tls_route("t", "a", hostnames=["a.example"])
        if protocol == "TCP"
        else m.http_route("r", m.prefix_rule("/", "a"), hostnames=["a.example"])
    )
    return [
        m.gateway(m.forward_listener(3128)),
        m.policy(["a.example"]),
        m.backend("parent", "parent.example", 3128),
        m.backend("a", "a.example", port, protocol=protocol, parent={"name": "parent"}),
        routed,
    ]


#: Of a policy: an endpoint is out after one failure.
STRICT = {"healthCheck": {"passive": {"consecutive5XxErrors": 1, "maxEjectionPercent": 100}}}


def ejected(talk: Conversation) -> list[str]:
    """The backends of endpoints that are out."""
    host_sets = [each.host_set for each in talk.snapshot.clusters.values() if each.host_set is not None]
    healths = [health for each in host_sets for health in each.healths()]
    return [health.backend for health in healths if health.state is HealthState.EJECTED]


# --- TLS -----------------------------------------------------------------------------------------------------------
def certificate(pki: Pki, *names: str, secret: str = "front") -> Manifest:
    """A Secret with a certificate for these names; `terminate(secret)` is the `tls` of a listener that shows it."""
    leaf = pki.issue(*names)
    return tls_secret(secret, chain(leaf), leaf.private_key_pem.bytes())


def https(*hostnames: str, port: int = 8443) -> Manifest:
    """A Gateway with an HTTPS listener for each hostname ("" for every host), all on one port."""
    listeners = []
    for number, hostname in enumerate(hostnames):
        listener = {"name": f"l{number}", "port": port, "protocol": "HTTPS", "tls": terminate("front")}
        listeners.append({**listener, "hostname": hostname} if hostname else listener)
    return m.gateway(*listeners)


class TlsClient:
    """A client's side of TLS over the connection of a Peer. `>>` sends inside it, `reads` gives what has come.

    `shows`: whose certificate it shows when it is asked for one.
    The log counts what is inside TLS: set `counts_octets` of the conversation to False.
    """

    def __init__(
        self, peer: Peer, pki: Pki, name: str | None, shows: Pki | None = None, *, checks_name: bool = True,
        alpn: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.peer = peer
        self.has_ended = False  # the gateway has said close_notify
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = pki.client_context(shows.issue("client.example") if shows is not None else None)
        context.check_hostname = name is not None and checks_name
        if alpn:
            context.set_alpn_protocols(list(alpn))
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)

    def hello(self) -> bytes:
        """The first octets: what a client says before it has heard anything."""
        assert not self._try()
        return self._outgoing.read()

    @property
    def alpn(self) -> str | None:
        """What was agreed on."""
        return self._tls.selected_alpn_protocol()

    def last_flight(self) -> bytes:
        """What ends the handshake, once the server has answered the hello."""
        self._take()
        assert self._try()
        return self._outgoing.read()

    def shakes_hands(self) -> TlsClient:
        self.peer >> self.hello()
        self.peer.talk.until(lambda: bool(self.peer.received))
        self.peer >> self.last_flight()
        return self

    def __rshift__(self, data: bytes) -> TlsClient:
        self._tls.write(data)
        self.peer >> self._outgoing.read()
        return self

    def ends(self) -> None:
        """Say close_notify, and read on."""
        with suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        self.peer >> self._outgoing.read()

    def reads(self) -> bytes:
        """What has come."""
        self.peer.talk.settle()
        self._take()
        got = b""
        try:
            while piece := self._tls.read():
                got += piece
            self.has_ended = True
        except ssl.SSLZeroReturnError:
            self.has_ended = True  # both sides have
        except ssl.SSLWantReadError:
            pass
        return got

    def _try(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def _take(self) -> None:
        self._incoming.write(bytes(self.peer.received))
        self.peer.received.clear()


class TlsOrigin(TlsClient):
    """An origin's side of TLS, with a certificate that nobody trusts."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.has_ended = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = Pki().server_context("elsewhere.example")
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def shakes_hands(self) -> TlsOrigin:
        is_done = False
        while not is_done:
            self.peer.talk.until(lambda: bool(self.peer.received))
            self._take()
            is_done = self._try()
            self.peer >> self._outgoing.read()
        return self
