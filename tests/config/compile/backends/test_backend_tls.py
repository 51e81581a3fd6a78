from __future__ import annotations

from typing import Any

import pytest

from egressproxy.config.compile.interface import Compiled
from egressproxy.config.reading.problems import ConfigError
from egressproxy.ir.backend import BackendTlsIR, Protocol
from tests.config.compile.backends.test_services import ROUTE, SERVICE, service_of
from tests.config.compile.kit import REVERSE, compiled, listener, of_route, route, rule, said, status
from tests.support.pki import Pki

POLICY = """
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: tls}
spec:
  targetRefs: [{group: "", kind: Service, name: svc}]
  validation: {hostname: svc.example, wellKnownCACertificates: System}
"""

OTHER_GATEWAY = REVERSE.replace("{name: gw}", "{name: gw2, namespace: edge}").replace(
    "protocol: HTTP}", "protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}"
).replace("8080", "8081")  # fmt: skip


def ca(name: str = "ca", pem: str = "") -> str:
    lines = "\n".join(f"    {line}" for line in (pem or Pki().ca_pem).splitlines())
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata:\n  ca.crt: |\n{lines}\n"


def trusting(*refs: str, policy: str = POLICY) -> str:
    """The policy with these `caCertificateRefs` instead of the system's."""
    return policy.replace("wellKnownCACertificates: System", f"caCertificateRefs: [{', '.join(refs)}]")


CA = "{group: '', kind: ConfigMap, name: ca}"
GONE = "{group: '', kind: ConfigMap, name: gone}"


def tls_of(made: Compiled) -> BackendTlsIR:
    found = service_of(made).tls
    assert found is not None
    return found


def ancestors(made: Compiled, name: str = "default/tls") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = status(made, "BackendTLSPolicy", name)["ancestors"]
    return found


def of_policy(made: Compiled, condition: str, name: str = "default/tls") -> tuple[str, str, str]:
    (ancestor,) = ancestors(made, name)
    return said(ancestor["conditions"], condition)


# --- what it says of the connection --------------------------------------------------------------------------------
def test_a_policy_says_how_a_service_is_verified():
    found = tls_of(compiled(REVERSE, ROUTE, SERVICE, POLICY))
    assert (found.sni, found.ca_pem, found.insecure_skip_verify) == ("svc.example", "", False)


def test_the_hostname_may_be_a_name_of_the_cluster():
    text = POLICY.replace("svc.example", "svc.default.svc.cluster.local")
    assert tls_of(compiled(REVERSE, ROUTE, SERVICE, text)).sni == "svc.default.svc.cluster.local"


def test_a_policy_for_a_port_goes_before_one_for_the_service_and_both_are_accepted():
    section = POLICY.replace("name: svc}", "name: svc, sectionName: web}").replace("name: tls", "name: web")
    made = compiled(REVERSE, ROUTE, SERVICE, POLICY, section.replace("svc.example", "web.example"))
    assert tls_of(made).sni == "web.example"
    assert of_policy(made, "Accepted")[:2] == ("True", "Accepted")
    assert of_policy(made, "Accepted", "default/web")[:2] == ("True", "Accepted")


@pytest.mark.parametrize("written", ["https", "HTTPS", "kubernetes.io/wss"])
def test_a_service_that_speaks_tls_is_used_with_a_policy(written: str):
    made = compiled(REVERSE, ROUTE, SERVICE.replace("port: 80,", f"port: 80, appProtocol: {written},"), POLICY)
    assert tls_of(made).sni == "svc.example"
    assert service_of(made).protocol in (Protocol.HTTP, Protocol.HTTP11)
    assert of_route(made, "ResolvedRefs")[0] == "True"


def test_alternative_names_are_dns_names_in_lower_case_and_uris_as_they_are():
    names = "subjectAltNames: [{type: Hostname, hostname: A.Example}, {type: URI, uri: 'spiffe://Td/Ns'}], wellKnown"
    made = compiled(REVERSE, ROUTE, SERVICE, POLICY.replace("wellKnown", names))
    assert tls_of(made).names == ("a.example", "spiffe://Td/Ns")


def test_a_ca_from_a_config_map_is_used():
    pem = Pki().ca_pem
    assert tls_of(compiled(REVERSE, ROUTE, SERVICE, trusting(CA), ca(pem=pem))).ca_pem.strip() == pem.strip()


# --- what is refused as it is read ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: svc}]", "name: svc}, {group: '', kind: Service, name: svc}]"),
        ("name: svc}]", "name: svc}, {group: '', kind: Service, name: svc, sectionName: web}]"),
        ("wellKnown", "subjectAltNames: [{type: URI, uri: 'no-scheme'}], wellKnown"),
        ("wellKnown", "subjectAltNames: [{type: URI, hostname: a.example}], wellKnown"),
    ],
)
def test_what_the_schema_refuses_is_a_load_error(old: str, new: str):
    with pytest.raises(ConfigError):
        compiled(REVERSE, ROUTE, SERVICE, POLICY.replace(old, new))


