"""Every published form of a Backend's destination, and the one value that it is read into."""

from __future__ import annotations

import base64

import pytest

from egressproxy.config.compile.backends.published_forms import destination_summary
from egressproxy.config.compile.status.status_warnings import all_warnings
from egressproxy.config.reading.load import load_text
from egressproxy.config.reading.problems import ConfigError, Severity
from egressproxy.config.resources.backend import Backend
from egressproxy.ir.backend import AiIR, BackendIR, BackendTlsIR, Destination, Protocol
from egressproxy.model.mcp import MCP_REVISIONS
from tests.config.compile.kit import REVERSE, compiled, of_object, rule
from tests.support.pki import Pki, chain

ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: route}
spec:
  parentRefs: [{name: gw}]
  rules:
  - backendRefs: [{group: gateway.networking.k8s.io, kind: Backend, name: b}]
"""
PLAIN_CA = "caBundleRef: {name: vendor-ca}"


@pytest.fixture(scope="module")
def pki() -> Pki:
    return Pki()


def backend(spec: str) -> str:
    return f"apiVersion: gateway.networking.k8s.io/v1alpha1\nkind: Backend\nmetadata: {{name: b}}\nspec: {spec}\n"


def host(more: str = "", beside: str = "", of_host: str = "") -> str:
    return backend(f"{{destination: {{type: FQDN, fqdn: {{hostname: a.example{of_host}}}{more}}}{beside}}}")


def served(*manifests: str) -> BackendIR:
    (found,) = rule(compiled(REVERSE, ROUTE, *manifests)).backends
    assert found.backend is not None, found.error
    return found.backend


def refused(*manifests: str) -> tuple[str, tuple[str, ...]]:
    """Why the rule answers 500; and the Backend's condition that says it."""
    made = compiled(REVERSE, ROUTE, *manifests)
    (found,) = rule(made).backends
    assert found.backend is None
    return found.error, of_object(made, "Backend", "default/b", "Accepted")


def conditions(kind: str, *manifests: str) -> tuple[str, ...]:
    return of_object(compiled(REVERSE, ROUTE, *manifests), "Backend", "default/b", kind)


def ca(pki: Pki) -> str:
    lines = "\n".join(f"    {line}" for line in pki.ca_pem.splitlines())
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: vendor-ca}}\ndata:\n  ca.crt: |\n{lines}\n"


def pair(pki: Pki, name: str = "egress-client-cert") -> str:
    leaf = pki.issue("client.example")
    crt = base64.b64encode(chain(leaf).encode()).decode()
    key = base64.b64encode(leaf.private_key_pem.bytes()).decode()
    return f"apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\ndata: {{tls.crt: {crt}, tls.key: {key}}}\n"


@pytest.mark.parametrize(
    "form",
    [
        host(", ports: [{number: 8443, tls: {mode: Simple}}]"),
        host(", ports: [{number: 8443, protocol: TLS, tls: {mode: SIMPLE}}]"),
        host(", ports: [{number: 8443, protocol: TLS}]"),
        host(", ports: [{number: 8443, protocol: A2A, tls: {mode: Simple}}]"),
        host(", ports: [{name: https, port: 8443, protocol: HTTPS}]", of_host=", tls: {serverName: a.example}"),
        host(", ports: [{number: 8443}]", ", tls: {mode: SIMPLE}"),
        host(", ports: [{number: 8443}], tls: {mode: Simple}"),
        host("", ", tls: {mode: PLATFORM_PROVIDED}", ", port: 8443"),
        host(", tls: {mode: PlatformProvided}", "", ", port: 8443"),
        host("", "", ", port: 8443, tls: {serverName: a.example}"),
    ],
)
def test_forms_of_one_port_over_tls_are_one_value(form: str):
    found = served(form)
    assert (found.destination, found.hostname, found.port) == (Destination.FQDN, "a.example", 8443)
    assert found.protocol is Protocol.HTTP
    assert found.tls in (BackendTlsIR(), BackendTlsIR(sni="a.example"))


def test_without_any_port_it_is_443_with_the_tls_that_stands_there():
    assert served(host("", ", tls: {mode: SIMPLE, sni: b.example}")).port == 443


