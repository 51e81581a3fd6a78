"""Copies of requests for mirrors."""

from __future__ import annotations

from typing import Any

import pytest

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.filters import Exchange, Filter, Rejected
from egressproxy.gateway.backends.mirror import MAX_HELD, Mirror
from egressproxy.gateway.backends.mirror_request import MAX_ANSWER
from egressproxy.model.fields import Fields
from tests.gateway.backends.test_retries import pods
from tests.gateway.conftest import Start
from tests.gateway.kit import OK, OK_PASSED, VIA, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation, Peer, scripted_filter
from tests.support.manifests import Manifest

GET = b"GET /x?y=1 HTTP/1.1\r\nHost: front.example\r\n\r\n"
SENT = b"GET /x?y=1 HTTP/1.1\r\nHost: %b\r\n" + VIA + b"\r\n"
POST = b"POST / HTTP/1.1\r\nHost: front.example\r\nContent-Length: %d\r\n\r\n"
POST_SENT = b"POST / HTTP/1.1\r\nHost: %b\r\n" + VIA + b"Content-Length: %d\r\n\r\n"
TO_A = {"group": "egressproxy.io", "kind": "Backend", "name": "a"}


def mirror(name: str = "b", **share: Any) -> Manifest:
    return {"type": "RequestMirror", "requestMirror": {"backendRef": {**TO_A, "name": name}, **share}}


def mirrored(*filters: Manifest, b: Manifest | None = None, objects: tuple[Manifest, ...] = (), **sections: Any) -> Any:
    """One rule to `a`, with these filters (one mirror to `b` where there are none)."""
    rule = m.prefix_rule("/", "a", filters=list(filters or (mirror(),)))
    b = b or m.backend("b", "b.example", 80)
    return reverse(rule, objects=(b, m.backend("c", "c.example", 80), *objects), **sections)


def both(talk: Conversation) -> tuple[Peer, Peer]:
    """The connections to the backend and to the mirror, on which nothing was read yet."""
    return talk.dialled("a.example", 80), talk.dialled("b.example", 80)


def results(talk: Conversation) -> dict[str, int]:
    """How copies ended."""
    found: dict[str, int] = {}
    for series in talk.metrics._series.values():
        for result, count in series.mirrored.items():
            found[result] = found.get(result, 0) + count
    return found


def live(talk: Conversation) -> Mirror:
    (listener,) = next(iter(talk.snapshot.ports.values())).listeners
    found = listener.http.match("front.example", b"GET", b"/", Fields())
    assert found is not None
    assert found[0].backends[0].mirrors is not None
    return found[0].backends[0].mirrors[0]


# --- what a copy is --------------------------------------------------------------------------------------------------
def test_a_request_goes_to_the_mirror_too_and_its_answer_to_nobody(converse_on: Start):
    talk = converse_on(mirrored())
    for _ in range(2):
        talk.client >> GET
        a, b = both(talk) if len(talk.origins) < 2 else (talk.origins[0], talk.origins[1])
        a << SENT % b"a.example"
        b << SENT % b"b.example"
        b >> b"HTTP/1.1 500 Oh\r\nContent-Length: 3\r\n\r\nno!"
        talk.client.hears_nothing()
        a >> OK
        talk.client << OK_PASSED
    assert results(talk) == {"ok": 2}
    assert talk.idle == 2
    assert len(talk.records) == 2
    assert {record["backend"] for record in talk.records} == {"agents/a"}
    assert talk.series("attempts") == 2


def test_the_answer_does_not_wait_for_the_mirror(converse_on: Start):
    talk = converse_on(mirrored())
    talk.client >> GET
    a, b = both(talk)
    a >> OK
    talk.client << OK_PASSED
    b << SENT % b"b.example"
    b >> OK
    talk.until(lambda: bool(results(talk)))
    assert results(talk) == {"ok": 1}


