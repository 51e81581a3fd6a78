"""Types that nobody knows, and Secrets that are not to be had: told in status, and closed."""

import pytest

from egressproxy.config.compile.extensions.extension_faults import nearest_types
from egressproxy.config.compile.status.status_warnings import status_warnings
from egressproxy.config.reading.load import load_text
from egressproxy.filters.catalog import Catalog
from tests.config.compile.kit import (
    FORWARD,
    PLAIN,
    REVERSE,
    ROUTE,
    compiled,
    listener,
    of_object,
    of_policy,
    of_route,
    policy,
    rule,
    status,
)

UNKNOWN = "{name: scan, type: 'vendor.example/Scan:v1', config: {anything: [1]}}"
OPEN = UNKNOWN.replace("name: scan", "name: scan, failOpen: true")
ON_BACKEND = PLAIN + f"  extensions: [{UNKNOWN}]\n"
ON_POLICY = f"extensions: [{UNKNOWN}]"
LABEL = "extension scan (vendor.example/Scan:v1)"

TLS_ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: tunnels}
spec:
  parentRefs: [{name: gw}]
  hostnames: [a.example]
  rules:
  - backendRefs: [{group: egressproxy.io, kind: Backend, name: plain}]
"""


def named(text: str, name: str) -> str:
    return text.replace("name: plain", f"name: {name}")


# --- unknown types ---------------------------------------------------------------------------------------------------


def test_an_unknown_type_refuses_nothing_but_the_place_that_needs_it():
    made = compiled(REVERSE, ROUTE, ON_BACKEND)
    (backend,) = rule(made).backends
    assert backend.backend is None
    assert backend.unknown_extension == LABEL
    assert LABEL in backend.error
    told = of_object(made, "Backend", "default/plain", "Degraded")
    assert told[:2] == ("True", "UnsupportedExtensionType")
    said = "spec.extensions[0].type: extension scan has the unknown type vendor.example/Scan:v1: requests that need it "
    assert told[2].startswith(said)
    assert of_object(made, "Backend", "default/plain", "Accepted")[0] == "True"
    assert LABEL in of_route(made, "Accepted")[2]


def test_others_are_served_as_before():
    second = ROUTE.replace("name: route", "name: second").replace("name: plain", "name: other")
    made = compiled(REVERSE, ROUTE, second, ON_BACKEND, named(PLAIN, "other"))
    served = {one.name: one.rules[0].backends[0].backend for one in listener(made).http_routes}
    assert served["default/route"] is None
    assert served["default/second"] is not None


def test_with_fail_open_it_goes_on_without_and_status_says_so():
    made = compiled(REVERSE, ROUTE, PLAIN + f"  extensions: [{OPEN}]\n")
    (backend,) = rule(made).backends
    assert backend.backend is not None
    assert [(one.name, one.is_known, one.fail_open) for one in backend.extensions] == [("scan", False, True)]
    told = of_object(made, "Backend", "default/plain", "Degraded")
    assert told[:2] == ("True", "UnsupportedExtensionType")
    assert "requests go on without it (failOpen)" in told[2]


@pytest.mark.parametrize(
    ("target", "name"), [("Gateway", "gw"), ("HTTPRoute", "route"), ("Backend", "plain")], ids=lambda text: text
)
def test_a_policys_unknown_type_closes_what_the_policy_is_for(target: str, name: str):
    made = compiled(REVERSE, ROUTE, PLAIN, policy(ON_POLICY, target, name))
    (backend,) = rule(made).backends
    assert (backend.backend, backend.unknown_extension) == (None, LABEL)
    assert rule(made).extensions == ()
    assert of_policy(made, "Degraded")[:2] == ("True", "UnsupportedExtensionType")
    made = compiled(REVERSE, ROUTE, PLAIN, policy(f"extensions: [{OPEN}]", target, name))
    assert rule(made).backends[0].backend is not None
    assert of_policy(made, "Degraded")[:2] == ("True", "UnsupportedExtensionType")


def test_what_no_route_matches_is_closed_on_a_forward_proxy():
    allow = "destinations: {allow: [{hostnames: ['*.example']}]}"
    made = compiled(FORWARD, policy(f"{ON_POLICY}\n{allow}"))
    default = listener(made).default_backend
    assert default is not None
    assert (default.backend, default.unknown_extension) == (None, LABEL)


def test_streams_are_closed():
    made = compiled(FORWARD, TLS_ROUTE, ON_BACKEND)
    (stream,) = listener(made).tls_routes
    assert stream.backends[0].backend is None
    made = compiled(FORWARD, TLS_ROUTE, PLAIN, policy(ON_POLICY, "TLSRoute", "tunnels"))
    (stream,) = listener(made).tls_routes
    assert (stream.backends[0].backend, stream.backends[0].unknown_extension) == (None, LABEL)


def test_nothing_is_mirrored_through_it():
    mirror = "{type: RequestMirror, requestMirror: {backendRef: {group: egressproxy.io, kind: Backend, name: copy}}}"
    route = ROUTE.replace("- backendRefs", f"- filters: [{mirror}]\n    backendRefs")
    made = compiled(REVERSE, route, PLAIN, named(ON_BACKEND, "copy"))
    assert rule(made).backends[0].backend is not None
    (copied,) = rule(made).mirrors
    assert copied.backend.backend is None
    assert LABEL in of_route(made, "Accepted")[2]


def test_no_authorization_server_is_asked_through_it_and_nothing_passes():
    server = "{group: egressproxy.io, kind: Backend, name: a}"
    auth = f"{{type: ExternalAuth, externalAuth: {{protocol: HTTP, http: {{}}, backendRef: {server}}}}}"
    route = ROUTE.replace("- backendRefs", f"- filters: [{auth}]\n    backendRefs")
    made = compiled(REVERSE, route, PLAIN, named(ON_BACKEND, "a"))
    (found,) = rule(made).auths
    assert found is not None
    assert (found.backend.backend, found.backend.unknown_extension) == (None, LABEL)


@pytest.mark.parametrize(("extension", "is_used"), [(UNKNOWN, False), (OPEN, True)])
def test_nothing_goes_through_a_parent_that_has_it(extension: str, is_used: bool):
    parent = named(PLAIN, "parent") + f"  extensions: [{extension}]\n"
    child = PLAIN + "  parent: {name: parent}\n"
    made = compiled(REVERSE, ROUTE, child, parent)
    assert (rule(made).backends[0].backend is not None) is is_used
    of_parent = policy(f"extensions: [{extension}]", "Backend", "parent")
    made = compiled(REVERSE, ROUTE, child, named(PLAIN, "parent"), of_parent)
    assert (rule(made).backends[0].backend is not None) is is_used


def test_a_redirect_does_not_answer_where_the_gateways_extension_is_unknown():
    redirect = "- filters: [{type: RequestRedirect, requestRedirect: {statusCode: 301, hostname: b.example}}]\n"
    route = ROUTE[: ROUTE.index("  - backendRefs")] + "  " + redirect
    made = compiled(REVERSE, route, policy(ON_POLICY))
    assert rule(made).extensions == ()
    assert rule(made).backends[0].unknown_extension == LABEL


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("CredentialInjektor", "did you mean egressproxy.io/CredentialInjector:v1?"),
        ("vendor.example/HeaderPolicies:v3", "did you mean egressproxy.io/HeaderPolicy:v1?"),
        ("vendor.example/pool", "`egressproxy filters` has the known ones: "),
    ],
)
def test_the_nearest_types_are_named_whatever_the_domain(written: str, said: str):
    assert nearest_types(written, Catalog().names()).startswith(said)


def test_it_is_said_with_an_unusable_port_beside_it():
    unusable = "{number: 81, protocol: example.com/own, tls: {mode: None}}"
    text = ON_BACKEND.replace("{number: 80,", f"{unusable}, {{number: 80,")
    told = of_object(compiled(REVERSE, text), "Backend", "default/plain", "Degraded")
    assert told[1] == "UnsupportedExtensionType"
    assert told[2].endswith("1 of 2 ports cannot be used")


def test_check_says_it_once_at_its_object():
    text = "\n---\n".join([REVERSE, ROUTE, ON_BACKEND])
    found = [each for each in status_warnings(load_text(text, "x.yaml"), compiled(text)) if "Scan" in each.message]
    (one,) = (each for each in found if "UnsupportedExtensionType" in each.message)
    assert (one.object, one.field_path) == ("Backend default/plain", "spec.extensions[0].type")
    assert "type: 'vendor.example" in text.splitlines()[one.line - 1]


def test_a_config_of_a_known_type_that_does_not_fit_is_still_a_load_error():
    from egressproxy.config.reading.problems import ConfigError

    text = PLAIN + "  extensions: [{name: h, type: HeaderPolicy, config: {requst: {}}}]\n"
    with pytest.raises(ConfigError) as caught:
        compiled(text)
    (problem,) = caught.value.problems
    assert (problem.file, problem.field_path) == ("config.yaml", "spec.extensions[0].config.requst")
    assert problem.line > 1


@pytest.mark.parametrize(
    "name",
    ["CredentialInjector", "gateway.networking.k8s.io/CredentialInjector:v1", "egressproxy.io/CredentialInjector:v1"],
)
def test_a_published_name_means_ours(name: str):
    text = PLAIN + f"  extensions: [{{name: i, type: '{name}', config: {{secretRef: {{name: k}}}}}}]\n"
    (found,) = rule(compiled(REVERSE, ROUTE, text)).backends[0].extensions
    assert (found.type, found.phase) == ("egressproxy.io/CredentialInjector:v1", "backend-request")


# --- Secrets ---------------------------------------------------------------------------------------------------------

NAMESPACED = "{name: i, type: CredentialInjector, config: {secretRef: {name: k, namespace: platform}}}"
GRANT = """
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: grant, namespace: platform}
spec:
  from: [{group: %s, kind: %s, namespace: default}]
  to: [{group: "", kind: Secret}]
