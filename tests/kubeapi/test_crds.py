"""CustomResourceDefinitions of our kinds: what files may say, a cluster takes, and it means the same there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from pydantic import ValidationError

from egressproxy.cli.main import main
from egressproxy.config.compile.compiler import compile_config
from egressproxy.config.compile.interface import Defaults
from egressproxy.config.reading.load import load_text
from egressproxy.config.resources.kinds import kind_class
from egressproxy.config.resources.meta import Resource, without_nulls
from egressproxy.config.served_kinds import ServedKind
from egressproxy.filters.catalog import Catalog
from egressproxy.kubeapi.crds import _PATHS, OUR_KINDS, crd
from egressproxy.kubeapi.read.columns import columns
from egressproxy.kubeapi.write.patches import shape_of
from tests.kubeapi.crd_server import FREE, RULES, admitted, broken_rules, faults, schema_of

ROOT = Path(__file__).resolve().parents[2]
BY_KIND = pytest.mark.parametrize("kind", OUR_KINDS, ids=lambda kind: kind.kind)
#: What a schema of apiextensions.k8s.io/v1 may have here (JSONSchemaProps); a strict client warns of anything else.
KNOWN = {
    "description", "type", "nullable", "enum", "default", "format", "pattern", "minimum", "exclusiveMinimum", "maximum",
    "minLength", "maxLength", "minItems", "maxItems", "maxProperties", "required", "properties", "items",
    "additionalProperties", FREE, RULES, "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
}  # fmt: skip


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in it, with its path."""
    yield path, schema
    for name, each in schema.get("properties", {}).items():
        yield from nodes(each, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


@BY_KIND
def test_the_schema_is_structural(kind: ServedKind):
    for path, node in nodes(schema_of(kind.kind)):
        assert node.keys() <= KNOWN, path
        assert "type" in node or node.get(FREE) is True, path
        if node.get("type") == "object":
            assert len(node.keys() & {"properties", "additionalProperties", FREE}) == (path != ".metadata"), path
        assert (node.get("type") == "array") == ("items" in node), path
        re.compile(node.get("pattern", ""))
        for key in node.get("x-kubernetes-list-map-keys", ()):
            assert key in node["items"]["required"], path


@BY_KIND
def test_every_field_is_described(kind: ServedKind):
    fields = [
        (f"{path}.{name}", field)
        for path, node in nodes(schema_of(kind.kind))
        for name, field in node.get("properties", {}).items()
    ]
    assert [path for path, field in fields if not field.get("description") and path != ".metadata"] == []


@BY_KIND
def test_lists_with_keys_are_those_of_server_side_apply(kind: ServedKind):
    def at(names: tuple[str, ...]) -> str:
        return "".join(f".{name}" for name in names)

    keyed = {
        path: tuple(node["x-kubernetes-list-map-keys"])
        for path, node in nodes(schema_of(kind.kind))
        if node.get("x-kubernetes-list-type") == "map" and "[]" not in path
    }
    here = shape_of(kind.group, kind.kind)
    assert keyed == {at(names): keys for names, keys in here.items() if names[0] != "metadata"}


@BY_KIND
def test_columns_are_those_of_our_own_api(kind: ServedKind):
    shown = crd(kind)["spec"]["versions"][0]["additionalPrinterColumns"]
    there = [column.name for column in columns(kind.group, kind.kind)]
    assert _PATHS[kind.kind].keys() <= set(there)
    assert [column["name"] for column in shown] == [name for name in there if name in {*_PATHS[kind.kind], "Age"}]


def test_the_file_in_deploy_is_what_the_command_prints():
    file = ROOT / "deploy/crds/egressproxy.io.yaml"
    printed = CliRunner().invoke(main, ["crds"]).output
    assert file.read_text(encoding="utf-8") == printed, (
        "write it anew: egressproxy crds > deploy/crds/egressproxy.io.yaml"
    )
    assert "&id" not in printed


def test_one_kind_can_be_printed():
    (printed,) = yaml.safe_load_all(CliRunner().invoke(main, ["crds", "--kind", "filtertype"]).output)
    assert printed["metadata"]["name"] == "filtertypes.egressproxy.io"
    refused = CliRunner().invoke(main, ["crds", "--kind", "EgressPolcy"])
    assert refused.exit_code == 2
    assert "EgressPolicy" in refused.output


# --- the same as the models ------------------------------------------------------------------------------------------


def read(manifest: dict[str, Any]) -> Resource | None:
    """The object as the loader reads it; None where it refuses it."""
    model = kind_class(manifest["apiVersion"], manifest["kind"])
    assert model is not None
    try:
        return model.model_validate(without_nulls(manifest) if model.NULLS_ARE_ABSENT else manifest, context={})
    except ValidationError:
        return None


def check(manifest: dict[str, Any], section: str = "") -> bool:
    """Whether the loader takes it. Fails where a cluster would not take it, too, or would make another object of it.

    `section` of the spec: all else was looked at before.
    """
    made = read(manifest)
    if made is None:
        return False
    stored = admitted(manifest)
    assert faults(stored, section) == [], manifest
    assert read(stored) == made, (manifest, stored)
    return True


#: What no example has, so that each field has a place.
SEEDS = """
kind: Backend
spec:
  destination:
    type: Failover
    failover: {endpoints: [{backendRef: {group: egressproxy.io, kind: Backend, name: x}, modelAliases: {a: b}}]}
---
kind: Backend
spec: {destination: {type: Ip, ip: {address: 192.0.2.1}}, sourceAddress: {addresses: [192.0.2.1], interface: eth0}}
---
kind: EgressPolicy
spec: {targetRefs: [], sourceAddress: {addresses: [192.0.2.1], interface: eth0}}
---
kind: Backend
spec: {destination: {type: Ip, ip: {address: 192.0.2.1}}, sourceAddress: {pool: [192.0.2.1]}}
---
kind: EgressPolicy
spec: {targetRefs: [], sourceAddress: {pool: [192.0.2.1]}}
---
kind: PayloadProcessingPipeline
spec: {processors: [{name: x, backendRefs: [{name: y, port: 1}]}]}
---
kind: FilterType
spec:
  type: a.example/B:v1
  phases: [connect]
  configSchema: {configMapRef: {name: x}}
  processor: {protocol: ExtProc, backendRefs: [{name: x, port: 1}]}
---
kind: Backend
spec: {destination: {type: EndpointSelector, endpointSelector: {a: b}}, resolver: {hosts: {a.example: [127.0.0.1]}}}
---
kind: Backend
spec: {destination: {type: Service, service: {name: x, namespace: y}}, parent: {name: x, credentialsRef: {name: y}}}
---
kind: Backend
spec: {destination: {type: kubernetesService, kubernetesService: {name: x, namespace: y}}}
---
kind: Backend
spec:
  destination: {type: Dynamic, tls: {mode: Mutual, clientCertificateRef: {name: x}}}
  parent:
    name: a
    credentialsRef: {name: x}
    identityKeyRef: {name: x}
    fallbacks: [{name: b, credentialsRef: {name: x}, identityKeyRef: {name: x}}]
    noProxy: [{hostnames: [a.example], cidrs: [10.0.0.0/8], ports: [1]}]
---
kind: Backend
spec: {destination: {type: Dynamic, tls: {mode: Simple, crlRefs: [{kind: ConfigMap, name: x}]}}}
---
kind: Backend
spec: {destination: {type: Dynamic}, tls: {mode: Mutual, clientCertificateRef: {name: x}}}
---
kind: Backend
spec: {destination: {type: Dynamic}, tls: {mode: Simple, crlRefs: [{kind: ConfigMap, name: x}]}}
---
kind: Backend
spec:
  destination:
    type: Dynamic
    ports:
    - number: 1
      tls: {mode: Mutual, clientCertificateRef: {name: x}, crlRefs: [{kind: ConfigMap, name: x}]}
      protocolOptions: {ai: {apis: [OpenAIChat]}, mcp: {}}
---
kind: Backend
spec:
  destination:
    type: Fqdn
    fqdn:
      hostname: a.example
      protocol: {type: HTTP, options: {a: b}}
      tls:
        caCertificates: [{secretRef: {name: x}}]
        clientCertificate: {secretRef: {name: x}}
        crlRefs: [{kind: ConfigMap, name: x}]
---
kind: Backend
spec:
  destination:
    type: Fqdn
    fqdn: {hostname: a.example, tls: {mode: Mutual, clientCertificateRef: {name: x}}}
---
kind: EgressPolicy
spec:
  targetRefs: [{group: "", kind: Gateway, name: x}]
---
kind: EgressPolicy
spec:
  targetRefs: []
  parent:
    name: a
    credentialsRef: {name: x}
    identityKeyRef: {name: x}
    fallbacks: [{name: b, credentialsRef: {name: x}, identityKeyRef: {name: x}}]
    noProxy: [{hostnames: [a.example], cidrs: [10.0.0.0/8], ports: [1]}]
---
kind: EgressPolicy
spec:
  targetRefs: []
  dns: {servers: [192.0.2.1], hosts: {a.example: [127.0.0.1]}, newNames: {limit: 1},
    caCertificateRefs: [{kind: Secret, name: x}]}
---
kind: EgressPolicy
spec:
  targetRefs: []
  tls: {caBundleRefs: [{kind: ConfigMap, name: x}], crlRefs: [{kind: ConfigMap, name: x}]}
---
kind: EgressPolicy
spec:
  targetRefs: []
  intercept: {hostnames: [a.example], caCertificateRef: {name: x}}
---
kind: EgressPolicy
spec:
  targetRefs: []
  intercept:
    hostnames: [a.example]
    bySubject:
    - subjects: [{identity: x, claim: {name: x, value: x}}, {namespace: x, serviceAccount: x, group: x}]
      caCertificateRef: {name: x}
    issuing: {maxCount: 3}
---
kind: EgressPolicy
spec:
  targetRefs: []
  identity:
    certificate:
      caCertificateRefs: [{kind: ConfigMap, name: x}]
      crlRefs: [{kind: ConfigMap, name: x}]
      clients:
      - {subject: CN=x, namespace: x, serviceAccount: y}
    token:
      issuers: [{issuer: a, audiences: [b], jwksURI: "https://a.example/x",
        caCertificateRefs: [{kind: Secret, name: x}]}]
      forwardClaims: [x]
    basic: {secretRef: {name: x}}
    address: {clients: [{cidrs: [10.0.0.0/8], namespace: x, serviceAccount: y}]}
    proxyProtocol: {from: [10.0.0.0/8]}
    gateways: {keyRefs: [{name: x}]}
---
kind: EgressPolicy
spec:
  targetRefs: []
  limits:
    requests: [{per: Header, alsoPer: [Gateway], header: x, limit: 1}]
    tokens: [{per: Header, alsoPer: [Gateway], header: x, limit: 1, unit: Hour, burst: 1}]
    bytes: [{per: Header, alsoPer: [Gateway], header: x, limit: 1}]
    cost: [{per: Header, alsoPer: [Gateway], header: x, limit: 1.5, unit: null, window: 1h, burst: 1}]
    prices: [{models: ["*"], input: 1, output: 1}]
    concurrency: [{per: Header, alsoPer: [Gateway], header: x, limit: 1}]
    store: {type: Redis, backendRef: {name: x, port: 1}, secretRef: {name: x}}
---
kind: EgressPolicy
spec:
  targetRefs: []
  traffic:
    retries: {codes: [500], retryOn: {triggers: [cancelled]}, budget: {}}
    hedging: {hedgingDelay: 1s}
    loadBalancer:
      type: ConsistentHash
      consistentHash: {type: Header, header: {name: x}}
      zoneAware: {preferLocal: {force: {}}}
    healthCheck: {active: {type: HTTP, http: {expectedStatuses: [200]}}, passive: {}}
---
kind: EgressPolicy
spec:
  targetRefs: []
  identity:
    certificate: {clients: [{dnsName: a.example, namespace: x, serviceAccount: y}]}
    token: {issuers: [{issuer: a, audiences: [b], jwksRef: {kind: Secret, name: x}}]}
  traffic:
    loadBalancer: {type: ConsistentHash, consistentHash: {type: Cookie, cookie: {name: x}}}
    healthCheck: {active: {type: GRPC, grpc: {service: x}}}
---
kind: EgressPolicy
spec: {targetRefs: [], identity: {certificate: {clients: [{uri: "a:b", namespace: x, serviceAccount: y}]}}}
---
kind: EgressPolicy
spec: {targetRefs: [], identity: {certificate: {clients: [{email: a@b, namespace: x, serviceAccount: y}]}}}
---
kind: EgressPolicy
spec: {targetRefs: [], parent: {direct: true}}
"""


def texts() -> Iterator[str]:
    """YAML with objects of ours: examples, pages of the documentation, and what stands in tests; what is small last."""
    for path in (ROOT / "config").rglob("*.yaml"):
        yield path.read_text(encoding="utf-8")
    for path in (ROOT / "docs").rglob("*.md"):
        yield from re.findall(r"^```yaml\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "apiVersion: egressproxy.io/" in text:
            yield from re.findall(r'"""(.*?)"""', text, re.DOTALL)
    yield SEEDS.replace("\nkind:", "\napiVersion: egressproxy.io/v1alpha1\nmetadata: {name: x}\nkind:")


@cache
def manifests() -> list[dict[str, Any]]:
    """Those of our kinds in `texts`, without what cannot be read by itself."""
    found = []
    for text in texts():
        if "egressproxy.io/v1alpha1" in text:
            try:
                found += list(yaml.load_all(text, yaml.CSafeLoader))
            except yaml.YAMLError:
                continue
    kinds = {kind.kind for kind in OUR_KINDS}
    return [
        each
        for each in found
        if isinstance(each, dict) and each.get("apiVersion") == "egressproxy.io/v1alpha1" and each.get("kind") in kinds
    ]


def test_a_cluster_takes_what_files_may_say_and_reads_it_alike():
    found = manifests()
    assert sum(map(check, found)) > 100


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_compile_alike_with_the_defaults_that_a_cluster_fills_in(path: Path):
    given = list(yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader))
    ours = {kind.kind for kind in OUR_KINDS}
    stored = [
        admitted(each) if each["kind"] in ours and each["apiVersion"].startswith("egressproxy.io/") else each
        for each in given
    ]
    before, after = (
        compile_config(load_text(yaml.safe_dump_all(each), str(path)), Catalog(), Defaults())
        for each in (given, stored)
    )
    assert after.spec == before.spec
    told = [re.sub(r"'lastTransitionTime': '[^']*'", "", repr(each.statuses)) for each in (before, after)]
    assert told[0] == told[1]


#: Beside what a schema says itself: what people write, rightly or not.
VALUES: tuple[Any, ...] = (
    "", "x", "a.example", "*.a.example", "A.Example.", "X" * 300, "10.0.0.0/8", "2001:db8::1", "0s", "1h30m", "5",
    "domain.example/Kind:v1", "sha256/" + "A" * 43 + "=", "-1", 0, 1, -1, 443, 70000, 1.5, True, False, [], {}, [None],
    ["a.example"], [443], ["10.0.0.0/8"], {"name": "x"}, {"a": "b"}, [{}], [{"name": "x"}],
)  # fmt: skip


def values(schema: dict[str, Any]) -> Iterator[Any]:
    """Values to try for a field: the limits that it has, one beyond each, and null."""
    yield from schema.get("enum", ())
    for bound in ("minimum", "maximum"):
        if bound in schema:
            yield from (schema[bound] - 1, schema[bound], schema[bound] + 1)
    if "maxLength" in schema:
        yield from ("a" * schema["maxLength"], "a" * (schema["maxLength"] + 1))
    if (example := whole(schema)) is not None:
        yield example
        if schema.get("type") == "array":
            yield [example[0]] * (schema.get("maxItems", 1) + 1)
    yield None


def whole(schema: dict[str, Any]) -> Any:
    """Some value that the schema takes, with the required fields alone."""
    match schema.get("type"):
        case "object":
            fields = schema.get("properties", {})
            return {name: whole(fields[name]) for name in schema.get("required", ())}
        case "array":
            return [whole(schema["items"])]
        case "string" if "enum" in schema:
            return schema["enum"][0]
        case "string":
            fits = [each for each in VALUES if isinstance(each, str) and re.search(schema.get("pattern", ""), each)]
            return next((each for each in fits if each), "x")
        case "integer" | "number":
            return schema.get("minimum", 1) + schema.get("exclusiveMinimum", False)
        case "boolean":
            return True
    return None


def places(
    value: Any, schema: dict[str, Any], path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Every field of an object that is there or could be, of each list the first item; with its schema."""
    if isinstance(value, dict):
        for name, field in schema.get("properties", {}).items():
            yield (*path, name), field
            if name in value:
                yield from places(value[name], field, (*path, name))
        if value and "additionalProperties" in schema:
            first = next(iter(value))
            yield (*path, first), schema["additionalProperties"]
            yield from places(value[first], schema["additionalProperties"], (*path, first))
    elif isinstance(value, list) and value and "items" in schema:
        yield (*path, 0), schema["items"]
        yield from places(value[0], schema["items"], (*path, 0))


def changed(holder: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The object with another value there; all else is shared with what was given."""
    if not path:
        return value
    made = list(holder) if isinstance(holder, list) else dict(holder)
    inner = made[path[0]] if isinstance(made, list) else made.get(path[0])
    made[path[0]] = changed(inner, path[1:], value)
    return made


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
@BY_KIND
def test_whatever_a_field_holds_a_cluster_takes_what_the_loader_takes(kind: ServedKind, every: int):
    """Each field once with many values, in the first object that has a place for it; what is taken leads further.

    `every`: of `VALUES` a field gets one in so many.
    """
    schema = schema_of(kind.kind)["properties"]["spec"]
    left = [each for each in manifests() if each["kind"] == kind.kind and check(each)]
    seen: set[tuple[Any, ...]] = set()
    taken = refused = 0
    while left:
        manifest = left.pop()
        for path, field in list(places(manifest["spec"], schema)):
            if path in seen:
                continue
            seen.add(path)
            for value in (*values(field), *VALUES[len(seen) % every :: every]):
                made = changed(manifest, ("spec", *path), value)
                if check(made, path[0]):
                    taken += 1
                    if isinstance(value, dict | list):
                        left.append(made)
                else:
                    refused += 1
    paths = {path for path, _ in nodes(schema)}
    names = {step for path in paths for step in re.findall(r"\w+", path)}
    tried = {"".join(f".{step}" if step in names else "[]" for step in path) for path in seen}
    assert paths - tried == {""}
    assert min(taken, refused) > len(paths)


@pytest.mark.parametrize(
    ("kind", "spec", "where"),
    [
        ("Backend", {"destination": {"type": "Fqdn"}}, "$.spec.destination"),
        ("Backend", {"destination": {"type": "Nope"}}, "$.spec.destination.type"),
        ("Backend", {"destination": {"type": "dynamic", "ports": [{}]}}, "$.spec.destination.ports[0]"),
        ("Backend", {"destination": {"type": "dynamic", "tls": {"mode": "Mutual"}}}, "$.spec.destination.tls"),
        ("Backend", {"destination": {"type": "dynamic", "tls": {"mode": "simple"}}, "tls": {"mode": "NONE"}}, "$.spec"),
        ("Backend", {"destination": {"type": "dynamic"}, "parent": {"direct": True, "name": "x"}}, "$.spec.parent"),
        ("FilterType", {"type": "a.example/B:v1", "phases": ["connect"]}, "$.spec"),
        ("PayloadProcessingPipeline", {"processors": [{"name": "x"}]}, "$.spec.processors[0]"),
        (
            "PayloadProcessingPipeline",
            {"processors": [{"name": "x", "backendRefs": [{"name": "y"}]}]},
            "$.spec.processors[0].backendRefs[0]",
        ),
        ("EgressPolicy", {"targetRefs": [], "subjects": [{"serviceAccount": "x"}]}, "$.spec.subjects[0]"),
        (
            "EgressPolicy",
            {"targetRefs": [], "traffic": {"loadBalancer": {"type": "ConsistentHash"}}},
            "$.spec.traffic.loadBalancer",
        ),
        ("EgressPolicy", {"targetRefs": [], "limits": {"store": {"type": "Redis"}}}, "$.spec.limits.store"),
    ],
)  # fmt: skip
def test_a_rule_between_fields_says_where_it_is_broken(kind: str, spec: dict[str, Any], where: str):
    manifest = {"apiVersion": "egressproxy.io/v1alpha1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    assert read(manifest) is None
    assert {each.partition(": ")[0] for each in broken_rules(admitted(manifest), schema_of(kind), "$")} == {where}


def test_every_rule_is_where_it_costs_little():
    """An API server adds up what rules cost for the longest object, and 4,096 of the cheapest are within its limit."""
    for kind in OUR_KINDS:
        for path, most in _places_with_rules(schema_of(kind.kind), "", 1):
            assert most <= 4096, path


def _places_with_rules(schema: dict[str, Any], path: str, most: float) -> Iterator[tuple[str, float]]:
    if RULES in schema:
        yield path, most
    for name, each in schema.get("properties", {}).items():
        yield from _places_with_rules(each, f"{path}.{name}", most)
    if "items" in schema:
        yield from _places_with_rules(schema["items"], f"{path}[]", most * schema.get("maxItems", float("inf")))
    if "additionalProperties" in schema:
        inner = schema.get("maxProperties", float("inf"))
        yield from _places_with_rules(schema["additionalProperties"], f"{path}[]", most * inner)