def test_every_mirror_of_a_rule_gets_a_copy(converse_on: Start):
    talk = converse_on(mirrored(mirror("b"), mirror("c")))
    talk.client >> GET
    a, b = both(talk)
    c = talk.dialled("c.example", 80)
    for peer, host in ((a, b"a.example"), (b, b"b.example"), (c, b"c.example")):
        peer << SENT % host
        peer >> OK
    talk.client << OK_PASSED
    assert results(talk) == {"ok": 2}


def test_a_copy_is_what_the_filters_of_the_rule_have_made_of_the_request(converse_on: Start):
    changes = {
        "set": [{"name": "X-Set", "value": "new"}],
        "add": [{"name": "X-Add", "value": "2"}],
        "remove": ["X-Gone"],
    }
    rewrite = {"hostname": "other.example", "path": {"type": "ReplaceFullPath", "replaceFullPath": "/new"}}
    talk = converse_on(
        mirrored(
            {"type": "RequestHeaderModifier", "requestHeaderModifier": changes},
            mirror(),
            {"type": "URLRewrite", "urlRewrite": rewrite},
        )
    )
    talk.client >> b"GET / HTTP/1.1\r\nHost: front.example\r\nX-Gone: 1\r\nX-Add: 1\r\n\r\n"
    sent = b"GET /new HTTP/1.1\r\nHost: other.example\r\nX-Add: 1\r\nX-Set: new\r\nX-Add: 2\r\n" + VIA + b"\r\n"
    for peer in both(talk):
        peer << sent
        peer >> OK
    talk.client << OK_PASSED


def test_a_mirror_of_a_backend_ref_follows_its_filters(converse_on: Start):
    rule = m.prefix_rule("/", "a")
    changes = {"set": [{"name": "X-Set", "value": "new"}]}
    own = [{"type": "RequestHeaderModifier", "requestHeaderModifier": changes}, mirror()]
    rule["backendRefs"] = [{**TO_A, "filters": own}]
    talk = converse_on(reverse(rule, objects=(m.backend("b", "b.example", 80),)))
    talk.client >> b"GET / HTTP/1.1\r\nHost: front.example\r\n\r\n"
    for peer, host in zip(both(talk), (b"a.example", b"b.example"), strict=True):
        peer << b"GET / HTTP/1.1\r\nHost: " + host + b"\r\nX-Set: new\r\n" + VIA + b"\r\n"
        peer >> OK
    talk.client << OK_PASSED


def injecting(name: str, hostname: str, secret: str) -> tuple[Manifest, Manifest]:
    """A Backend with a credential, and its Secret."""
    injector = {
        "name": "key", "type": "egressproxy.io/CredentialInjector:v1", "phase": "backend-request",
        "config": {"secretRef": {"name": name, "key": "token"}, "header": "Authorization", "allowPlaintext": True},
    }  # fmt: skip
    return m.backend(name, hostname, 80, extensions=[injector]), m.secret(name, {"token": secret})


def test_a_credential_goes_to_its_own_backend_alone(converse_on: Start):
    a, a_secret = injecting("a2", "a.example", "key-of-a")
    b, b_secret = injecting("b", "b.example", "key-of-b")
    rule = m.prefix_rule("/", "a2", filters=[mirror("b"), mirror("c")])
    objects = (a, a_secret, b, b_secret, m.backend("c", "c.example", 80))
    everywhere = {
        "name": "all", "type": "egressproxy.io/CredentialInjector:v1", "phase": "backend-request", "priority": 1,
        "config": {"secretRef": {"name": "a2", "key": "token"}, "header": "X-Everywhere", "allowPlaintext": True},
    }  # fmt: skip
    talk = converse_on(reverse(rule, objects=objects, extensions=[everywhere]))
    talk.client >> GET
    sent = {}
    for name in ("a", "b", "c"):
        peer = talk.dialled(f"{name}.example", 80)
        sent[name] = peer.take(rb".*?\r\n\r\n")[0]
        peer >> OK
    talk.client << OK_PASSED
    assert b"Authorization: key-of-a\r\n" in sent["a"]
    assert b"X-Everywhere: key-of-a\r\n" in sent["a"]
    assert b"Authorization: key-of-b\r\n" in sent["b"]
    assert b"key-of-a" not in sent["b"] + sent["c"]
    assert b"key-of-b" not in sent["a"] + sent["c"]


