from __future__ import annotations

import json

import pytest

from egressproxy.config.compile.extensions.extension_compiler import (
    CORS_PRIORITY,
    EXTERNAL_AUTH_PRIORITY,
    ROUTE_FILTER_PRIORITY,
)
from egressproxy.config.reading.problems import ConfigError
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.chain import compile_chain
from egressproxy.filters.credential_injector import CredentialInjectorConfig
from egressproxy.filters.header_policy import HeaderEdits, HeaderPolicyConfig
from egressproxy.filters.instances import FilterInstances
from egressproxy.filters.settings import SecretRef
from egressproxy.ir.policy import ExtensionIR
from tests.config.compile.kit import (
    DYNAMIC,
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
)

SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {token: sesame}"


def backend(extension: str) -> str:
    return PLAIN + f"  extensions:\n  - {{{extension}}}\n"


def injector(more: str = "") -> str:
    return backend(
        "name: inject, type: 'egressproxy.io/CredentialInjector:v1', phase: backend-request, "
        f"config: {{secretRef: {{name: key, key: token}}, header: Authorization}}{more}"
    )


def filters_of(filters: str, gateway: str = REVERSE, backends: str = "") -> tuple[ExtensionIR, ...]:
    route = ROUTE.replace("- backendRefs", f"- filters: {filters}\n    backendRefs")
    if not backends:
        route = route[: route.index("    backendRefs")]
    return rule(compiled(gateway, PLAIN, route)).extensions


def problems(*manifests: str) -> list[tuple[str, str, str]]:
    with pytest.raises(ConfigError) as caught:
        compiled(REVERSE, *manifests)
    return [(problem.object, problem.field_path, problem.message) for problem in caught.value.problems]


# --- extensions ------------------------------------------------------------------------------------------------------


def test_an_extension_of_a_backend_runs_for_that_backend():
    made = compiled(REVERSE, ROUTE, SECRET, injector(", priority: 7, failOpen: true, preAuth: true, timeout: 2s"))
    (found,) = rule(made).backends[0].extensions
    assert (found.name, found.type) == ("inject", "egressproxy.io/CredentialInjector:v1")
    assert (found.phase, found.priority, found.level) == ("backend-request", 7, 2)
    assert (found.fail_open, found.pre_auth, found.timeout_s) == (True, True, 2.0)
    assert json.loads(found.config) == {"header": "Authorization", "secretRef": {"key": "token", "name": "key"}}
    assert (found.scope, found.source) == ("Backend default/plain", "Backend default/plain")
    assert [(name, value.reveal()) for name, value in found.secrets] == [("key/token", b"sesame")]
    assert rule(made).extensions == ()


def test_what_serves_is_given_the_config_validated():
    made = compiled(REVERSE, ROUTE, SECRET, injector())
    (found,) = rule(made).backends[0].extensions
    assert found.settings == CredentialInjectorConfig(SecretRef("key", "token"), header="Authorization")
    twice = "[{type: RequestHeaderModifier, requestHeaderModifier: {remove: [x-c]}}]"
    (one,), (other,) = (filters_of(twice, backends="yes") for _ in range(2))
    assert one.settings == other.settings == HeaderPolicyConfig(HeaderEdits(remove=("x-c",)))


def test_the_folder_of_the_file_goes_with_the_extension(tmp_path):
    from egressproxy.config.compile import Defaults, compile_config
    from egressproxy.config.reading.load import load
    from egressproxy.filters.catalog import Catalog

    (tmp_path / "all.yaml").write_text("\n---\n".join([REVERSE, ROUTE, SECRET, injector()]))
    made = compile_config(load([tmp_path]), Catalog(), Defaults())
    assert rule(made).backends[0].extensions[0].folder == str(tmp_path)


