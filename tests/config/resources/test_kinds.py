"""Every kind reads a manifest of its own, with the defaults that its CRD declares."""

from typing import Any, TypeVar

import pytest
from pydantic import ValidationError

from egressproxy.config.reading.load import load_text
from egressproxy.config.reading.problems import ConfigError, Severity
from egressproxy.config.resources.access_policy import AccessPolicy
from egressproxy.config.resources.backend import (
    Backend,
    BackendTlsPolicy,
    GatewayXBackendDestination,
    PrototypeBackend,
    WorkingGroupBackend,
    XBackendDestination,
)
from egressproxy.config.resources.core import (
    ClusterTrustBundle,
    ConfigMap,
    EndpointSlice,
    Namespace,
    Pod,
    Secret,
    Service,
    ServiceAccount,
)
from egressproxy.config.resources.extension import FilterTypeDefinition, PayloadProcessingPipeline, PublishedPipeline
from egressproxy.config.resources.gateway import Gateway, GatewayClass, ListenerSet, ReferenceGrant
from egressproxy.config.resources.kinds import BY_API_VERSION, KINDS, kind_class, why_left_out
from egressproxy.config.resources.meta import LabelSelector, Origin, Resource
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.config.resources.routes import GrpcRoute, HttpRoute, TcpRoute, TlsRoute
from egressproxy.config.resources.telemetry import XTelemetryPolicy
from egressproxy.config.resources.x_backend import XBackend
from egressproxy.ir.gateway import TlsMode
from egressproxy.ir.policy import Family, Mode, SniCheck
from egressproxy.ir.route import PathMatchType

R = TypeVar("R", bound=Resource)

SERVICE = {"name": "s", "port": 80}
TARGET = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}


def made(kind: type[R], spec: dict[str, Any] | None = None, **more: Any) -> R:
    """An object of this kind, in its newest version."""
    prefix = f"{kind.GROUP}/" if kind.GROUP else ""
    manifest = {"apiVersion": prefix + kind.VERSIONS[0], "kind": kind.KIND, "metadata": {"name": "x"}, **more}
    if spec is not None:
        manifest["spec"] = spec
    return kind.model_validate(manifest)


def refused(kind: type[R], spec: dict[str, Any], **more: Any) -> str:
    """The message of the only error."""
    with pytest.raises(ValidationError) as caught:
        made(kind, spec, **more)
    (only,) = (error for error in caught.value.errors() if not (error["type"] == "too_short" and error["input"]))
    return str(only["msg"])


def listener(**fields: Any) -> dict[str, Any]:
    return {"name": "l", "port": 80, "protocol": "HTTP", **fields}


def gateway(*listeners: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"gatewayClassName": "egressproxy", "listeners": list(listeners) or [listener()], **more}


def rule(**fields: Any) -> dict[str, Any]:
    return {"rules": [fields]}


# --- all kinds -------------------------------------------------------------------------------------------------------

SPECS: dict[type[Resource], dict[str, Any] | None] = {
    GatewayClass: {"controllerName": "egressproxy.io/gateway-controller"},
    Gateway: gateway(),
    ListenerSet: {"parentRef": {"name": "gw"}, "listeners": [listener()]},
    HttpRoute: {},
    GrpcRoute: {},
    TlsRoute: {"hostnames": ["a.test"], "rules": [{"backendRefs": [SERVICE]}]},
    TcpRoute: {"rules": [{"backendRefs": [SERVICE]}]},
    BackendTlsPolicy: {
        "targetRefs": [{"group": "", "kind": "Service", "name": "s"}],
        "validation": {"hostname": "a.test", "wellKnownCACertificates": "System"},
    },
    ReferenceGrant: {
        "from": [{"group": "g", "kind": "HTTPRoute", "namespace": "n"}],
        "to": [{"group": "", "kind": "Service"}],
    },
    XTelemetryPolicy: {
        "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}],
        "tracing": {"provider": {"backendRef": {"name": "otel", "port": 4317}}, "samplingRate": {"numerator": 1}},
    },
    XBackend: {
        "type": "ExternalHostname",
        "port": {"port": 443},
        "externalHostname": {"hostname": "a.test"},
        "protocol": "HTTP2",
        "tls": {"mode": "ServerOnly", "validation": {"wellKnownCACertificates": "System", "hostname": "a.test"}},
    },
    GatewayXBackendDestination: {"destination": {"type": "FQDN", "fqdn": {"hostname": "a.test"}}},
    PrototypeBackend: {"destination": {"type": "Fqdn", "fqdn": {"hostname": "a.test"}}},
    WorkingGroupBackend: {
        "destination": {"type": "FQDN", "fqdn": {"hostname": "a.test"}, "ports": [{"number": 443, "protocol": "MCP"}]},
        "extensions": [{"name": "e", "type": "egressproxy.io/X:v1", "rawConfig": {"a": 1}}],
    },
    XBackendDestination: {
        "destination": {
            "type": "Service",
            "service": {"name": "s", "namespace": "n"},
            "ports": [{"number": 1, "protocol": "TCP"}],
        }
    },
    Backend: {"destination": {"type": "Dynamic"}},
    EgressPolicy: {"targetRefs": [TARGET]},
    AccessPolicy: {"targetRefs": [TARGET], "action": "Allow"},
    FilterTypeDefinition: {"type": "a.example/X:v1", "phases": ["request-headers"], "python": {"path": "x.py"}},
    PayloadProcessingPipeline: {"processors": [{"name": "p", "type": "egressproxy.io/X:v1"}]},
    PublishedPipeline: {"processors": [{"name": "p", "backendRefs": [{"name": "s"}]}]},
    Namespace: None,
    Secret: None,
    ConfigMap: None,
    Service: None,
    ServiceAccount: None,
    Pod: None,
    ClusterTrustBundle: {"trustBundle": "PEM"},
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not EndpointSlice], ids=lambda kind: kind.__name__)
def test_every_kind_reads_its_smallest_manifest(kind: type[Resource]) -> None:
    read = made(kind, SPECS[kind], status={"anything": ["is", "ignored"]} if kind is not Pod else None)
    assert read.key == (kind.GROUP, kind.KIND, "default" if kind.NAMESPACED else "", "x")
    assert read == made(kind, SPECS[kind])


