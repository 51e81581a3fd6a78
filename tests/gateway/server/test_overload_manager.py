"""What a process does as its memory runs out, and how it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from h2.errors import ErrorCodes

from egressproxy.gateway.overload.memory_pressure import CALM_S, OverloadState
from egressproxy.gateway.overload.process_limits import ProcessLimits
from egressproxy.gateway.server.overload_manager import (
    CLOSED_AT_ONCE,
    COLLECT_S,
    GIVE_BACK_TIMES,
    GROWTH_S,
    OverloadManager,
)
from egressproxy.ir.gateway import ConfigIR
from tests.gateway.backends.test_mirror import mirror, results
from tests.gateway.conftest import Start
from tests.gateway.h2 import speak_http2
from tests.gateway.kit import (
    GET,
    GET_SENT,
    OK,
    OK_PASSED,
    TlsClient,
    certificate,
    connect,
    exchange,
    forward,
    https,
    reverse,
)
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.manifests import Manifest
from tests.support.pki import Pki

NORMAL, NO_KEEPALIVE, SHEDDING, REFUSING = OverloadState
MIB = 1 << 20


class Pressed:
    """A conversation, and a process whose memory the test says, in hundredths of its limit."""

    def __init__(self, talk: Conversation, requests: int = 0, memory: int = 100) -> None:
        self.talk = talk
        talk.counts_octets = False
        self.used = 30
        self.given_back = self.collected = 0
        limits = ProcessLimits(requests=requests, memory_bytes=memory * MIB)
        self.manager = OverloadManager(
            limits,
            talk.connection_manager,
            lambda: talk.ports,
            lambda: talk.snapshot.clusters.values(),
            talk.network.mirror_requests,
            lambda: self.used * MIB,
            self._give_back,
        )
        self.manager.start()

    def _give_back(self, *, collects: bool) -> None:
        self.given_back += 1
        self.collected += collects

    def uses(self, percent: int) -> OverloadState:
        self.used = percent
        self.talk.after(0.2)
        return self.manager.state


@pytest.fixture
def press(converse: Start) -> Callable[..., Pressed]:
    def start(written: list[Manifest] | ConfigIR | None = None, **more: Any) -> Pressed:
        return Pressed(converse(forward() if written is None else written), **more)

    return start


def prioritized(priority: str, kind: str = "Gateway", name: str = "gw") -> Manifest:
    policy = m.policy(name=f"{kind.lower()}-{priority.lower()}", traffic={"priority": priority})
    group = "egressproxy.io" if kind == "Backend" else "gateway.networking.k8s.io"
    policy["spec"]["targetRefs"] = [{"group": group, "kind": kind, "name": name}]
    return policy


def shed(talk: Conversation) -> str:
    """What a GET is told that is not admitted."""
    talk.client >> GET
    status, _, fields, error = talk.client.answer()
    assert (status, error["reason"]) == (503, "overloaded")
    assert fields["Retry-After"] in ("1", "2", "3")
    talk.no_dial()
    return error["message"]


# --- growth ------------------------------------------------------------------------------------------------------
def test_what_has_grown_is_collected_by_its_size_also_without_a_limit(press: Callable[..., Pressed]):
    pressed = press(memory=0)
    grown = [(30, 0), (90, 0), (95, 1), (150, 1), (100, 1), (165, 2)]
    for used, collected in grown:
        pressed.used = used
        pressed.talk.after(max(GROWTH_S, COLLECT_S) + 0.2)
        assert (used, pressed.collected) == (used, collected)


# --- keep-alive --------------------------------------------------------------------------------------------------
def test_responses_end_their_connections_while_memory_is_short(press: Callable[..., Pressed]):
    pressed = press()
    talk = pressed.talk
    exchange(talk)
    assert pressed.uses(86) is NO_KEEPALIVE
    talk.client = talk.connect()
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    assert b"\r\nConnection: close\r\n" in talk.client.take(rb"HTTP/1.1 200 OK.*hi")[0]
    talk.client.is_closed()
    assert pressed.uses(40) is NORMAL
    talk.client = talk.connect()
    exchange(talk, is_new=False)
    talk.client.is_open()


def test_idle_connections_from_before_are_closed_oldest_first_and_not_all_at_once(press: Callable[..., Pressed]):
    pressed = press()
    talk = pressed.talk
    peers = [talk.client, *(talk.connect() for _ in range(CLOSED_AT_ONCE + 10))]
    pressed.uses(86)
    gone = [peer.has_eof for peer in peers]
    assert gone == [True] * CLOSED_AT_ONCE + [False] * 11
    fresh = talk.connect()
    talk.after(0.3)
    assert all(peer.has_eof for peer in peers)
    fresh.is_open()


def test_idle_connections_to_backends_are_closed(press: Callable[..., Pressed]):
    pressed = press()
    talk = pressed.talk
    exchange(talk)
    talk.origin.is_open()
    pressed.uses(86)
    talk.origin.is_closed()


def test_a_client_of_http2_is_told_to_go_and_what_runs_is_finished(press: Callable[..., Pressed]):
    pressed = press()
    talk = pressed.talk
    client = speak_http2(talk)
    first, second = client.ask(), client.ask()
    for _ in range(2):
        talk.dialled("a.example", 80)
        talk.origin << GET_SENT
    pressed.uses(86)
    assert not client.goaways
    talk.origin >> OK
    assert client.answer(second).is_whole
    assert client.goaways[0][:2] == (2**31 - 1, ErrorCodes.NO_ERROR)
    talk.origins[0] >> OK
    assert client.answer(first).is_whole
    talk.client.is_closed()


def test_an_idle_client_of_http2_gets_goaway(press: Callable[..., Pressed]):
    pressed = press()
    client = speak_http2(pressed.talk)
    pressed.uses(86)
    client.settle()
    assert [goaway[1] for goaway in client.goaways] == [ErrorCodes.NO_ERROR]
    pressed.talk.client.is_closed()


def test_memory_is_given_back_while_it_is_short_and_a_little_longer(press: Callable[..., Pressed]):
    pressed = press()
    pressed.talk.after(5)
    assert pressed.given_back == 0
    pressed.uses(86)
    assert pressed.given_back == 1
    pressed.talk.after(1)
    assert pressed.given_back == 2
    assert pressed.collected == 1  # which holds up everybody
    pressed.uses(40)
    pressed.talk.after(COLLECT_S)
    assert pressed.given_back == 2 + GIVE_BACK_TIMES
    assert pressed.collected == 2


# --- shedding ----------------------------------------------------------------------------------------------------
def test_nothing_is_admitted_nor_accepted_while_there_is_no_memory(press: Callable[..., Pressed]):
    pressed = press()
    talk = pressed.talk
    talk.client >> b""
    talk.after(0.2)
    assert pressed.uses(96) is REFUSING
    talk.client = talk.connect()
    assert "memory" in shed(talk)
    talk.client.is_closed()
    assert talk.metrics.shed == {("memory", "normal"): 1}
    assert pressed.uses(40) is NORMAL
    talk.client = talk.connect()
    exchange(talk)
    assert talk.connection_manager.accounting.gate is None


def test_what_is_in_progress_ends_where_memory_grows_all_the_same_with_the_clients_that_have_most(
    press: Callable[..., Pressed],
):
    pressed = press()
    talk = pressed.talk
    few, many = [talk.client, talk.connect()], [talk.connect(address="10.0.1.7") for _ in range(10)]
    for each in (*few, *many):
        each >> GET

    def gone() -> tuple[int, int]:
        return sum(each.is_gone for each in few), sum(each.is_gone for each in many)

    assert pressed.uses(99) is REFUSING
    assert gone() == (0, 0)
    pressed.used = 101
    talk.after(0.1)
    assert gone() == (0, 3)
    talk.after(0.1)
    assert gone() == (0, 5)
    assert pressed.uses(96) is REFUSING
    assert gone() == (0, 5)
    pressed.used = 101
    talk.after(2)
    assert gone() == (2, 10)


def test_many_clients_of_one_network_end_before_one_that_has_more_than_each(press: Callable[..., Pressed]):
    pressed = press()
    talk = pressed.talk
    several, crowd = (
        [talk.client, *(talk.connect() for _ in range(2))],
        [talk.connect(address=f"10.0.1.{number}") for number in range(10)],
    )
    for each in (*several, *crowd):
        each >> GET
    assert pressed.uses(99) is REFUSING
    pressed.used = 101
    talk.after(0.1)
    assert sum(each.is_gone for each in crowd) == 3
    assert not any(each.is_gone for each in several)


def test_low_priority_is_shed_before_the_rest(press: Callable[..., Pressed]):
    pressed = press(forward(traffic={"priority": "Low"}))
    talk = pressed.talk
    assert pressed.uses(93) is SHEDDING
    talk.client = talk.connect()
    assert "low priority" in shed(talk)


@pytest.mark.parametrize(
    ("policies", "is_low"),
    [
        ([prioritized("Low", "Backend", "a")], True),
        ([prioritized("Low"), prioritized("High", "Backend", "a")], False),
        ([prioritized("High", "Backend", "a"), prioritized("Low", "HTTPRoute", "route")], True),
    ],
)
def test_the_priority_is_that_of_the_most_specific_policy(
    press: Callable[..., Pressed], policies: list[Manifest], is_low: bool
):
    pressed = press(reverse(objects=tuple(policies)))
    talk = pressed.talk
    pressed.uses(93)
    talk.client = talk.connect()
    talk.client >> b"GET / HTTP/1.1\r\nHost: x.example\r\n\r\n"
    if is_low:
        assert talk.client.answer()[0] == 503
    else:
        talk.dialled("a.example", 80)


def test_mirrors_get_no_copies(press: Callable[..., Pressed]):
    mirrored = m.prefix_rule("/", "a", filters=[mirror("b")])
    pressed = press(reverse(mirrored, objects=(m.backend("b", "b.example", 80),)))
    talk = pressed.talk
    assert pressed.uses(93) is SHEDDING
    talk.client = talk.connect()
    talk.client >> b"GET / HTTP/1.1\r\nHost: x.example\r\n\r\n"
    talk.dialled("a.example", 80)
    talk.no_dial()
    talk.origin.take(rb"GET / .*?\r\n\r\n")
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 200 OK.*hi")
    assert results(talk) == {"dropped": 1}
    pressed.uses(40)
    talk.client = talk.connect()
    talk.client >> b"GET / HTTP/1.1\r\nHost: x.example\r\n\r\n"
    talk.dialled("b.example", 80)


def test_requests_from_before_count_for_their_clients(press: Callable[..., Pressed]):
    """The one with many is shed; another one is served, though memory is short."""
    pressed = press()
    talk = pressed.talk
    many = [talk.connect(address="127.0.0.66") for _ in range(40)]
    for peer in many:
        peer >> GET
        talk.dialled("a.example", 80)
    assert pressed.uses(93) is SHEDDING
    assert pressed.manager.gate.active == 40
    for peer, origin in zip(many[:8], talk.origins[:8], strict=True):
        origin << GET_SENT
        origin >> OK
        peer.take(rb"HTTP/1.1 200 OK.*hi")
    talk.client = talk.connect(address="127.0.0.66")
    assert "share" in shed(talk)
    for _ in range(3):
        talk.connect(address="127.0.9.7") >> GET
    assert pressed.manager.gate.active == 35


def test_streams_and_tunnels_from_before_count_too(press: Callable[..., Pressed]):
    pressed = press(forward(allow=("a.example",)))
    talk = pressed.talk
    tunnel = talk.connect()
    tunnel >> connect("a.example:443")
    talk.dialled("a.example", 443)
    client = speak_http2(talk)
    for _ in range(3):
        client.ask()
        talk.dialled("a.example", 80)
    pressed.uses(86)
    assert pressed.manager.gate.active == 4
    tunnel.leaves()
    talk.until(lambda: pressed.manager.gate.active == 3)
    talk.client.leaves()
    talk.until(lambda: pressed.manager.gate.active == 0)
    assert pressed.manager.gate.tenants == {}


def test_exchanges_inside_tls_count_too(press: Callable[..., Pressed]):
    pki = Pki()
    objects = [
        certificate(pki, "a.example"),
        m.backend("a", "a.example", 80),
        m.http_route("r", m.prefix_rule("/", "a")),
    ]
    pressed = press([https(""), m.policy(), *objects])
    talk = pressed.talk
    client = TlsClient(talk.client, pki, "a.example").shakes_hands()
    client >> b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
    talk.dialled("a.example", 80)
    pressed.uses(86)
    assert pressed.manager.gate.active == 1


def test_a_gateway_is_not_shut_by_memory_that_stays(press: Callable[..., Pressed]):
    pressed = press()
    talk = pressed.talk
    talk.client >> GET
    talk.dialled("a.example", 80)
    assert pressed.uses(99) is REFUSING
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 200 OK.*hi")
    talk.after(CALM_S + 0.3)
    assert pressed.manager.state is NORMAL
    talk.client = talk.connect()
    exchange(talk)


def test_connections_that_ask_for_nothing_are_load_too(press: Callable[..., Pressed]):
    """What stays resident is theirs: it is not what the process keeps."""
    pressed = press()
    talk = pressed.talk
    assert pressed.uses(96) is REFUSING
    silent = [talk.connect(address="127.0.0.66") for _ in range(20)]
    talk.after(CALM_S + 3)
    assert pressed.manager.state is REFUSING
    for peer in silent:
        peer.leaves()
    talk.after(CALM_S + 0.3)
    assert pressed.manager.state is NORMAL


# --- a limit of requests -------------------------------------------------------------------------------------------
def test_a_limit_of_requests_holds_without_any_pressure(press: Callable[..., Pressed]):
    pressed = press(requests=1, memory=0)
    talk = pressed.talk
    talk.client >> GET
    talk.dialled("a.example", 80)
    first, talk.client = talk.client, talk.connect()
    talk.client >> GET
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (503, "overloaded")
    talk.client.is_open()  # keep-alive is on
    talk.origin << GET_SENT
    talk.origin >> OK
    first << OK_PASSED
    talk.client >> GET
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize("port", [80, 443])
def test_tunnels_count_as_requests(press: Callable[..., Pressed], port: int):
    pressed = press(requests=1, memory=0)
    talk = pressed.talk
    talk.client >> connect("a.example:443")
    talk.dialled("a.example", 443)
    talk.client = talk.connect()
    talk.client >> connect(f"a.example:{port}")
    assert talk.client.answer()[0] == 503


def test_a_client_of_grpc_is_told_unavailable(press: Callable[..., Pressed]):
    pressed = press()
    client = speak_http2(pressed.talk)
    pressed.talk.client >> b""
    pressed.manager.gate.set_limit(0, is_closed=True)
    pressed.talk.connection_manager.accounting.gate = pressed.manager.gate
    stream = client.ask(b"POST", b"/s/M", b"a.example", (b"content-type", b"application/grpc"))
    answer = client.answer(stream)
    assert answer[b"grpc-status"] == b"14"
    assert answer[b"grpc-message"].startswith(b"overloaded: ")


# --- what is told --------------------------------------------------------------------------------------------------
def test_each_change_is_told_in_the_log_and_worse_and_normal_states_in_events(
    press: Callable[..., Pressed], caplog: pytest.LogCaptureFixture
):
    pressed = press()
    with caplog.at_level("INFO"):
        for percent in (86, 96, 40):
            pressed.uses(percent)
    said = [record.message for record in caplog.records if "overload state" in record.message]
    assert [line.partition(":")[0] for line in said] == [
        "overload state no_keepalive after normal",
        "overload state refusing after no_keepalive",
        "overload state normal after refusing",
    ]
    assert "96 MiB of 100 MiB are resident" in said[1]
    notices = pressed.talk.metrics.notices.take()
    assert [(str(each.regarding), each.reason, each.severity) for each in notices] == [
        ("Gateway agents/gw", "MemoryPressure", "Warning"),
        ("Gateway agents/gw", "MemoryPressure", "Warning"),
        ("Gateway agents/gw", "MemoryPressureEnded", "Normal"),
    ]


def test_a_scrape_shows_the_worst_state_since_the_last(press: Callable[..., Pressed]):
    pressed = press()

    def shown() -> float:
        return pressed.talk.metrics.gather().families["egress_overload_state"].values[()]

    assert shown() == 0
    pressed.uses(96)
    pressed.uses(86)
    assert [shown(), shown()] == [3, 1]
    pressed.uses(40)
    assert [shown(), shown()] == [1, 0]


def test_a_limit_that_the_process_nearly_fills_by_itself_is_warned_of(
    press: Callable[..., Pressed], caplog: pytest.LogCaptureFixture
):
    pressed = press(memory=35)
    pressed.uses(30)
    assert "raise --max-memory" in caplog.text