# --- status --------------------------------------------------------------------------------------------------------
def test_the_ancestors_are_the_gateways_whose_routes_use_the_service():
    both = ROUTE.replace("[{name: gw}]", "[{name: gw}, {name: gw2, namespace: edge}]")
    made = compiled(REVERSE, OTHER_GATEWAY, both, ROUTE.replace("name: route", "name: again"), SERVICE, POLICY)
    group = "gateway.networking.k8s.io"
    assert [ancestor["ancestorRef"] for ancestor in ancestors(made)] == [
        {"group": group, "kind": "Gateway", "namespace": "default", "name": "gw"},
        {"group": group, "kind": "Gateway", "namespace": "edge", "name": "gw2"},
    ]
    for ancestor in ancestors(made):
        assert said(ancestor["conditions"], "Accepted")[:2] == ("True", "Accepted")
        assert said(ancestor["conditions"], "ResolvedRefs")[:2] == ("True", "ResolvedRefs")


def test_a_route_that_attaches_nowhere_makes_no_ancestor_of_its_gateway():
    made = compiled(REVERSE, ROUTE.replace("{name: gw}", "{name: gw, sectionName: none}"), SERVICE, POLICY)
    assert ancestors(made)[0]["ancestorRef"]["kind"] == "Service"


def test_a_mirror_is_a_use():
    mirror = (
        "rules: [{filters: [{type: RequestMirror, requestMirror: {backendRef: {name: svc, port: 80}}}], backendRefs"
    )
    plain = SERVICE.replace("name: svc}", "name: main}")
    text = ROUTE.replace("rules: [{backendRefs", mirror).replace(
        "[{name: svc, port: 80}]}]", "[{name: main, port: 80}]}]"
    )
    assert ancestors(compiled(REVERSE, text, SERVICE, plain, POLICY))[0]["ancestorRef"]["kind"] == "Gateway"


def test_a_service_behind_a_backend_is_used():
    backend = """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: svc}
spec: {destination: {type: Service, service: {name: svc}, ports: [{number: 80}]}}
"""
    text = ROUTE.replace("name: svc, port: 80", "group: egressproxy.io, kind: Backend, name: svc")
    made = compiled(REVERSE, text, SERVICE, backend, POLICY)
    assert tls_of(made).sni == "svc.example"
    assert ancestors(made)[0]["ancestorRef"]["name"] == "gw"


def test_where_no_route_leads_the_target_stands_in_for_a_gateway():
    made = compiled(REVERSE, SERVICE, POLICY)
    (ancestor,) = ancestors(made)
    assert ancestor["ancestorRef"] == {"group": "", "kind": "Service", "name": "svc", "namespace": "default"}
    assert of_policy(made, "Accepted")[:2] == ("True", "Accepted")
    assert "No route" in of_policy(made, "Accepted")[2]


def test_a_policy_has_sixteen_ancestors_at_most():
    gateways = [REVERSE.replace("{name: gw}", f"{{name: gw{n}}}").replace("8080", str(9000 + n)) for n in range(20)]
    parents = ", ".join(f"{{name: gw{n}}}" for n in range(20))
    made = compiled(*gateways, ROUTE.replace("{name: gw}", parents), SERVICE, POLICY)
    assert len(ancestors(made)) == 16


def test_the_older_of_two_policies_holds():
    older = POLICY.replace("{name: tls}", '{name: zz, creationTimestamp: "2024-01-01T00:00:00Z"}')
    made = compiled(REVERSE, ROUTE, SERVICE, POLICY.replace("svc.example", "younger.example"), older)
    assert tls_of(made).sni == "svc.example"
    assert of_policy(made, "Accepted", "default/zz")[:2] == ("True", "Accepted")
    assert of_policy(made, "Accepted")[:2] == ("False", "Conflicted")
    assert "default/zz" in of_policy(made, "Accepted")[2]


def test_of_two_policies_of_one_age_the_first_by_name_holds():
    made = compiled(REVERSE, ROUTE, SERVICE, POLICY.replace("svc.", "b.").replace(": tls}", ": b}"), POLICY)
    assert tls_of(made).sni == "b.example"


def test_a_target_that_is_lost_is_a_note_while_another_holds():
    older = POLICY.replace("{name: tls}", '{name: zz, creationTimestamp: "2024-01-01T00:00:00Z"}')
    two = POLICY.replace("name: svc}]", "name: svc}, {group: '', kind: Service, name: other}]")
    refs = ROUTE.replace("{name: svc, port: 80}", "{name: svc, port: 80}, {name: other, port: 80}")
    made = compiled(REVERSE, refs, SERVICE, SERVICE.replace("name: svc", "name: other"), older, two)
    assert of_policy(made, "Accepted")[:2] == ("True", "Accepted")
    assert "Not everywhere: BackendTLSPolicy default/zz is older" in of_policy(made, "Accepted")[2]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: Service, name: svc", "kind: Service, name: gone", "does not exist"),
        ("kind: Service, name: svc", "kind: Service, name: svc, sectionName: gone", "it has web, other"),
        ('group: "", kind: Service', "group: egressproxy.io, kind: Backend", "only Services"),
    ],
)
def test_a_target_that_is_not_there_is_said(old: str, new: str, message: str):
    made = compiled(REVERSE, ROUTE, SERVICE, POLICY.replace(old, new))
    assert of_policy(made, "Accepted")[:2] == ("False", "TargetNotFound")
    assert message in of_policy(made, "Accepted")[2]