def test_a_missing_secret_leaves_the_filter_in_place_without_it():
    made = compiled(REVERSE, ROUTE, injector())
    (found,) = rule(made).backends[0].extensions
    assert found.secrets == ()
    assert rule(made).backends[0].backend is not None
    status, reason, message = of_object(made, "Backend", "default/plain", "ResolvedRefs")
    assert (status, reason) == ("False", "SecretNotFound")
    assert "Secret default/key with key token" in message


def test_a_secret_of_another_namespace_is_no_secret():
    made = compiled(REVERSE, ROUTE, injector(), SECRET.replace("{name: key}", "{name: key, namespace: other}"))
    assert rule(made).backends[0].extensions[0].secrets == ()


def test_a_phase_where_the_type_cannot_run_is_refused():
    ((name, path, message),) = problems(injector().replace("phase: backend-request", "phase: response-body"))
    assert (name, path) == ("Backend default/plain", "spec.extensions[0].phase")
    assert "cannot run in phase response-body" in message


def test_a_phase_of_requests_that_a_backends_own_leg_does_not_have_is_refused_on_a_backend():
    text = backend("name: h, type: 'egressproxy.io/BodyLimit:v1', phase: request-headers, config: {maxBytes: 1}")
    ((_, _, message),) = problems(text)
    assert "for a backend" in message


def test_the_phases_of_requests_and_responses_are_those_of_a_backends_own_leg():
    add = "config: {request: {add: [{name: X-A, value: b}]}}"
    kind = "type: 'egressproxy.io/HeaderPolicy:v1'"
    first, last = f"name: first, phase: request-headers, priority: 900, {kind}, {add}", f"name: last, {kind}, {add}"
    made = compiled(REVERSE, ROUTE, PLAIN + f"  extensions:\n  - {{{last}}}\n  - {{{first}}}\n")
    assert [(one.name, one.phase) for one in rule(made).backends[0].extensions] == [
        ("first", "backend-request"),
        ("last", "backend-request"),
    ]
    chain = compile_chain(reversed(rule(made).backends[0].extensions), FilterInstances(Catalog()).place)
    assert [step.name for step in chain.backend_request or ()] == ["first", "last"]
    text = backend(f"name: h, phase: response-headers, {kind}, config: {{response: {{remove: [server]}}}}")
    made = compiled(REVERSE, ROUTE, text)
    assert rule(made).backends[0].extensions[0].phase == "backend-response"


def test_a_phase_may_be_left_out_where_there_is_only_one():
    made = compiled(REVERSE, ROUTE, SECRET, injector().replace("phase: backend-request, ", ""))
    assert rule(made).backends[0].extensions[0].phase == "backend-request"
    text = policy("extensions: [{name: h, type: 'egressproxy.io/HeaderPolicy:v1'}]")
    ((_, path, _),) = problems(text)
    assert path == "spec.extensions[0].phase"


def test_a_phase_that_is_left_out_on_a_backend_is_backend_request():
    text = backend("name: h, type: 'egressproxy.io/HeaderPolicy:v1'")
    assert rule(compiled(REVERSE, ROUTE, text)).backends[0].extensions[0].phase == "backend-request"


def test_a_config_that_does_not_fit_its_type_is_refused_with_its_field():
    text = backend(
        "name: h, type: 'egressproxy.io/HeaderPolicy:v1', phase: backend-request, "
        "config: {request: {set: [{name: a b, value: x}]}, more: 1}"
    )
    found = problems(text)
    assert {path for _, path, _ in found} == {
        "spec.extensions[0].config.more",
        "spec.extensions[0].config.request.set[0].name",
    }


def test_a_problem_of_a_config_stands_at_its_own_field_with_the_nearest_name():
    config = "config: {\n  requst: {}}"
    text = backend(f"name: h, type: 'egressproxy.io/HeaderPolicy:v1', phase: backend-request, {config}")
    with pytest.raises(ConfigError) as caught:
        compiled(text)
    (problem,) = caught.value.problems
    place = text[: text.index("requst")]
    assert (problem.line, problem.column) == (place.count("\n") + 1, len(place.rpartition("\n")[2]) + 1)
    assert (problem.message, problem.remedy) == ("unknown field requst", "did you mean request?")


