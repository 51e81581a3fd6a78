"""What kubectl create sends in protobuf."""

from __future__ import annotations

import json

import pytest

from egressproxy.admin.status import ApiError
from egressproxy.kubeapi.write.core_protobuf import as_json


def message(*fields: tuple[int, bytes | str | int]) -> bytes:
    made = b""
    for number, value in fields:
        if isinstance(value, int):
            made += bytes((number << 3, value))
        else:
            octets = value.encode() if isinstance(value, str) else value
            made += bytes((number << 3 | 2, len(octets))) + octets
    return made


def body(kind: str, raw: bytes) -> bytes:
    return b"k8s\x00" + message((1, message((1, "v1"), (2, kind))), (2, raw), (3, ""), (4, ""))


META = message((1, "x"), (2, ""), (3, "ns"), (7, 0), (8, b""), (11, message((1, "team"), (2, "red"))))


def test_a_namespace_comes_as_json():
    assert json.loads(as_json("Namespace", body("Namespace", message((1, META), (2, b""), (3, message((1, ""))))))) == {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "x", "namespace": "ns", "labels": {"team": "red"}},
    }


def test_values_of_maps_come_as_they_are_written():
    data = message((1, META), (2, message((1, "a"), (2, "b"))), (2, message((1, "empty"), (2, ""))), (4, 1))
    found = json.loads(as_json("ConfigMap", body("ConfigMap", data)))
    assert (found["data"], found["immutable"]) == ({"a": "b", "empty": ""}, True)
    secret = message((1, META), (2, message((1, "a"), (2, b"\xff\x00"))), (3, "Opaque"))
    found = json.loads(as_json("Secret", body("Secret", secret)))
    assert (found["data"], found["type"]) == ({"a": "/wA="}, "Opaque")


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"{}",
        b"k8s\x00",
        b"k8s\x00\xff\xff",
        body("ConfigMap", message((1, META), (9, "unknown"))),
        body("ConfigMap", message((1, META), (2, 7))),
        body("ConfigMap", message((1, META)))[:-7] + b"\x12\x70",
        b"k8s\x00" + b"\xff" * 40,
    ],
)
def test_what_is_not_known_is_400(octets: bytes):
    with pytest.raises(ApiError) as caught:
        as_json("ConfigMap", octets)
    assert caught.value.code == 400


def test_another_kind_is_415_with_a_remedy():
    with pytest.raises(ApiError) as caught:
        as_json("Service", b"k8s\x00")
    assert (caught.value.code, "send application/json" in str(caught.value)) == (415, True)
