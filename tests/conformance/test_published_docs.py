"""docs/published-forms.md: each published Backend and ours that stands beside it are compiled into one and the same."""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from egressproxy.config.resources.meta import OUR_GROUP
from egressproxy.ir.backend import BackendIR
from egressproxy.ir.policy import ExtensionIR
from tests.config.compile.kit import compiled, rule
from tests.support import manifests as m
from tests.support.pki import Pki, chain

PAGE = Path(__file__).parents[2] / "docs" / "published-forms.md"
NAMESPACE = "agents"


def backends() -> Iterator[m.Manifest]:
    for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        for each in yaml.safe_load_all(block):
            if "Backend" in each["kind"] and each["spec"].get("type") != "EndpointSelector":  # ours has none
                yield each


def pairs() -> dict[str, dict[bool, m.Manifest]]:
    """By name: whether it is ours, and the Backend."""
    found: dict[str, dict[bool, m.Manifest]] = defaultdict(dict)
    for backend in backends():
        is_ours = backend["apiVersion"].startswith(f"{OUR_GROUP}/")
        assert is_ours not in found[backend["metadata"]["name"]], backend
        found[backend["metadata"]["name"]][is_ours] = backend
    return found


@pytest.fixture(scope="module")
def around() -> list[m.Manifest]:
    """What the Backends of the page refer to."""
    pki = Pki()
    leaf = pki.issue("client.example")
    pair = {"tls.crt": chain(leaf).encode(), "tls.key": leaf.private_key_pem.bytes()}
    shown = {key: base64.b64encode(value).decode() for key, value in pair.items()}
    port = {"name": "http", "port": 8000}
    grant = {
        "from": [
            {"group": group, "kind": "Backend", "namespace": NAMESPACE}
            for group in (OUR_GROUP, "gateway.networking.k8s.io")
        ],
        "to": [{"group": "", "kind": "Secret"}],
    }
    slices = m.manifest("discovery.k8s.io/v1", "EndpointSlice", "vllm-1", NAMESPACE)
    slices["metadata"]["labels"] = {"kubernetes.io/service-name": "vllm"}
    slices |= {"addressType": "IPv4", "ports": [port], "endpoints": [{"addresses": ["192.0.2.7"]}]}
    return [
        m.gateway(m.http_listener(8080), namespace=NAMESPACE),
        m.config_map("vendor-ca", {"ca.crt": pki.ca_pem}, namespace=NAMESPACE),
        *(m.manifest("v1", "Secret", f"{name}-client-cert", NAMESPACE, data=shown) for name in ("egress", "partner")),
        m.secret("openai-api-key", {"token": "sk-one"}, namespace="platform-secrets"),
        m.manifest("gateway.networking.k8s.io/v1beta1", "ReferenceGrant", "g", "platform-secrets", spec=grant),
        m.manifest("v1", "Service", "vllm", NAMESPACE, spec={"ports": [port]}),
        slices,
    ]


def test_every_form_stands_beside_ours():
    found = pairs()
    assert len(found) >= 8
    assert {name for name, both in found.items() if len(both) != 2} == set()


@pytest.mark.parametrize("name", sorted(pairs()))
def test_both_mean_the_same(name: str, around: list[m.Manifest]):
    theirs, ours = (read(pairs()[name][is_ours], around) for is_ours in (False, True))
    assert theirs == ours


def read(backend: m.Manifest, around: list[m.Manifest]) -> tuple[BackendIR, list[Any]]:
    """What a route to it leads to, without what says which kind it is."""
    ref = {
        "group": backend["apiVersion"].partition("/")[0],
        "kind": backend["kind"],
        "name": backend["metadata"]["name"],
    }
    route = m.http_route("r", {"backendRefs": [ref]}, namespace=NAMESPACE)
    made = compiled(*(yaml.safe_dump(each) for each in (*around, route, backend)))
    (found,) = rule(made).backends
    assert found.backend is not None, found.error
    return replace(found.backend, kind="", extensions=()), [filter_of(each) for each in found.extensions]


def filter_of(spec: ExtensionIR) -> tuple[Any, ...]:
    """What a filter does, and when; defaults are filled in."""
    config = {"header": "Authorization", "template": "Bearer {}", **json.loads(spec.config)}
    config["secretRef"].pop("key", None)
    return spec.name, spec.type, spec.priority, spec.fail_open, config, [value.reveal() for _, value in spec.secrets]
