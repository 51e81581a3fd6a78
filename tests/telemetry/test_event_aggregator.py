"""What is noted, with what words, and that a flood costs no more than a count."""

from __future__ import annotations

from typing import Any

import pytest

from egressproxy.errors import Denied, GatewayFault, LimitExceeded, Reason, UpstreamFault
from egressproxy.filters.base import Rejected
from egressproxy.gateway.exchange.error_responses import has_event
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.telemetry import event_aggregator as module
from egressproxy.telemetry.access_log import FLAGS
from egressproxy.telemetry.event_aggregator import (
    MAX_GROUPS,
    MAX_MESSAGE,
    MAX_SIMILAR,
    EventAggregator,
    EventType,
    FilterStats,
    InvolvedObject,
    Refusal,
    event_reason,
)
from egressproxy.telemetry.series import Series

AT_GATEWAY = Series(("agents/gw", "-", "-", "-", "-", "-", "-"))
AT_ROUTE = Series(("agents/gw", "agents/api", "agents/origin", "-", "-", "-", "-"))
POLICY = InvolvedObject("EgressPolicy", "agents", "rules")
GATEWAY = InvolvedObject("Gateway", "agents", "gw")


def denied(host: str = "evil.test", **more: Any) -> Denied:
    more = {"rule": "EgressPolicy agents/rules", "remedy": "add it", **more}
    return Denied(Reason.DESTINATION_NOT_ALLOWED, f"{host} is not allowed", **more)


def filter_counters(source: str = "Backend agents/origin") -> FilterStats:
    return FilterStats("mask", "egressproxy.io/Python:v1", "request-headers", "-", source)


def test_a_denial_is_of_its_gateway_and_names_the_policy_and_the_remedy():
    notices = EventAggregator()
    notices.refused(AT_GATEWAY, denied())
    (notice,) = notices.take()
    assert (notice.severity, notice.reason, notice.count) == (EventType.WARNING, "DestinationNotAllowed", 1)
    assert (notice.regarding, notice.related) == (GATEWAY, POLICY)
    assert notice.message == "evil.test is not allowed: add it"
    assert notice.first_s == notice.last_s > 0


def test_a_denial_on_a_route_is_of_the_route_by_its_kind():
    notices = EventAggregator()
    notices.refused(AT_ROUTE, LimitExceeded(Reason.REQUEST_RATE, "more than 1 request in 1 s"), "HTTPRoute")
    (notice,) = notices.take()
    assert (notice.regarding, notice.related) == (InvolvedObject("HTTPRoute", "agents", "api"), GATEWAY)
    assert notice.message.startswith("more than 1 request in 1 s: raise the limit in limits.requests")


def test_a_remedy_that_the_message_ends_with_is_told_once():
    notices = EventAggregator()
    notices.refused(AT_GATEWAY, Denied(Reason.CREDENTIALS_REQUIRED, "who are you: show a token", remedy="show a token"))
    (notice,) = notices.take()
    assert notice.message == "who are you: show a token"


def test_a_remedy_with_numbers_of_one_request_makes_no_event_of_its_own():
    notices = EventAggregator()
    for left in ("146 are left", "145 are left"):
        error = LimitExceeded(Reason.TOKEN_RATE, "more than 350 tokens in a day", remedy=left)
        error.has_own_remedy = True
        notices.refused(AT_GATEWAY, error)
        (notice,) = notices.take()
        assert "left" not in notice.message


def test_the_same_again_is_counted_and_taken_once():
    notices = EventAggregator()
    for _ in range(5):
        notices.refused(AT_GATEWAY, denied())
    assert [notice.count for notice in notices.take()] == [5]
    assert notices.take() == []
    notices.refused(AT_GATEWAY, denied())
    assert [notice.count for notice in notices.take()] == [1]


def test_what_is_told_again_makes_no_text(monkeypatch: pytest.MonkeyPatch):
    made = []
    monkeypatch.setattr(
        module, "new_notice", lambda *args, _new=module.new_notice, **more: made.append(_new(*args, **more)) or made[-1]
    )
    notices, error = EventAggregator(), denied()
    for _ in range(100):
        notices.refused(AT_GATEWAY, error)
    assert len(made) == 1


def test_a_client_that_is_known_is_named_and_counted_by_itself():
    notices = EventAggregator()
    robot = CallerIdentity("team", "robot", name="system:serviceaccount:team:robot")
    elsewhere = robot.replace(origin_client="192.0.2.7")
    for client in (ANONYMOUS, robot, elsewhere, CallerIdentity(name="alice"), robot):
        notices.refused(AT_GATEWAY, denied("a.example"), "", client)
    told = [(notice.message.split(":")[0], notice.count) for notice in notices.take()]
    assert told == [
        ("a.example is not allowed", 1), ("a.example is not allowed (client team/robot)", 3),
        ("a.example is not allowed (client alice)", 1),
    ]  # fmt: skip


