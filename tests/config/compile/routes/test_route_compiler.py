from __future__ import annotations

import pytest

from egressproxy.config.compile.interface import Defaults
from egressproxy.config.reading.load import load_text
from egressproxy.filters.catalog import Catalog
from egressproxy.ir.backend import Destination, Protocol
from egressproxy.ir.route import MatchIR, MatchType, MirrorIR, PathMatchType, ValueMatch
from egressproxy.routing.patterns import compile_pattern
from tests.config.compile.kit import (
    DYNAMIC,
    FORWARD,
    PLAIN,
    REVERSE,
    ROUTE,
    compiled,
    listener,
    of_route,
    policy,
    route,
    rule,
    status,
)
from tests.support.compiling import compile_valid


def with_rule(lines: str) -> str:
    return ROUTE.replace("- backendRefs", f"- {lines}\n    backendRefs")


def stream(kind: str, refs: str, hostnames: str = "hostnames: [a.example]") -> str:
    return f"""
apiVersion: gateway.networking.k8s.io/v1
kind: {kind}
metadata: {{name: route}}
spec:
  parentRefs: [{{name: gw}}]
  {hostnames}
  rules: [{{backendRefs: [{refs}]}}]
"""


REF = "{group: egressproxy.io, kind: Backend, name: plain}"


def test_a_rule_without_matches_matches_everything():
    found = rule(compiled(REVERSE, PLAIN, ROUTE))
    assert found.matches == (MatchIR("/", PathMatchType.PREFIX),)
    assert route(compiled(REVERSE, PLAIN, ROUTE)).name == "default/route"


def test_every_part_of_a_match_arrives():
    text = with_rule(
        "matches: [{path: {type: Exact, value: /a}, method: POST, "
        "headers: [{name: X-A, value: b}, {name: x-a, value: c}], "
        "queryParams: [{name: Q, type: RegularExpression, value: '[0-9]+'}]}]"
    )
    (match,) = rule(compiled(REVERSE, PLAIN, text)).matches
    assert match == MatchIR(
        "/a",
        PathMatchType.EXACT,
        "POST",
        (ValueMatch("x-a", "b"),),
        (ValueMatch("Q", "[0-9]+", MatchType.REGEX),),
    )


def test_timeouts_of_a_rule_are_its_own_and_zero_disables():
    found = rule(compiled(REVERSE, PLAIN, with_rule("timeouts: {request: 0s, backendRequest: 2s}")))
    assert (found.request_s, found.backend_request_s) == (0.0, 2.0)
    found = rule(compiled(REVERSE, PLAIN, ROUTE))
    assert (found.request_s, found.backend_request_s) == (None, None)


def test_the_name_of_a_rule_arrives():
    assert rule(compiled(REVERSE, PLAIN, with_rule("name: first"))).name == "first"


def test_weights_arrive_and_backends_without_any_are_left_out():
    refs = f"[{REF}, {REF[:-1]}, weight: 3}}, {REF[:-1]}, weight: 0}}]"
    text = ROUTE.replace(f"[{REF}]", refs)
    assert [one.weight for one in rule(compiled(REVERSE, PLAIN, text)).backends] == [1, 3]


def test_a_rule_whose_weights_are_all_zero_answers_500():
    text = ROUTE.replace(f"[{REF}]", f"[{REF[:-1]}, weight: 0}}]")
    (found,) = rule(compiled(REVERSE, PLAIN, text)).backends
    assert found.backend is None
    assert "weight 0" in found.error


def test_one_bad_reference_leaves_the_other_its_share():
    text = ROUTE.replace(f"[{REF}]", f"[{REF}, {REF.replace('plain', 'gone')}]")
    made = compiled(REVERSE, PLAIN, text)
    assert [one.backend is None for one in rule(made).backends] == [False, True]
    assert of_route(made, "ResolvedRefs")[:2] == ("False", "BackendNotFound")
    assert of_route(made, "Accepted")[0] == "True"


def test_a_rule_without_backends_has_none():
    text = ROUTE.replace(f"backendRefs: [{REF}]", "matches: [{path: {value: /}}]")
    made = compiled(REVERSE, text)
    assert rule(made).backends == ()
    assert of_route(made, "ResolvedRefs")[0] == "True"


