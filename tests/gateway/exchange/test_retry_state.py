"""Attempts, fail-over and hedging as lists of outcomes and actions: no transport, no loop, no clock."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.errors import GatewayError, GatewayFault, LimitExceeded, Reason, RetrySafety, UpstreamFault
from egressproxy.filters.base import NextAttempt
from egressproxy.filters.catalog import Catalog
from egressproxy.gateway.backends.failover import MAX_ATTEMPTS
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.backends.session_persistence import BoundSession, Session, Sessions
from egressproxy.gateway.backends.upstream_hosts import UpstreamHost
from egressproxy.gateway.builders.snapshot_builder import build
from egressproxy.gateway.exchange import pipeline as p
from egressproxy.gateway.exchange import retry_state as r
from egressproxy.gateway.exchange.hedge_state import Hedge, HedgeState
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.gateway.exchange.retry_state import RetryState
from egressproxy.gateway.product_types import ADAPTER, RequestAdapter
from egressproxy.gateway.products import PRODUCTS
from egressproxy.gateway.snapshot import Port
from egressproxy.ir.gateway import ConfigIR
from egressproxy.model.attempt_trail import AttemptTrail
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import ResponseHead
from egressproxy.telemetry.metrics import Metrics
from tests.gateway.backends.test_failover import calls, config
from tests.gateway.backends.test_retries import SERVICE, retrying, through_parent, to_pods
from tests.gateway.exchange.test_hedging import FIRST, SECOND, THIRD, hedging
from tests.gateway.exchange.test_pipeline import MADE, head_of, network, port_of
from tests.gateway.kit import forward, reverse
from tests.support import manifests as m
from tests.support.conversation import compiled_spec
from tests.support.manifests import Manifest

GET = b"GET / HTTP/1.1\r\nHost: x"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5"
AGAIN = [r.WAIT, r.ATTEMPT]
Outcome = int | ResponseHead | LocalResponse | GatewayError


def fault(
    reason: Reason = Reason.UPSTREAM_RESET, retry: RetrySafety = RetrySafety.IF_IDEMPOTENT, status: int = 502
) -> UpstreamFault:
    return UpstreamFault(reason, "it failed", retry=retry, status=status)


def refused() -> UpstreamFault:
    return fault(Reason.CONNECT_REFUSED, RetrySafety.SAFE, 503)


def head(status: int, *fields: tuple[bytes, bytes]) -> ResponseHead:
    made = ResponseHead(status, b"", Fields.of(fields))
    made.body = 0
    return made


class Played:
    """A request whose attempts have these outcomes, one after the other; the last one stays."""

    def __init__(self, port: Port | Iterable[Manifest], *outcomes: Outcome, body: bytes | None = None) -> None:
        self.port = port if isinstance(port, Port) else port_of(port)
        self.outcomes = list(outcomes)
        self.body = ReplayableBody.whole(body) if body is not None else None
        self.pipeline = Pipeline()
        self.exchange = Exchange("192.0.2.1:4000", self.port.first.gateway, self.port.first.name, 0.0)
        self.asked: list[str] = []  # hosts
        self.backends: list[str] = []
        self.sent: list[bool] = []  # whether all of the body was there, for each attempt
        self.waits: list[float] = []
        self.begins = 200  # the status that the beginning of an answer stands for
        self.next_backend = -1  # the number of the backend of the rule that PREPARE chooses
        self.own_answer: LocalResponse | None = None
        self.session: type[Session] | None = None  # the client shows one of this kind, with the last backend
        self.error: GatewayError | None = None
        self.now = 1000.0
        self.ends_at = 1e9
        self.state: RetryState | None = None

    def begin(self, text: bytes = GET) -> Iterator[str]:
        """The actions, to be taken one by one."""
        self.exchange.request = head_of(self.port, text)
        self.exchange.method = self.exchange.request.method
        return self.pipeline.request(self.exchange, self.exchange.request, self.port, "", None)

    def play(self, text: bytes = GET) -> Iterator[str]:
        """As `begin`, with results."""
        for action in self.begin(text):
            self._leave_result(action)
            yield action
            if action == r.FAIL:
                assert self.state is not None
                self.error = self.state.error
                break

    def run(self, text: bytes = GET) -> list[str]:
        """All actions of the attempts, but for the first."""
        taken = []
        try:
            for action in self.play(text):
                taken.append(action)
        except GatewayError as error:
            self.error = error
        return taken[2:] if taken[:2] == [p.ENTER_GATE, r.BEGIN] else taken

    def _leave_result(self, action: str) -> None:
        state = self.state = self.pipeline.retry_state
        route = self.pipeline.route
        if action == p.ENTER_GATE and self.session is not None:
            assert route is not None
            assert route.retries is not None
            route.retries.sessions = OneSession(self.session(0, 0, b"", route.backends[-1], None))
        if action == p.CALL:
            self.pipeline.choose(self.exchange)
        if state is None:
            return
        state.now = self.now
        if action == r.BEGIN:
            state.body, state.ends_at = self.body, self.ends_at
        elif action == r.ATTEMPT:
            assert state.target is not None
            self.asked.append(state.target.host)
            self.backends.append(state.backend.name.partition("/")[2])
            self.sent.append(state.body is None or state.body.is_kept)
            self._outcome(state, self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0])
        elif action == r.PREPARE:
            assert route is not None
            state.answer = self.own_answer
            if self.next_backend >= 0:
                state.backend = route.backends[self.next_backend]
        elif action == r.READ_BEGINNING:
            state.status = self.begins
        elif action == r.WAIT:
            self.waits.append(state.wait_s)
        elif action == r.DELIVER:
            self.pipeline.response_chain = state.backend.chain
            self.pipeline.answer = state.answer

    def _outcome(self, state: RetryState, outcome: Outcome) -> None:
        if isinstance(outcome, GatewayError):
            state.error = outcome
        elif isinstance(outcome, LocalResponse):
            state.answer = outcome
        else:
            self.exchange.response = head(outcome) if isinstance(outcome, int) else outcome

    @property
    def trail(self) -> list[tuple[str, str]]:
        trail = AttemptTrail.of(self.exchange)
        return [(each["backend"].partition("/")[2], each["outcome"]) for each in trail.values] if trail else []


# --- retries -----------------------------------------------------------------------------------------------------
def test_a_good_answer_is_that_of_the_only_attempt():
    played = Played(retrying(), 200)
    assert played.run() == [r.ATTEMPT, r.DELIVER, p.SEND]
    assert (played.exchange.detail, played.trail) == ("", [])


def test_a_rule_whose_caller_retries_for_itself_is_called_once():
    played = Played(retrying(), 200)
    played.pipeline.retries_elsewhere = True
    actions = played.begin()
    assert [next(actions), next(actions)] == [p.ENTER_GATE, p.CALL]


def test_the_response_of_a_backend_filter_is_final():
    assert Played(retrying(2, (403,)), LocalResponse(403, (), b"")).run() == [r.ATTEMPT, r.DELIVER, p.RESPOND]


@pytest.mark.parametrize("text", [GET, POST])
def test_what_was_not_sent_goes_again_whatever_the_method(text: bytes):
    played = Played(retrying(), refused(), refused(), 200, body=b"abcde")
    assert played.run(text) == [r.ATTEMPT, *AGAIN, *AGAIN, r.DELIVER, p.SEND]
    assert played.exchange.detail == "retried after upstream_refused"


@pytest.mark.parametrize(("attempts", "made"), [(0, 1), (None, 2), (1, 2), (3, 4)])
def test_attempts_are_those_after_the_first(attempts: int | None, made: int):
    played = Played(retrying(attempts), refused())
    assert played.run() == [r.ATTEMPT, *AGAIN * (made - 1), r.FAIL]
    assert len(played.trail) == made


@pytest.mark.parametrize(("attempts", "status"), [(0, 502), (1, 503), (3, 503)])
def test_a_backend_that_breaks_every_connection_is_unavailable_once_it_was_tried_again(attempts: int, status: int):
    played = Played(retrying(attempts), *(fault() for _ in range(attempts + 1)))
    assert played.run()[-1] == r.FAIL
    assert played.error is not None
    assert (played.error.status, len(played.asked)) == (status, attempts + 1)


@pytest.mark.parametrize(
    ("text", "error", "goes_again"),
    [
        (GET, fault(), True),
        (POST, fault(), False),
        (GET, fault(Reason.RESPONSE_TIMEOUT), True),
        (POST, fault(Reason.RESPONSE_TIMEOUT), False),
        (POST, fault(Reason.RESPONSE_TIMEOUT, RetrySafety.SAFE), True),
        (GET, fault(Reason.UPSTREAM_INCOMPLETE, RetrySafety.NEVER), True),
        (GET, fault(Reason.BAD_RESPONSE, RetrySafety.NEVER), False),
        (GET, fault(Reason.REQUEST_TIMEOUT, RetrySafety.NEVER), False),
        (GET, fault(Reason.DNS_NXDOMAIN, RetrySafety.SAFE), False),
        (GET, LimitExceeded(Reason.CIRCUIT_OPEN, "full", status=503), False),
        (POST, NextAttempt("not good"), True),
    ],
)
def test_what_goes_again_after_a_failure(text: bytes, error: GatewayError, goes_again: bool):
    assert (len(Played(retrying(), error, 200, body=b"abcde").run(text)) == 5) is goes_again


@pytest.mark.parametrize("text", [GET, POST])
def test_a_listed_status_goes_again_and_its_answer_is_discarded(text: bytes):
    played = Played(retrying(2, (500, 503)), 500, 503, 200, body=b"abcde")
    assert played.run(text) == [r.ATTEMPT, r.DISCARD, *AGAIN, r.DISCARD, *AGAIN, r.DELIVER, p.SEND]
    assert played.exchange.detail == "retried after status 500, status 503"
    assert [outcome for _, outcome in played.trail] == ["500", "503", "200"]


def test_the_last_answer_is_the_clients():
    assert Played(retrying(1, (500,)), 500).run() == [r.ATTEMPT, r.DISCARD, *AGAIN, r.DELIVER, p.SEND]
    assert Played(retrying(3, (500,)), 503).run() == [r.ATTEMPT, r.DELIVER, p.SEND]


def test_a_body_that_is_not_kept_is_not_sent_again():
    for outcome in (503, refused(), fault()):
        played = Played(retrying(3, (503,)), outcome, body=b"abcde")
        assert played.body is not None
        played.body.forget()
        assert played.run(POST).count(r.ATTEMPT) == 1


def test_the_replacement_of_a_stale_connection_is_an_attempt_that_does_not_wait():
    played = Played(retrying(1, backoff="30s"), fault(retry=RetrySafety.IF_REUSED))
    assert played.run() == [r.ATTEMPT, *AGAIN, r.FAIL]
    assert played.waits == [0.0]


def test_the_pause_is_at_least_the_backoff():
    played = Played(retrying(2, (503,), backoff="2s"), 503)
    played.run()
    assert all(2 <= each <= 8 for each in played.waits)
    assert len(played.waits) == 2


@pytest.mark.parametrize(
    ("outcome", "made"), [(503, 1), (fault(), 1), (fault(retry=RetrySafety.IF_REUSED), 4), (refused(), 4)]
)
def test_toward_a_parent_only_what_it_has_not_seen_goes_again(outcome: Outcome, made: int):
    assert Played(through_parent(3), outcome).run().count(r.ATTEMPT) == made


def test_every_attempt_starts_from_the_clients_request():
    played = Played(retrying(1, (503,)), 503, 200)
    seen = []
    for action in played.play():
        if action == r.ATTEMPT:
            seen.append((played.exchange.request.fields.block, played.exchange.upstream_host))
            played.exchange.request.fields.add(b"authorization", b"secret")
            played.exchange.upstream_host = b"other"
    assert seen[0] == seen[1]


@pytest.mark.parametrize("traffic", [{"attempts": 5, "backoff": "0s"}, {"attempts": 0}])
def test_retries_beyond_the_budget_are_not_made(traffic: dict[str, Any]):
    budget = {"percent": 0, "interval": "10s", "minPerSecond": 0}
    rule = () if traffic["attempts"] else (m.prefix_rule("/", "a", retry={"attempts": 5, "backoff": "0s"}),)
    played = Played(reverse(*rule, traffic={"retries": {**traffic, "budget": budget}}), refused())
    assert played.run() == [r.ATTEMPT, r.FAIL]


def test_a_retry_counts_in_the_circuit_breaker_until_the_end():
    objects = to_pods("10.0.0.1", "10.0.0.2", retry={"attempts": 2, "backoff": "0s"})
    port = port_of([*objects, m.policy(traffic={"circuitBreaker": {"maxParallelRetries": 1}})])
    first = Played(port, refused(), 200)
    assert first.run() == [r.ATTEMPT, *AGAIN, r.DELIVER, p.SEND]
    assert Played(port, refused(), 200).run() == [r.ATTEMPT, r.FAIL]
    assert first.state is not None
    first.state.end()
    assert Played(port, refused(), 200).run() == [r.ATTEMPT, *AGAIN, r.DELIVER, p.SEND]


def test_a_retry_goes_to_an_endpoint_that_was_not_tried():
    objects = to_pods("10.0.0.1", "10.0.0.2", "10.0.0.3", retry={"attempts": 2, "backoff": "0s"})
    played = Played(objects, refused())
    played.run()
    assert len(set(played.asked)) == 3


def test_when_all_were_tried_one_that_was_not_down_is_tried_again():
    objects = to_pods("10.0.0.1", "10.0.0.2", retry={"attempts": 5, "codes": [503], "backoff": "0s"})
    played = Played(objects, refused(), 503, 503, 200)
    played.run()
    down, *others = played.asked
    assert (len(others), down in others) == (3, False)


def test_a_backend_without_endpoints_is_left_for_another_one():
    rule = {
        "backendRefs": [
            {"name": "pods", "port": 80, "weight": 1000},
            {"group": m.OURS, "kind": "Backend", "name": "a", "weight": 1000},
        ],
        "retry": {"attempts": 60, "backoff": "0s"},
    }
    port = port_of([m.gateway(m.http_listener(8080)), m.http_route("route", rule), SERVICE, *reverse()[2:3]])
    plays = [Played(port, 200) for _ in range(10)]
    assert [played.run()[-1] for played in plays] == [p.SEND] * 10
    assert any(played.trail[:1] == [("pods", "no_endpoint")] for played in plays)


def test_no_attempt_goes_to_a_backend_whose_place_is_denied():
    refs = [{"group": m.OURS, "kind": "Backend", "name": name} for name in ("a", "b")]
    rule = m.prefix_rule("/", "a", retry={"attempts": 3, "backoff": "0s"}, backendRefs=refs)
    deny = {"destinations": {"deny": [{"hostnames": ["b.example"]}]}}
    port = port_of(reverse(rule, objects=(m.backend("b", "b.example", 80),), **deny))
    for _ in range(6):
        played = Played(port, refused())
        assert played.run()[-1] in (r.FAIL, p.ENTER_GATE)
        assert played.error is not None
        assert (played.error.reason, set(played.asked) <= {"a.example"}) == (Reason.DESTINATION_DENIED, True)


# --- sessions ----------------------------------------------------------------------------------------------------
class OneSession(Sessions):
    shown_as = "a field"

    def __init__(self, session: Session) -> None:
        self._session = session

    def find(self, exchange: Exchange) -> Session | None:
        return self._session

    def keep(self, exchange: Exchange, session: Session | None, backend: RouteBackend, target: UpstreamHost) -> None:
        raise AssertionError("the driver delivers the answer")


class OwnSession(BoundSession):
    def lost(self) -> GatewayError:
        return GatewayFault(Reason.NO_ROUTE, "its server is gone", status=404)


def with_session(kind: type[Session], attempts: int, *outcomes: Outcome) -> Played:
    refs = [{"group": m.OURS, "kind": "Backend", "name": name} for name in ("a", "b")]
    rule = m.prefix_rule("/", "a", retry={"attempts": attempts, "backoff": "0s"}, backendRefs=refs)
    played = Played(reverse(rule, objects=(m.backend("b", "b.example", 80),)), *outcomes)
    played.session = kind
    return played


def test_a_session_whose_endpoint_refuses_moves_once_whether_or_not_the_rule_has_retries():
    played = with_session(Session, 0, refused(), 200)
    assert played.run() == [r.ATTEMPT, *AGAIN, r.DELIVER, p.SEND]
    assert played.backends[0] == "b"
    assert with_session(Session, 0, refused()).run() == [r.ATTEMPT, *AGAIN, r.FAIL]
    assert with_session(Session, 0, fault(retry=RetrySafety.IF_REUSED)).run() == [r.ATTEMPT, r.FAIL]


def test_the_requests_of_a_bound_session_go_nowhere_else():
    played = with_session(OwnSession, 2, fault())
    assert played.run() == [r.ATTEMPT, *AGAIN, *AGAIN, r.FAIL]
    assert set(played.backends) == {"b"}
    elsewhere = with_session(OwnSession, 2, 200)
    elsewhere.exchange.keep(ADAPTER, cast("RequestAdapter", object()))
    elsewhere.next_backend = 0
    assert elsewhere.run() == [r.PREPARE, r.FAIL]
    assert elsewhere.error is not None
    assert elsewhere.error.status == 404


# --- gRPC --------------------------------------------------------------------------------------------------------
def called(*triggers: str) -> list[Manifest]:
    retries = {"attempts": 1, "backoff": "1ms", "retryOn": {"triggers": list(triggers)}}
    return [*calls(), m.policy(traffic={"retries": retries})]


def ended(status: bytes, *more: tuple[bytes, bytes], kind: bytes = b"application/grpc") -> ResponseHead:
    return head(200, (b"content-type", kind), (b"grpc-status", status), *more)


@pytest.mark.parametrize(
    ("trigger", "status"),
    [("cancelled", b"1"), ("deadline-exceeded", b"4"), ("resource-exhausted", b"8"), ("internal", b"13")],
)
def test_a_call_that_ends_with_a_status_of_the_rule_goes_again(trigger: str, status: bytes):
    objects = [each for each in called(trigger) if each["metadata"]["name"] != "any"]
    refs = [{"group": m.OURS, "kind": "Backend", "name": "a"}]
    objects[-2] = m.manifest(
        "gateway.networking.k8s.io/v1", "GRPCRoute", "route", "agents",
        spec={"parentRefs": [{"name": "gw"}], "rules": [{"backendRefs": refs}]},
    )  # fmt: skip
    name = trigger.upper().replace("-", "_")
    played = Played(objects, ended(status), ended(b"0"))
    assert played.run(POST) == [r.ATTEMPT, r.DISCARD, *AGAIN, r.DELIVER, p.SEND]
    assert (played.exchange.detail, played.trail[0][1]) == (f"retried after status {name}", name)
    for other in (ended(b"2"), ended(status, kind=b"text/plain")):
        assert Played(objects, other).run(POST).count(r.ATTEMPT) == 1
    for pushback in (b"-1", b"junk", b"007", b"", b"99999999999", b"20000"):
        brief = Played(objects, ended(status, (b"grpc-retry-pushback-ms", pushback)))
        brief.ends_at = brief.now + 10
        assert brief.run(POST).count(r.ATTEMPT) == 1
    waits = Played(objects, ended(status, (b"grpc-retry-pushback-ms", b"100")))
    waits.run(POST)
    assert waits.waits == [0.1]


@pytest.mark.parametrize(("status", "goes_on"), [(b"14", True), (b"8", True), (b"9", False), (b"junk", False)])
def test_a_call_that_is_refused_goes_to_the_next_backend(status: bytes, goes_on: bool):
    played = Played(calls(), ended(status), ended(b"0"))
    played.run(POST)
    assert played.backends == (["a", "b"] if goes_on else ["a"])


FULL = LimitExceeded(Reason.CIRCUIT_OPEN, "full", status=503)


# --- fail-over ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("outcome", [refused(), fault(), FULL, 429, 500, 502, 503, 529, NextAttempt("not good")])
def test_a_failure_goes_to_the_next_priority_without_a_pause(outcome: Outcome):
    played = Played(config(), outcome, 200, body=b"abcde")
    actions = played.run(POST)
    assert [each for each in actions if each != r.DISCARD] == [r.ATTEMPT, *AGAIN, r.DELIVER, p.SEND]
    assert (played.backends, played.waits) == (["a", "b"], [0.0])
    assert (r.DISCARD in actions) is isinstance(outcome, int)


@pytest.mark.parametrize("status", [400, 401, 404, 504])
def test_other_codes_are_the_clients(status: int):
    assert Played(config(), status).run() == [r.ATTEMPT, r.DELIVER, p.SEND]


def test_when_all_have_failed_the_last_failure_is_told():
    played = Played(config(), refused())
    assert played.run() == [r.ATTEMPT, *AGAIN, *AGAIN, r.FAIL]
    assert played.trail == [(name, "upstream_refused") for name in "abc"]
    assert Played(config("a", "b"), 503).run() == [r.ATTEMPT, r.DISCARD, *AGAIN, r.DELIVER, p.SEND]


def test_a_backend_that_is_put_aside_is_left_alone_until_its_time_is_over():
    port = port_of(config("a", "b"))
    assert Played(port, refused(), 200).run() != []
    after = Played(port, 200)
    after.run()
    later = Played(port, 200)
    later.now += 60
    later.run()
    assert (after.backends, later.backends) == (["b"], ["a"])


def test_one_code_of_failure_does_not_put_a_backend_aside_unless_it_asks_for_a_pause():
    for fields, following in (((), "a"), (((b"retry-after", b"30"),), "b")):
        port = port_of(config("a", "b"))
        Played(port, head(429, *fields), 200).run()
        played = Played(port, 200)
        played.run()
        assert played.backends == [following]


def test_when_all_are_put_aside_they_are_asked_all_the_same():
    port = port_of(config("a", "b"))
    plays = [Played(port, refused()) for _ in range(2)]
    assert [played.run()[-1] for played in plays] == [r.FAIL] * 2
    assert plays[0].backends == plays[1].backends == ["a", "b"]


def test_codes_of_the_rules_retries_say_nothing_of_the_backend():
    port = port_of(config("a", "b", rule={"retry": {"attempts": 1, "codes": [409], "backoff": "0s"}}))
    for _ in range(3):
        played = Played(port, 409)
        played.run()
        assert played.backends == ["a", "a"]


@pytest.mark.parametrize("retry", [RetrySafety.IF_IDEMPOTENT, RetrySafety.IF_REUSED])
def test_replay_idempotent_keeps_a_post_that_a_backend_may_have_seen(retry: RetrySafety):
    assert Played(config(replay="Idempotent"), fault(retry=retry), body=b"abcde").run(POST) == [r.ATTEMPT, r.FAIL]


@pytest.mark.parametrize("replay", ["All", "Idempotent"])
def test_what_a_goaway_has_left_out_goes_to_the_same_backend(replay: str):
    error = fault(retry=RetrySafety.SAFE)
    error.is_left_out = True
    played = Played(config(replay=replay), error, 200, body=b"abcde")
    played.run(POST)
    assert played.backends == ["a", "a"]


@pytest.mark.parametrize(
    ("denied", "asked"), [(["a.example"], ["b"]), (["a.example", "b.example"], ["c"]), (["*.example"], [])]
)
@pytest.mark.parametrize("is_forward", [False, True])
def test_endpoints_that_are_denied_are_left_out(denied: list[str], asked: list[str], is_forward: bool):
    deny = [{"hostnames": [name]} for name in denied]
    objects, text = [*config(), m.policy(destinations={"deny": deny})], GET
    if is_forward:  # the route is the permission
        objects[0], objects[-1] = (
            m.gateway(m.forward_listener(3128)),
            m.policy(destinations={"allow": [], "deny": deny}),
        )
        text = b"GET http://any.example/ HTTP/1.1\r\nHost: any.example"
    played = Played(objects, 200)
    played.run(text)
    assert played.backends == asked
    assert asked or (played.error is not None and played.error.status == 403)


def test_a_failover_stays_within_its_endpoints():
    refs = [
        {"group": m.OURS, "kind": "Backend", "name": name, "weight": weight} for name, weight in (("any", 1), ("c", 0))
    ]
    played = Played([*config("a", "b")[:-1], m.http_route("route", {"backendRefs": refs})], refused())
    assert played.run()[-1] == r.FAIL
    assert played.backends == ["a", "b"]


def test_the_rules_retries_begin_again_when_all_were_asked():
    played = Played(config("a", "b", rule={"retry": {"attempts": 1, "backoff": "0s"}}), refused())
    played.run()
    assert len(played.backends) == 4


def test_the_other_endpoints_of_a_backend_are_asked_before_the_next_backend():
    of_pods = {"backendRef": {"name": "pods", "port": 80}}
    of_b = {"backendRef": {"group": m.OURS, "kind": "Backend", "name": "b"}, "priority": 1}
    objects = [*to_pods("10.0.0.1", "10.0.0.2")[2:], *config(of_pods, of_b)]
    played = Played(objects, refused(), refused(), 200)
    played.run()
    assert (set(played.asked[:2]), played.asked[2:]) == ({"10.0.0.1", "10.0.0.2"}, ["b.example"])


def test_the_first_byte_is_waited_for_where_the_failover_says_so():
    assert Played(config(firstByte="1s"), 200).run() == [r.ATTEMPT, r.AWAIT_BODY, r.DELIVER, p.SEND]
    assert r.AWAIT_BODY not in Played(config("a", firstByte="1s"), 503).run()


def test_the_response_names_the_attempts_where_it_was_asked_for():
    played = Played(config(attemptsHeader=True), refused(), 429, 200)
    played.run()
    named = played.exchange.response.fields.get(b"x-egress-attempts") or b""
    assert [each.split(b";")[1] for each in named.split(b", ")] == [
        b"outcome=upstream_refused", b"outcome=429", b"outcome=200",
    ]  # fmt: skip


def test_behind_a_parent_another_backend_is_asked_after_a_code_and_none_again():
    backends = (m.backend(name, f"{name}.example", 80, parent={"name": "proxy"}) for name in ("a", "b"))
    rule = m.prefix_rule("/", "any", retry={"attempts": 3, "codes": [503], "backoff": "0s"})
    parent = m.backend("proxy", "proxy.example", 3128)
    objects = [m.gateway(m.http_listener(8080)), *backends, parent, m.failover("any", "a", "b")]
    played = Played([*objects, m.http_route("route", rule)], 503)
    played.run()
    assert played.backends == ["a", "b"]


# --- products ----------------------------------------------------------------------------------------------------
def adapted(objects: Iterable[Manifest], *outcomes: Outcome) -> Played:
    played = Played(objects, *outcomes, body=b"abcde")
    played.exchange.keep(ADAPTER, cast("RequestAdapter", object()))
    return played


def test_a_product_prepares_each_attempt_and_transforms_the_answer():
    actions = adapted(config(), 503, refused(), 200).run(POST)
    assert actions == [
        r.PREPARE, r.ATTEMPT, r.NARROW, r.DISCARD, r.WAIT,
        r.PREPARE, r.ATTEMPT, r.NARROW, r.WAIT,
        r.PREPARE, r.ATTEMPT, r.TRANSFORM, r.DELIVER, p.SEND,
    ]  # fmt: skip


def test_a_product_may_choose_the_next_backend_or_answer_for_itself():
    played = adapted(config(), 200)
    played.next_backend = 1
    played.run(POST)
    assert played.backends == ["b"]
    played = adapted(config(), 200)
    played.own_answer = MADE
    assert played.run(POST) == [r.PREPARE, r.DELIVER, p.RESPOND]


@pytest.mark.parametrize(("status", "made"), [(200, 1), (529, 2)])
def test_the_beginning_of_an_answer_may_tell_of_a_failure(monkeypatch: pytest.MonkeyPatch, status: int, made: int):
    monkeypatch.setattr(PRODUCTS, "answer_beginning", lambda _exchange: object())
    played = Played(retrying(1, (529,)), 200, body=b"abcde")
    played.begins = status
    actions = played.run(POST)
    assert (actions.count(r.READ_BEGINNING), actions.count(r.ATTEMPT)) == (made, made)
    assert r.READ_BEGINNING not in Played(retrying(1, (529,)), 200).run(GET)
    assert r.READ_BEGINNING not in Played(through_parent(1), 200, body=b"abcde").run(POST)


# --- hedging -----------------------------------------------------------------------------------------------------
NAMED = [*reverse()[:1], m.policy(traffic={"hedging": {"hedgingDelay": "10ms"}}), *reverse()[2:]]
TO_PARENT = [m.policy(traffic={"hedging": {"hedgingDelay": "10ms"}}), *through_parent(0)]


@pytest.mark.parametrize(
    ("objects", "text", "is_hedged"),
    [
        (hedging(), GET, True),
        (hedging(), GET.replace(b"GET", b"DELETE"), False),
        (hedging(methods=["PUT"]), GET.replace(b"GET", b"PUT"), True),
        (hedging(), GET + b"\r\nContent-Length: 2", False),
        (hedging(), GET + b"\r\nConnection: upgrade\r\nUpgrade: websocket", False),
        (NAMED, GET, True),
        (TO_PARENT, GET, False),
    ],
)
def test_who_may_have_several_attempts_at_once(objects: list[Manifest], text: bytes, is_hedged: bool):
    actions = Played(objects, 200).begin(text)
    assert [next(actions) for _ in range(2)] == [p.ENTER_GATE, r.BEGIN]
    assert next(actions) == (r.HEDGE if is_hedged else r.ATTEMPT)


class Hedged:
    """The first attempt of a request that may have several."""

    def __init__(self, objects: Port | Iterable[Manifest], text: bytes = GET) -> None:
        self.played = Played(objects, 200)
        self.actions = self.played.play(text)
        assert r.HEDGE in self.actions
        retry_state = self.played.pipeline.retry_state
        assert retry_state is not None
        assert retry_state.hedges is not None
        self.retry_state = retry_state
        self.state: HedgeState = retry_state.hedges
        self.first = self.state.first(retry_state.backend)

    def another(self, *, is_pressed: bool = False) -> Hedge | None:
        return self.state.another(1000.0, is_pressed=is_pressed)

    def others(self, count: int) -> list[Hedge]:
        made = [self.another() for _ in range(count)]
        return [each for each in made if each is not None]

    @property
    def metrics(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for backend in {each.backend for each in (self.first, *self.state.under_way)}:
            found.update(backend.series.hedges)
        return dict(found)


def test_the_next_one_goes_to_another_endpoint_as_often_as_the_policy_says():
    hedged = Hedged(hedging(FIRST, SECOND, THIRD, "10.0.0.4", maxAttempts=3))
    assert hedged.state.delay_s == 0.01
    others = hedged.others(2)
    assert len({each.target.host for each in (hedged.first, *others)}) == 3
    assert (hedged.state.begun, hedged.state.delay_s) == (3, 0.0)


@pytest.mark.parametrize(
    ("objects", "text", "begins"),
    [
        (hedging(FIRST), GET, False),
        (hedging(), GET, True),
        (NAMED, GET, True),
        (
            forward(traffic={"hedging": {"hedgingDelay": "10ms"}}),
            b"GET http://a.example/ HTTP/1.1\r\nHost: a.example",
            True,
        ),
        (hedging(traffic={"retries": {"attempts": 0, "budget": {"percent": 0, "minPerSecond": 0}}}), GET, False),
    ],
)
def test_where_another_one_may_go(objects: list[Manifest], text: bytes, begins: bool):
    hedged = Hedged(objects, text)
    assert hedged.another(is_pressed=True) is None
    assert (hedged.another() is not None) is begins


def test_hedges_count_in_the_parallel_retries_of_the_circuit_breaker():
    port = port_of(hedging(traffic={"circuitBreaker": {"maxParallelRetries": 1}}))
    first, second = Hedged(port), Hedged(port)
    (counted,) = first.others(1)
    assert (second.another(), second.metrics) == (None, {"circuit_open": 1})
    assert counted.counted is not None
    counted.counted.end_retry()
    assert second.another() is not None


def test_another_one_goes_to_the_next_backend_of_a_failover():
    policy = m.policy(traffic={"hedging": {"hedgingDelay": "10ms"}})
    hedged = Hedged([*config("a", "b"), policy])
    assert [each.backend.name for each in (hedged.first, *hedged.others(1))] == ["agents/a", "agents/b"]


def over(hedged: Hedged, hedge: Hedge, outcome: Outcome) -> bool:
    if isinstance(outcome, GatewayError):
        hedge.error = outcome
    elif isinstance(outcome, LocalResponse):
        hedge.answer = outcome
    else:
        hedge.response = head(outcome) if isinstance(outcome, int) else outcome
    return hedged.state.over(hedge)


INTERNAL = GatewayFault(Reason.INTERNAL, "internal error")


@pytest.mark.parametrize(
    ("outcome", "of_first", "of_other"),
    [
        (200, True, True),
        (404, True, True),
        (503, False, False),
        (fault(), False, False),
        (refused(), False, False),
        (INTERNAL, True, False),
        (MADE, True, False),
    ],
)
def test_which_outcome_decides_while_another_attempt_is_under_way(outcome: Outcome, of_first: bool, of_other: bool):
    hedged = Hedged(hedging())
    hedged.others(1)
    assert over(hedged, hedged.first, outcome) is of_first
    hedged = Hedged(hedging())
    (other,) = hedged.others(1)
    assert over(hedged, other, outcome) is of_other
    if not of_other:
        assert over(hedged, hedged.first, 503) is True  # the last one
        assert hedged.state.decisive is hedged.first
        assert hedged.another() is None


def test_an_answer_with_retry_after_lets_no_further_attempt_begin():
    hedged = Hedged(hedging(FIRST, SECOND, THIRD, maxAttempts=3))
    (other,) = hedged.others(1)
    assert not over(hedged, other, head(503, (b"retry-after", b"5")))
    assert hedged.another() is None


def test_what_the_trail_says_of_those_that_have_lost():
    hedged = Hedged(hedging(FIRST, SECOND, THIRD, "10.0.0.4", maxAttempts=4))
    broken, busy, last = hedged.others(3)
    assert not over(hedged, broken, refused())
    assert not over(hedged, busy, 503)
    assert [hedged.state.lose(each, 0.0) for each in (broken, busy)] == ["upstream_refused", "503"]
    hedged.first.is_cancelled = last.is_cancelled = True
    assert hedged.state.lose(last, 0.0) == ""  # the client has left: nothing has decided
    hedged.state.decisive = busy
    assert [hedged.state.lose(each, 0.0) for each in (hedged.first, last)] == ["hedged", "cancelled"]
    assert hedged.metrics == {"failed": 2, "cancelled": 2}


def test_what_follows_the_last_of_several_attempts_is_as_for_one():
    hedged = Hedged(hedging(FIRST, SECOND, THIRD, traffic={"retries": {"attempts": 1, "backoff": "1ms"}}))
    (other,) = hedged.others(1)
    assert not over(hedged, other, fault())
    assert over(hedged, hedged.first, fault())
    hedged.retry_state.error = hedged.first.error
    assert next(hedged.actions) == r.WAIT
    assert next(hedged.actions) == r.HEDGE
    again = hedged.retry_state.hedges
    assert again is not None
    assert again.first(hedged.retry_state.backend).target.host not in (hedged.first.target.host, other.target.host)


# --- all -----------------------------------------------------------------------------------------------------------
FAILURES = (
    lambda: 200, lambda: 404, lambda: 503, lambda: MADE, refused, fault,
    lambda: fault(retry=RetrySafety.IF_REUSED), lambda: fault(Reason.REQUEST_TIMEOUT, RetrySafety.NEVER),
    lambda: NextAttempt("not good"), lambda: LimitExceeded(Reason.QUEUE_FULL, "full", status=503),
)  # fmt: skip


@cache
def spec_of(attempts: int, fails_over: bool) -> ConfigIR:
    retry = {"attempts": attempts, "codes": [503], "backoff": "0s"}
    return compiled_spec(config(rule={"retry": retry}) if fails_over else retrying(attempts, (503,)))


@given(
    st.lists(st.integers(0, len(FAILURES) - 1), min_size=1, max_size=24),
    st.integers(0, 4),
    st.booleans(),
    st.sampled_from([GET, POST]),
    st.integers(0, 6),
    st.integers(0, 1000),
)
def test_equal_results_give_equal_actions(
    outcomes: list[int], attempts: int, fails_over: bool, text: bytes, kept_for: int, seed: int
):
    """Each list ends with the one last action, never has more attempts than the policy allows, and never sends a body
    again that is not kept.
    """

    def play() -> tuple[list[str], list[str], list[bool]]:
        random.seed(seed)
        (port,) = build(spec_of(attempts, fails_over), Catalog(), network(), Metrics("0"), None).ports.values()
        played = Played(port, *(FAILURES[each]() for each in outcomes), body=b"abcde" if text == POST else None)
        actions = []
        for action in played.play(text):
            actions.append(action)
            if played.body is not None and actions.count(r.ATTEMPT) > kept_for:
                played.body.forget()
        return actions, played.asked, played.sent

    actions, asked, sent = play()
    assert play() == (actions, asked, sent)
    last = [each for each in actions if each in (r.DELIVER, r.FAIL)]
    assert len(last) == 1
    assert actions[-1] == r.FAIL or (actions[-2] == r.DELIVER and actions[-1] in (p.SEND, p.RESPOND))
    assert actions.count(r.ATTEMPT) <= (MAX_ATTEMPTS if fails_over else 1) + attempts
    assert all(sent[1:])