class Judge(Filter):
    """Refuses one backend."""

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def backend_request(self, x: Exchange) -> None:
        if x.backend == self.backend:
            raise Rejected("not there")


class Porter(Judge):
    """The same before a socket is opened."""

    def connect(self, x: Exchange) -> None:
        super().backend_request(x)

    def backend_request(self, x: Exchange) -> None:
        pass


@pytest.mark.parametrize("phase", ["connect", "backend-request"])
def test_what_policy_runs_before_a_request_leaves_holds_for_a_copy_too(converse: Start, phase: str):
    judge = Porter("agents/b") if phase == "connect" else Judge("agents/b")
    talk = converse(mirrored(extensions=[scripted_filter("judge", phase)]), filters={"judge": judge})
    talk.client >> GET
    talk.dialled("a.example", 80) >> OK
    talk.client << OK_PASSED
    if phase == "backend-request":
        talk.dialled("b.example", 80).hears_nothing()
    talk.no_dial()
    assert results(talk) == {"filter_rejected": 1}


def test_a_request_that_does_not_go_to_its_backend_is_not_mirrored(converse: Start):
    extensions = [scripted_filter("judge", "backend-request")]
    talk = converse(mirrored(extensions=extensions), filters={"judge": Judge("agents/a")})
    talk.client >> GET
    talk.dialled("a.example", 80)
    assert talk.client.answer()[0] == 403
    talk.no_dial()
    assert results(talk) == {}


def test_a_mirror_gets_its_copy_where_the_backend_that_was_chosen_first_has_no_endpoint(converse: Start):
    rule = m.prefix_rule("/", "a", filters=[mirror()], retry={"attempts": 3, "backoff": "0s"})
    rule["backendRefs"].append({"name": "pods", "port": 80})
    objects = [m.backend(name, f"{name}.example", 80) for name in ("a", "b")]
    talk = converse([m.gateway(m.http_listener(8080)), *objects, *pods(), m.http_route("route", rule)])
    for _ in range(3):  # one of them, whatever the first choice is, has the Service first
        talk.client >> GET
        backend, copy = both(talk)
        backend >> OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        talk.client << OK_PASSED
        copy << SENT % b"b.example"


def test_the_addresses_of_a_mirror_are_checked(converse: Start):
    from ipaddress import ip_address

    talk = converse(mirrored())
    talk.names.zone["b.example"] = (ip_address("10.1.2.3"),)
    talk.client >> GET
    talk.dialled("a.example", 80) >> OK
    talk.client << OK_PASSED
    talk.no_dial()
    assert results(talk) == {"resolved_denied": 1}


def test_an_upgrade_is_not_mirrored(converse: Start):
    talk = converse(mirrored())
    talk.client >> GET.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    talk.dialled("a.example", 80) >> OK
    talk.client << OK_PASSED
    talk.no_dial()


# --- bodies --------------------------------------------------------------------------------------------------------
def test_a_body_goes_to_both(converse_on: Start):
    talk = converse_on(mirrored())
    talk.client >> POST % 6 + b"abc"
    a, b = both(talk)
    for peer, host in ((a, b"a.example"), (b, b"b.example")):
        peer << POST_SENT % (host, 6) + b"abc"
    talk.client >> b"def"
    for peer in (a, b):
        peer << b"def"
        peer >> OK
    talk.client << OK_PASSED
    assert results(talk) == {"ok": 1}
    assert talk.idle == 2


