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
        ('group: "", kind: Service', "group: egressproxy.io, kind: Backend", "Backend svc does not exist"),
        ('group: "", kind: Service', "group: gateway.networking.k8s.io, kind: Gateway", "only Services and Backends"),
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


# --- Backends ------------------------------------------------------------------------------------------------------
OURS = ("egressproxy.io", "v1alpha1", "Backend")
PUBLISHED = ("gateway.networking.k8s.io", "v1alpha1", "Backend")
RENAMED = ("gateway.networking.k8s.io", "v1alpha1", "XBackendDestination")
PROTOTYPE = ("ainetworking.prototype.x-k8s.io", "v0alpha0", "XBackendDestination")
FIRST_PROTOTYPE = ("ainetworking.prototype.x-k8s.io", "v0alpha0", "Backend")
X_BACKEND = ("gateway.networking.x-k8s.io", "v1alpha1", "XBackend")
WITH_DESTINATION = (OURS, PUBLISHED, RENAMED, PROTOTYPE, FIRST_PROTOTYPE)
Form = tuple[str, str, str]

FQDN = "{type: Fqdn, fqdn: {hostname: a.example}, ports: [{name: web, number: 8443}]}"
IP = "{type: Ip, ip: {address: 192.0.2.1}, ports: [{name: web, number: 8443}]}"
OF_SERVICE = "{type: Service, service: {name: svc}, ports: [{name: web, number: 80}]}"


def backend(form: Form, destination: str = FQDN, more: str = "", name: str = "b") -> str:
    group, version, kind = form
    spec = f"{{destination: {destination}{more}}}"
    if form is X_BACKEND:
        spec = f"{{type: ExternalHostname, externalHostname: {{hostname: a.example}}, port: {{number: 8443}}{more}}}"
    return f"apiVersion: {group}/{version}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n"


def for_backend(form: Form, section: str = "", policy: str = POLICY, name: str = "b") -> str:
    more = f", sectionName: '{section}'" if section else ""
    target = f"{{group: {form[0]}, kind: {form[2]}, name: {name}{more}}}"
    return policy.replace('{group: "", kind: Service, name: svc}', target)


def route_to(form: Form, port: str = "", name: str = "b") -> str:
    return ROUTE.replace("name: svc, port: 80", f"group: {form[0]}, kind: {form[2]}, name: {name}{port}")


def of_backend(made: Compiled, condition: str, form: Form = OURS, name: str = "default/b") -> tuple[str, str, str]:
    return said(status(made, form[2], name)["conditions"], condition)


@pytest.mark.parametrize("form", [*WITH_DESTINATION, X_BACKEND])
def test_a_policy_says_how_a_backend_is_verified_whatever_its_kind(form: Form):
    made = compiled(REVERSE, route_to(form), backend(form), for_backend(form, policy=trusting(CA)), ca())
    found = tls_of(made)
    assert (found.sni, bool(found.ca_pem), found.ca_source) == ("svc.example", True, "ConfigMap default/ca")
    assert ancestors(made)[0]["ancestorRef"]["kind"] == "Gateway"
    assert of_policy(made, "Accepted")[:2] == ("True", "Accepted")
    accepted = of_backend(made, "Accepted", form)
    assert accepted[0] == "True"
    assert "a.example:8443 (HTTP, TLS by BackendTLSPolicy default/tls)" in accepted[2]
    assert of_backend(made, "Insecure", form)[0] == ""


@pytest.mark.parametrize("destination", [FQDN, IP, OF_SERVICE])
def test_a_policy_holds_for_each_type_of_destination(destination: str):
    made = compiled(REVERSE, route_to(OURS), backend(OURS, destination), SERVICE, for_backend(OURS))
    assert tls_of(made).sni == "svc.example"


def test_the_policy_of_a_backend_goes_before_that_of_its_service():
    own = for_backend(OURS).replace("{name: tls}", "{name: own}").replace("svc.example", "own.example")
    made = compiled(REVERSE, route_to(OURS), backend(OURS, OF_SERVICE), SERVICE, POLICY, own)
    assert tls_of(made).sni == "own.example"


@pytest.mark.parametrize("more", ["", ", tls: {mode: Simple, sni: svc.example}"])
def test_a_service_that_speaks_tls_is_used_where_the_backend_says_how_it_is_verified(more: str):
    secure = SERVICE.replace("port: 80,", "port: 80, appProtocol: https,")
    policies = () if more else (for_backend(OURS),)
    made = compiled(REVERSE, route_to(OURS), backend(OURS, OF_SERVICE, more), secure, *policies)
    assert tls_of(made).sni == "svc.example"


def test_a_dynamic_backend_takes_its_policy_for_what_is_reached_over_tls():
    made = compiled(REVERSE, route_to(OURS), backend(OURS, "{type: Dynamic}"), for_backend(OURS))
    assert tls_of(made).sni == "svc.example"
    assert "TLS by BackendTLSPolicy default/tls" in of_backend(made, "Accepted")[2]


