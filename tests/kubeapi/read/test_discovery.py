from __future__ import annotations

from egressproxy.kubeapi.read import discovery


def test_groups_versions_and_resources_are_listed():
    assert discovery.legacy_versions("127.0.0.1:1")["versions"] == ["v1"]
    groups = {group["name"]: group for group in discovery.group_list()["groups"]}
    assert groups["gateway.networking.k8s.io"]["preferredVersion"]["version"] == "v1"
    ours = discovery.one_group("egressproxy.io")
    assert ours is not None
    assert ours["versions"] == [{"groupVersion": "egressproxy.io/v1alpha1", "version": "v1alpha1"}]
    assert discovery.one_group("nope") is None
    assert discovery.resource_list("", "v2", False) is None


def test_our_own_group_comes_first_however_it_is_asked_for():
    """kubectl takes a short name such as `backends` for the one in the group that discovery lists first."""
    listed = [group["name"] for group in discovery.group_list()["groups"]]
    assert listed[0] == "egressproxy.io"
    assert len(listed) == len(set(listed))
    for content_type in discovery.AGGREGATED:
        items = discovery.aggregated(False, content_type, False)["items"]
        assert [item["metadata"]["name"] for item in items] == listed


def test_a_resource_says_its_names_and_verbs():
    listed = discovery.resource_list("gateway.networking.k8s.io", "v1", False)
    assert listed is not None
    by_name = {resource["name"]: resource for resource in listed["resources"]}
    assert by_name["gatewayclasses"]["namespaced"] is False
    assert by_name["gateways"] == {
        "name": "gateways",
        "singularName": "gateway",
        "namespaced": True,
        "kind": "Gateway",
        "verbs": ["get", "list", "watch"],
        "shortNames": ["gtw", "gw"],
        "categories": ["gateway-api"],
    }


def test_all_of_it_comes_at_once_to_who_asks_so():
    content_type = discovery.aggregated_type(f"{discovery.AGGREGATED[0]}, application/json")
    assert content_type == discovery.AGGREGATED[0]
    assert discovery.aggregated_type("application/json") is None
    core = discovery.aggregated(True, content_type, False)
    assert core["apiVersion"] == "apidiscovery.k8s.io/v2"
    assert {each["resource"] for each in core["items"][0]["versions"][0]["resources"]} >= {"secrets", "events"}
    groups = discovery.aggregated(False, discovery.AGGREGATED[1], False)
    assert groups["apiVersion"] == "apidiscovery.k8s.io/v2beta1"
    gateway = next(item for item in groups["items"] if item["metadata"]["name"] == "gateway.networking.k8s.io")
    assert [version["version"] for version in gateway["versions"]][:2] == ["v1", "v1beta1"]
    assert gateway["versions"][0]["resources"][0]["scope"] == "Cluster"


def test_what_is_only_observed_can_never_be_written():
    listed = discovery.resource_list("", "v1", True)
    assert listed is not None
    verbs = {resource["name"]: resource["verbs"] for resource in listed["resources"]}
    assert verbs["secrets"] == ["create", "delete", "get", "list", "patch", "update", "watch"]
    assert verbs["events"] == ["get", "list", "watch"]