def test_a_chunked_body_goes_to_both_with_its_trailers(converse_on: Start):
    talk = converse_on(mirrored())
    talk.client >> b"POST / HTTP/1.1\r\nHost: front.example\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    a, b = both(talk)
    talk.client >> b"0\r\nX-Sum: 1\r\n\r\n"
    for peer, host in ((a, b"a.example"), (b, b"b.example")):
        head = b"POST / HTTP/1.1\r\nHost: " + host + b"\r\n" + VIA + b"Transfer-Encoding: chunked\r\n\r\n"
        peer << head + b"3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"
        peer >> OK
    talk.client << OK_PASSED


class Shout(Filter):
    def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        return data.upper()


class Whole(Shout):
    from egressproxy.filters.base import BodyMode

    body_mode = BodyMode.BUFFER


@pytest.mark.parametrize("shout", [Shout(), Whole()])
def test_a_copy_has_the_body_that_body_filters_have_made(converse: Start, shout: Filter):
    talk = converse(mirrored(extensions=[scripted_filter("shout", "request-body")]), filters={"shout": shout})
    talk.client >> POST % 3 + b"abc"
    for peer in both(talk):
        assert peer.take(rb".*?\r\n\r\n.*ABC")
        peer >> OK
    talk.client << OK_PASSED
    assert results(talk) == {"ok": 1}


def test_a_client_that_waits_for_100_is_not_kept_waiting_by_the_mirror(converse_on: Start):
    talk = converse_on(mirrored())
    talk.client >> (POST % 3).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
    a, b = both(talk)
    assert b"100-continue" in a.take(rb".*?\r\n\r\n")[0]
    b << POST_SENT % (b"b.example", 3)
    a >> b"HTTP/1.1 100 Continue\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 100 .*?\r\n\r\n")
    talk.client >> b"abc"
    for peer in (a, b):
        peer << b"abc"
        peer >> OK
    talk.client << OK_PASSED


def test_a_mirror_that_takes_nothing_is_dropped_and_the_request_is_not_held_up(converse: Start):
    talk = converse(mirrored())
    size = MAX_HELD + 512 * 1024
    talk.client >> POST % size
    a, b = both(talk)
    b.stalls()  # type: ignore[attr-defined]
    talk.client >> bytes(size)
    assert a.total == len(POST_SENT % (b"a.example", size)) + size
    assert results(talk) == {"dropped": 1}
    b.received.clear()
    b.is_closed()
    a >> OK
    a.received.clear()
    talk.client << OK_PASSED
    assert live(talk).held.total == 0


def test_what_a_slow_mirror_has_not_taken_waits_for_it(converse: Start):
    talk = converse(mirrored())
    body = bytes(range(256)) * 2048  # 512 KiB
    talk.client >> POST % len(body)
    a, b = both(talk)
    b.stalls()  # type: ignore[attr-defined]
    talk.client >> body
    a >> OK
    talk.client << OK_PASSED
    assert 0 < live(talk).held.total < len(body)
    while live(talk).held.total:
        b.reads_on()  # type: ignore[attr-defined]
    b << POST_SENT % (b"b.example", len(body)) + body
    b >> OK
    assert results(talk) == {"ok": 1}


def test_a_body_that_comes_before_the_mirror_is_reached_waits(converse: Start):
    talk = converse(mirrored())
    talk.client >> POST % 6 + b"abc"
    a = talk.dialled("a.example", 80)
    talk.client >> b"def"
    a << POST_SENT % (b"a.example", 6) + b"abcdef"
    b = talk.dialled("b.example", 80)
    b << POST_SENT % (b"b.example", 6) + b"abcdef"
    for peer in (a, b):
        peer >> OK
    talk.client << OK_PASSED


def test_a_copy_of_a_request_that_broke_off_breaks_off(converse_on: Start):
    talk = converse_on(mirrored())
    talk.client >> POST % 6 + b"abc"
    _, b = both(talk)
    b << POST_SENT % (b"b.example", 6) + b"abc"
    talk.client.leaves()
    b.is_closed()
    assert results(talk) == {"dropped": 1}


