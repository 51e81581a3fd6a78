"""Whatever is asked of the admin API, and however a write goes: no value of a Secret is in an answer or in a log."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egressproxy.admin.introspection import VIEWS
from tests.support import manifests as m
from tests.support.process import GatewayProcess
from tests.support.writing import Client

SECRETS = "/api/v1/namespaces/agents/secrets"
CANARY = "CANARY-9f3c"
FORMS = (CANARY, base64.b64encode(CANARY.encode()).decode(), base64.b64encode(b"x" + CANARY.encode()).decode()[4:-4])
COPIES = {
    "kubectl.kubernetes.io/last-applied-configuration": json.dumps({"stringData": {"a": CANARY}}),
    "kapp.k14s.io/original": json.dumps({"data": {"a": FORMS[1]}}),
    "objectset.rio.cattle.io/applied": CANARY,
    "banzaicloud.com/last-applied": CANARY,
}
PATCHES = ("merge-patch+json", "strategic-merge-patch+json", "apply-patch+yaml")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("secrets")
    arguments = ["--state-dir", str(folder / "state"), "--api-writes", "--log-level", "debug"]
    with GatewayProcess(folder / "gateway", [m.config_map("a", {})], arguments=arguments, must_be_ready=False) as made:
        yield made


def secret(name: str, **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "annotations": dict(COPIES)}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"a": CANARY}, **more}


def check(gateway: GatewayProcess, *answers: object) -> None:
    for text in (*map(str, answers), gateway.stderr):
        for form in FORMS:
            assert form not in text


@pytest.mark.parametrize("query", ["", "dryRun=All"])
def test_no_write_shows_a_value(gateway: GatewayProcess, query: str):
    client = Client(gateway)
    name = f"written{len(query)}"
    made = client.send("POST", f"{SECRETS}?{query}", secret(name))
    assert made[0] == 201
    assert set(made[1]["metadata"]["annotations"].values()) == {"redacted"}
    if query:
        assert client.send("POST", SECRETS, secret(name))[0] == 201
    one = f"{SECRETS}/{name}?fieldManager=me&{query}"
    body = secret(name, type="Opaque")
    answers = [client.send("PUT", one, {**body, "metadata": {**body["metadata"], "labels": {"a": "b"}}})]
    for number, kind in enumerate(PATCHES):
        body["metadata"]["labels"] = {"c": str(number)}
        answers.append(
            client.send("PATCH", f"{one}&force=true" if "apply" in kind else one, body, f"application/{kind}")
        )
    patch = [{"op": "add", "path": "/metadata/annotations/more", "value": CANARY}]
    answers.append(client.send("PATCH", one, patch, "application/json-patch+json"))
    assert [code for code, _ in answers] == [200] * 5, answers
    check(gateway, made, *answers, client.send("DELETE", one))


def test_no_refusal_shows_a_value(gateway: GatewayProcess):
    client = Client(gateway)
    assert client.send("POST", SECRETS, secret("refused"))[0] == 201
    one = f"{SECRETS}/refused"
    ways = [
        client.send("POST", SECRETS, secret("b0", data={"z": f"%{CANARY}"})),
        client.send("POST", SECRETS, secret("b1", data=[CANARY])),
        client.send("POST", SECRETS, secret("b2", data=CANARY)),
        client.send("POST", SECRETS, secret("b3", stringData=[CANARY])),
        client.send("POST", SECRETS, secret("b4", stringData={"a": {"b": CANARY}})),
        client.send("POST", SECRETS, secret("b5", stringData=CANARY)),
        client.send("POST", SECRETS, secret("b6", type={"a": CANARY})),
        client.send("POST", SECRETS, secret("b7", immutable=CANARY)),
        client.send("POST", SECRETS, {**secret("b8"), "metadata": {"name": "c12", "annotations": [CANARY]}}),
        client.send(
            "POST", SECRETS, {**secret("b9"), "metadata": {"name": "c13", "annotations": {"a": {"b": CANARY}}}}
        ),
        client.send("POST", SECRETS, {**secret("b10"), "metadata": {"name": "c14", "annotations": CANARY}}),
        client.send("POST", f"{SECRETS}?fieldValidation=Strict", secret("b11", more={"a": CANARY})),
        client.raw("POST", SECRETS, f"stringData: {{a: !{CANARY} b}}".encode()),
        client.raw("POST", SECRETS, f"stringData: {{a: *{CANARY}}}".encode()),
        client.raw("POST", SECRETS, f"stringData: {{a: '{CANARY}".encode()),
        client.raw("POST", SECRETS, b'{"stringData": {"a": "' + CANARY.encode() + b'\xff"}}'),
        client.send("PATCH", one, [{"op": "test", "path": "/data/a", "value": "x"}], "application/json-patch+json"),
        client.send(
            "PATCH",
            one,
            [{"op": "test", "path": "/metadata/annotations", "value": CANARY}],
            "application/json-patch+json",
        ),
        client.send(
            "PATCH",
            f"{one}?fieldManager=other",
            secret("refused", stringData={"a": f"2{CANARY}"}),
            "application/apply-patch+yaml",
        ),
    ]
    assert [code for code, _ in ways if code not in (400, 409, 422)] == [], ways
    check(gateway, *ways)


def test_no_reading_shows_a_value(gateway: GatewayProcess, tmp_path: Path):
    client = Client(gateway)
    assert client.send("POST", SECRETS, secret("shown"))[0] == 201
    gateway.replace([m.config_map("a", {}), secret("of-a-file")])
    while "of-a-file" not in gateway.admin("/config")[1]:
        pass
    watch = f"{SECRETS}?watch=true&timeoutSeconds=1"
    of_all = ("/api/v1/secrets", "/api/v1/events", "/config", "/model", "/decisions", *VIEWS)
    for path in (f"{SECRETS}/shown", f"{SECRETS}/of-a-file", SECRETS, watch, *of_all):
        check(gateway, gateway.admin(path))