@pytest.mark.parametrize(("api_version", "kind"), BY_API_VERSION)
def test_every_version_of_a_kind_is_found(api_version: str, kind: str) -> None:
    found = kind_class(api_version, kind)
    assert found is not None
    assert kind == found.KIND
    assert api_version.endswith(found.VERSIONS)


@pytest.mark.parametrize(
    "kind",
    [k for k in KINDS if k.GROUP not in ("", "discovery.k8s.io")],
    ids=lambda k: k.__name__,
)
def test_an_unknown_field_is_refused_anywhere_in_our_kinds(kind: type[Resource]) -> None:
    assert refused(kind, {**(SPECS[kind] or {}), "surprise": 1}) == "Extra inputs are not permitted"
    assert refused(kind, SPECS[kind] or {}, surprise=1) == "Extra inputs are not permitted"


@pytest.mark.parametrize("kind", [Namespace, ConfigMap, Service, ServiceAccount, Pod], ids=lambda k: k.__name__)
def test_fields_that_are_not_read_are_let_through_in_kubernetes_kinds(kind: type[Resource]) -> None:
    spec = {"finalizers": ["kubernetes"], "containers": [{"name": "c", "image": "i"}], "sessionAffinity": "None"}
    assert made(kind, spec, automountServiceAccountToken=False).name == "x"


def test_metadata_lets_kubernetes_fields_through() -> None:
    metadata = {
        "name": "x",
        "namespace": "n",
        "labels": {"a": "b"},
        "annotations": None,
        "creationTimestamp": None,
        "generation": 3,
        "managedFields": [{}],
        "uid": "u",
        "resourceVersion": "1",
        "ownerReferences": [],
        "finalizers": [],
    }
    read = made(ConfigMap, None, metadata=metadata)
    assert (read.namespace, read.metadata.generation, read.metadata.labels) == ("n", 3, {"a": "b"})


def test_objects_are_equal_by_content_wherever_they_stand() -> None:
    one, other = made(HttpRoute, {}), made(HttpRoute, {})
    other.written({"kind": "HTTPRoute"}, Origin("b.yaml", 7))
    assert one == other
    assert one != made(HttpRoute, {"hostnames": ["a.test"]})
    assert one != made(GrpcRoute, {})
    assert str(other.origin) == "b.yaml:7"
    assert str(one.origin) == "-"


def test_a_manifest_is_given_back_as_written_with_namespace_and_without_status() -> None:
    raw = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "x"},
        "spec": {},
        "status": {"parents": []},
    }
    read = HttpRoute.model_validate(raw)
    read.written(raw, Origin("a.yaml", 1))
    manifest = read.to_manifest()
    assert manifest == {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "x", "namespace": "default"},
        "spec": {},
    }
    manifest["metadata"]["name"] = "y"
    assert read.to_manifest()["metadata"]["name"] == "x"
    assert "status" in raw


def test_an_object_made_in_code_has_a_manifest_too() -> None:
    manifest = made(EgressPolicy, {"targetRefs": [TARGET], "traffic": {"timeouts": {"connect": "5s"}}}).to_manifest()
    assert manifest["spec"] == {"targetRefs": [TARGET], "traffic": {"timeouts": {"connect": "5s"}}}


def test_objects_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        made(HttpRoute, {}).spec.hostnames = ()  # type: ignore[misc]


# --- gateway ---------------------------------------------------------------------------------------------------------


def test_a_gateway_has_the_defaults_of_its_crd() -> None:
    spec = made(Gateway, gateway(listener(), addresses=[{"value": "127.0.0.1"}])).spec
    assert spec.listeners[0].allowed_routes.namespaces.from_ == "Same"
    assert spec.allowed_listeners.namespaces.from_ == "None"
    assert spec.addresses[0].type == "IPAddress"
    tls = (
        made(Gateway, gateway(listener(protocol="HTTPS", tls={"certificateRefs": [{"name": "c"}]})))
        .spec.listeners[0]
        .tls
    )
    assert tls is not None
    assert (tls.mode, tls.certificate_refs[0].kind, tls.certificate_refs[0].group) == (TlsMode.TERMINATE, "Secret", "")


def test_an_unknown_protocol_is_no_error() -> None:
    assert (
        made(Gateway, gateway(listener(protocol="example.com/quic"))).spec.listeners[0].protocol == "example.com/quic"
    )


