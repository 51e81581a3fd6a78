"""Policies of kinds that are not read: what they target stays closed, and nothing beside it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import Start
from tests.gateway.kit import OK, OK_PASSED, connect, forward
from tests.support import manifests as m
from tests.support.manifests import GATEWAY_API, OURS, Manifest

GROUP = "agentic.networking.x-k8s.io"
LABEL = f"extension XLimitPolicy agents/limit ({GROUP}/XLimitPolicy:v1alpha1)"
GATEWAY = {"group": GATEWAY_API, "kind": "Gateway", "name": "gw"}
ROUTE = {"group": GATEWAY_API, "kind": "HTTPRoute", "name": "one"}
BACKEND = {"group": OURS, "kind": "Backend", "name": "one"}


def limiting(*targets: Any, kind: str = "XLimitPolicy", **spec: Any) -> Manifest:
    spec = {"targetRefs": list(targets), **spec} if targets else spec
    return m.manifest(f"{GROUP}/v1alpha1", kind, "limit", "agents", spec=spec)


def two_routes(*more: Manifest) -> list[Manifest]:
    return [
        m.gateway(m.http_listener(8080)),
        m.policy(),
        *(m.backend(name, f"{name}.example", 80) for name in ("one", "two")),
        *(m.http_route(name, m.prefix_rule("/", name), hostnames=[f"{name}.test"]) for name in ("one", "two")),
        *more,
    ]


def get(name: str) -> bytes:
    return f"GET / HTTP/1.1\r\nHost: {name}.test\r\n\r\n".encode()


@pytest.mark.parametrize("target", [ROUTE, BACKEND], ids=["route", "backend"])
def test_what_it_targets_is_closed_and_the_answer_names_it(converse: Start, target: Any):
    talk = converse(two_routes(limiting(target)))
    talk.client >> get("one")
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (500, "unknown_extension")
    assert error["message"] == f"route agents/one needs the {LABEL}, which this gateway does not have"
    talk.no_dial()
    talk.client >> get("two")
    talk.dialled("two.example", 80)
    talk.origin.take(rb"GET / HTTP/1.1\r\nHost: two.example\r\n.*\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_gateway_is_closed_as_a_whole(converse: Start):
    talk = converse(two_routes(limiting(GATEWAY)))
    for name in ("one", "two"):
        talk.client >> get(name)
        assert talk.client.answer()[0] == 500
    talk.no_dial()


def test_tunnels_through_it_are_refused(converse: Start):
    talk = converse([*forward(), limiting(GATEWAY)])
    talk.client >> connect("a.example:443")
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (500, "unknown_extension")
    assert LABEL in error["message"]
    talk.no_dial()


@pytest.mark.parametrize(
    "written", ["gw", [3], [{"kind": "Gateway"}], [{**ROUTE, "name": ["one"]}, BACKEND], {"a": "b"}]
)
def test_where_targets_cannot_be_read_all_of_its_namespace_are_closed(converse: Start, written: Any):
    talk = converse(two_routes(limiting(targetRefs=written)))
    for name in ("one", "two"):
        talk.client >> get(name)
        assert talk.client.answer()[0] == 500
    talk.no_dial()


@pytest.mark.parametrize(
    "harmless",
    [
        limiting(ROUTE, kind="XBackendTrafficPolicy"),
        limiting(ROUTE, kind="XTelemetryPolicy"),
        limiting(kind="XLimitPolicy"),
        limiting(kind="MultiStageRoute", parentRefs=[GATEWAY]),
        {**limiting(ROUTE), "metadata": {"name": "limit", "namespace": "elsewhere"}},
        {**limiting(ROUTE), "apiVersion": "vendor.example/v1"},
    ],
)
def test_what_restricts_nothing_here_closes_nothing(converse: Start, harmless: Manifest):
    talk = converse(two_routes(harmless))
    talk.client >> get("one")
    talk.dialled("one.example", 80)