def test_the_limit_of_bodies_of_a_mirror_ends_the_copy_alone(converse: Start):
    limit = m.manifest(
        "egressproxy.io/v1alpha1", "EgressPolicy", "small", "agents",
        spec={"targetRefs": [{**TO_A, "name": "b"}], "limits": {"maxBodyBytes": 4}},
    )  # fmt: skip
    talk = converse(mirrored(objects=(limit,)))
    talk.client >> POST % 6 + b"abcdef"
    a = talk.dialled("a.example", 80)
    a << POST_SENT % (b"a.example", 6) + b"abcdef"
    a >> OK
    talk.client << OK_PASSED
    talk.no_dial()
    talk.client >> b"POST / HTTP/1.1\r\nHost: front.example\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    b = talk.dialled("b.example", 80)
    talk.client >> b"3\r\ndef\r\n0\r\n\r\n"
    b.take(rb".*3\r\nabc\r\n")
    b.is_closed()
    a.take(rb".*def\r\n0\r\n\r\n")
    a >> OK
    talk.client << OK_PASSED
    assert results(talk) == {"body_too_large": 2}


# --- mirrors that fail -----------------------------------------------------------------------------------------------
def test_a_mirror_that_cannot_be_reached_fails_nothing(converse: Start):
    talk = converse(mirrored())
    talk.client >> GET
    talk.dialled("a.example", 80) >> OK
    talk.refused("b.example", 80, UpstreamFault(Reason.CONNECT_REFUSED, "refused"))
    talk.client << OK_PASSED
    assert results(talk) == {Reason.CONNECT_REFUSED.value: 1}
    assert talk.series("failures") == 0