def test_an_alias_of_the_prototype_means_the_same_in_a_policy():
    target = for_backend(PROTOTYPE).replace("XBackendDestination", "Backend")
    made = compiled(REVERSE, route_to(FIRST_PROTOTYPE), backend(PROTOTYPE), target)
    assert tls_of(made).sni == "svc.example"
    assert ancestors(made)[0]["ancestorRef"]["kind"] == "Gateway"


@pytest.mark.parametrize("section", ["web", "8443"])
def test_a_port_of_a_backend_is_named_or_numbered(section: str):
    one = for_backend(OURS, section).replace("{name: tls}", "{name: one}").replace("svc.example", "one.example")
    made = compiled(REVERSE, route_to(OURS), backend(OURS), for_backend(OURS), one)
    assert tls_of(made).sni == "one.example"
    assert of_policy(made, "Accepted", "default/one")[:2] == ("True", "Accepted")


def test_a_port_by_name_and_by_number_is_one_target():
    other = for_backend(OURS, "8443").replace("{name: tls}", "{name: other}")
    made = compiled(REVERSE, route_to(OURS), backend(OURS), for_backend(OURS, "web"), other)
    assert of_policy(made, "Accepted")[:2] == ("False", "Conflicted")
    assert of_policy(made, "Accepted", "default/other")[:2] == ("True", "Accepted")


@pytest.mark.parametrize("form", [OURS, PUBLISHED])
@pytest.mark.parametrize("mode", ["Simple", "None"])
def test_what_a_backend_says_itself_holds_and_status_says_so(form: Form, mode: str):
    own = backend(form, more=f", tls: {{mode: {mode}}}")
    made = compiled(REVERSE, route_to(form), own, for_backend(form))
    found = service_of(made).tls
    assert (found is None) is (mode == "None")
    assert found is None or found.sni == ""
    accepted = of_policy(made, "Accepted")
    assert accepted[:2] == ("False", "Conflicted")
    assert "Backend default/b has tls of its own for port 8443" in accepted[2]


def test_a_port_that_says_nothing_has_the_policy_and_another_its_own():
    two = FQDN.replace("[{name: web, number: 8443}]", "[{number: 8443}, {number: 443, tls: {mode: Simple}}]")
    made = compiled(REVERSE, route_to(OURS, ", port: 8443"), backend(OURS, two), for_backend(OURS))
    assert tls_of(made).sni == "svc.example"
    accepted = of_policy(made, "Accepted")
    assert accepted[:2] == ("True", "Accepted")
    assert "Not everywhere: Backend default/b has tls of its own for port 443 (TLS Simple)" in accepted[2]
    assert tls_of(compiled(REVERSE, route_to(OURS, ", port: 443"), backend(OURS, two), for_backend(OURS))).sni == ""


@pytest.mark.parametrize("form", [OURS, PUBLISHED, X_BACKEND])
def test_without_its_ca_a_backend_is_not_used_at_all(form: Form):
    made = compiled(REVERSE, route_to(form), backend(form), for_backend(form, policy=trusting(GONE)))
    assert rule(made).backends[0].backend is None
    assert of_policy(made, "Accepted")[:2] == ("False", "NoValidCACertificate")
    assert of_backend(made, "ResolvedRefs", form)[0] == "False"


@pytest.mark.parametrize("section", ["", "web"])
def test_a_failover_with_a_policy_is_closed_and_says_where_the_policy_belongs(section: str):
    endpoint = "{backendRef: {group: egressproxy.io, kind: Backend, name: b}}"
    failover = backend(OURS, f"{{type: Failover, failover: {{endpoints: [{endpoint}]}}}}", name="any")
    plain = backend(OURS, IP)
    made = compiled(REVERSE, route_to(OURS, name="any"), failover, plain, for_backend(OURS, section, name="any"))
    assert of_policy(made, "Accepted")[:2] == ("False", "Invalid")
    assert all(each.backend is None for each in rule(made).backends)
    assert of_backend(made, "ResolvedRefs", name="default/any")[0] == "False"
    made = compiled(REVERSE, route_to(OURS, name="any"), failover, plain, for_backend(OURS))
    assert ancestors(made)[0]["ancestorRef"]["kind"] == "Gateway"


@pytest.mark.parametrize("protocol", ["HTTP", "HTTP11", "HTTP2", "GRPC", "MCP", "A2A"])
@pytest.mark.parametrize("number", [80, 443, 8080])
def test_an_external_name_of_the_working_group_is_reached_over_tls_by_default(protocol: str, number: int):
    destination = f"{{type: FQDN, fqdn: {{hostname: a.example}}, ports: [{{number: {number}, protocol: {protocol}}}]}}"
    made = compiled(REVERSE, route_to(PROTOTYPE), backend(PROTOTYPE, destination))
    assert tls_of(made) == BackendTlsIR()
    accepted = of_backend(made, "Accepted", PROTOTYPE)
    assert accepted[0] == "True"
    assert "TLS Simple by default: tls.mode None switches it off" in accepted[2]