def test_many_destinations_are_counted_together_beyond_a_number():
    notices = EventAggregator()
    for number in range(100):
        notices.refused(AT_GATEWAY, denied(f"h{number}.test"))
    found = notices.take()
    assert len(found) == MAX_SIMILAR + 1
    assert sum(notice.count for notice in found) == 100
    assert [notice.count for notice in found if notice.is_combined] == [100 - MAX_SIMILAR]


def test_the_entry_that_has_let_it_pass_makes_no_other_notice():
    notices = EventAggregator()
    for entry in ("a.test", "*.b.test"):
        notices.refused(Series(("agents/gw", "-", "-", "-", "-", "agents/default", entry)), denied())
    assert [notice.count for notice in notices.take()] == [2]


def test_what_is_kept_is_bounded():
    notices = EventAggregator()
    for number in range(MAX_GROUPS + 50):
        notices.refused(Series((f"agents/gw{number}", "-", "-", "-", "-", "-", "-")), denied())
    assert len(notices.take()) == MAX_GROUPS


def test_the_one_who_waits_is_woken_once():
    woken = []
    notices = EventAggregator()
    notices.wake = lambda: woken.append(1)
    for number in range(3):
        notices.refused(AT_GATEWAY, denied(f"h{number}.test"))
    assert len(woken) == 1
    others = notices.take()
    notices.add(others)
    notices.add(others)
    assert len(woken) == 2
    assert len(notices.take()) == 6


def test_what_a_filter_says_is_not_repeated():
    notices = EventAggregator()
    for path in ("/secret", "/other"):
        error = Rejected(f"no way to {path}?token=1", remedy=f"not {path}")
        error.rule = "EgressPolicy agents/rules"
        notices.refused(AT_ROUTE, error, "HTTPRoute")
    (notice,) = notices.take()
    assert notice.count == 2
    assert notice.related == POLICY
    assert "/" not in notice.message.replace("agents/rules", "")
    assert notice.message.startswith("EgressPolicy agents/rules refused a request (filter_rejected)")


def test_a_filter_that_fails_is_told_of_at_the_object_that_declares_it():
    notices, counters = EventAggregator(), filter_counters()
    for _ in range(3):
        notices.failed(counters, "ValueError", is_open=False)
    notices.failed(counters, "ValueError", is_open=True)
    closed, open_ = notices.take()
    assert (closed.reason, closed.count, closed.regarding) == (
        "FilterFailed",
        3,
        InvolvedObject("Backend", "agents", "origin"),
    )
    assert "filter mask (egressproxy.io/Python:v1) failed in phase request-headers: ValueError" in closed.message
    assert "refused (502)" in closed.message
    assert "exchanges go on without it (failOpen)" in open_.message


def test_a_filter_of_nobody_is_not_told_of():
    notices = EventAggregator()
    notices.failed(filter_counters("-"), "ValueError", is_open=False)
    assert notices.take() == []


def test_a_message_has_a_bound():
    notices = EventAggregator()
    notices.refused(AT_GATEWAY, GatewayFault(Reason.INTERNAL, "x" * 5000))
    (notice,) = notices.take()
    assert len(notice.message) == MAX_MESSAGE


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_one_word_in_upper_camel_case(reason: Reason):
    word = event_reason(reason)
    if reason is not Reason.OK:
        assert word.isalnum()
        assert word[0].isupper()
        assert len(word) <= 128


def test_what_could_not_be_reached_is_told_and_what_a_reached_backend_does_is_not():
    """By the reasons that Envoy's flags UF and DF stand for: whoever runs a command beside a gateway sees why."""
    for reason, flag in FLAGS.items():
        if flag in {"UF", "DF"}:
            assert has_event(UpstreamFault(reason, "not reached", status=503)), reason
        if flag in {"UR", "UC", "UPE", "UT", "DC"}:
            assert not has_event(UpstreamFault(reason, "reached", status=502)), reason


def test_a_refusal_before_an_exchange_has_no_line_in_the_access_log():
    notices = EventAggregator()
    notices.refused(AT_GATEWAY, denied())
    notices.refused(AT_GATEWAY, Refusal(Reason.CONNECTION_LIMIT, "a connection was refused"))
    assert [notice.is_of_exchange for notice in notices.take()] == [True, False]