def test_an_address_and_a_service_without_ports_need_tls_too():
    found = served(backend("{destination: {type: IPAddress, ip: {address: 192.0.2.7}}, tls: {mode: SIMPLE}}"))
    assert (found.destination, found.endpoints[0].port) == (Destination.IP, 443)
    _, condition = refused(backend("{destination: {type: IPAddress, ip: {address: 192.0.2.7}}}"))
    assert condition[1] == "TlsNotConfigured"


def test_a_kubernetes_service_in_its_own_words():
    service = """
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {ports: [{name: http, port: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 9090}]
endpoints: [{addresses: [192.0.2.9]}]
"""
    for block in ("service", "kubernetesService"):
        form = f"{{destination: {{type: KubernetesService, {block}: {{name: web}}, ports: [{{number: 8080}}]}}}}"
        found = served(backend(form), service)
        assert [(str(each.address), each.port) for each in found.endpoints] == [("192.0.2.9", 9090)]


def test_a_ca_bundle_is_a_mapping_or_a_list_and_a_config_map_by_default(pki: Pki):
    for written in ("{name: vendor-ca}", "[{name: vendor-ca}]", "[{group: '', kind: ConfigMap, name: vendor-ca}]"):
        found = served(host("", f", tls: {{mode: SIMPLE, caBundleRef: {written}}}"), ca(pki)).tls
        assert found is not None
        assert found.ca_pem.strip() == pki.ca_pem.strip()
        assert found.ca_source == "ConfigMap default/vendor-ca"


def test_a_client_certificate_is_a_secret_by_default(pki: Pki):
    form = host("", ", tls: {mode: MUTUAL, clientCertificateRef: {name: egress-client-cert}}")
    found = served(form, pair(pki)).tls
    assert found is not None
    assert "BEGIN CERTIFICATE" in found.client_certificate


def test_tls_below_fqdn_names_secrets_and_their_keys(pki: Pki):
    form = host(
        ", ports: [{port: 443, protocol: HTTPS}]",
        "",
        ", tls: {caCertificates: [{secretRef: {name: roots}, key: vendor.pem}], "
        "clientCertificate: {secretRef: {name: egress-client-cert}, key: tls.crt}}",
    )
    roots = base64.b64encode(pki.ca_pem.encode()).decode()
    secret = f"apiVersion: v1\nkind: Secret\nmetadata: {{name: roots}}\ndata: {{vendor.pem: {roots}}}\n"
    found = served(form, secret, pair(pki)).tls
    assert found is not None
    assert found.ca_pem.strip() == pki.ca_pem.strip()
    assert found.client_source == "Secret default/egress-client-cert"


def test_insecure_disable_is_plain_text_and_insecure():
    form = host(", ports: [{number: 8080, tls: {mode: INSECURE_DISABLE}}]")
    assert served(form).tls is None
    assert conditions("Insecure", form)[:2] == ("True", "NotVerified")


@pytest.mark.parametrize(
    "form", [host(", ports: [{number: 80, protocol: HTTP}]"), host("", "", ", port: 80"), host(), host(", ports: []")]
)
def test_a_published_port_without_tls_is_reached_over_tls(form: str):
    assert served(form).tls == BackendTlsIR()
    assert conditions("Insecure", form)[0] == ""
    assert "tls.mode None switches it off" in conditions("Accepted", form)[2]


@pytest.mark.parametrize("mode", ["PASSTHROUGH", "Terminate"])
def test_modes_of_listeners_close_the_port(mode: str):
    error, condition = refused(host("", f", tls: {{mode: {mode}}}"))
    assert "the listener's business" in error
    assert condition[:2] == ("False", "UnsupportedValue")


def test_a_vendors_mode_closes_the_port_and_is_said_in_status():
    error, condition = refused(host(", ports: [{number: 443, tls: {mode: example.com/x}}]"))
    assert "example.com/x" in error
    assert condition[:2] == ("False", "UnsupportedValue")


def test_mutual_without_a_certificate_is_a_condition_in_a_published_group():
    error, condition = refused(host("", ", tls: {mode: MUTUAL}"))
    assert "needs clientCertificateRef" in error
    assert condition[:2] == ("False", "UnsupportedValue")


