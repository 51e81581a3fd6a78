"""Events as the API has them, in both groups."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from egressproxy.kubeapi.read.events import CONTROLLER, PublishedEvents
from egressproxy.kubeapi.read.representations import uid_of
from egressproxy.telemetry.event_aggregator import EventType, InvolvedObject, Notice
from egressproxy.telemetry.events import Events
from egressproxy.telemetry.metrics import Metrics
from tests.admin.kit import Holder, entries

AT = 1_700_000_000.25
NOTICE = Notice(
    EventType.WARNING, "DestinationNotAllowed", "Deny", InvolvedObject("Gateway", "agents", "gw"),
    InvolvedObject("EgressPolicy", "agents", "rules"), "evil.test is not allowed", count=1, first_s=AT, last_s=AT,
)  # fmt: skip
GATEWAY = """
apiVersion: gateway.networking.k8s.io/v1beta1
kind: Gateway
metadata: {name: gw, namespace: agents%s}
spec: {gatewayClassName: egressproxy, listeners: [{name: http, port: 80, protocol: HTTP}]}
"""


def published(*notices: Notice, configuration: str = "") -> dict[str, list[dict[str, Any]]]:
    """The manifests by apiVersion."""
    events = Events(Metrics("1"), clock=lambda: AT)
    events.add(notices)
    made: dict[str, list[dict[str, Any]]] = {}
    for each in PublishedEvents(events, Holder(entries(configuration) if configuration else ())).objects():
        manifest = json.loads(each.manifest)
        assert (each.kind, each.name) == (manifest["kind"], manifest["metadata"]["name"])
        made.setdefault(manifest["apiVersion"], []).append(manifest)
    return made


def test_a_core_event_has_the_fields_that_kubectl_reads():
    (event,) = published(replace(NOTICE, count=3, last_s=AT + 2))["v1"]
    assert (event["type"], event["reason"], event["message"]) == (
        "Warning", "DestinationNotAllowed", "evil.test is not allowed",
    )  # fmt: skip
    assert (event["firstTimestamp"], event["lastTimestamp"]) == ("2023-11-14T22:13:20Z", "2023-11-14T22:13:22Z")
    assert event["count"] == event["series"]["count"] == 3
    assert event["series"]["lastObservedTime"] == "2023-11-14T22:13:22.250000Z"
    assert event["eventTime"] == "2023-11-14T22:13:20.250000Z"
    assert event["source"] == {"component": CONTROLLER}
    assert event["reportingComponent"] == CONTROLLER
    assert event["metadata"]["namespace"] == "agents"


def test_the_newer_group_says_the_same_in_its_words():
    found = published(NOTICE)
    (core,), (newer,) = found["v1"], found["events.k8s.io/v1"]
    assert newer["note"] == core["message"]
    assert newer["regarding"] == core["involvedObject"]
    assert newer["related"] == core["related"]
    assert newer["reportingController"] == CONTROLLER
    assert newer["metadata"] == core["metadata"]
    assert "series" not in newer  # it happened once
    assert newer["deprecatedCount"] == 1


def test_it_refers_to_an_object_in_service_by_the_uid_that_the_api_gives_it():
    (event,) = published(NOTICE, configuration=GATEWAY % "")["v1"]
    assert event["involvedObject"] == {
        "kind": "Gateway",
        "namespace": "agents",
        "name": "gw",
        "uid": uid_of(("gateway.networking.k8s.io", "Gateway", "agents", "gw")),
        "apiVersion": "gateway.networking.k8s.io/v1beta1",
    }
    (event,) = published(NOTICE, configuration=GATEWAY % ", uid: of-a-cluster")["v1"]
    assert event["involvedObject"]["uid"] == "of-a-cluster"


def test_an_object_that_is_not_there_any_more_is_still_named():
    (event,) = published(NOTICE)["v1"]
    assert event["involvedObject"]["apiVersion"] == "gateway.networking.k8s.io/v1"
    assert event["related"]["apiVersion"] == "egressproxy.io/v1alpha1"
    backend = InvolvedObject("Backend", "agents", "b")
    (event,) = published(replace(NOTICE, regarding=backend, related=None))["v1"]
    assert event["involvedObject"]["apiVersion"] == "egressproxy.io/v1alpha1"
    assert "related" not in event


def test_of_two_backends_of_one_name_it_is_about_the_one_of_the_group_that_it_says():
    text = "apiVersion: {0}/v1alpha1\nkind: Backend\nmetadata: {{name: b, namespace: agents, uid: of-{0}}}\nspec: {1}\n"
    spec = "{destination: {type: Fqdn, fqdn: {hostname: a.example}}}"
    groups = ("egressproxy.io", "gateway.networking.k8s.io")
    both = "---\n".join(text.format(group, spec) for group in groups)
    for kind, group in zip(("Backend", f"Backend.{groups[1]}"), groups, strict=True):
        for configuration in (both, ""):
            about = replace(NOTICE, regarding=InvolvedObject(kind, "agents", "b"))
            (event,) = published(about, configuration=configuration)["v1"]
            found = event["involvedObject"]
            assert (found["kind"], found["apiVersion"]) == ("Backend", f"{group}/v1alpha1")
            assert found["uid"] == (f"of-{group}" if configuration else uid_of((group, "Backend", "agents", "b")))


def test_each_has_a_name_of_its_own_and_keeps_it():
    events = Events(Metrics("1"), clock=lambda: AT)
    source = PublishedEvents(events, Holder())
    events.add([NOTICE, replace(NOTICE, message="other")])
    names = [each.name for each in source.objects() if each.group == ""]
    assert len(set(names)) == 2
    version = source.version
    events.add([NOTICE])
    assert source.version != version
    assert {each.name for each in source.objects()} == set(names)


def test_what_is_cluster_scoped_has_its_events_in_the_default_namespace():
    (event,) = published(replace(NOTICE, regarding=InvolvedObject("GatewayClass", "", "egressproxy")))["v1"]
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]