@pytest.mark.parametrize("protocol", ["H2C", "TCP"])
def test_a_protocol_without_tls_goes_in_plain_text_but_never_to_443(protocol: str):
    destination = f"{{type: FQDN, fqdn: {{hostname: a.example}}, ports: [{{number: 8080, protocol: {protocol}}}]}}"
    made = compiled(REVERSE, route_to(PROTOTYPE), backend(PROTOTYPE, destination))
    assert service_of(made).tls is None
    made = compiled(REVERSE, route_to(PROTOTYPE), backend(PROTOTYPE, destination.replace("8080", "443")))
    assert of_backend(made, "Accepted", PROTOTYPE)[:2] == ("False", "TlsNotConfigured")


def test_tls_of_an_egress_policy_does_something_where_another_policy_brings_tls():
    floor = """
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: floor}
spec: {targetRefs: [{group: egressproxy.io, kind: Backend, name: b}], tls: {minVersion: "1.3"}}
"""
    made = compiled(REVERSE, route_to(OURS), backend(OURS, IP), for_backend(OURS), floor)
    (ancestor,) = status(made, "EgressPolicy", "default/floor")["ancestors"]
    assert "does nothing here" not in said(ancestor["conditions"], "Accepted")[2]


# --- GEP-4152 --------------------------------------------------------------------------------------------------------
TRUSTED = "trustedCertificates: [{group: '', kind: ConfigMap, name: own}]"


def own(pem: str) -> str:
    return ca("own", pem).replace("ca.crt", "tls.crt")


def with_mode(mode: str, trust: str = "wellKnownCACertificates: System") -> str:
    made = POLICY.replace("wellKnownCACertificates: System", f"{trust}, mode: {mode}" if trust else f"mode: {mode}")
    return made


@pytest.mark.parametrize(
    ("mode", "trust", "flags", "why"),
    [
        ("Standard", "wellKnownCACertificates: System", (False, False, False), ""),
        ("InsecureAllowExpired", "wellKnownCACertificates: System", (False, False, True), "expired are accepted"),
        ("InsecureSkipOnlySANVerification", "wellKnownCACertificates: System", (False, True, False), "the name"),
        ("InsecureSkipVerification", "", (True, False, False), "certificate is not verified"),
    ],
)
def test_a_mode_takes_requirements_away_and_status_says_so(
    mode: str, trust: str, flags: tuple[bool, bool, bool], why: str
):
    made = compiled(REVERSE, ROUTE, SERVICE, with_mode(mode, trust))
    found = tls_of(made)
    assert (found.insecure_skip_verify, found.skip_names, found.allow_expired) == flags
    assert found.is_verified == (mode in ("Standard", "InsecureAllowExpired"))
    status, reason, message = of_policy(made, "egressproxy.io/Insecure")
    assert (status, reason) == (("True", "NotVerified") if why else ("", ""))
    assert why in message
    assert of_policy(made, "Accepted")[0] == "True"


@pytest.mark.parametrize(
    "text",
    [
        with_mode("InsecureSkipVerification"),
        with_mode("InsecureSkipVerification", TRUSTED),
        with_mode("Standard", ""),
        with_mode("InsecureAllowExpired", ""),
        with_mode("Never"),
        POLICY.replace("System", f"System, caCertificateRefs: [{CA}]"),
        with_mode("InsecureSkipOnlySANVerification, subjectAltNames: [{type: Hostname, hostname: a.example}]"),
    ],
)
def test_a_mode_needs_the_trust_that_belongs_to_it(text: str):
    with pytest.raises(ConfigError):
        compiled(REVERSE, ROUTE, SERVICE, text)


def test_trusted_certificates_are_what_is_accepted_or_stand_beside_cas():
    leaf, root = Pki().ca_pem, Pki().ca_pem
    alone = POLICY.replace("wellKnownCACertificates: System", TRUSTED)
    found = tls_of(compiled(REVERSE, ROUTE, SERVICE, alone, own(leaf)))
    assert found.trusted_pem.strip() == found.ca_pem.strip() == leaf.strip()
    both = POLICY.replace("wellKnownCACertificates: System", f"{TRUSTED}, caCertificateRefs: [{CA}]")
    found = tls_of(compiled(REVERSE, ROUTE, SERVICE, both, own(leaf), ca(pem=root)))
    assert (found.trusted_pem.strip(), found.ca_pem.strip()) == (leaf.strip(), root.strip())
    systems = POLICY.replace("System", f"System, {TRUSTED}")
    found = tls_of(compiled(REVERSE, ROUTE, SERVICE, systems, own(leaf)))
    assert (found.trusted_pem.strip(), found.ca_pem) == (leaf.strip(), "")


def test_without_its_trusted_certificates_nothing_is_trusted_in_their_place():
    made = compiled(REVERSE, ROUTE, SERVICE, POLICY.replace("wellKnownCACertificates: System", TRUSTED))
    assert rule(made).backends[0].backend is None
    assert of_policy(made, "ResolvedRefs")[:2] == ("False", "InvalidCACertificateRef")
    assert of_policy(made, "Accepted")[:2] == ("False", "NoValidCACertificate")
