from __future__ import annotations

import pytest

from egressproxy.admin.status import ApiError
from egressproxy.kubeapi.kinds import served
from egressproxy.kubeapi.list_options import Form, Options, Position, form, resource

KIND = served("", "v1", "secrets")
assert KIND is not None
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/api/v1/secrets", ("Secret", None, "")),
        ("/api/v1/namespaces/n/secrets", ("Secret", "n", "")),
        ("/api/v1/namespaces/n/secrets/s", ("Secret", "n", "s")),
        ("/api/v1/namespaces", ("Namespace", None, "")),
        ("/api/v1/namespaces/n", ("Namespace", None, "n")),
        ("/apis/gateway.networking.k8s.io/v1beta1/namespaces/n/gateways/g", ("Gateway", "n", "g")),
        ("/apis/gateway.networking.k8s.io/v1/namespaces/n/gateways/g/status", ("Gateway", "n", "g")),
        ("/apis/gateway.networking.k8s.io/v1/gatewayclasses/c", ("GatewayClass", None, "c")),
    ],
)
def test_a_path_leads_to_a_resource(path: str, found: tuple[str, str | None, str]):
    asked = resource(path)
    assert asked is not None
    assert (asked.kind.kind, asked.namespace, asked.name) == found


@pytest.mark.parametrize(
    "path",
    [
        "/apis/nope/v1/things",
        "/apis/gateway.networking.k8s.io/v9/gateways",
        "/apis/gateway.networking.k8s.io/v1/nope",
        "/api/v1/namespaces/default/secrets/key/more",
        "/api/v1/secrets/key",
        "/api/v1/namespaces/x/namespaces/agents",
        "/api/v1/namespaces//secrets",
        "/api",
    ],
)
def test_another_path_leads_nowhere(path: str):
    assert resource(path) is None


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", Form.PLAIN),
        ("*/*", Form.PLAIN),
        (f"{TABLE},application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", Form.TABLE),
        ("application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", Form.PLAIN),
        ("application/vnd.kubernetes.protobuf,application/json", Form.PLAIN),
        ("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", Form.METADATA),
    ],
)
def test_the_first_form_that_we_have_is_given(accept: str, wanted: Form):
    assert form(accept) is wanted


def test_a_form_that_we_have_not_is_406():
    with pytest.raises(ApiError) as caught:
        form("application/vnd.kubernetes.protobuf")
    assert caught.value.code == 406


@pytest.mark.parametrize(
    "query",
    [
        {"unknown": "1"},
        {"limit": "-1"},
        {"limit": "x"},
        {"watch": "maybe"},
        {"labelSelector": "a in"},
        {"fieldSelector": "spec.x=1"},
        {"continue": "rubbish"},
        {"continue": "W1tb" * 2000},  # JSON that is nested more deeply than Python reads
        {"continue": "e30="},
        {"resourceVersion": "abc"},
        {"resourceVersionMatch": "Sometimes"},
        {"sendInitialEvents": "true", "watch": "true"},
        {"includeObject": "All"},
    ],
)
def test_options_that_cannot_be_read_are_400_and_not_ignored(query: dict[str, str]):
    with pytest.raises(ApiError) as caught:
        Options.of(query, KIND)
    assert caught.value.code == 400


def test_a_token_says_where_a_list_goes_on():
    position = Position(7, "n", "a")
    assert Options.of({"continue": position.to_token(), "limit": "5"}, KIND).after == position


def test_a_field_of_the_kind_may_be_selected_by():
    assert len(Options.of({"fieldSelector": "type=Opaque", "labelSelector": "a"}, KIND).select) == 2