def test_a_regular_expression_that_is_refused_drops_its_rule_alone():
    text = with_rule("matches: [{path: {type: RegularExpression, value: '('}}]") + f"  - backendRefs: [{REF}]\n"
    resources = load_text("\n---\n".join([REVERSE, PLAIN, text]))
    made = compile_valid(resources, Catalog(), Defaults(check_pattern=compile_pattern))
    assert len(route(made).rules) == 1
    assert of_route(made, "PartiallyInvalid")[0] == "True"
    message = of_route(made, "PartiallyInvalid")[2]
    assert message.startswith(
        "Dropped Rule 0: spec.rules[0].matches[0].path.value: the expression '(' is not valid in RE2"
    )


def test_a_route_has_so_many_different_regular_expressions_and_no_more():
    def matching(first: int) -> str:
        """Four matches with 16 expressions each."""
        return "".join(
            "{headers: ["
            + "".join(f"{{name: h{n}, type: RegularExpression, value: v{first + n + start}}}, " for n in range(16))
            + "]}, "
            for start in range(0, 64, 16)
        )

    rules = [with_rule(f"matches: [{matching(0)}]")]
    rules += [f"  - {{matches: [{matching(first)}], backendRefs: [{REF}]}}\n" for first in (64, 128, 192, 0)]
    full = compiled(REVERSE, PLAIN, "".join(rules))
    assert len(route(full).rules) == 5
    rules.append(f"  - {{matches: [{matching(208)}], backendRefs: [{REF}]}}\n")
    made = compiled(REVERSE, PLAIN, "".join(rules))
    assert len(route(made).rules) == 5
    assert of_route(made, "PartiallyInvalid")[2].startswith(
        "Dropped Rule 5: spec.rules[5].matches[3].headers[0].value: the route has more than 256 regular expressions"
    )


def test_the_data_plane_says_which_expressions_it_refuses():
    def refuse(pattern: str) -> None:
        raise ValueError(f"{pattern} is too slow")

    text = with_rule("matches: [{headers: [{name: a, type: RegularExpression, value: 'x+'}]}]")
    resources = load_text("\n---\n".join([REVERSE, PLAIN, text]))
    made = compile_valid(resources, Catalog(), Defaults(check_pattern=refuse))
    assert listener(made).http_routes == ()
    assert "x+ is too slow" in of_route(made, "Accepted")[2]


def test_a_field_that_does_nothing_is_named_in_status():
    made = compiled(REVERSE, PLAIN, ROUTE.replace("  rules:", "  useDefaultGateways: All\n  rules:"))
    assert of_route(made, "Accepted")[0] == "True"
    assert "useDefaultGateways" in of_route(made, "Accepted")[2]


def test_a_tls_route_on_a_forward_proxy_serves_tunnels():
    made = compiled(FORWARD, DYNAMIC, stream("TLSRoute", REF.replace("plain", "dynamic")))
    (found,) = listener(made).tls_routes
    assert (found.name, found.hostnames, found.kind) == ("default/route", ("a.example",), "TLSRoute")
    assert found.backends[0].backend is not None
    assert found.backends[0].backend.destination is Destination.DYNAMIC


def test_a_tcp_route_has_no_hostnames():
    gateway = REVERSE.replace("protocol: HTTP", "protocol: TCP")
    made = compiled(gateway, PLAIN, stream("TCPRoute", REF, ""))
    (found,) = listener(made).tcp_routes
    assert (found.hostnames, found.kind) == ((), "TCPRoute")


def test_a_tls_listener_takes_tls_routes_below_its_hostname():
    gateway = REVERSE.replace("protocol: HTTP}", "protocol: TLS, hostname: '*.example', tls: {mode: Passthrough}}")
    made = compiled(gateway, PLAIN, stream("TLSRoute", REF))
    assert listener(made).tls_routes[0].hostnames == ("a.example",)


GRPC_RULE = """
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: route}
spec:
  parentRefs: [{name: gw}]
  rules:
  - name: echo
    matches: [{method: {service: a.B, method: Echo}, headers: [{name: X-A, value: "1"}]}]
    filters: FILTERS
    backendRefs: [{group: egressproxy.io, kind: Backend, name: plain, weight: 3}]
    sessionPersistence: {type: Header, sessionName: x-session}
"""
TAGGED = "{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-tag, value: b}]}}"
COPIED = "{type: RequestMirror, requestMirror: {backendRef: {group: egressproxy.io, kind: Backend, name: plain}}}"