@pytest.mark.parametrize(
    ("ref", "objects", "reason"),
    [
        (GONE, [], "InvalidCACertificateRef"),
        (CA, [ca(pem="no certificate")], "InvalidCACertificateRef"),
        (CA, [ca().replace("ca.crt", "other")], "InvalidCACertificateRef"),
        ("{group: '', kind: InvalidKind, name: ca}", [ca()], "InvalidKind"),
        ("{group: other.example, kind: ConfigMap, name: ca}", [ca()], "InvalidKind"),
    ],
)
def test_without_its_ca_a_service_is_not_used_at_all(ref: str, objects: list[str], reason: str):
    made = compiled(REVERSE, ROUTE, SERVICE, trusting(ref), *objects)
    assert rule(made).backends[0].backend is None
    assert of_policy(made, "ResolvedRefs")[:2] == ("False", reason)
    assert of_policy(made, "Accepted")[:2] == ("False", "NoValidCACertificate")
    assert of_route(made, "Accepted")[0] == "True"


def test_one_good_ca_is_enough_and_status_names_the_bad_one():
    made = compiled(REVERSE, ROUTE, SERVICE, trusting(GONE, CA), ca())
    assert tls_of(made).ca_pem
    assert of_policy(made, "ResolvedRefs")[:2] == ("False", "InvalidCACertificateRef")
    assert "gone" in of_policy(made, "ResolvedRefs")[2]
    assert of_policy(made, "Accepted")[:2] == ("True", "Accepted")


def stream(protocol: str, mode: str = "") -> list[str]:
    """A Gateway with one listener of this protocol, and a route on it to the Service."""
    made = Pki().certificate("a.example")
    parts = {"tls.crt": made.chain_pem, "tls.key": made.key_pem.reveal().decode()}
    data = ", ".join('{}: "{}"'.format(key, value.replace("\n", "\\n")) for key, value in parts.items())
    refs = ", certificateRefs: [{name: cert}]" if mode == "Terminate" else ""
    tls = f", tls: {{mode: {mode}{refs}}}" if mode else ""
    gateway = f"""
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: gw}}
spec:
  gatewayClassName: egressproxy
  listeners: [{{name: stream, port: 8443, protocol: {protocol}{tls}}}]
"""
    text = ROUTE.replace("HTTPRoute", f"{protocol}Route")
    if protocol == "TLS":
        text = text.replace("  rules", "  hostnames: [a.example]\n  rules")
    else:
        text = text.replace("/v1\n", "/v1alpha2\n")
    return [gateway, f"apiVersion: v1\nkind: Secret\nmetadata: {{name: cert}}\nstringData: {{{data}}}\n", text]


@pytest.mark.parametrize(("protocol", "mode"), [("TLS", "Terminate"), ("TCP", "")])
def test_streams_go_on_in_tls_where_a_policy_says_so(protocol: str, mode: str):
    made = compiled(*stream(protocol, mode), SERVICE, POLICY)
    (found,) = (*listener(made).tls_routes, *listener(made).tcp_routes)
    assert found.backends[0].backend is not None
    assert found.backends[0].backend.tls is not None
    assert ancestors(made)[0]["ancestorRef"]["name"] == "gw"


@pytest.mark.parametrize("written", ["https", "kubernetes.io/h2c", "example.com/own"])
@pytest.mark.parametrize(("protocol", "mode"), [("TLS", "Passthrough"), ("TCP", "")])
def test_what_a_service_speaks_is_nothing_to_streams_that_pass_as_they_are(protocol: str, mode: str, written: str):
    made = compiled(*stream(protocol, mode), SERVICE.replace("port: 80,", f"port: 80, appProtocol: {written},"))
    (found,) = (*listener(made).tls_routes, *listener(made).tcp_routes)
    assert found.backends[0].backend is not None
    assert of_route(made, "ResolvedRefs", kind=f"{protocol}Route")[0] == "True"


def test_a_stream_whose_tls_ends_here_does_not_go_on_in_plain_text_to_what_speaks_tls():
    secure = SERVICE.replace("port: 80,", "port: 80, appProtocol: https,")
    made = compiled(*stream("TLS", "Terminate"), secure)
    (found,) = listener(made).tls_routes
    assert found.backends[0].backend is None
    assert "add a BackendTLSPolicy" in found.backends[0].error
    made = compiled(*stream("TLS", "Terminate"), secure, POLICY)
    (found,) = listener(made).tls_routes
    assert found.backends[0].backend is not None


def test_the_generation_is_that_of_the_policy():
    made = compiled(REVERSE, ROUTE, SERVICE, POLICY.replace("{name: tls}", "{name: tls, generation: 7}"))
    assert {c["observedGeneration"] for c in ancestors(made)[0]["conditions"]} == {7}
    assert route(made).name == "default/route"