def test_frontend_and_backend_tls_are_read() -> None:
    refs = {"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]}
    tls = {
        "frontend": {"default": {"validation": refs}, "perPort": [{"port": 443, "tls": {"validation": refs}}]},
        "backend": {"clientCertificateRef": {"name": "c"}},
    }
    read = made(Gateway, gateway(tls=tls)).spec.tls
    assert read is not None
    assert read.frontend is not None
    assert read.frontend.default.validation is not None
    assert read.frontend.default.validation.mode == "AllowValidOnly"


@pytest.mark.parametrize(
    ("listeners", "message"),
    [
        ([listener(tls={"certificateRefs": [{"name": "c"}]})], "tls is not possible with protocol HTTP"),
        ([listener(protocol="TCP", hostname="a.test")], "a hostname is not possible with protocol TCP"),
        ([listener(protocol="HTTPS", tls={"mode": "Passthrough"})], "protocol HTTPS needs tls.mode Terminate"),
        ([listener(protocol="HTTPS", tls={})], "mode Terminate needs a certificate"),
        ([listener(protocol="TLS")], "protocol TLS needs tls.mode"),
        ([listener(), listener(port=81)], "name l stands more than once"),
        ([listener(), listener(name="m")], "the same port, protocol and hostname"),
        ([listener(hostname="*")], "a wildcard has to be"),
        ([], "at least 1 item"),
    ],
)
def test_a_gateway_that_its_crd_refuses_is_refused(listeners: list[dict[str, Any]], message: str) -> None:
    assert message in refused(Gateway, {"gatewayClassName": "c", "listeners": listeners})


def test_an_address_that_is_none_is_refused() -> None:
    assert "not an IP address" in refused(Gateway, gateway(addresses=[{"value": "localhost"}]))
    assert made(Gateway, gateway(addresses=[{"type": "Hostname", "value": "localhost"}]))


# --- routes ----------------------------------------------------------------------------------------------------------


def test_an_http_route_has_the_defaults_of_its_crd() -> None:
    spec = made(
        HttpRoute, {"parentRefs": [{"name": "gw"}], "rules": [{"backendRefs": [SERVICE]}, {"matches": [{}]}]}
    ).spec
    assert (spec.parent_refs[0].group, spec.parent_refs[0].kind) == ("gateway.networking.k8s.io", "Gateway")
    assert (spec.rules[0].backend_refs[0].weight, spec.rules[0].backend_refs[0].kind) == (1, "Service")
    for entry in spec.rules:
        (match,) = entry.matches
        assert (match.path.type, match.path.value) == (PathMatchType.PREFIX, "/")
    assert len(made(HttpRoute, {}).spec.rules) == 1


def test_every_standard_field_of_a_rule_is_read() -> None:
    ref = {"name": "s", "port": 80}
    header = {"name": "X-A", "value": "1"}
    spec = rule(
        name="all",
        matches=[
            {
                "path": {"type": "RegularExpression", "value": "/("},
                "method": "GET",
                "headers": [header],
                "queryParams": [{"type": "RegularExpression", "name": "q", "value": ".*"}],
            }
        ],
        filters=[
            {
                "type": "RequestHeaderModifier",
                "requestHeaderModifier": {"set": [header], "add": [header], "remove": ["X-B"]},
            },
            {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"remove": ["Server"]}},
            {"type": "RequestMirror", "requestMirror": {"backendRef": ref, "percent": 5}},
            {"type": "RequestMirror", "requestMirror": {"backendRef": ref, "fraction": {"numerator": 1}}},
            {
                "type": "URLRewrite",
                "urlRewrite": {"hostname": "b.test", "path": {"type": "ReplaceFullPath", "replaceFullPath": "/"}},
            },
            {"type": "ExtensionRef", "extensionRef": {"group": "egressproxy.io", "kind": "EgressPolicy", "name": "p"}},
            {
                "type": "CORS",
                "cors": {
                    "allowOrigins": ["https://*.a.test"],
                    "allowCredentials": True,
                    "allowMethods": ["*"],
                    "allowHeaders": ["X-A"],
                    "exposeHeaders": ["X-B"],
                    "maxAge": 9,
                },
            },
            {
                "type": "ExternalAuth",
                "externalAuth": {
                    "protocol": "HTTP",
                    "backendRef": ref,
                    "http": {"path": "/auth", "allowedHeaders": ["X-A"], "allowedResponseHeaders": ["X-B"]},
                    "forwardBody": {"maxSize": 10},
                },
            },
        ],
        backendRefs=[
            {
                **ref,
                "weight": 0,
                "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["X-C"]}}],
            }
        ],
        timeouts={"request": "10s", "backendRequest": "2s"},
        retry={"codes": [500, 503], "attempts": 2, "backoff": "100ms"},
        sessionPersistence={
            "sessionName": "s",
            "absoluteTimeout": "1h",
            "idleTimeout": "1m",
            "type": "Cookie",
            "cookieConfig": {"lifetimeType": "Permanent"},
        },
    )
    (read,) = made(HttpRoute, spec).spec.rules
    assert [entry.type for entry in read.filters][-2:] == ["CORS", "ExternalAuth"]
    assert read.timeouts is not None
    assert read.timeouts.backend_request is not None
    assert read.timeouts.backend_request.seconds == 2


def external_auth(max_size: int) -> dict[str, Any]:
    auth = {
        "protocol": "HTTP",
        "http": {},
        "backendRef": {"name": "a", "port": 1},
        "forwardBody": {"maxSize": max_size},
    }
    return {"type": "ExternalAuth", "externalAuth": auth}


def test_an_authorization_server_may_see_2_gib_of_a_body() -> None:
    (read,) = made(HttpRoute, rule(filters=[external_auth(2**31 - 1)])).spec.rules
    auth = read.filters[0].external_auth
    assert auth is not None
    assert auth.forward_body is not None
    assert auth.forward_body.max_size == 2**31 - 1