"""


def secret(values: str, namespace: str = "default") -> str:
    return f"apiVersion: v1\nkind: Secret\nmetadata: {{name: k, namespace: {namespace}}}\nstringData: {{{values}}}"


def injected(*manifests: str, extension: str = "") -> list[tuple[str, bytes]]:
    extension = extension or "{name: i, type: CredentialInjector, config: {secretRef: {name: k}}}"
    made = compiled(REVERSE, ROUTE, PLAIN + f"  extensions: [{extension}]\n", *manifests)
    (found,) = rule(made).backends[0].extensions
    return [(label, value.reveal()) for label, value in found.secrets]


@pytest.mark.parametrize(
    ("values", "meant"),
    [
        ("whatever: a", b"a"),
        ("apiKey: b, token: a", b"a"),
        ("api-key: c, apiKey: b, x: y", b"b"),
        ("api-key: c, x: y", b"c"),
    ],
)
def test_without_a_key_the_only_or_the_usual_one_is_meant(values: str, meant: bytes):
    assert injected(secret(values)) == [("k/", meant)]


def test_without_a_key_that_can_be_told_the_keys_are_named_and_nothing_is_sent():
    assert injected(secret("user: a, password: hush")) == []
    made = compiled(
        REVERSE,
        PLAIN + "  extensions: [{name: i, type: CredentialInjector, config: {secretRef: {name: k}}}]\n",
        secret("user: a, password: hush"),
    )
    told = of_object(made, "Backend", "default/plain", "ResolvedRefs")
    assert told[:2] == ("False", "SecretKeyAmbiguous")
    assert "Secret default/k has the keys password, user: name one in secretRef.key" in told[2]
    assert "hush" not in told[2]


@pytest.mark.parametrize("data", ["", "token: ''"])
def test_a_secret_without_a_value_is_a_missing_one(data: str):
    assert injected(secret(data)) == []


def test_another_namespace_needs_a_grant():
    elsewhere = secret("token: sesame", "platform")
    assert injected(elsewhere, GRANT % ("egressproxy.io", "Backend"), extension=NAMESPACED) == [
        ("platform/k/", b"sesame")
    ]
    assert injected(elsewhere, extension=NAMESPACED) == []
    assert injected(elsewhere, GRANT % ("gateway.networking.k8s.io", "Backend"), extension=NAMESPACED) == []
    made = compiled(REVERSE, ROUTE, PLAIN + f"  extensions: [{NAMESPACED}]\n", elsewhere)
    told = of_object(made, "Backend", "default/plain", "ResolvedRefs")
    assert told[:2] == ("False", "RefNotPermitted")
    remedy = "add a ReferenceGrant in namespace platform from Backend (egressproxy.io) of namespace default"
    assert f"Secret platform/k: {remedy}" in told[2]


def test_the_same_name_beside_the_backend_is_not_what_was_meant():
    assert injected(secret("token: mine"), extension=NAMESPACED) == []


def test_a_policys_secret_of_another_namespace_needs_a_grant_too():
    sections = f"extensions: [{NAMESPACED}]"
    elsewhere = secret("token: sesame", "platform")
    made = compiled(REVERSE, ROUTE, PLAIN, elsewhere, policy(sections, "Backend", "plain"))
    assert rule(made).backends[0].extensions[0].secrets == ()
    assert of_policy(made, "ResolvedRefs")[:2] == ("False", "RefNotPermitted")
    granted = GRANT % ("egressproxy.io", "EgressPolicy")
    made = compiled(REVERSE, ROUTE, PLAIN, elsewhere, policy(sections, "Backend", "plain"), granted)
    assert rule(made).backends[0].extensions[0].secrets


def test_what_was_written_is_what_is_shown():
    text = PLAIN + f"  extensions: [{NAMESPACED}]\n"
    (backend,) = [one for one in load_text(text, "x.yaml").objects if one.kind == "Backend"]
    assert backend.to_manifest()["spec"]["extensions"] == [
        {"name": "i", "type": "CredentialInjector", "config": {"secretRef": {"name": "k", "namespace": "platform"}}}
    ]


def test_every_fault_of_a_backend_is_told():
    more = "{name: j, type: CredentialInjector, config: {secretRef: {name: gone, key: a}}}"
    made = compiled(REVERSE, PLAIN + f"  extensions: [{NAMESPACED}, {more}, {UNKNOWN}]\n")
    told = of_object(made, "Backend", "default/plain", "ResolvedRefs")
    assert told[0] == "False"
    assert "ReferenceGrant" in told[2]
    assert "Secret default/gone with key a" in told[2]
    assert status(made, "Backend", "default/plain")


# --- forms of the proposals ------------------------------------------------------------------------------------------

WORKING_GROUP = """
apiVersion: gateway.networking.k8s.io/v1alpha1
kind: Backend
metadata: {name: plain}
spec:
  destination: {type: FQDN, fqdn: {hostname: a.example}, ports: [{number: 80, tls: {mode: None}}]}
  extensions:
