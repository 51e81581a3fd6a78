"""Whatever is sent to the admin API: a Status says what is wrong, in good time, and the gateway goes on."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support import manifests as m
from tests.support.process import GatewayProcess
from tests.support.writing import Client

MAPS = "/api/v1/namespaces/agents/configmaps"
GATEWAYS = "/apis/gateway.networking.k8s.io/v1/namespaces/agents/gateways"
JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
#: For the slowest machine; a process that is ended for its time takes 120 s.
GOOD_TIME_S = 30.0


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("bounds")
    arguments = ["--state-dir", str(folder / "state"), "--api-writes"]
    with GatewayProcess(folder / "gateway", [m.config_map("a", {})], arguments=arguments, must_be_ready=False) as made:
        client = Client(made)
        assert (
            client.send("POST", MAPS, {"metadata": {"name": "m", "labels": {"a": "b"}}, "data": {"a": "b"}})[0] == 201
        )
        assert (
            client.send("POST", GATEWAYS, m.gateway(m.forward_listener(1), name="g", gatewayClassName="other"))[0]
            == 201
        )
        yield made


def deep(levels: int, opening: str = "[", closing: str = "]") -> str:
    return opening * levels + closing * levels


def nested(levels: int, name: str = "a") -> str:
    return f'{{"{name}":' * levels + "1" + "}" * levels


def tower(path: str, levels: int) -> list[dict[str, Any]]:
    return [{"op": "add", "path": f"{path}{'/x' * level}", "value": {}} for level in range(levels)]


def doubling(times: int) -> list[dict[str, Any]]:
    """Each moves what there is into something that is one level above it."""
    made: list[dict[str, Any]] = [{"op": "add", "path": "/x", "value": {}}]
    for _ in range(times):
        made += [
            {"op": "add", "path": "/y", "value": {}},
            {"op": "move", "from": "/x", "path": "/y/z"},
            {"op": "move", "from": "/y", "path": "/x"},
        ]
    return made


FIELDS = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}


def owned(fields: Any, **more: Any) -> bytes:
    return json.dumps({"metadata": {"managedFields": [{**FIELDS, "fieldsV1": fields, **more}]}}).encode()


BODIES: list[tuple[str, str, bytes | str | list[Any] | dict[str, Any]]] = [
    ("PATCH", JSON_PATCH, tower("/data", 1200)),
    ("PATCH", JSON_PATCH, tower("/metadata/labels", 120)),
    ("PATCH", JSON_PATCH, doubling(1200)),
    ("PATCH", JSON_PATCH, [{"op": "add", "path": "/a" * 5000, "value": 1}]),
    ("PATCH", JSON_PATCH, [{"op": "add", "path": "/data/a", "value": json.loads(deep(80))}]),
    ("PATCH", JSON_PATCH, [{"op": "replace", "path": "", "value": 5}]),
    ("PATCH", JSON_PATCH, [{"op": "remove", "path": ""}]),
    ("PATCH", JSON_PATCH, [{"op": "copy", "from": "", "path": "/data/a"}] * 100),
    ("PATCH", JSON_PATCH, [5]),
    ("PATCH", JSON_PATCH, [{"op": "copy", "from": 5, "path": "/a"}]),
    ("PATCH", JSON_PATCH, [{"op": 5, "path": "/a"}]),
    ("PATCH", JSON_PATCH, [{"op": "add", "path": 5}]),
    ("PATCH", JSON_PATCH, [{"op": "add", "path": f"/spec/{'9' * 5000}", "value": 1}]),
    ("PATCH", JSON_PATCH, [
        {"op": "add", "path": "/metadata/finalizers", "value": []},
        {"op": "add", "path": f"/metadata/finalizers/{'9' * 5000}", "value": "x"},
    ]),
    ("PATCH", JSON_PATCH, [{"op": "add", "path": "/metadata/managedFields", "value": 5}]),
    ("PATCH", JSON_PATCH, "{}"),
    ("PATCH", MERGE, nested(1200)),
    ("PATCH", MERGE, deep(100_000)),
    ("PATCH", MERGE, deep(100_000, '{"a":', "")),
    ("PATCH", MERGE, {"data": 5}),
    ("PATCH", MERGE, {"metadata": 5}),
    ("PATCH", MERGE, {"metadata": {"labels": [1]}}),
    ("PATCH", MERGE, {"metadata": {"ownerReferences": {"a": 1}}}),
    ("PATCH", MERGE, {"metadata": {"managedFields": {"a": 1}}}),
    ("PATCH", MERGE, owned({"f:a": 5})),
    ("PATCH", MERGE, owned({"k:[1]": {}})),
    ("PATCH", MERGE, owned({"k:" + deep(5000): {}})),
    ("PATCH", MERGE, owned({"k:{": {}})),
    ("PATCH", MERGE, owned({}, manager={"a": 1})),
    ("PATCH", MERGE, owned(5)),
    ("PATCH", MERGE, '{"data": {"a": "b", "a": "c"}}'),
    ("PATCH", MERGE, '{"data": {"a": NaN}}'),
    ("PATCH", MERGE, '{"data": {"a": 1e400}}'),
    ("PATCH", MERGE, '{"data": {"a": -Infinity}}'),
    ("PATCH", MERGE, f'{{"data": {{"a": {"9" * 100_000}}}}}'),
    ("PATCH", MERGE, '{"data": {"a": "\\ud800"}}'),
    ("PATCH", MERGE, b'{"data": {"a": "\xff"}}'),
    ("PATCH", MERGE, ""),
    ("PATCH", STRATEGIC, {"metadata": {"$retainKeys": 5}}),
    ("PATCH", STRATEGIC, {"metadata": {"$setElementOrder/finalizers": 5}}),
    ("PATCH", STRATEGIC, {"metadata": {"$deleteFromPrimitiveList/labels": 5}}),
    ("PATCH", STRATEGIC, {"metadata": {"ownerReferences": [5, {"$patch": "replace"}]}}),
    ("PATCH", STRATEGIC, {"metadata": {"ownerReferences": [{"uid": str(number)} for number in range(50_000)]}}),
    ("PATCH", STRATEGIC, {"metadata": {"finalizers": ["a"], "$setElementOrder/finalizers": [{}]}}),
    ("PATCH", STRATEGIC, nested(1200, "metadata")),
    ("PATCH", APPLY, "metadata: {name: m, labels: 5}"),
    ("PATCH", APPLY, "metadata: {name: m, labels: {a: {b: c}}}"),
    ("PATCH", APPLY, "metadata: &a {name: m, labels: *a}"),
    ("PATCH", APPLY, "x: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9))),
    ("PATCH", APPLY, deep(100_000)),
    ("PATCH", APPLY, "? " * 5000),
    ("PATCH", APPLY, "- " * 5000),
    ("PATCH", APPLY, "!!python/object/apply:os.system [id]"),
    ("POST", "application/json", {"metadata": {"name": 5}}),
    ("POST", "application/json", {"metadata": {"name": "x", "annotations": 5}}),
    ("POST", "application/json", {"metadata": {"generateName": ["x"]}}),
    ("POST", "application/json", f'{{"metadata": {{"name": "x"}}, "data": {nested(1200)}}}'),
    ("POST", "application/json", {"metadata": {"name": "x"}, "data": dict.fromkeys(map(str, range(210_000)), "")}),
    ("POST", PROTOBUF, b"k8s\x00" + b"\x0a\x00" * 500_000),
    ("POST", PROTOBUF, b"k8s\x00" + b"\x0a" + b"\xff" * 100),
    ("POST", PROTOBUF, b"k8s\x00"),
    ("DELETE", "application/json", {"preconditions": [1]}),
    ("DELETE", "application/json", {"preconditions": {"uid": {"a": 1}}}),
    ("DELETE", "application/json", nested(1200)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BODIES)))
def test_a_hostile_body_is_refused_with_a_status(gateway: GatewayProcess, number: int):
    method, content_type, body = BODIES[number]
    octets = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    path = MAPS if method == "POST" else f"{MAPS}/m?fieldManager=me&fieldValidation=Ignore"
    if method == "DELETE":
        path = f"{MAPS}/m"
    begun, said = time.monotonic(), len(gateway.stderr)
    code, answer = Client(gateway).raw(method, path, octets, content_type)
    assert time.monotonic() - begun < GOOD_TIME_S
    assert code in (400, 409, 413, 422), (code, str(answer)[:500])
    assert answer["kind"] == "Status"
    text = json.dumps(answer)
    assert len(text) < 20_000
    assert "Traceback" not in text
    assert "Traceback" not in gateway.stderr[said:]
    assert "internal error" not in gateway.stderr[said:]
    assert gateway.admin(f"{MAPS}/m")[0] == 200


def test_large_and_honest_writes_are_taken_in_good_time(gateway: GatewayProcess):
    client = Client(gateway)
    begun = time.monotonic()
    labels = {f"l{number}": "v" for number in range(30_000)}
    one = f"{MAPS}/large?fieldManager=me"
    for body in (
        {"metadata": {"name": "large", "labels": labels}},
        {"metadata": {"name": "large", "labels": {"a": "b"}}},
    ):
        code, answer = client.send("PATCH", one, body, APPLY)
        assert code in (200, 201), str(answer)[:300]
    assert answer["metadata"]["labels"] == {"a": "b"}
    assert time.monotonic() - begun < 2 * GOOD_TIME_S
    extra = {"spec": {"listeners": [{"name": "http", "port": 2}]}}
    assert client.send("PATCH", f"{GATEWAYS}/g", extra, STRATEGIC)[0] in (200, 422)


def test_text_of_every_kind_comes_back_as_it_was_sent(gateway: GatewayProcess):
    text = "a\u0085b\u2028c\U0001f600d\x7fe\tf\ng: #h\r\n '''\"--- "
    for form in (True, False):
        body = json.dumps({"metadata": {"generateName": "t-"}, "data": {"a": text}}, ensure_ascii=form)
        code, answer = Client(gateway).raw("POST", MAPS, body.encode())
        assert (code, answer["data"]["a"]) == (201, text)
        shown = json.loads(gateway.admin(f"{MAPS}/{answer['metadata']['name']}")[1])
        assert shown["data"]["a"] == text


def test_of_writes_at_once_on_one_version_one_wins(gateway: GatewayProcess):
    _, made = Client(gateway).send("POST", MAPS, {"metadata": {"generateName": "race-"}, "data": {"a": "0"}})
    name = made["metadata"]["name"]

    def replace(number: int) -> int:
        return Client(gateway).send("PUT", f"{MAPS}/{name}", {**made, "data": {"a": str(number)}})[0]

    with ThreadPoolExecutor(6) as pool:
        codes = list(pool.map(replace, range(1, 7)))
    assert sorted(codes) == [200, 409, 409, 409, 409, 409]


@pytest.mark.parametrize(
    ("fields", "body", "status"),
    [
        ("Content-Encoding: gzip\r\nContent-Length: 5\r\n", b"abcde", 415),
        ("Content-Encoding: deflate\r\nContent-Length: 5\r\n", b"abcde", 415),
        ("Content-Encoding: identity\r\nContent-Length: 2\r\n", b"{}", 422),
        ("Transfer-Encoding: chunked\r\n", b"2\r\n{}\r\n0\r\n\r\n", 422),
        ("Transfer-Encoding: chunked\r\n", b"2\r\n{", 400),
        ("Transfer-Encoding: chunked\r\n", b"2\r\n{}\r\nzz\r\n", 400),
        ("Content-Length: 9\r\nExpect: 100-continue\r\n", b"{}", 400),
    ],
)
def test_a_body_that_cannot_be_taken_is_refused_and_fills_no_log(
    gateway: GatewayProcess, fields: str, body: bytes, status: int
):
    said = len(gateway.stderr)
    with socket.create_connection(("127.0.0.1", gateway.admin_port), timeout=GOOD_TIME_S) as sock:
        head = f"POST {MAPS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{fields}\r\n"
        sock.sendall(head.encode() + body)
        sock.shutdown(socket.SHUT_WR)
        answer = sock.recv(65536)
    if answer:  # who has left in the middle of it may be told nothing
        codes = [line.split()[1] for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.")]
        assert int(codes[-1]) in (status, 100)
    assert "Traceback" not in gateway.stderr[said:]