PREFIX = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/b"}}
EXACT = {"path": {"type": "Exact", "value": "/a"}}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"rules": [{}] * 17}, "at most 16 items"),
        ({"rules": [{"name": "a"}, {"name": "a"}]}, "name a stands more than once in rules"),
        ({"rules": [{"matches": [{}] * 64}, {"matches": [{}] * 64}, {}]}, "more than 128 matches"),
        ({"parentRefs": [{"name": "gw"}, {"name": "gw", "sectionName": "a"}]}, "Gateway gw stands more than once"),
        ({"parentRefs": [{"name": "gw", "sectionName": "a"}] * 2}, "Gateway gw stands more than once"),
        (rule(backendRefs=[{"name": "s"}]), "a reference to a Service has to name a port"),
        (rule(backendRefs=[{**SERVICE, "weight": -1}]), "greater than or equal to 0"),
        (rule(filters=[{"type": "URLRewrite"}]), "needs urlRewrite"),
        (rule(filters=[{"type": "URLRewrite", "urlRewrite": {}, "cors": {}}]), "cors does not belong"),
        (rule(filters=[{"type": "URLRewrite", "urlRewrite": {}}] * 2), "cannot be repeated"),
        (
            rule(
                filters=[{"type": "URLRewrite", "urlRewrite": {}}, {"type": "RequestRedirect", "requestRedirect": {}}]
            ),
            "exclude each other",
        ),
        (rule(filters=[{"type": "Teapot"}]), "Input should be"),
        (rule(matches=[EXACT], filters=[{"type": "URLRewrite", "urlRewrite": PREFIX}]), "exactly one match"),
        (rule(matches=[{}, {}], filters=[{"type": "RequestRedirect", "requestRedirect": PREFIX}]), "exactly one match"),
        (
            rule(matches=[EXACT], backendRefs=[{**SERVICE, "filters": [{"type": "URLRewrite", "urlRewrite": PREFIX}]}]),
            "exactly",
        ),
        (rule(filters=[{"type": "RequestRedirect", "requestRedirect": {}}], backendRefs=[SERVICE]), "no backends"),
        (rule(filters=[{"type": "RequestRedirect", "requestRedirect": {"statusCode": 404}}]), "Input should be"),
        (
            rule(
                filters=[
                    {
                        "type": "URLRewrite",
                        "urlRewrite": {"path": {"type": "ReplaceFullPath", "replacePrefixMatch": "/"}},
                    }
                ]
            ),
            "needs replaceFullPath",
        ),
        (
            rule(filters=[{"type": "ExtensionRef", "extensionRef": {"kind": "EgressPolicy", "name": "p"}}]),
            "Field required",
        ),
        (rule(filters=[{"type": "CORS", "cors": {"allowOrigins": ["a.test"]}}]), "a.test is no origin"),
        (rule(filters=[{"type": "CORS", "cors": {"allowOrigins": ["*", "https://a.test"]}}]), "beside other values"),
        (rule(filters=[{"type": "CORS", "cors": {"allowMethods": ["get"]}}]), "Input should be"),
        (rule(filters=[{"type": "CORS", "cors": {"allowHeaders": ["a b"]}}]), "not a header name"),
        (rule(filters=[{"type": "CORS", "cors": {"maxAge": 0}}]), "greater than or equal to 1"),
        (rule(filters=[{"type": "CORS", "cors": {}}] * 2), "cannot be repeated"),
        (rule(timeouts={"request": "1s", "backendRequest": "2s"}), "backendRequest 2s is longer than request 1s"),
        (rule(matches=[{"path": {"value": "a"}}]), "a path starts with /"),
        (rule(matches=[{"path": {"value": "/a//b"}}]), "cannot contain //"),
        (rule(matches=[{"path": {"value": "/a/.."}}]), "cannot end in"),
        (rule(matches=[{"path": {"value": "/%2F"}}]), "cannot contain %2F"),
        (rule(matches=[{"method": "get"}]), "Input should be"),
        (rule(matches=[{"headers": [{"name": "a b", "value": "x"}]}]), "not a header name"),
        (rule(matches=[{"headers": [{"name": "a", "value": "x"}] * 2}]), "name a stands more than once"),
        (rule(sessionPersistence={"cookieConfig": {"lifetimeType": "Permanent"}}), "needs absoluteTimeout"),
        (rule(sessionPersistence={"cookie": {"lifetimeType": "Permanent"}}), "needs absoluteTimeout"),
        (rule(sessionPersistence={"cookie": {"name": "a b"}}), "not a header name"),
        (rule(sessionPersistence={"cookie": {"path": "/" * 1025}}), "at most 1024 characters"),
        (rule(sessionPersistence={"type": "Header", "cookie": {}}), "cookie does not belong to type Header"),
        (rule(sessionPersistence={"type": "Header", "header": {}}), "Field required"),
        (rule(sessionPersistence={"header": {"name": "X-S"}}), "type Cookie needs cookie"),
        (rule(sessionPersistence={"cookie": {}, "header": {"name": "X-S"}}), "header does not belong to type Cookie"),
        (rule(sessionPersistence={"cookie": {}, "sessionName": "s"}), "sessionName belongs to the earlier form"),
        (rule(sessionPersistence={"cookie": {}, "idleTimeout": "1m"}), "idleTimeout belongs to the earlier form"),
        (rule(sessionPersistence={"cookie": {}, "cookieConfig": {}}), "cookieConfig belongs to the earlier form"),
        (rule(filters=[external_auth(2**31)]), "less than or equal to 2147483647"),
        (rule(retry={"codes": [200]}), "greater than or equal to 400"),
        ({"hostnames": ["10.*"]}, "a wildcard has to be"),
    ],
)
def test_an_http_route_that_its_crd_refuses_is_refused(spec: dict[str, Any], message: str) -> None:
    assert message in refused(HttpRoute, spec)