"""
TO_GROUP = ROUTE.replace("egressproxy.io", "gateway.networking.k8s.io")


@pytest.mark.parametrize(
    ("extension", "shown"),
    [
        ("{type: vendor.io/connection-pool, config: {maxConnections: 100, timeout: 30s}}", "connection-pool"),
        ("{type: 'vendor.io/circuit-breaker:v2', rawConfig: {failureThreshold: 5}}", "circuit-breaker"),
    ],
)
def test_an_extension_without_a_name_is_called_by_its_kind(extension: str, shown: str):
    made = compiled(REVERSE, TO_GROUP, f"{WORKING_GROUP}  - {extension}\n")
    assert rule(made).backends[0].unknown_extension.startswith(f"extension {shown} (vendor.io/")
    assert of_object(made, "Backend", "default/plain", "Degraded")[1] == "UnsupportedExtensionType"


def test_the_example_of_the_proposal_is_a_key_and_a_rate():
    made = compiled(
        REVERSE,
        TO_GROUP,
        WORKING_GROUP
        + """
  - name: inject-credentials
    type: gateway.networking.k8s.io/CredentialInjector:v1
    phase: request-headers
    priority: 10
    failOpen: false
    config:
      secretRef:
        name: k
        namespace: platform
  - name: rate-qos
    type: gateway.networking.k8s.io/QoSController:v1
    phase: backend-request
    priority: 30
    failOpen: true
    config:
      requestsPerMinute: 1000