def test_a_grpc_route_has_what_an_http_route_has():
    made = compiled(REVERSE, PLAIN, GRPC_RULE.replace("FILTERS", f"[{TAGGED}, {COPIED}]"))
    assert of_route(made, "Accepted", kind="GRPCRoute")[:2] == ("True", "Accepted")
    assert of_route(made, "ResolvedRefs", kind="GRPCRoute")[0] == "True"
    assert status(made, "Gateway", "default/gw")["listeners"][0]["attachedRoutes"] == 1
    found = rule(made)
    assert found.matches == (MatchIR("/a.B/Echo", PathMatchType.EXACT, "POST", (ValueMatch("x-a", "1"),)),)
    assert (found.name, route(made).kind) == ("echo", "GRPCRoute")
    assert [each.type for each in found.extensions] == ["egressproxy.io/HeaderPolicy:v1"]
    assert found.session is not None
    assert (found.session.name, found.session.is_header) == ("x-session", True)
    assert [backend.weight for backend in found.backends] == [3]
    for backend in (found.backends[0], found.mirrors[0].backend):
        assert backend.backend is not None
        assert backend.backend.protocol is Protocol.GRPC  # it does not say, and nothing else carries gRPC


def test_filters_of_a_backend_of_a_grpc_route_run_there():
    text = GRPC_RULE.replace("FILTERS", "[]").replace("weight: 3", f"filters: [{TAGGED}]")
    (backend,) = rule(compiled(REVERSE, PLAIN, text)).backends
    assert [(each.type, each.phase) for each in backend.extensions] == [
        ("egressproxy.io/HeaderPolicy:v1", "backend-request")
    ]


def test_a_grpc_rule_with_an_unknown_filter_is_closed():
    unknown = "{type: ExtensionRef, extensionRef: {group: example.com, kind: Thing, name: one}}"
    made = compiled(REVERSE, PLAIN, GRPC_RULE.replace("FILTERS", f"[{unknown}]"))
    assert of_route(made, "Accepted", kind="GRPCRoute")[:2] == ("False", "UnsupportedValue")
    (backend,) = rule(made).backends
    assert backend.backend is None
    assert "ExtensionRef" in backend.error


@pytest.mark.parametrize(("protocol", "carries_grpc"), [("HTTP11", False), ("MCP", False), ("H2C", True)])
def test_the_protocol_of_a_backend_of_a_grpc_route_carries_grpc(protocol: str, carries_grpc: bool):
    plain = PLAIN.replace("number: 80", f"number: 80, protocol: {protocol}")
    assert plain != PLAIN
    made = compiled(REVERSE, plain, GRPC_RULE.replace("FILTERS", "[]"))
    verdict = of_route(made, "ResolvedRefs", kind="GRPCRoute")
    assert verdict[0] == str(carries_grpc)
    (backend,) = rule(made).backends
    if carries_grpc:
        assert backend.backend is not None
        assert backend.backend.protocol is Protocol.H2C
    else:
        assert verdict[1] == "UnsupportedProtocol"
        assert backend.error == f"protocol {protocol} of default/plain carries no gRPC: write GRPC"


def test_one_backend_is_reached_in_two_ways_by_two_kinds_of_routes():
    grpc = GRPC_RULE.replace("FILTERS", "[]").replace("  rules:", "  hostnames: [grpc.example]\n  rules:")
    http = ROUTE.replace("  rules:", "  hostnames: [http.example]\n  rules:")
    made = compiled(REVERSE, PLAIN, http, grpc)
    spoken = {each.kind: each.rules[0].backends[0].backend for each in listener(made).http_routes}
    assert {kind: backend and backend.protocol for kind, backend in spoken.items()} == {
        "HTTPRoute": Protocol.HTTP, "GRPCRoute": Protocol.GRPC,
    }  # fmt: skip


def test_a_grpc_route_says_which_backends_are_not_there():
    made = compiled(REVERSE, stream("GRPCRoute", "{name: svc, port: 80}"))
    assert of_route(made, "ResolvedRefs", kind="GRPCRoute")[:2] == ("False", "BackendNotFound")


def test_a_service_of_h2c_serves_a_grpc_route():
    service = """
apiVersion: v1
kind: Service
metadata: {name: svc}
spec: {ports: [{port: 80, appProtocol: kubernetes.io/h2c}]}
"""
    made = compiled(REVERSE, service, stream("GRPCRoute", "{name: svc, port: 80}"))
    assert of_route(made, "ResolvedRefs", kind="GRPCRoute")[0] == "True"