def test_a_request_timeout_of_zero_does_not_bound_the_attempts() -> None:
    assert made(HttpRoute, rule(timeouts={"request": "0s", "backendRequest": "2s"}))


def test_several_references_to_one_parent_name_their_sections() -> None:
    refs = [{"name": "gw", "sectionName": "a"}, {"name": "gw", "sectionName": "b"}, {"name": "other"}]
    assert len(made(HttpRoute, {"parentRefs": refs}).spec.parent_refs) == 3


def test_a_backend_of_another_kind_needs_no_port() -> None:
    spec = made(HttpRoute, rule(backendRefs=[{"group": "egressproxy.io", "kind": "Backend", "name": "b"}])).spec
    assert spec.rules[0].backend_refs[0].port is None


def test_a_grpc_route_is_read() -> None:
    spec = rule(
        matches=[{"method": {"service": "a.B", "method": "C"}, "headers": [{"name": "x", "value": "y"}]}],
        filters=[{"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["a"]}}],
        backendRefs=[SERVICE],
    )
    assert made(GrpcRoute, spec).spec.rules[0].matches[0].method is not None
    assert "neither service nor method" in refused(GrpcRoute, rule(matches=[{"method": {}}]))
    assert "Input should be" in refused(GrpcRoute, rule(filters=[{"type": "URLRewrite"}]))


# --- backends --------------------------------------------------------------------------------------------------------


def destination(**fields: Any) -> dict[str, Any]:
    return {"destination": {"type": "Fqdn", "fqdn": {"hostname": "a.test"}, "ports": [{"number": 443}], **fields}}


def port(**tls: Any) -> dict[str, Any]:
    return destination(ports=[{"number": 443, "tls": tls}])


def test_a_backend_is_read_in_full() -> None:
    tls = {
        "mode": "Mutual",
        "sni": "API.test",
        "caBundleRef": [{"kind": "ConfigMap", "name": "ca"}],
        "clientCertificateRef": {"name": "c"},
        "subjectAltNames": ["a.test", "spiffe://a/b"],
        "pins": ["sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="],
        "crlRefs": [{"kind": "ConfigMap", "name": "crl"}],
        "minVersion": "1.3",
        "insecureSkipVerify": False,
    }
    spec = made(
        Backend,
        {
            **port(**tls),
            "region": "us-east",
            "resolver": {"servers": ["192.0.2.1"]},
            "parent": {"name": "p"},
            "extensions": [
                {
                    "name": "e",
                    "type": "egressproxy.io/CredentialInjector:v1",
                    "phase": "backend-request",
                    "priority": 10,
                    "failOpen": False,
                    "preAuth": False,
                    "timeout": "1s",
                    "config": {"header": "Authorization"},
                }
            ],
        },
    ).spec
    (read,) = spec.destination.ports
    assert read.protocol == "HTTP"
    assert read.tls is not None
    assert (read.tls.sni, read.tls.ca_bundle_ref[0].group, read.tls.min_version) == ("api.test", "", "1.3")
    assert spec.parent is not None
    assert (spec.parent.group, spec.parent.kind) == ("egressproxy.io", "Backend")
    assert spec.extensions[0].config == {"header": "Authorization"}


def test_a_failover_backend_is_read() -> None:
    endpoints = [{"backendRef": {"group": "egressproxy.io", "kind": "Backend", "name": "b"}, "priority": 1}]
    spec = made(Backend, {"destination": {"type": "Failover", "failover": {"endpoints": endpoints}}}).spec
    assert spec.destination.failover is not None
    assert spec.destination.failover.endpoints[0].weight == 1
    assert spec.destination.failover.codes == (429, 500, 502, 503, 529)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"extensions": [{"name": "a", "type": "egressproxy.io/HeaderPolicy:v1"}]}, "extensions does not belong"),
        ({"region": "us-east"}, "region does not belong"),
        ({"resolver": {"servers": ["127.0.0.1"]}}, "resolver does not belong"),
        ({"parent": {"name": "proxy"}}, "parent does not belong"),
        ({"tls": {"mode": "Simple"}}, "tls does not belong"),
    ],
)
def test_a_failover_leaves_to_its_endpoints_what_is_theirs(more: dict[str, Any], message: str) -> None:
    endpoints = [{"backendRef": {"group": "egressproxy.io", "kind": "Backend", "name": "b"}}]
    with pytest.raises(ValidationError, match=message):
        made(Backend, {"destination": {"type": "Failover", "failover": {"endpoints": endpoints}}, **more})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (destination(fqdn={"hostname": "db.default.svc.cluster.local"}), "a name of the cluster is not external"),
        (destination(fqdn={"hostname": "10.0.0.1"}), "an address is not a hostname"),
        ({"destination": {"type": "Ip", "ports": [{"number": 1}]}}, "needs ip"),
        (destination(type="Dynamic"), "fqdn does not belong"),
        (destination(ports=[{"protocol": "HTTP"}]), "number is missing"),
        (destination(ports=[{"number": 1, "port": 2}]), "number and port are the same"),
        (destination(ports=[{"number": 1}, {"number": 1}]), "stands more than once"),
        (destination(ports=[{"number": 99999}]), "less than or equal to 65535"),
        (port(mode="Mutual"), "needs clientCertificateRef"),
        (port(mode="Simple", clientCertificateRef={"name": "c"}), "not used with mode Simple"),
        (port(mode="Simple", minVersion="1.1"), "Input should be"),
        (port(mode="Simple", pins=["sha1/x"]), "not a pin"),
        (port(sni="a.test"), "Field required"),
        ({**destination(), "extensions": [{"name": "e", "type": "an injector"}]}, "not an extension type"),
        ({**destination(), "extensions": [{"name": "e", "type": "a.b/C:v1", "phase": "request"}]}, "not a phase"),
    ],
)
def test_a_backend_that_cannot_be_is_refused(spec: dict[str, Any], message: str) -> None:
    assert message in refused(Backend, spec)