""",
        secret("token: sesame", "platform"),
        GRANT % ("gateway.networking.k8s.io", "Backend"),
    )
    key, rate = rule(made).backends[0].extensions
    assert (key.name, key.phase, key.priority, key.fail_open) == ("inject-credentials", "backend-request", 10, False)
    assert [value.reveal() for _, value in key.secrets] == [b"sesame"]
    assert (rate.name, rate.type, rate.phase) == ("rate-qos", "egressproxy.io/QoSController:v1", "backend-request")
    assert (rate.priority, rate.fail_open) == (30, True)
    assert rate.scope == "Backend.gateway.networking.k8s.io default/plain"
    assert of_object(made, "Backend", "default/plain", "ResolvedRefs")[0] == "True"
    assert of_object(made, "Backend", "default/plain", "Degraded")[0] == ""


@pytest.mark.parametrize(
    ("group", "version", "kind"),
    [
        ("egressproxy.io", "v1alpha1", "Backend"),
        ("gateway.networking.k8s.io", "v1alpha1", "Backend"),
        ("gateway.networking.k8s.io", "v1alpha1", "XBackendDestination"),
        ("ainetworking.prototype.x-k8s.io", "v0alpha0", "Backend"),
        ("ainetworking.prototype.x-k8s.io", "v0alpha0", "XBackendDestination"),
    ],
)
def test_every_kind_of_backend_has_extensions_and_tells_of_them(group: str, version: str, kind: str):
    head = PLAIN.replace("egressproxy.io/v1alpha1", f"{group}/{version}").replace("kind: Backend", f"kind: {kind}")
    to = ROUTE.replace("egressproxy.io", group).replace("kind: Backend", f"kind: {kind}")
    made = compiled(REVERSE, to, head + f"  extensions: [{UNKNOWN}]\n")
    assert rule(made).backends[0].unknown_extension == LABEL
    assert of_object(made, kind, "default/plain", "Degraded")[1] == "UnsupportedExtensionType"
    elsewhere = secret("token: sesame", "platform")
    granted = GRANT % (group, kind)
    made = compiled(REVERSE, to, head + f"  extensions: [{NAMESPACED}]\n", elsewhere, granted)
    assert [value.reveal() for _, value in rule(made).backends[0].extensions[0].secrets] == [b"sesame"]
    made = compiled(REVERSE, to, head + f"  extensions: [{NAMESPACED}]\n", elsewhere)
    assert rule(made).backends[0].extensions[0].secrets == ()
    assert of_object(made, kind, "default/plain", "ResolvedRefs")[1] == "RefNotPermitted"