@pytest.mark.parametrize(
    "form",
    [
        host(", ports: [{number: 443, protocol: example.com/x, tls: {mode: Simple}}]"),
        host("", ", tls: {mode: Simple}", ", protocol: {type: example.com/x, options: {version: '1'}}"),
    ],
)
def test_a_vendors_protocol_closes_its_rule_and_is_said_in_status(form: str):
    other = """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: other}
spec: {destination: {type: Fqdn, fqdn: {hostname: b.example}, ports: [{number: 443, tls: {mode: Simple}}]}}
"""
    route = f"{ROUTE}  - backendRefs: [{{group: egressproxy.io, kind: Backend, name: other}}]\n"
    made = compiled(REVERSE, route, form, other)
    first, second = (rule(made, number).backends[0] for number in (0, 1))
    assert first.backend is None
    assert "protocol example.com/x" in first.error
    assert second.backend is not None
    assert of_object(made, "Backend", "default/b", "ResolvedRefs")[:2] == ("False", "UnsupportedProtocol")


def test_a_protocol_below_fqdn_is_that_of_ports_that_say_none():
    form = host(", ports: [{number: 443}]", ", tls: {mode: Simple}", ", protocol: {type: HTTP11}")
    assert served(form).protocol is Protocol.HTTP11


def test_protocol_tls_is_a_stream_for_a_tcp_route():
    gateway = REVERSE.replace("protocol: HTTP", "protocol: TCP")
    route = ROUTE.replace("HTTPRoute", "TCPRoute").replace("/v1\n", "/v1alpha2\n")
    made = compiled(gateway, route, host(", ports: [{number: 443, protocol: TLS, tls: {mode: Simple}}]"))
    (stream,) = made.spec.listeners[0].tcp_routes
    assert stream.backends[0].backend is not None
    assert stream.backends[0].backend.protocol is Protocol.TCP


def test_a_known_revision_of_mcp_is_well_and_another_is_a_condition():
    form = ", ports: [{{number: 443, protocol: MCP, tls: {{mode: Simple}}, protocolOptions: {{mcp: {}}}}}]".format
    well = host(form(f"{{version: '{MCP_REVISIONS[-1]}', path: /mcp}}"))
    assert conditions("Degraded", well) == ("", "", "")
    assert "not supported" not in conditions("Accepted", well)[2]
    odd = host(form("{version: '2025-06-81'}"))
    assert served(odd).protocol is Protocol.MCP
    assert conditions("Degraded", odd)[:2] == ("True", "UnsupportedProtocolOptions")
    manifests = (REVERSE, ROUTE, odd)
    (found,) = all_warnings(load_text("\n---\n".join(manifests)), compiled(*manifests))
    assert found.severity is Severity.WARNING
    assert "did you mean 2025-06-18?" in conditions("Degraded", odd)[2]
    assert "it starts with /" in conditions("Degraded", host(form("{path: mcp}")))[2]


def test_the_apis_of_a_provider_and_where_they_are():
    form = ", ports: [{{number: 443, protocol: {}, tls: {{mode: Simple}}, protocolOptions: {{ai: {}}}}}]".format
    assert served(host(form("HTTP", "{apis: [AnthropicMessages, OpenAIChat]}"))).ai == AiIR(
        ("AnthropicMessages", "OpenAIChat")
    )
    assert served(host(form("HTTP2", "{apis: [OpenAIChat], prefix: /openai/v1/}"))).ai == AiIR(
        ("OpenAIChat",), "/openai/v1"
    )
    azure = served(host(form("HTTP", "{apis: [OpenAIChat], azureApiVersion: 2024-10-21}"))).ai
    assert azure == AiIR(("OpenAIChat",), azure_api_version="2024-10-21")
    told = conditions("Accepted", host(form("HTTP", "{apis: [AnthropicMessages, OpenAIChat], prefix: /x/v1}")))[2]
    assert "a.example:443 (HTTP, TLS Simple, AnthropicMessages and OpenAIChat at /x/v1)" in told
    odd = host(form("HTTP", "{apis: [OpenAIChat], prefix: openai}"))
    assert served(odd).ai == AiIR(("OpenAIChat",))
    assert conditions("Degraded", odd)[:2] == ("True", "UnsupportedProtocolOptions")
    assert "prefix openai of port 443" in conditions("Degraded", odd)[2]
    idle = host(form("MCP", "{apis: [OpenAIChat]}"))
    assert served(idle).ai is None
    assert "protocolOptions.ai of port 443 does nothing" in conditions("Accepted", idle)[2]


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("[OpenAIChat, OpenAIChat]", "more than once"),
        ("[]", "apis"),
        ("[Other]", "OpenAIChat"),
        ("[Gemini], azureApiVersion: 2024-10-21", "azureApiVersion needs OpenAIChat"),
    ],
)
def test_apis_that_are_none_are_refused(written: str, told: str):
    text = host(f", ports: [{{number: 443, protocolOptions: {{ai: {{apis: {written}}}}}}}]")
    with pytest.raises(ConfigError, match=told):
        load_text(text)


