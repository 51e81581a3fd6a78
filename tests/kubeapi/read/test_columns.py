"""The columns of every kind."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from egressproxy.kubeapi.kinds import KINDS
from egressproxy.kubeapi.read.columns import columns
from egressproxy.kubeapi.read.representations import age, row, table

NOW = datetime(2026, 7, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.group}/{kind.kind}")
def test_an_object_that_says_nothing_has_empty_cells_and_no_error(kind):  # type: ignore[no-untyped-def]
    for odd in ({}, {"metadata": {"name": "a"}, "spec": None, "status": None}, {"spec": {"rules": [{}], "ports": 3}}):
        made = table(kind, [row(kind, {"metadata": {}, **odd}, NOW, "Metadata")], {})
        assert len(made["rows"][0]["cells"]) == len(made["columnDefinitions"])


def cells(group: str, kind: str, manifest: dict[str, object]) -> dict[str, str | int]:
    return {column.name: column.of(manifest) for column in columns(group, kind)}


def test_a_gateway_shows_its_class_addresses_and_routes():
    found = cells(
        "gateway.networking.k8s.io",
        "Gateway",
        {
            "metadata": {"name": "g"},
            "spec": {"gatewayClassName": "c", "listeners": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]},
            "status": {
                "addresses": [{"value": str(number)} for number in range(5)],
                "conditions": [{"type": "Programmed", "status": "False"}],
                "listeners": [{"attachedRoutes": 2}, {"attachedRoutes": 3}],
            },
        },
    )
    assert found == {
        "Name": "g", "Class": "c", "Address": "0,1,2 + 2 more...", "Programmed": "False", "Age": "",
        "Listeners": "a:80,b:81", "Routes": 5,
    }  # fmt: skip


def test_a_route_with_parents_that_disagree_shows_how_many_accept_it():
    parents = [{"conditions": [{"type": "Accepted", "status": status}]} for status in ("True", "False")]
    manifest = {"metadata": {"name": "r"}, "status": {"parents": parents}}
    assert cells("gateway.networking.k8s.io", "HTTPRoute", manifest)["Accepted"] == "1/2"
    manifest["status"] = {"parents": parents[:1] * 2}
    assert cells("gateway.networking.k8s.io", "HTTPRoute", manifest)["Accepted"] == "True"


def test_a_policy_shows_why_it_is_not_accepted_and_what_cannot_run():
    refused = {"type": "Accepted", "status": "False", "reason": "RefNotPermitted"}
    degraded = {"type": "Degraded", "status": "True", "reason": "UnsupportedExtensionType"}
    status = {"ancestors": [{"conditions": [refused, degraded]}]}
    found = cells("egressproxy.io", "EgressPolicy", {"metadata": {"name": "p"}, "status": status})
    assert (found["Accepted"], found["Reason"], found["Degraded"]) == ("False", "RefNotPermitted", "True")


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("2026-07-01T11:59:59Z", "1s"),
        ("2026-07-01T11:45:00Z", "15m"),
        ("2026-07-01T02:00:00Z", "10h"),
        ("2026-06-01T12:00:00Z", "30d"),
        ("2020-07-01T12:00:00Z", "6y"),
        ("2027-01-01T00:00:00Z", "0s"),
        ("", "<unknown>"),
        ("yesterday", "<unknown>"),
    ],
)
def test_an_age_is_told_as_people_count(written: str, shown: str):
    assert age(written, NOW) == shown


@pytest.mark.parametrize(
    ("group", "kind", "section"),
    [
        ("egressproxy.io", "Backend", ""),
        ("gateway.networking.k8s.io", "Backend", "controllers"),
        ("gateway.networking.k8s.io", "Backend", "ancestors"),
        ("ainetworking.prototype.x-k8s.io", "XBackendDestination", "controllers"),
        ("gateway.networking.x-k8s.io", "XBackend", "ancestors"),
    ],
)
def test_a_backend_shows_whether_it_is_accepted_wherever_its_type_says_so(group: str, kind: str, section: str):
    said = {"conditions": [{"type": "Accepted", "status": "True"}]}
    manifest = {"metadata": {"name": "b"}, "status": {section: [said]} if section else said}
    assert cells(group, kind, manifest)["Accepted"] == "True"