def test_text_in_a_config_is_not_repeated_since_it_may_be_a_credential():
    text = backend(
        "name: c, type: 'egressproxy.io/CredentialInjector:v1', phase: backend-request, config: {secretRef: c4n4ry}"
    )
    with pytest.raises(ConfigError) as caught:
        compiled(text)
    assert "c4n4ry" not in str(caught.value)
    assert any("stands where a mapping is expected" in problem.message for problem in caught.value.problems)


def test_problems_of_all_objects_come_at_once():
    second = injector().replace("name: plain", "name: second").replace("header: Auth", "headers: Auth")
    text = injector().replace("phase: backend-request", "phase: connect")
    assert [name for name, _, _ in problems(text, second)] == ["Backend default/plain", "Backend default/second"]


def test_the_extensions_of_a_backend_that_cannot_be_used_are_checked_all_the_same():
    text = (
        injector()
        .replace("header: Auth", "headers: Auth")
        .replace("tls: {mode: None}", "protocol: H2C, tls: {mode: None}")
    )
    assert problems(text)


def test_the_extensions_of_a_policy_without_target_are_checked_all_the_same():
    assert problems(policy("extensions: [{name: x, type: BodyLimit, config: {maxByte: 1}}]", name="gone"))


@pytest.mark.parametrize("value", [r'"tok\r\nX: y"', r'"tok\ny"', r'"tok\0y"'])
def test_a_credential_with_a_line_break_inside_is_as_good_as_missing(value: str):
    made = compiled(REVERSE, ROUTE, injector(), SECRET.replace("sesame", value))
    assert rule(made).backends[0].extensions[0].secrets == ()
    status, _reason, message = of_object(made, "Backend", "default/plain", "ResolvedRefs")
    assert status == "False"
    assert "line break" in message
    assert "tok" not in message.replace("token", "")


def test_a_newline_at_the_end_of_a_credential_is_no_problem():
    made = compiled(REVERSE, ROUTE, injector(), SECRET.replace("sesame", r'"sesame\n"'))
    assert rule(made).backends[0].extensions[0].secrets


def test_an_empty_credential_is_a_missing_one():
    made = compiled(REVERSE, ROUTE, injector(), SECRET.replace("sesame", r'"\n"'))
    assert rule(made).backends[0].extensions[0].secrets == ()
    assert of_object(made, "Backend", "default/plain", "ResolvedRefs")[0] == "False"


def test_a_policys_missing_secret_is_said_in_its_status():
    text = policy(
        "extensions: [{name: i, type: 'egressproxy.io/CredentialInjector:v1', phase: backend-request, "
        "config: {secretRef: {name: key, key: token}, header: x-key}}]",
        "Backend",
        "plain",
    )
    made = compiled(REVERSE, PLAIN, ROUTE, text)
    assert of_policy(made, "ResolvedRefs")[:2] == ("False", "SecretNotFound")


def test_the_working_groups_extension_defaults_to_backend_request():
    text = """
apiVersion: gateway.networking.k8s.io/v1alpha1
kind: Backend
metadata: {name: plain}
spec:
  destination: {type: FQDN, fqdn: {hostname: a.example}, ports: [{number: 443, tls: {mode: Simple}}]}
  extensions:
  - {name: h, type: 'egressproxy.io/HeaderPolicy:v1', rawConfig: {request: {remove: [x-a]}}}
"""
    route = ROUTE.replace("egressproxy.io, kind", "gateway.networking.k8s.io, kind")
    (found,) = rule(compiled(REVERSE, route, text)).backends[0].extensions
    assert (found.phase, json.loads(found.config)) == ("backend-request", {"request": {"remove": ["x-a"]}})


# --- filters of routes -----------------------------------------------------------------------------------------------