def test_the_mirrors_of_a_grpc_route_count_among_its_references():
    text = stream("GRPCRoute", REF).replace(
        "rules: [{",
        "rules: [{filters: [{type: RequestMirror, requestMirror: {backendRef: {name: absent, port: 80}}}], ",
    )
    made = compiled(REVERSE, PLAIN, text)
    assert of_route(made, "ResolvedRefs", kind="GRPCRoute")[:2] == ("False", "BackendNotFound")


def test_a_rule_of_a_grpc_route_with_a_bad_expression_is_dropped():
    text = """
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: route}
spec:
  parentRefs: [{name: gw}]
  rules:
  - {name: bad, matches: [{method: {type: RegularExpression, service: "("}}]}
  - {name: good, matches: [{method: {service: a.B}}]}
"""
    resources = load_text("\n---\n".join([REVERSE, text]))
    made = compile_valid(resources, Catalog(), Defaults(check_pattern=compile_pattern))
    assert of_route(made, "PartiallyInvalid", kind="GRPCRoute")[0] == "True"
    assert [rule.name for rule in route(made).rules] == ["good"]


def test_an_unmatched_destination_is_served_by_the_default_backend():
    default = listener(compiled(FORWARD)).default_backend
    assert default is not None
    assert default.backend is not None
    assert (default.backend.name, default.backend.destination) == ("-", Destination.DYNAMIC)


def test_a_reverse_listener_has_no_default_backend():
    assert listener(compiled(REVERSE)).default_backend is None


MIRROR = "{type: RequestMirror, requestMirror: {backendRef: {name: copy, port: 80}}}"
AUTH = "{type: ExternalAuth, externalAuth: {protocol: HTTP, backendRef: {name: copy, port: 80}, http: {}}}"


@pytest.mark.parametrize("entry", [MIRROR, AUTH])
def test_the_backend_of_a_filter_counts_for_the_references_of_a_route(entry: str):
    made = compiled(REVERSE, PLAIN, with_rule(f"filters: [{entry}]"))
    assert of_route(made, "ResolvedRefs")[:2] == ("False", "BackendNotFound")
    on_backend = ROUTE.replace(f"[{REF}]", f"[{REF[:-1]}, filters: [{entry}]}}]")
    assert of_route(compiled(REVERSE, PLAIN, on_backend), "ResolvedRefs")[:2] == ("False", "BackendNotFound")
    elsewhere = with_rule(f"filters: [{entry.replace('name: copy', 'name: copy, namespace: other')}]")
    assert of_route(compiled(REVERSE, PLAIN, elsewhere), "ResolvedRefs")[:2] == ("False", "RefNotPermitted")
    known = entry.replace("name: copy, port: 80", "group: egressproxy.io, kind: Backend, name: plain")
    assert of_route(compiled(REVERSE, PLAIN, with_rule(f"filters: [{known}]")), "ResolvedRefs")[0] == "True"


def test_a_rule_whose_authorization_server_is_missing_makes_a_route_partially_invalid():
    alone = compiled(REVERSE, PLAIN, with_rule(f"filters: [{AUTH}]"))
    assert of_route(alone, "Accepted")[:2] == ("True", "Accepted")
    assert of_route(alone, "PartiallyInvalid") == ("", "", "")
    beside = f"  - backendRefs: [{REF}]\n"
    made = compiled(REVERSE, PLAIN, with_rule(f"filters: [{AUTH}]") + beside)
    assert of_route(made, "Accepted")[:2] == ("True", "Accepted")
    assert of_route(made, "ResolvedRefs")[:2] == ("False", "BackendNotFound")
    assert of_route(made, "PartiallyInvalid")[2].startswith("Rule 0 answers 500: ")


CORS = "{type: CORS, cors: {allowOrigins: ['*']}}"
GET_AND_ALL = "matches: [{path: {value: /a}, method: GET}, {path: {value: /b}}, {method: OPTIONS}]"


def test_a_rule_with_cors_matches_the_preflight_requests_for_its_methods():
    plain = rule(compiled(REVERSE, PLAIN, with_rule(GET_AND_ALL))).matches
    text = with_rule(f"{GET_AND_ALL}\n    filters: [{CORS}]")
    preflight = MatchIR("/a", method="GET", is_preflight=True)
    assert rule(compiled(REVERSE, PLAIN, text)).matches == (*plain, preflight)
    on_backend = with_rule(GET_AND_ALL).replace(f"[{REF}]", f"[{REF[:-1]}, filters: [{CORS}]}}]")
    assert rule(compiled(REVERSE, PLAIN, on_backend)).matches == (*plain, preflight)


