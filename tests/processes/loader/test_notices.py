"""What is told in Events of a configuration that was read."""

from __future__ import annotations

from egressproxy.config.compile.interface import scope_of
from egressproxy.config.reading.problems import ConfigError, Problem
from egressproxy.processes.loader.notices import accepted, broken, rejected
from egressproxy.processes.loader.result import ListenerAddress
from egressproxy.telemetry.event_aggregator import EventType, InvolvedObject

PLACES = (
    ListenerAddress("127.0.0.1", 3128, "HTTP", "agents/gw/forward"),
    ListenerAddress("127.0.0.1", 8080, "HTTP", "agents/gw/web"),
    ListenerAddress("127.0.0.1", 8081, "HTTP", "other/edge/web"),
)
GW, EDGE = InvolvedObject("Gateway", "agents", "gw"), InvolvedObject("Gateway", "other", "edge")


def problem(number: int) -> Problem:
    return Problem("a.yaml", number, 1, "Gateway agents/gw", "spec", "is wrong")


def test_a_rejected_configuration_is_told_once_at_every_gateway_in_service():
    found = rejected(ConfigError([problem(1), problem(2)]), PLACES, 7)
    assert [(each.reason, each.regarding) for each in found] == [
        ("ConfigurationRejected", GW), ("ConfigurationRejected", EDGE),
    ]  # fmt: skip
    assert (
        "configuration 7 stays in service: a.yaml:1:1: Gateway agents/gw: spec: is wrong (and 1 more"
        in found[0].message
    )


def test_the_lines_of_a_refusal_are_one_sentence():
    found = rejected(ValueError("it would allow this:\nGET a\nif that is meant: reload"), PLACES, 7)
    assert found[0].message.endswith("stays in service: it would allow this: GET a; if that is meant: reload")


def test_a_listener_that_cannot_be_bound_is_told_at_its_gateway():
    found = rejected(OSError("cannot bind"), PLACES, 7, unbound="agents/gw/forward, agents/gw/web")
    assert [(each.reason, each.regarding) for each in found] == [
        ("ListenerNotBound", GW), ("ConfigurationRejected", EDGE),
    ]  # fmt: skip


def test_the_end_of_the_trouble_is_normal():
    assert [(each.severity, each.regarding) for each in accepted(PLACES, 8)] == [
        (EventType.NORMAL, GW), (EventType.NORMAL, EDGE),
    ]  # fmt: skip


def test_a_broken_reference_is_told_at_the_object_that_has_it():
    (notice,) = broken([("HTTPRoute agents/api", "BackendNotFound: gone")])
    assert (notice.reason, notice.regarding) == ("ReferenceBroken", InvolvedObject("HTTPRoute", "agents", "api"))
    assert notice.message == "BackendNotFound: gone"
    keys = [("egressproxy.io", "Backend", "agents", "b"), ("gateway.networking.k8s.io", "Backend", "agents", "b")]
    told = broken((scope_of(key), "SecretNotFound: gone") for key in keys)
    assert [notice.regarding.kind for notice in told] == ["Backend", "Backend.gateway.networking.k8s.io"]