def test_an_xbackend_takes_its_port_as_object_or_number() -> None:
    spec = dict(SPECS[XBackend] or {})
    assert made(XBackend, {**spec, "port": 443}).spec.port == made(XBackend, spec).spec.port
    assert "less than or equal" in refused(XBackend, {**spec, "port": 99999})


def test_a_client_certificate_belongs_to_its_mode() -> None:
    spec = {**(SPECS[XBackend] or {}), "tls": {"mode": "ClientAndServer"}}
    assert "clientCertificateRef belongs to mode ClientAndServer" in refused(XBackend, spec)


def test_the_working_groups_extensions_have_their_configuration_in_either_field() -> None:
    (extension,) = made(WorkingGroupBackend, SPECS[WorkingGroupBackend]).spec.extensions
    assert extension.settings == {"a": 1}


def test_a_backend_tls_policy_has_one_source_of_trust() -> None:
    spec = dict(SPECS[BackendTlsPolicy] or {})
    assert "one of caCertificateRefs" in refused(BackendTlsPolicy, {**spec, "validation": {"hostname": "a.test"}})


# --- policies --------------------------------------------------------------------------------------------------------


def test_a_policy_is_read_in_full() -> None:
    rate = {"per": "Identity", "limit": 10, "window": "1m", "burst": 5}
    spec = made(
        EgressPolicy,
        {
            "targetRefs": [{**TARGET, "sectionName": "forward"}],
            "subjects": [{"namespace": "n", "serviceAccount": "a"}],
            "mode": "Report",
            "destinations": {
                "allow": [{"hostnames": ["*.A.test"], "ports": [443], "sni": "Any"}, {"cidrs": ["10.0.0.0/8"]}],
                "deny": [],
            },
            "addresses": {
                "allow": [{"cidrs": ["127.0.0.1/32", "::1/128"], "hostnames": ["a.test"]}],
                "deny": [{"cidrs": ["203.0.113.0/24"]}],
                "only": [{"cidrs": ["0.0.0.0/0"]}],
            },
            "dns": {
                "servers": ["192.0.2.1:53"],
                "transport": "udp",
                "timeout": "5s",
                "hosts": {"B.test": ["192.0.2.7"]},
                "minTTL": "1s",
                "maxTTL": "5m",
                "staleTTL": "1m",
                "family": "IPv4",
                "reverseCheck": "Report",
            },
            "tls": {"minVersion": "1.3", "caBundleRefs": [{"kind": "ConfigMap", "name": "ca"}]},
            "intercept": {
                "hostnames": ["*.b.test"],
                "caCertificateRef": {"name": "ca"},
                "bySubject": [{"subjects": [{"namespace": "n"}], "caCertificateRef": {"name": "ca"}}],
                "issuing": {"maxLifetime": "12h", "maxCount": 5},
            },
            "identity": {
                "certificate": {"caCertificateRefs": [{"kind": "ConfigMap", "name": "ca"}]},
                "required": True,
                "token": {
                    "issuers": [
                        {
                            "issuer": "https://i",
                            "audiences": ["a"],
                            "jwksRef": {"kind": "ConfigMap", "name": "k"},
                            "claimMappings": {"namespace": "tenant", "groups": "roles"},
                        }
                    ],
                    "header": "X-Token",
                },
                "basic": {"secretRef": {"name": "users"}},
                "address": {"clients": [{"cidrs": ["10.1.0.0/16"], "namespace": "n", "serviceAccount": "a"}]},
            },
            "limits": {
                "maxHeadBytes": 65536,
                "maxBodyBytes": 1,
                "requests": [rate],
                "tokens": [rate],
                "bytes": [rate],
                "concurrency": [{"per": "Route", "limit": 1}],
                "tunnels": 3,
                "store": {"type": "Memory"},
            },
            "traffic": {
                "timeouts": {"connect": "5s", "tunnelIdle": "0s"},
                "retries": {"attempts": 2, "budget": {"percent": 10}},
                "connections": {"maxAge": "5m", "maxRequests": 100},
                "circuitBreaker": {"maxParallelRequests": 5},
                "loadBalancer": {
                    "type": "ConsistentHash",
                    "consistentHash": {"type": "Header", "header": {"name": "X-User"}},
                },
                "healthCheck": {
                    "active": {"type": "HTTP", "http": {"path": "/up"}},
                    "passive": {"consecutive5XxErrors": 3},
                    "panicThreshold": 50,
                },
            },
            "regions": {"allowed": ["eu"]},
            "extensions": [{"name": "e", "type": "egressproxy.io/X:v1"}],
        },
    ).spec
    assert spec.mode is Mode.REPORT
    assert spec.destinations is not None
    assert spec.destinations.allow is not None
    assert spec.destinations.allow[0].hostnames == ("*.a.test",)
    assert spec.destinations.allow[0].sni is SniCheck.ANY
    assert spec.dns is not None
    assert spec.dns.family is Family.IPV4
    assert list(spec.dns.hosts) == ["b.test"]
    assert spec.dns.max_ttl is not None
    assert spec.dns.max_ttl.seconds == 300


