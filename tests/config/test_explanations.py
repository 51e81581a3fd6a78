"""What the schema refuses, in the words of the manifest."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from egressproxy.config.explanations import explain, field_path, path_text, unknown_kind
from egressproxy.config.resources.core import Secret
from egressproxy.config.resources.extension import PayloadProcessingPipeline
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.config.resources.routes import HttpRoute

TARGETS = [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}]


def explained(spec: dict[str, Any], written: str | None = None) -> tuple[str, str]:
    """Message and remedy of the only error of a policy."""
    manifest = {"apiVersion": "egressproxy.io/v1alpha1", "kind": "EgressPolicy", "metadata": {"name": "x"}}
    return first_of(EgressPolicy, {**manifest, "spec": {"targetRefs": TARGETS, **spec}}, written, show=True)


def first_of(kind: type[Resource], manifest: dict[str, Any], written: str | None, *, show: bool) -> tuple[str, str]:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(manifest)
    details = caught.value.errors()[0]
    path, _ = field_path(details["loc"])
    return explain(details, kind, path, written, show)


@pytest.mark.parametrize(
    ("spec", "written", "message", "remedy"),
    [
        ({"mode": "Opne"}, "Opne", "Opne is not possible here", "did you mean Open?"),
        ({"mode": "x"}, "x", "x is not possible here", "possible are Enforce, Report, Open"),
        ({"mode": False}, "off", "off is a truth value, not text", "quote it; possible are Enforce, Report, Open"),
        ({"tls": {"minVersion": 1.2}}, "1.2", "1.2 is a number, not text", "quote it; possible are 1.2, 1.3"),
        ({"dns": []}, None, "a list stands where a mapping is expected", "as key: value; known are servers, transport"),
        ({"loadBalancer": {}}, None, "unknown field loadBalancer", "did you mean traffic.loadBalancer?"),
        ({"traffic": {"retries": {"numRetries": 3}}}, None, "unknown field numRetries", "write attempts"),
        (
            {"traffic": {"retries": {"retryOn": {"httpStatusCodes": [503]}}}},
            None,
            "unknown field httpStatusCodes",
            "write codes, beside retryOn",
        ),
        (
            {"destinations": {"hostnames": []}},
            None,
            "unknown field hostnames",
            "did you mean allow[].hostnames or deny[].hostnames?",
        ),
        (
            {"dns": {"servers": "192.0.2.1"}},
            "192.0.2.1",
            "192.0.2.1 stands where a list is expected",
            "write it as [value]",
        ),
        ({"regions": {"allowed": [None]}}, "", "nothing is written where text is expected", "write a value"),
        ({"regions": {"allowed": [""]}}, "", "the text is empty", "write a value"),
        ({"regions": {"allowed": ["x" * 64]}}, "x" * 64, "longer than 63 characters", "shorten it"),
        (
            {"extensions": [{"name": "e", "type": "a/B:v1", "failOpen": "yes"}]},
            "yes",
            "yes is not a truth value",
            "true",
        ),
        ({"limits": {"tunnels": 1.5}}, "1.5", "1.5 is not a whole number", "decimal digits"),
        ({"limits": {"tunnels": "9" * 5000}}, "9" * 5000, "9" * 60 + "… is not a whole number", "decimal digits"),
        ({"dns": {"servers": [f"192.0.2.{n}" for n in range(9)]}}, None, "9 entries, at most 8", "split it"),
        ({"destinations": {"deny": [{"hostnames": [""]}]}}, "", '"": not a hostname', "write a DNS name"),
    ],
)
def test_an_error_says_what_is_wrong_and_what_to_write(
    spec: dict[str, Any], written: str | None, message: str, remedy: str
) -> None:
    got = explained(spec, written)
    assert got[0].startswith(message)
    assert remedy in got[1]


def test_a_list_that_has_to_be_there_is_not_to_be_removed() -> None:
    manifest = {"apiVersion": "egressproxy.io/v1alpha1", "kind": "PayloadProcessingPipeline", "metadata": {"name": "x"}}
    got = first_of(PayloadProcessingPipeline, {**manifest, "spec": {"processors": []}}, None, show=True)
    assert got == ("the list is empty", "write at least 1")


def test_a_local_reference_with_a_namespace_is_told_where_its_object_is() -> None:
    named = {"group": "egressproxy.io", "kind": "EgressPolicy", "name": "a", "namespace": "b"}
    route = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "x"}}
    spec = {"rules": [{"filters": [{"type": "ExtensionRef", "extensionRef": named}]}]}
    message, remedy = first_of(HttpRoute, {**route, "spec": spec}, None, show=True)
    assert message == "unknown field namespace"
    assert remedy.startswith("remove it: the object is in the namespace")


def test_unknown_fields_are_looked_for_in_the_model_at_their_place() -> None:
    spec = {"destinations": {"allow": [{"hostnames": ["a.test"], "port": [1]}]}}
    assert explained(spec) == ("unknown field port", "did you mean ports?")


def test_nothing_of_a_secret_is_shown() -> None:
    manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "data": {"token": "c4n4ry!"}}
    message, remedy = first_of(Secret, manifest, None, show=False)
    assert "c4n4ry" not in message + remedy


@pytest.mark.parametrize(
    ("path", "text"),
    [(("spec", "rules", 0, "matches"), "spec.rules[0].matches"), (("data", "ca.crt"), 'data["ca.crt"]'), ((), "")],
)
def test_a_path_is_written_as_in_kubernetes(path: tuple[str | int, ...], text: str) -> None:
    assert path_text(path) == text


def test_an_unknown_kind_names_the_nearest_known_one() -> None:
    assert unknown_kind("gateway.networking.k8s.io/v1", "HttpRoute")[2] == "did you mean HTTPRoute?"
    assert "known kinds are" in unknown_kind("v1", "Zzz")[2]
    assert unknown_kind("v1", "Gateway")[0] == "apiVersion"


@given(st.text(max_size=100), st.text(max_size=100))
def test_messages_are_one_line_of_printable_text(api_version: str, kind: str) -> None:
    _, message, remedy = unknown_kind(api_version, kind)
    assert (message + remedy).isprintable()