COPY = PLAIN.replace("name: plain", "name: copy")
EVERYWHERE = """
extensions:
- {name: judge, type: egressproxy.io/HeaderPolicy:v1, phase: backend-request, config: {request: {remove: [x]}}}
- name: key
  type: egressproxy.io/CredentialInjector:v1
  phase: backend-request
  config: {secretRef: {name: s, key: k}, header: authorization}
"""


def mirror(share: str = "", name: str = "copy") -> str:
    ref = REF.replace("plain", name)
    return f"{{type: RequestMirror, requestMirror: {{backendRef: {ref}{share}}}}}"


def with_filters(*filters: str) -> str:
    return ROUTE.replace("- backendRefs", f"- filters: [{', '.join(filters)}]\n    backendRefs")


def mirrors(*manifests: str) -> tuple[MirrorIR, ...]:
    return rule(compiled(REVERSE, PLAIN, COPY, *manifests)).mirrors


@pytest.mark.parametrize(
    ("written", "share"),
    [
        ("", (100, 100)),
        (", percent: 20", (20, 100)),
        (", fraction: {numerator: 3}", (3, 100)),
        (", fraction: {numerator: 1, denominator: 3}", (1, 3)),
    ],
)
def test_a_mirror_has_its_share(written: str, share: tuple[int, int]):
    (found,) = mirrors(with_filters(mirror(written)))
    assert (found.numerator, found.denominator) == share
    assert found.backend.backend is not None
    assert found.backend.backend.name == "default/copy"


@pytest.mark.parametrize("share", [", percent: 0", ", fraction: {numerator: 0, denominator: 7}"])
def test_a_share_of_nothing_is_left_out(share: str):
    assert mirrors(with_filters(mirror(share))) == ()


def test_several_mirrors_stand_in_their_order():
    first, second = mirrors(with_filters(mirror(), mirror(name="plain")))
    assert [one.backend.backend.name for one in (first, second) if one.backend.backend] == [
        "default/copy", "default/plain",
    ]  # fmt: skip


def test_a_rule_whose_mirror_leads_nowhere_is_served():
    made = compiled(REVERSE, PLAIN, with_filters(mirror()))
    assert rule(made).backends[0].backend is not None
    assert [one.backend.backend for one in rule(made).mirrors] == [None]
    assert of_route(made, "Accepted")[0] == "True"
    assert of_route(made, "ResolvedRefs")[:2] == ("False", "BackendNotFound")
    assert "copy does not exist" in of_route(made, "ResolvedRefs")[2]


def test_a_mirror_that_policy_closes_is_told_and_its_rule_is_served():
    regions = policy("regions: {allowed: [eu]}", "Backend", "copy")
    made = compiled(REVERSE, PLAIN, COPY, with_filters(mirror()), regions)
    assert rule(made).backends[0].backend is not None
    status, _, message = of_route(made, "Accepted")
    assert status == "True"
    assert "mirrors less than is written: backend default/copy says no region" in message
    assert "500" not in message


def test_filters_of_policies_hold_for_copies_and_credentials_do_not():
    (found,) = mirrors(with_filters(mirror()), policy(EVERYWHERE))
    assert [one.name for one in found.extensions] == ["judge"]
    assert found.backend.extensions == ()


def test_a_mirror_has_the_extensions_and_limits_of_its_own_backend():
    limits = policy(f"limits: {{maxBodyBytes: 4}}\n{EVERYWHERE}", "Backend", "copy")
    (found,) = mirrors(with_filters(mirror()), limits)
    assert found.extensions == ()
    assert {one.name for one in found.backend.extensions} == {"limits.maxBodyBytes", "judge", "key"}


def test_a_mirror_of_a_backend_ref_stands_with_that_ref():
    header = "{type: RequestHeaderModifier, requestHeaderModifier: {remove: [x-a]}}"
    text = ROUTE.replace(f"[{REF}]", f"[{REF[:-1]}, filters: [{header}, {mirror()}]}}, {REF[:-1]}, weight: 2}}]")
    found = rule(compiled(REVERSE, PLAIN, COPY, text))
    assert found.mirrors == ()
    assert [len(one.mirrors) for one in found.backends] == [1, 0]
    assert [one.name for one in found.backends[0].mirrors[0].extensions] == ["RequestHeaderModifier"]