def test_header_modifiers_become_header_policies_of_both_directions():
    found = filters_of(
        "[{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: X-A, value: b}], remove: [x-c]}}, "
        "{type: ResponseHeaderModifier, responseHeaderModifier: {add: [{name: X-D, value: e}]}}]",
        backends="yes",
    )
    assert [(one.type, one.phase, one.priority, one.level) for one in found] == [
        ("egressproxy.io/HeaderPolicy:v1", "request-headers", 50, 1),
        ("egressproxy.io/HeaderPolicy:v1", "response-headers", 50, 1),
    ]
    assert json.loads(found[0].config) == {
        "request": {"set": [{"name": "X-A", "value": "b"}], "add": [], "remove": ["x-c"]}
    }
    assert json.loads(found[1].config) == {
        "response": {"set": [], "add": [{"name": "X-D", "value": "e"}], "remove": []}
    }
    assert found[0].source == "HTTPRoute default/route"


def test_a_rewrite_carries_host_and_path():
    (found,) = filters_of(
        "[{type: URLRewrite, urlRewrite: {hostname: b.example, "
        "path: {type: ReplacePrefixMatch, replacePrefixMatch: /x}}}]",
        backends="yes",
    )
    assert (found.type, found.phase) == ("egressproxy.io/UrlRewrite:v1", "request-headers")
    assert json.loads(found.config) == {
        "hostname": "b.example",
        "path": {"type": "ReplacePrefixMatch", "value": "/x"},
    }


def test_a_redirect_knows_the_port_and_scheme_of_its_listener():
    redirect = "[{type: RequestRedirect, requestRedirect: {hostname: b.example, statusCode: 301}}]"
    (found,) = filters_of(redirect)
    assert (found.type, found.phase) == ("egressproxy.io/RequestRedirect:v1", "request-headers")
    assert json.loads(found.config) == {
        "hostname": "b.example",
        "statusCode": 301,
        "listenerPort": 8080,
        "listenerScheme": "http",
    }


def test_on_a_forward_proxy_the_request_itself_says_port_and_scheme():
    (found,) = filters_of("[{type: RequestRedirect, requestRedirect: {scheme: https}}]", FORWARD)
    assert json.loads(found.config) == {"scheme": "https", "statusCode": 302}


def test_filters_keep_the_order_in_which_they_are_written():
    rewrite = "{type: URLRewrite, urlRewrite: {hostname: b.example}}"
    header = "{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: b}]}}"
    assert [one.name for one in filters_of(f"[{rewrite}, {header}]", backends="yes")] == [
        "URLRewrite",
        "RequestHeaderModifier",
    ]
    assert [one.name for one in filters_of(f"[{header}, {rewrite}]", backends="yes")] == [
        "RequestHeaderModifier",
        "URLRewrite",
    ]


def test_filters_of_a_backend_ref_run_for_that_backend():
    filters = "[{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: b}]}}]"
    made = compiled(REVERSE, PLAIN, ROUTE.replace("name: plain}", f"name: plain, filters: {filters}}}"))
    (found,) = rule(made).backends[0].extensions
    assert (found.phase, found.level) == ("backend-request", 2)
    assert rule(made).extensions == ()


@pytest.mark.parametrize(
    ("kind", "block"),
    [
        ("ExtensionRef", "extensionRef: {group: egressproxy.io, kind: EgressPolicy, name: p}"),
    ],
)
def test_a_filter_that_is_not_there_closes_its_rule(kind: str, block: str):
    route = ROUTE.replace("- backendRefs", f"- filters: [{{type: {kind}, {block}}}]\n    backendRefs")
    made = compiled(REVERSE, PLAIN, route)
    assert [one.backend for one in rule(made).backends] == [None]
    assert kind in rule(made).backends[0].error
    assert of_route(made, "Accepted")[:2] == ("False", "UnsupportedValue")
    assert kind in of_route(made, "Accepted")[2]


AUTH = (
    "{type: ExternalAuth, externalAuth: {protocol: HTTP, "
    "backendRef: {group: egressproxy.io, kind: Backend, name: plain}, %s}}"
)