def test_a_policy_that_is_silent_on_destinations_differs_from_one_that_allows_nothing() -> None:
    silent = made(EgressPolicy, {"targetRefs": [TARGET], "destinations": {"deny": [{"hostnames": ["a.test"]}]}}).spec
    nothing = made(EgressPolicy, {"targetRefs": [TARGET], "destinations": {"allow": []}}).spec
    assert silent.destinations is not None
    assert nothing.destinations is not None
    assert silent.destinations.allow is None
    assert nothing.destinations.allow == ()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"destinations": None}, "nothing is written here"),
        ({"destinations": {"allow": None}}, "nothing is written here"),
        ({"addresses": {"allow": [{}]}}, "names no address"),
        ({"addresses": {"deny": [{"cidrs": []}]}}, "at least 1 item"),
        ({"addresses": {"deny": None}}, "nothing is written here"),
        ({"addresses": {"only": None}}, "nothing is written here"),
        ({"dns": {"minTTL": "1m", "maxTTL": "1s"}}, "minTTL 1m is above maxTTL 1s"),
        ({"dns": {"minTtl": "1m"}}, "Extra inputs"),
        ({"limits": {"requests": [{"per": "Route", "limit": 1, "window": "0s"}]}}, "has to be above 0s"),
        ({"limits": {"maxBodyBytes": -1}}, "greater than or equal to 0"),
        ({"limits": {"store": {"type": "Redis"}}}, "needs backendRef"),
        (
            {"traffic": {"loadBalancer": {"consistentHash": {"type": "SourceIP"}}}},
            "consistentHash does not belong to type RoundRobin",
        ),
        ({"traffic": {"loadBalancer": {"type": "ConsistentHash"}}}, "type ConsistentHash needs consistentHash"),
        (
            {"traffic": {"loadBalancer": {"type": "ConsistentHash", "consistentHash": {"type": "Header"}}}},
            "type Header needs header",
        ),
        ({"traffic": {"healthCheck": {"active": {"type": "TCP", "http": {}}}}}, "http does not belong to type TCP"),
        ({"traffic": {"healthCheck": {"active": {"type": "HTTP", "grpc": {}}}}}, "grpc does not belong to type HTTP"),
        ({"traffic": {"healthCheck": {"active": {"type": "TCP", "interval": "0s"}}}}, "has to be above 0s"),
        ({"traffic": {"healthCheck": {"passive": {"consecutiveErrors": 3}}}}, "Extra inputs"),
        ({"traffic": {"healthCheck": {"panicThreshold": 101}}}, "less than or equal to 100"),
        ({"traffic": {"circuitBreaker": {"maxConnections": 0}}}, "greater than or equal to 1"),
        ({"extensions": [{"name": "e", "type": "a.b/C:v1"}] * 2}, "name e stands more than once"),
        ({"targetRefs": [{"kind": "Gateway", "name": "gw"}]}, "Field required"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(section: dict[str, Any], message: str) -> None:
    assert message in refused(EgressPolicy, {"targetRefs": [TARGET], **section})


def test_a_policy_says_what_it_is_for_even_if_that_is_only_what_names_it() -> None:
    assert made(EgressPolicy, {"targetRefs": []}).spec.target_refs == ()
    assert "Field required" in refused(EgressPolicy, {})


def test_a_processor_runs_here_or_elsewhere() -> None:
    assert "either type or backendRefs" in refused(PayloadProcessingPipeline, {"processors": [{"name": "p"}]})


# --- core ------------------------------------------------------------------------------------------------------------


def test_an_endpoint_slice_is_read() -> None:
    read = made(
        EndpointSlice,
        metadata={"name": "x", "labels": {"kubernetes.io/service-name": "s"}},
        addressType="IPv4",
        endpoints=[
            {"addresses": ["192.0.2.1"], "conditions": {"ready": True}, "nodeName": "n", "targetRef": {"kind": "Pod"}}
        ],
        ports=[{"name": None, "port": 8080, "protocol": "TCP"}],
    )
    assert (read.service, read.endpoints[0].addresses, read.ports[0].port) == ("s", ("192.0.2.1",), 8080)


def test_a_service_is_read() -> None:
    spec = made(
        Service, {"clusterIP": "10.0.0.1", "ports": [{"port": 80, "targetPort": "http", "nodePort": 30000}]}
    ).spec
    assert (spec.cluster_ip, spec.ports[0].target_port) == ("10.0.0.1", "http")


def test_a_pod_has_its_identity() -> None:
    pod = made(
        Pod,
        {"serviceAccountName": "agent", "containers": []},
        status={"podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}]},
    )
    assert pod.spec.service_account_name == "agent"
    assert pod.status is not None
    assert pod.status.pod_ip == "10.0.0.7"


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "2"}}, False),
        ({"matchLabels": {"b": "1"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, True),
        ({"matchExpressions": [{"key": "b", "operator": "In", "values": ["1"]}]}, False),
        ({"matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["1"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, False),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_a_label_selector_selects(selector: dict[str, Any], matches: bool) -> None:
    assert LabelSelector.model_validate(selector).matches({"a": "1"}) is matches


def test_a_place_that_is_not_known_is_that_of_the_nearest_field_above() -> None:
    origin = Origin("a.yaml", 3, {"spec.extensions[0].config": (9, 5, 8, 3)})
    assert origin.location_of("spec.extensions[0].config") == (9, 5)
    assert origin.location_of("spec.extensions[0].config", key=True) == (8, 3)
    assert origin.location_of('spec.extensions[0].config["a.b"][1]', key=True) == (9, 5)
    assert origin.location_of("spec.mode") == (3, 1)
    assert Origin().location_of("spec.mode") == (0, 0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"type": "PIIDetector"}, "not a filter type"),
        ({"type": "acme.example.com/PII Detector:v1"}, "not a filter type"),
        ({"phases": []}, "at least 1 item"),
        ({"phases": ["request"]}, "should be 'request-headers'"),
        ({"python": None}, "either python or processor"),
        (
            {"processor": {"protocol": "ExtProc", "backendRefs": [{"name": "a", "port": 1}]}},
            "either python or processor",
        ),
        ({"configSchema": {}}, "either inline or configMapRef"),
    ],
)
def test_a_filter_type_has_a_name_of_a_domain_its_phases_and_one_thing_that_runs_it(changes, told):
    smallest = SPECS[FilterTypeDefinition]
    assert told in refused(FilterTypeDefinition, {**smallest, **changes})


SERVICE_TEXT = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n"


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [
        ("apps/v1", "Deployment"),
        ("v1", "Endpoints"),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        ("rbac.authorization.k8s.io/v1", "ClusterRole"),
        ("gateway.networking.k8s.io/v1alpha2", "UDPRoute"),
        ("gateway.networking.x-k8s.io/v1alpha1", "XListenerSet"),
        ("agentic.networking.x-k8s.io/v0alpha0", "XBackend"),
    ],
)
def test_a_kind_of_kubernetes_that_says_nothing_to_us_is_left_out_and_told(api_version: str, kind: str):
    text = f"apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: x}}\nspec: {{anything: [1, null]}}\n"
    loaded = load_text(f"{SERVICE_TEXT}---\n{text}", "a.yaml")
    assert len(loaded) == 1
    (warning,) = loaded.warnings
    assert (warning.file, warning.line, warning.column) == ("a.yaml", 6, 7)
    assert (warning.object, warning.message) == (f"{kind} default/x", "it is left out")
    assert warning.remedy
    is_ours_to_serve = "gateway" in api_version or "agentic" in api_version
    assert warning.severity is (Severity.UNSERVED if is_ours_to_serve else Severity.NOTE)


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [
        ("apps/v1", "Deploymint"),
        ("v1", "Thing"),
        ("egressproxy.io/v1alpha1", "EgresPolicy"),
        ("egressproxy.io/v1alpha1", "SomethingElse"),
        ("gateway.networking.k8s.io/v1", "HttpRout"),
        ("example.com/v1", "EgresPolicy"),
    ],
)
def test_an_unknown_kind_that_may_be_a_misspelt_one_stays_an_error(api_version: str, kind: str):
    with pytest.raises(ConfigError, match=f"unknown kind {kind}"):
        load_text(f"{SERVICE_TEXT}---\napiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: x}}\n")