@pytest.mark.parametrize("said", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Le"])
def test_a_mirror_that_says_nothing_of_use_fails_nothing(converse_on: Start, said: bytes):
    talk = converse_on(mirrored())
    talk.client >> GET
    a, b = both(talk)
    if said:
        b >> said
    b.leaves()
    a >> OK
    talk.client << OK_PASSED
    talk.until(lambda: bool(results(talk)))
    assert "ok" not in results(talk)
    assert talk.idle == 1


def test_an_idle_connection_that_died_is_replaced(converse: Start):
    talk = converse(mirrored())
    talk.client >> GET
    a, b = both(talk)
    for peer in (a, b):
        peer.received.clear()
        peer >> OK
    talk.client << OK_PASSED
    talk.client >> GET
    b.resets()
    fresh = talk.dialled("b.example", 80)
    fresh << SENT % b"b.example"
    for peer in (a, fresh):
        peer >> OK
    talk.client << OK_PASSED
    assert results(talk) == {"ok": 2}


@pytest.mark.parametrize(("method", "is_reused"), [(b"POST", True), (b"DELETE", False)])
def test_a_copy_with_a_body_that_means_nothing_is_the_last_on_its_connection(
    converse: Start, method: bytes, is_reused: bool
):
    talk = converse(mirrored())
    talk.client >> POST.replace(b"POST", method).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n") % 2 + b"hi"
    a, b = both(talk)
    b.take(method + rb" / .*?\r\n\r\nhi")
    b >> OK
    a.take(method + rb" / .*?\r\n\r\nhi")
    a >> OK
    talk.client << OK_PASSED
    talk.until(lambda: bool(results(talk)))
    assert b.is_gone is not is_reused
    assert a.is_gone


def test_an_answer_without_end_is_read_up_to_a_bound(converse: Start):
    talk = converse(mirrored())
    talk.client >> GET
    a, b = both(talk)
    a >> OK
    talk.client << OK_PASSED
    b >> b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + bytes(MAX_ANSWER)
    b.received.clear()
    b.is_open()
    b >> b"x"
    b.is_closed()
    assert results(talk) == {"ok": 1}


def test_a_mirror_has_its_time(converse: Start):
    talk = converse(mirrored(traffic={"timeouts": {"backendRequest": "2s"}}))
    talk.client >> GET
    a, b = both(talk)
    a >> OK
    talk.client << OK_PASSED
    talk.after(1.8)
    b.received.clear()
    b.is_open()
    talk.after(0.5)
    b.is_closed()
    assert results(talk) == {"upstream_timeout": 1}


def test_copies_at_once_are_bounded(converse: Start):
    talk = converse(mirrored())
    mirror_of_b = live(talk)
    mirror_of_b.in_progress.limit = 0
    talk.client >> GET
    talk.dialled("a.example", 80) >> OK
    talk.client << OK_PASSED
    talk.no_dial()
    assert results(talk) == {"dropped": 1}


def test_copies_of_all_mirrors_together_are_bounded(converse: Start):
    talk = converse(mirrored())
    network = live(talk).cluster.network
    most, network.mirror_requests.limit = network.mirror_requests.limit, 0
    talk.client >> GET
    talk.dialled("a.example", 80) >> OK
    talk.client << OK_PASSED
    talk.no_dial()
    assert results(talk) == {"dropped": 1}
    network.mirror_requests.limit = most
    talk.client >> GET
    talk.origin.received.clear()
    b = talk.dialled("b.example", 80)
    assert network.mirror_requests.total == 1
    b >> OK
    talk.until(lambda: network.mirror_requests.total == 0)
    assert network.copied_bytes.total == 0


@pytest.mark.parametrize("bound", ["in_progress", "mirror_requests"])
def test_copies_for_one_client_leave_some_for_others(converse: Start, bound: str):
    talk = converse(mirrored())
    mirror_of_b = live(talk)
    getattr(mirror_of_b if bound == "in_progress" else mirror_of_b.cluster.network, bound).share = 1
    talk.client >> GET
    both(talk)
    again = talk.connect()
    again >> GET
    talk.dialled("a.example", 80)
    talk.no_dial()
    assert results(talk) == {"dropped": 1}
    other = talk.connect(address="10.0.0.77")
    other >> GET
    both(talk)
    assert (mirror_of_b.in_progress.total, mirror_of_b.cluster.network.mirror_requests.total) == (2, 2)


def test_octets_that_wait_for_one_client_leave_room_for_those_of_others(converse: Start):
    talk = converse(mirrored())
    live(talk).held.share = 300 * 1024
    size = 900 * 1024
    for address, expected in (("10.0.0.9", {"dropped": 1}), ("10.0.0.77", {"dropped": 1})):
        client = talk.connect(address=address)
        client >> POST % size
        _, b = both(talk)
        b.stalls()  # type: ignore[attr-defined]
        client >> bytes(size if address == "10.0.0.9" else size // 4)
        assert results(talk) == expected


def test_a_mirror_that_does_not_exist_is_left_out(converse: Start):
    talk = converse(mirrored(mirror("gone")))
    talk.client >> GET
    talk.dialled("a.example", 80) >> OK
    talk.client << OK_PASSED
    talk.no_dial()


def test_a_draining_gateway_does_not_wait_for_mirrors(converse: Start):
    talk = converse(mirrored())
    talk.client >> GET
    a, b = both(talk)
    talk.connection_manager.is_draining = talk.connection_manager.ends_connections = True
    a >> OK
    talk.client.take(rb"HTTP/1.1 200 OK.*Connection: close\r\n.*hi")
    talk.client.is_closed()
    talk.client.leaves()
    assert not any(bound.open_connections for bound in talk.ports)
    b.received.clear()
    b.is_open()
    b >> OK


# --- shares ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("share", "expected"),
    [
        ({"percent": 20}, 20),
        ({"percent": 35}, 35),
        ({"percent": 100}, 100),
        ({"fraction": {"numerator": 1, "denominator": 4}}, 25),
        ({"fraction": {"numerator": 50}}, 50),
    ],
)
def test_a_share_of_the_requests_is_mirrored_and_spread_evenly(converse: Start, share: Any, expected: int):
    talk = converse(mirrored(mirror(**share)))
    found = [live(talk).count_request() for _ in range(1000)]
    assert {sum(found[at : at + 100]) for at in range(0, 1000, 100)} == {expected}


def test_a_share_of_nothing_is_no_mirror(converse: Start):
    talk = converse(mirrored(mirror(percent=0)))
    talk.client >> GET
    talk.dialled("a.example", 80) >> OK
    talk.client << OK_PASSED
    talk.no_dial()


def test_one_mirror_of_a_rule_counts_the_requests_of_all_its_backends(converse: Start):
    rule = m.prefix_rule("/", "a", filters=[mirror(percent=50)])
    rule["backendRefs"] = [TO_A, {**TO_A, "name": "c"}]
    talk = converse(reverse(rule, objects=(m.backend("b", "b.example", 80), m.backend("c", "c.example", 80))))
    (listener,) = next(iter(talk.snapshot.ports.values())).listeners
    found = listener.http.match("front.example", b"GET", b"/", Fields())
    assert found is not None
    first, second = found[0].backends
    assert first.mirrors == second.mirrors


# --- a deny means the place ------------------------------------------------------------------------------------------
def test_a_backend_in_report_mode_gets_no_copy_where_its_gateway_denies_it(converse: Start):
    ref = {"group": m.OURS, "kind": "Backend", "name": "b"}
    reporting = m.policy(name="reporting", targetRefs=[ref], mode="Report")
    talk = converse(mirrored(objects=(reporting,), destinations={"deny": [{"hostnames": ["b.example"]}]}))
    talk.client >> GET
    a = talk.dialled("a.example", 80)
    a << SENT % b"a.example"
    a >> OK
    talk.client << OK_PASSED
    talk.no_dial()
    assert results(talk) == {"destination_denied": 1}


@pytest.mark.parametrize("mode", ["Enforce", "Report"])
def test_a_copy_does_not_go_to_a_place_that_is_denied(converse: Start, mode: str):
    talk = converse(mirrored(destinations={"deny": [{"hostnames": ["b.example"]}]}, mode=mode))
    talk.client >> GET
    a = talk.dialled("a.example", 80)
    a << SENT % b"a.example"
    a >> OK
    talk.client << OK_PASSED
    if mode == "Report":
        talk.dialled("b.example", 80)
        talk.origin << SENT % b"b.example"
        talk.origin >> OK
        assert results(talk) == {"ok": 1}
    else:
        talk.no_dial()
        assert results(talk) == {"destination_denied": 1}


@pytest.mark.parametrize("is_allowed", [False, True])
def test_a_copy_for_wherever_the_host_says_opens_no_more_than_policy_allows(converse: Start, is_allowed: bool):
    """The request goes to a fixed place, so its own Host is nobody's concern; that of its copy is."""
    allow = {"allow": [{"hostnames": ["front.example"]}]} if is_allowed else {"allow": []}
    talk = converse(mirrored(b=m.dynamic("b"), destinations=allow))
    talk.client >> GET
    a = talk.dialled("a.example", 80)
    a << SENT % b"a.example"
    a >> OK
    talk.client << OK_PASSED
    if is_allowed:
        talk.dialled("front.example", 80)
        talk.origin << SENT % b"front.example"
        talk.origin >> OK
        assert results(talk) == {"ok": 1}
    else:
        talk.no_dial()
        assert results(talk) == {"destination_not_allowed": 1}


def test_a_mirror_that_switches_to_a_protocol_nobody_asked_for_counts_as_a_bad_response(converse_on: Start):
    talk = converse_on(mirrored())
    talk.client >> GET
    origin, copy = both(talk)
    copy.take(rb"GET .*?\r\n\r\n")
    copy >> b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
    origin.take(rb"GET .*?\r\n\r\n")
    origin >> OK
    talk.client << OK_PASSED
    copy.is_closed()
    assert results(talk) == {Reason.BAD_RESPONSE.value: 1}