def guarded(written: str) -> str:
    return ROUTE.replace("- backendRefs", f"- filters: [{written}]\n    backendRefs")


def test_an_external_auth_is_the_rules_own_and_names_fields_in_lower_case():
    lists = "http: {path: /check, allowedHeaders: [X-A, x-a], allowedResponseHeaders: [X-B]}, forwardBody: {maxSize: 7}"
    made = compiled(REVERSE, PLAIN, guarded(AUTH % lists))
    found = rule(made).auth
    assert found is not None
    assert found.backend.backend is not None
    assert found.backend.backend.name == "default/plain"
    assert (found.protocol.value, found.path, found.max_body) == ("HTTP", "/check", 7)
    assert (found.allowed_headers, found.allowed_response_headers) == (("x-a",), ("x-b",))
    assert (found.place.phase, found.place.source) == ("request-headers", "HTTPRoute default/route")
    assert of_route(made, "Accepted")[0] == of_route(made, "ResolvedRefs")[0] == "True"


def test_an_external_auth_without_its_server_refuses_everything():
    made = compiled(REVERSE, PLAIN, guarded((AUTH % "http: {}").replace("name: plain", "name: none")))
    found = rule(made).auth
    assert found is not None
    assert (found.backend.backend, found.backend.error) == (None, "Backend default/none does not exist")
    assert of_route(made, "Accepted")[0] == "True"
    assert of_route(made, "ResolvedRefs")[:2] == ("False", "BackendNotFound")


def test_an_external_auth_cannot_ask_whatever_the_request_names():
    made = compiled(REVERSE, PLAIN, DYNAMIC, guarded((AUTH % "http: {}").replace("name: plain", "name: dynamic")))
    found = rule(made).auth
    assert found is not None
    assert found.backend.backend is None
    assert "Dynamic" in of_route(made, "Accepted")[2]


def test_an_external_auth_on_a_backend_ref_closes_its_rule():
    made = compiled(REVERSE, PLAIN, ROUTE.replace("name: plain}", f"name: plain, filters: [{AUTH % 'http: {}'}]}}"))
    assert rule(made).auth is None
    assert [one.backend for one in rule(made).backends] == [None]


def test_an_external_auth_with_lists_that_are_null_has_none():
    found = rule(compiled(REVERSE, PLAIN, guarded(AUTH % "http: {allowedHeaders: ~, allowedResponseHeaders: ~}"))).auth
    assert found is not None
    assert (found.allowed_headers, found.allowed_response_headers) == ((), ())


GRPC_AUTH = AUTH.replace("protocol: HTTP", "protocol: GRPC") % "grpc: {allowedHeaders: [X-A]}"


@pytest.mark.parametrize(
    ("spoken", "asked", "is_used"),
    [
        ("H2C", GRPC_AUTH, True),
        ("HTTP2", GRPC_AUTH, True),
        ("GRPC", GRPC_AUTH, True),
        ("HTTP", GRPC_AUTH, True),
        ("HTTP11", GRPC_AUTH, False),
        ("TCP", GRPC_AUTH, False),
        ("H2C", AUTH % "http: {}", False),
        ("GRPC", AUTH % "http: {}", False),
        ("HTTP11", AUTH % "http: {}", True),
    ],
)
def test_an_authorization_server_has_to_speak_what_it_is_asked_in(spoken: str, asked: str, is_used: bool):
    server = PLAIN.replace("{number: 80,", f"{{number: 80, protocol: {spoken},").replace("name: plain", "name: server")
    made = compiled(REVERSE, PLAIN, server, guarded(asked.replace("name: plain", "name: server")))
    found = rule(made).auth
    assert found is not None
    assert (found.backend.backend is not None) is is_used
    reason = ("True", "ResolvedRefs") if is_used else ("False", "UnsupportedProtocol")
    assert of_route(made, "ResolvedRefs")[:2] == reason
    assert rule(made).backends[0].backend is not None