@pytest.mark.parametrize("api_version", ["egressproxy.com/v1alpha1", "gateway.network.k8s.io/v1", "egressproxy.io/v1"])
@pytest.mark.parametrize("kind", ["Backend", "EgressPolicy"])
def test_a_group_that_may_be_a_misspelt_one_stays_an_error(api_version: str, kind: str):
    with pytest.raises(ConfigError, match=f"{kind} is not known in {api_version}"):
        load_text(f"{SERVICE_TEXT}---\napiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: x}}\n")


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [
        ("gateway.envoyproxy.io/v1alpha1", "Backend"),
        ("gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy"),
        ("networking.istio.io/v1", "Gateway"),
        ("inference.networking.k8s.io/v1", "InferencePool"),
        ("agentic.prototype.x-k8s.io/v0alpha0", "XBackend"),
        ("ainetworking.prototype.x-k8s.io/v0alpha0", "PayloadProcessor"),
        ("gateway.networking.x-k8s.io/v1alpha1", "XTransport"),
    ],
)
def test_a_kind_that_nobody_knows_is_left_out_and_missed(api_version: str, kind: str):
    loaded = load_text(f"{SERVICE_TEXT}---\napiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: x}}\n")
    assert len(loaded) == 1
    (warning,) = loaded.warnings
    assert (warning.object, warning.severity, warning.code) == (f"{kind} default/x", Severity.UNSERVED, "KindLeftOut")
    assert warning.remedy


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [
        ("example.com/v1", "Deployment"),
        ("monitoring.coreos.com/v1", "ServiceMonitor"),
        ("cert-manager.io/v1", "Certificate"),
        ("networking.gke.io/v1", "GCPBackendPolicy"),
    ],
)
def test_a_foreign_kind_is_missed_where_it_attaches_itself(api_version: str, kind: str):
    for spec, severity in (("{secretName: y}", Severity.NOTE), ("{targetRef: {name: y}}", Severity.UNSERVED)):
        text = f"apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: x}}\nspec: {spec}\n"
        (warning,) = load_text(f"{SERVICE_TEXT}---\n{text}").warnings
        assert (warning.severity, warning.code) == (severity, "KindLeftOut")


def test_files_without_anything_of_ours_are_refused_as_empty_ones_are():
    with pytest.raises(ConfigError, match="no objects found"):
        load_text("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n")


def test_what_would_have_had_a_say_is_told_with_what_to_use_instead():
    assert "EgressPolicy" in why_left_out("networking.k8s.io/v1", "NetworkPolicy")
    assert "ListenerSet" in why_left_out("gateway.networking.x-k8s.io/v1alpha1", "XListenerSet")


def test_no_kind_of_ours_is_left_out():
    assert not [each for each in BY_API_VERSION if why_left_out(*each)]
