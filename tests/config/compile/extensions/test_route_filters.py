"""The filters of an HTTPRoute, as the configs of filter types."""

from __future__ import annotations

import json

import pytest

from egressproxy.config.compile.extensions.route_filters import (
    CORS_PRIORITY,
    EXTERNAL_AUTH_PRIORITY,
    ROUTE_FILTER_PRIORITY,
)
from tests.config.compile.extensions.test_extension_compiler import filters_of
from tests.config.compile.kit import (
    DYNAMIC,
    FORWARD,
    PLAIN,
    REVERSE,
    ROUTE,
    compiled,
    of_route,
    rule,
)


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
    (found,) = rule(made).auths
    assert found is not None
    assert found.backend.backend is not None
    assert found.backend.backend.name == "default/plain"
    assert (found.protocol.value, found.path, found.max_body) == ("HTTP", "/check", 7)
    assert (found.allowed_headers, found.allowed_response_headers) == (("x-a",), ("x-b",))
    assert (found.place.phase, found.place.source) == ("request-headers", "HTTPRoute default/route")
    assert of_route(made, "Accepted")[0] == of_route(made, "ResolvedRefs")[0] == "True"


def test_an_external_auth_without_its_server_refuses_everything():
    made = compiled(REVERSE, PLAIN, guarded((AUTH % "http: {}").replace("name: plain", "name: none")))
    (found,) = rule(made).auths
    assert found is not None
    assert (found.backend.backend, found.backend.error) == (None, "Backend default/none does not exist")
    assert of_route(made, "Accepted")[0] == "True"
    assert of_route(made, "ResolvedRefs")[:2] == ("False", "BackendNotFound")


def test_an_external_auth_cannot_ask_whatever_the_request_names():
    made = compiled(REVERSE, PLAIN, DYNAMIC, guarded((AUTH % "http: {}").replace("name: plain", "name: dynamic")))
    (found,) = rule(made).auths
    assert found is not None
    assert found.backend.backend is None
    assert "Dynamic" in of_route(made, "Accepted")[2]


def test_an_external_auth_on_a_backend_ref_closes_its_rule():
    made = compiled(REVERSE, PLAIN, ROUTE.replace("name: plain}", f"name: plain, filters: [{AUTH % 'http: {}'}]}}"))
    assert not rule(made).auths
    assert [one.backend for one in rule(made).backends] == [None]


def test_an_external_auth_with_lists_that_are_null_has_none():
    (found,) = rule(
        compiled(REVERSE, PLAIN, guarded(AUTH % "http: {allowedHeaders: ~, allowedResponseHeaders: ~}"))
    ).auths
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
        ("H2C", AUTH % "http: {}", True),
        ("GRPC", AUTH % "http: {}", True),
        ("HTTP11", AUTH % "http: {}", True),
    ],
)
def test_an_authorization_server_has_to_speak_what_it_is_asked_in(spoken: str, asked: str, is_used: bool):
    server = PLAIN.replace("{number: 80,", f"{{number: 80, protocol: {spoken},").replace("name: plain", "name: server")
    made = compiled(REVERSE, PLAIN, server, guarded(asked.replace("name: plain", "name: server")))
    (found,) = rule(made).auths
    assert found is not None
    assert (found.backend.backend is not None) is is_used
    reason = ("True", "ResolvedRefs") if is_used else ("False", "UnsupportedProtocol")
    assert of_route(made, "ResolvedRefs")[:2] == reason
    assert is_used or "carries no gRPC: write GRPC" in of_route(made, "ResolvedRefs")[2]
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


DIRECT = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: route}
spec:
  parentRefs: [{name: gw}]
  rules:
  - filters:
    - {type: DirectResponse, directResponse: {statusCode: 410, body: {string: gone}}}
    - {type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: X-A, value: b}]}}
"""


def test_a_direct_response_has_the_edits_of_its_rule():
    made = compiled(REVERSE, DIRECT, experimental=True)
    found = next(one for one in rule(made).extensions if one.name == "DirectResponse")
    assert (found.type, found.phase) == ("egressproxy.io/DirectResponse:v1", "request-headers")
    assert json.loads(found.config) == {
        "statusCode": 410,
        "body": "gone",
        "response": {"set": [{"name": "X-A", "value": "b"}], "add": [], "remove": []},
    }
    assert of_route(made, "Accepted")[0] == "True"


def test_a_direct_response_needs_the_option_since_its_gep_is_provisional():
    made = compiled(REVERSE, DIRECT)
    assert rule(made).backends[0].backend is None
    status, reason, message = of_route(made, "Accepted")
    assert (status, reason) == ("False", "UnsupportedValue")
    assert "spec.rules[0].filters[0]: filter DirectResponse is experimental" in message
    assert "start the gateway with --experimental" in message


@pytest.mark.parametrize(
    ("block", "why"),
    [("{statusCode: 100}", "100 is less than 200"), ("{statusCode: 204, body: {string: x}}", "204 has no body")],
)
def test_a_direct_response_that_cannot_be_sent_closes_its_rule(block: str, why: str):
    made = compiled(REVERSE, DIRECT.replace("{statusCode: 410, body: {string: gone}}", block), experimental=True)
    assert rule(made).backends[0].backend is None
    assert why in of_route(made, "Accepted")[2]


def test_a_direct_response_of_a_backend_ref_closes_its_rule():
    filters = "[{type: DirectResponse, directResponse: {statusCode: 410}}]"
    route = ROUTE.replace("name: plain}", f"name: plain, filters: {filters}}}")
    made = compiled(REVERSE, PLAIN, route, experimental=True)
    assert rule(made).backends[0].backend is None
    assert "put it on a rule" in of_route(made, "Accepted")[2]