@pytest.mark.parametrize(
    ("form", "became"),
    [
        (host("", ", tls: {mode: SIMPLE}", ", port: 8443"), "a.example:8443 (HTTP, TLS Simple)"),
        (
            host(", ports: [{number: 80, protocol: HTTP}]"),
            "a.example:80 (HTTP, TLS Simple by default: tls.mode None switches it off)",
        ),
        (
            host(", ports: [{number: 443, protocol: TLS}, {number: 80, tls: {mode: INSECURE_DISABLE}}]"),
            "a.example:443 (HTTP, TLS Simple), a.example:80 (HTTP, plain text)",
        ),
        (
            backend("{destination: {type: IPAddress, ip: {address: '2001:db8::1'}}, tls: {mode: SIMPLE}}"),
            "[2001:db8::1]:443 (HTTP, TLS Simple)",
        ),
    ],
)
def test_status_says_what_became_of_a_form(form: str, became: str):
    assert became in conditions("Accepted", form)[2]


def test_what_a_form_says_in_vain_is_a_note(pki: Pki):
    form = host("", ", tls: {mode: PLATFORM_PROVIDED, caBundleRef: {name: vendor-ca}}")
    assert "verified with that, not with the system's" in conditions("Accepted", form, ca(pki))[2]
    form = host("", ", tls: {mode: SIMPLE, clientCertificateRef: {name: c}}")
    assert "clientCertificateRef with mode Simple: does nothing" in conditions("Accepted", form)[2]


def test_a_reference_to_kind_backend_finds_an_xbackenddestination_of_its_group():
    form = host("", ", tls: {mode: SIMPLE}")
    renamed = form.replace("kind: Backend", "kind: XBackendDestination")
    assert served(renamed).hostname == "a.example"
    both = renamed.replace("a.example", "b.example")
    assert served(form, both).hostname == "a.example"  # the kind that the reference names goes first
    prototype = "ainetworking.prototype.x-k8s.io"
    for kind in ("Backend", "XBackendDestination"):
        text = form.replace("gateway.networking.k8s.io/v1alpha1", f"{prototype}/v0alpha0").replace("Backend", kind)
        made = compiled(
            REVERSE, ROUTE.replace("{group: gateway.networking.k8s.io, kind", f"{{group: {prototype}, kind"), text
        )
        assert rule(made).backends[0].backend is not None


@pytest.mark.parametrize("called", ["Backend", "XBackendDestination"])
@pytest.mark.parametrize(("granted", "is_open"), [("Backend", False), ("XBackendDestination", True)])
def test_a_grant_is_for_the_kind_that_the_object_has_however_the_reference_calls_it(
    called: str, granted: str, is_open: bool
):
    text = host("", ", tls: {mode: SIMPLE}").replace("kind: Backend", "kind: XBackendDestination")
    there = text.replace("name: b", "name: b, namespace: other")
    grant = f"""
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {{name: grant, namespace: other}}
spec:
  from: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: default}}]
  to: [{{group: gateway.networking.k8s.io, kind: {granted}}}]
"""
    route = ROUTE.replace("kind: Backend, name: b", f"kind: {called}, name: b, namespace: other")
    (found,) = rule(compiled(REVERSE, route, there, grant)).backends
    assert (found.backend is not None) is is_open
    assert is_open or "add a ReferenceGrant in namespace other" in found.error


def test_a_gateway_backend_in_the_shape_of_an_xbackend_is_served():
    shape = "{type: ExternalHostname, port: 443, externalHostname: {hostname: a.example}, tls: {mode: ServerOnly}}"
    found = served(backend(shape))
    assert (found.hostname, found.port, found.tls) == ("a.example", 443, BackendTlsIR())
    assert conditions("Accepted", backend(shape))[0] == "True"