def test_external_auth_runs_behind_cors_and_before_the_other_filters():
    assert CORS_PRIORITY < EXTERNAL_AUTH_PRIORITY < ROUTE_FILTER_PRIORITY


def test_cors_runs_before_the_other_filters_of_its_rule():
    redirect = "{type: RequestRedirect, requestRedirect: {hostname: b.example}}"
    cors = "{type: CORS, cors: {allowOrigins: ['https://a.example'], allowMethods: [PUT]}}"
    route = ROUTE.replace(
        "- backendRefs: [{group: egressproxy.io, kind: Backend, name: plain}]", f"- filters: [{redirect}, {cors}]"
    )
    first, second = rule(compiled(REVERSE, PLAIN, route)).extensions
    assert (first.type, second.type) == ("egressproxy.io/Cors:v1", "egressproxy.io/RequestRedirect:v1")
    assert json.loads(first.config) == {
        "allowOrigins": ["https://a.example"], "allowCredentials": False, "allowMethods": ["PUT"], "allowHeaders": [],
        "exposeHeaders": [], "maxAge": 5,
    }  # fmt: skip


def test_the_other_rules_of_such_a_route_work():
    unknown = "{type: ExtensionRef, extensionRef: {group: egressproxy.io, kind: EgressPolicy, name: p}}"
    bad = (
        f"  - filters: [{unknown}]\n    matches: [{{path: {{value: /bad}}}}]\n"
        "    backendRefs: [{group: egressproxy.io, kind: Backend, name: plain}]\n"
    )
    made = compiled(REVERSE, PLAIN, ROUTE + bad)
    assert rule(made, 0).backends[0].backend is not None
    assert rule(made, 1).backends[0].backend is None
    assert rule(made, 1).matches[0].path == "/bad"
    assert of_route(made, "Accepted")[0] == "True"
    assert of_route(made, "PartiallyInvalid")[:2] == ("True", "UnsupportedValue")
    assert "Rule 1 answers 500" in of_route(made, "PartiallyInvalid")[2]


def test_the_host_is_changed_by_a_rewrite_and_status_says_so():
    filters = "[{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: Host, value: b.example}]}}]"
    made = compiled(REVERSE, PLAIN, ROUTE.replace("- backendRefs", f"- filters: {filters}\n    backendRefs"))
    assert "RequestHeaderModifier: request: host is written" in of_route(made, "Accepted")[2]
    assert "rewrite the host instead" in of_route(made, "Accepted")[2]


def test_a_header_that_cannot_be_set_closes_its_rule():
    filters = "[{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: Connection, value: close}]}}]"
    made = compiled(REVERSE, PLAIN, ROUTE.replace("- backendRefs", f"- filters: {filters}\n    backendRefs"))
    assert rule(made).backends[0].backend is None
    assert of_route(made, "Accepted")[:2] == ("False", "UnsupportedValue")


def test_extensions_run_by_priority_then_level_then_age():
    extension = (
        "extensions: [{{name: {}, type: 'egressproxy.io/HeaderPolicy:v1', phase: request-headers, priority: {}}}]"
    )
    made = compiled(
        REVERSE,
        PLAIN,
        ROUTE,
        policy(extension.format("young", 5), policy_name="a", meta='creationTimestamp: "2025-01-01T00:00:00Z"'),
        policy(extension.format("old", 5), policy_name="b", meta='creationTimestamp: "2024-01-01T00:00:00Z"'),
        policy(extension.format("route", 5), "HTTPRoute", "route", policy_name="c"),
        policy(extension.format("first", 1), "HTTPRoute", "route", policy_name="d"),
    )
    assert [one.name for one in rule(made).extensions] == ["first", "old", "young", "route"]
    assert [one.name for one in listener(made).extensions] == ["old", "young"]
    assert [one.scope for one in rule(made).extensions][-1] == "HTTPRoute default/route"