def test_filters_of_a_draft_close_the_backend():
    form = host("", ", tls: {mode: Simple}, filters: [{type: ExtensionRef, extensionRef: {name: p, kind: P}}]")
    error, condition = refused(form)
    assert "write extensions" in error
    assert condition[:2] == ("False", "UnsupportedValue")


def test_tls_beside_a_dynamic_destination_is_how_https_is_verified(pki: Pki):
    form = backend(f"{{destination: {{type: Dynamic}}, tls: {{mode: SIMPLE, {PLAIN_CA}}}}}")
    found = served(form, ca(pki))
    assert (found.destination, found.port) == (Destination.DYNAMIC, 0)
    assert found.tls is not None
    assert found.tls.ca_pem.strip() == pki.ca_pem.strip()
    route = ROUTE.replace("name: b}", "name: b, port: 8443}")
    assert rule(compiled(REVERSE, route, form, ca(pki))).backends[0].backend is not None


def test_a_policy_holds_for_an_xbackenddestination_that_it_calls_backend_as_routes_do():
    form = host("", ", tls: {mode: SIMPLE}").replace("kind: Backend", "kind: XBackendDestination")
    policy = """
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: closed}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Backend, name: b}]
  destinations: {deny: [{hostnames: [a.example]}]}
"""
    made = compiled(REVERSE, ROUTE, form, policy)
    (found,) = rule(made).backends
    assert found.policy is not None
    assert "default/closed" in found.policy.sources
    status = made.statuses["egressproxy.io", "EgressPolicy", "default", "closed"]
    assert status["ancestors"][0]["conditions"][0]["reason"] == "Accepted"


def test_the_words_of_a_backend_tls_policy_mean_the_same_in_the_tls_of_a_port(pki: Pki):
    ours = f"sni: b.example, {PLAIN_CA}, subjectAltNames: [C.example, spiffe://d/e]"
    theirs = (
        "validation: {hostname: b.example, caCertificateRefs: [{group: '', kind: ConfigMap, name: vendor-ca}], "
        "subjectAltNames: [{type: Hostname, hostname: C.example}, {type: URI, uri: spiffe://d/e}]}"
    )
    made = [
        served(host(f", ports: [{{number: 443, tls: {{mode: Simple, {tls}}}}}]"), ca(pki)) for tls in (ours, theirs)
    ]
    assert made[0] == made[1]
    assert made[0].tls is not None
    assert (made[0].tls.sni, made[0].tls.names) == ("b.example", ("c.example", "spiffe://d/e"))
    assert made[0].tls.ca_pem.strip() == pki.ca_pem.strip()


def test_a_selector_of_endpoints_is_a_condition():
    error, condition = refused(
        backend("{destination: {type: EndpointSelector, endpointSelector: {selectorRef: {name: s}}}}")
    )
    assert "type EndpointSelector is not supported" in error
    assert condition[:2] == ("False", "UnsupportedValue")


def test_a_reference_without_the_group_of_its_backend_is_told_of_it():
    bare = ROUTE.replace("group: gateway.networking.k8s.io, kind", "kind")
    assert bare != ROUTE
    manifests = (REVERSE, bare, host(", ports: [{number: 443, protocol: TLS}]"))
    said = all_warnings(load_text("\n---\n".join(manifests), "a.yaml"), compiled(*manifests))
    assert ["write group: gateway.networking.k8s.io" in each.message + each.remedy for each in said] == [True]


def test_a_failover_says_what_each_endpoint_is_asked_for():
    ref = "backendRef: {{group: egressproxy.io, kind: Backend, name: {}}}".format
    first = f"{{{ref('api')}}}"
    second = f"{{{ref('other')}, priority: 1, modelAlias: x, modelAliases: {{a: b}}}}"
    text = f"""
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {{name: any, namespace: agents}}
spec: {{destination: {{type: Failover, failover: {{endpoints: [{first}, {second}]}}}}}}
"""
    (backend,) = load_text(text).of(Backend)
    said = "the first that serves of api, other (asked for b for a, x for every other model)"
    assert destination_summary(backend.spec, ()) == said
