"""EgressPolicy `parent`: who it is for, who wins, and what closes where it cannot be used."""

from __future__ import annotations

import pytest

from egressproxy.config.compile.interface import Compiled, Defaults
from egressproxy.config.compile.status.status_warnings import status_warnings
from egressproxy.config.reading.load import load_text
from egressproxy.filters.catalog import Catalog
from egressproxy.ir.backend import BackendIR, Protocol
from tests.config.compile.kit import (
    DYNAMIC,
    FORWARD,
    PLAIN,
    REVERSE,
    ROUTE,
    compiled,
    listener,
    of_listener,
    of_policy,
    of_route,
    policy,
    rule,
)
from tests.support.compiling import compile_valid

ALLOW = "destinations: {allow: [{hostnames: [a.example]}]}"


def proxy(name: str, more: str = "", tls: str = "mode: None") -> str:
    return f"""
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {{name: {name}}}
spec:
  destination: {{type: Fqdn, fqdn: {{hostname: {name}.example}}, ports: [{{number: 3128, tls: {{{tls}}}}}]}}
  {more}
"""


def ip(name: str = "plain") -> str:
    return f"""
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {{name: {name}}}
spec: {{destination: {{type: Ip, ip: {{address: 10.0.0.7}}, ports: [{{number: 80}}]}}}}
"""


def on(target: str, name: str, parent: str = "corp", policy_name: str = "policy", **more: str) -> str:
    return policy(f"parent: {{name: {parent}}}", target, name, policy_name, **more)


def named(backend: BackendIR | None) -> str:
    """The parent of a backend, "" for none."""
    assert backend is not None
    return backend.parent.name if backend.parent is not None else ""


def default(made: Compiled) -> BackendIR | None:
    found = listener(made).default_backend
    assert found is not None
    return found.backend


def served(made: Compiled) -> BackendIR | None:
    return rule(made).backends[0].backend


def test_a_policy_of_the_gateway_is_for_what_no_route_matches_and_for_routes_to_names():
    for backend in (PLAIN, DYNAMIC.replace("name: dynamic", "name: plain")):
        made = compiled(FORWARD, on("Gateway", "gw"), proxy("corp"), backend, ROUTE)
        assert named(default(made)) == "default/corp"
        assert named(served(made)) == "default/corp"
        assert rule(made).backends[0].parent_by == "EgressPolicy default/policy"


def test_an_address_that_an_operator_wrote_is_reached_directly():
    made = compiled(FORWARD, on("Gateway", "gw"), proxy("corp"), ip(), ROUTE)
    assert named(default(made)) == "default/corp"
    assert named(served(made)) == ""


def test_direct_is_what_goes_round_the_parent_of_a_wider_policy():
    own = proxy("plain", "parent: {direct: true}")
    made = compiled(FORWARD, on("Gateway", "gw"), proxy("corp"), own, ROUTE)
    assert (named(default(made)), named(served(made))) == ("default/corp", "")
    of_route = policy("parent: {direct: true}", "HTTPRoute", "route", "of-route")
    made = compiled(FORWARD, on("Gateway", "gw", policy_name="wide"), of_route, proxy("corp"), PLAIN, ROUTE)
    assert (named(default(made)), named(served(made))) == ("default/corp", "")
    assert of_policy(made, "Overridden", "default/wide")[0] == "True"
    assert of_policy(made, "ResolvedRefs", "default/of-route") == ("", "", "")
    narrow = policy("subjects: [{namespace: a}]\nparent: {direct: true}", "HTTPRoute", "route", "of-route")
    made = compiled(FORWARD, on("Gateway", "gw"), narrow, proxy("corp"), PLAIN, ROUTE)
    assert named(served(made)) == "default/corp", "what is for some clients alone goes round it for nobody"


def test_a_backend_keeps_the_parent_that_it_names():
    made = compiled(
        FORWARD, on("HTTPRoute", "route"), proxy("corp"), proxy("own"), proxy("plain", "parent: {name: own}"), ROUTE
    )
    assert named(served(made)) == "default/own"
    assert rule(made).backends[0].parent_by == ""


def test_the_parent_itself_and_what_is_on_the_way_to_it_are_reached_as_they_say():
    chain = (proxy("corp", "parent: {name: plain}"), proxy("plain"))
    made = compiled(FORWARD, on("Gateway", "gw"), *chain, ROUTE)
    assert named(default(made)) == "default/corp"
    assert named(served(made)) == ""


def test_the_more_specific_policy_wins_and_the_other_is_told():
    made = compiled(
        FORWARD,
        on("Gateway", "gw", policy_name="wide"),
        on("HTTPRoute", "route", "near", policy_name="of-route"),
        on("Backend", "plain", "mid", policy_name="of-backend"),
        proxy("corp"), proxy("near"), proxy("mid"), PLAIN, ROUTE,
    )  # fmt: skip
    assert named(default(made)) == "default/corp"
    assert named(served(made)) == "default/near"
    told = of_policy(made, "Overridden", "default/wide")
    assert told[0] == "True"
    assert "parent is that of EgressPolicy default/of-route for HTTPRoute default/route" in told[2]
    assert "parent is that of" in of_policy(made, "Overridden", "default/of-backend")[2]
    assert of_policy(made, "Overridden", "default/of-route") == ("", "", "")


def test_of_two_on_one_level_the_older_wins():
    made = compiled(
        FORWARD,
        on("Gateway", "gw", "near", "young", meta='creationTimestamp: "2026-02-02T00:00:00Z"'),
        on("Gateway", "gw", "corp", "old", meta='creationTimestamp: "2026-01-01T00:00:00Z"'),
        proxy("corp"), proxy("near"),
    )  # fmt: skip
    assert named(default(made)) == "default/corp"
    assert of_policy(made, "Conflicted", "default/young")[:2] == ("True", "Conflicted")


@pytest.mark.parametrize(
    ("parent", "reason", "named_"),
    [
        ("", "InvalidParent", "Backend default/corp does not exist"),
        (proxy("corp", tls="mode: Simple").replace(", tls: {mode: Simple}", ""), "InvalidParent", "tls.mode"),
        (DYNAMIC.replace("name: dynamic", "name: corp"), "InvalidParent", "name a fixed gateway"),
        (proxy("corp", "parent: {name: corp}"), "InvalidParent", "by way of others (take the parent out"),
    ],
)
def test_a_parent_that_cannot_be_used_closes_everything_that_is_for_it(parent: str, reason: str, named_: str):
    made = compiled(FORWARD, policy(f"{ALLOW}\nparent: {{name: corp}}"), PLAIN, ROUTE, *([parent] if parent else []))
    assert default(made) is None
    assert served(made) is None
    status, said, message = of_policy(made, "ResolvedRefs")
    assert (status, said) == ("False", reason)
    assert named_ in message
    assert "answered with 500" in of_listener(made, "Accepted")[2]
    assert "answers 500" in of_route(made, "Accepted")[2]


def test_a_parent_in_another_namespace_has_to_be_granted():
    there = proxy("corp").replace("name: corp}", "name: corp, namespace: infra}", 1)
    said = policy("parent: {name: corp, namespace: infra}")
    assert default(compiled(FORWARD, said, there)) is None
    grant = """
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: g, namespace: infra}
spec:
  from: [{group: egressproxy.io, kind: EgressPolicy, namespace: default}]
  to: [{group: egressproxy.io, kind: Backend}]
"""
    assert named(default(compiled(FORWARD, said, there, grant))) == "infra/corp"


def test_a_parent_for_some_clients_is_for_them_alone():
    made = compiled(FORWARD, policy("subjects: [{namespace: a}]\nparent: {name: corp}"), proxy("corp"))
    direct, (variant,) = default(made), made.spec.listeners[0].variants
    assert direct is not None
    assert direct.parent is None
    theirs = variant.listener.default_backend
    assert theirs is not None
    assert theirs.backend is not None
    assert named(theirs.backend) == "default/corp"


def test_a_parent_of_a_parent_by_policy_is_not_left_out_in_silence():
    made = compiled(
        FORWARD, on("Gateway", "gw"), on("Backend", "corp", "outer", "of-corp"), proxy("corp"), proxy("outer")
    )
    assert default(made) is None
    assert "parent of EgressPolicy default/of-corp" in of_listener(made, "Accepted")[2]


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        (proxy("plain", "parent: {name: corp}"), "has its own"),
        (ip(), "reached directly"),
        (proxy("plain"), ""),
    ],
)
def test_where_it_is_nobodys_its_status_says_so(backend: str, says: str):
    made = compiled(FORWARD, on("Backend", "plain"), proxy("corp"), backend, ROUTE)
    message = of_policy(made, "Accepted")[2]
    assert says in message
    assert ("does nothing here" in message) is bool(says)


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("dns: {hosts: {corp.example: [10.0.0.1]}}", "dns does"),
        ("addresses: {allow: [{cidrs: [127.0.0.1/32]}]}\nmode: Report", "mode, addresses.allow do"),
        ("traffic: {timeouts: {connect: 1s}}", "traffic does"),
        ("addresses: {deny: [{cidrs: [10.0.0.0/8]}]}", ""),
        ("tls: {minVersion: '1.3'}", ""),
    ],
)
def test_settings_for_a_proxy_that_nobody_takes_are_no_silent_promise(spec: str, names: str):
    tls = proxy("corp", tls="mode: Simple")
    own = policy(spec, "Backend", "corp", policy_name="of-corp")
    made = compiled(FORWARD, on("Gateway", "gw"), tls, own)
    status, _, message = of_policy(made, "Accepted", "default/of-corp")
    assert status == "True"
    assert message == ("the policy is in force" if not names else message)
    assert f"{names} nothing here: Backend default/corp is only a parent" in message or not names


def test_settings_for_a_proxy_that_a_route_leads_to_are_for_that_route():
    own = policy("dns: {hosts: {corp.example: [10.0.0.1]}}", "Backend", "corp", policy_name="of-corp")
    route = ROUTE.replace("name: plain", "name: corp")
    made = compiled(FORWARD, on("Gateway", "gw"), proxy("corp"), own, route)
    assert of_policy(made, "Accepted", "default/of-corp")[2] == "the policy is in force"


def test_check_points_at_the_parent_that_cannot_be_used():
    text = "\n---\n".join([FORWARD, policy("parent: {name: gone}")])
    resources = load_text(text, "config.yaml")
    made = compile_valid(resources, Catalog(), Defaults())
    (found,) = [each for each in status_warnings(resources, made) if each.code == "InvalidParent"]
    assert found.field_path == "spec.parent"
    assert "parent:" in text.splitlines()[found.line - 1]


def test_a_deny_of_the_parents_name_is_told_at_the_listener():
    said = policy(
        "destinations: {allow: [{hostnames: [a.example]}], deny: [{hostnames: [corp.example]}]}\nparent: {name: corp}"
    )
    made = compiled(FORWARD, said, proxy("corp"))
    assert of_listener(made, "egressproxy.io/Denied")[:2] == ("True", "DestinationDenied")


LOGIN = """
apiVersion: v1
kind: Secret
metadata: {name: login}
type: kubernetes.io/basic-auth
stringData: {username: robot, password: x}
"""
ELSEWHERE = 'dns: {hosts: {corp.example: ["203.0.113.66"]}}'
ALL = "{name: forward, port: 3128, protocol: egressproxy.io/forward-proxy, allowedRoutes: {namespaces: {from: All}}}"


def of_team(manifest: str) -> str:
    """The same in another namespace."""
    return manifest.replace("metadata: {name:", "metadata: {namespace: team, name:")


@pytest.mark.parametrize(
    ("who", "more"),
    [
        (policy(ELSEWHERE, "HTTPRoute", "route", "theirs"), ""),
        (policy(ELSEWHERE, "Backend", "plain", "theirs"), ""),
        ("", ELSEWHERE.replace("dns:", "resolver:")),
    ],
    ids=["route", "backend", "resolver"],
)
@pytest.mark.parametrize(
    ("shown", "tls", "is_exposed"),
    [
        (", credentialsRef: {name: login}, allowPlaintext: true", "mode: None", True),
        (", credentialsRef: {name: login}", "mode: Simple, insecureSkipVerify: true", True),
        (", credentialsRef: {name: login}", "mode: Simple", False),
        ("", "mode: None", False),
    ],
)
def test_the_password_for_a_parent_goes_where_the_namespace_says_that_has_it(
    who: str, more: str, shown: str, tls: str, is_exposed: bool
):
    gateway = FORWARD.replace("{name: forward, port: 3128, protocol: egressproxy.io/forward-proxy}", ALL)
    ours = policy(f"parent: {{name: corp{shown}}}\ndns: {{hosts: {{corp.example: [10.0.0.7]}}}}")
    route = ROUTE.replace("[{name: gw}]", "[{name: gw, namespace: default}]")
    made = compiled(
        gateway, ours, LOGIN, proxy("corp", tls=tls), *map(of_team, filter(None, (proxy("plain", more), route, who)))
    )
    (weighted,) = rule(made).backends
    assert weighted.backend is not None
    assert "203.0.113.66" in str(weighted.policy.dns), "for what is theirs they say it"
    found = weighted.backend.parent_dns
    assert (found is not None) is is_exposed
    assert found is None or [(name, list(map(str, told))) for name, told in found.hosts] == [
        ("corp.example", ["10.0.0.7"])
    ]
    assert default(made) is not None


INJECTOR = (
    "extensions: [{name: key, type: egressproxy.io/CredentialInjector:v1, "
    "config: {secretRef: {name: login, key: password}, header: Authorization%s}}]"
)


@pytest.mark.parametrize("says", ["policy", "backend"])
@pytest.mark.parametrize(
    ("tls", "plain", "is_closed"),
    [
        ("mode: None", ", allowPlaintext: true", True),
        ("mode: Simple, insecureSkipVerify: true", "", True),
        ("mode: Simple", "", False),
        ("mode: None", "", False),  # the injector refuses each request
    ],
)
def test_a_key_that_goes_in_plain_text_does_not_pass_the_parent_of_another_namespace(
    says: str, tls: str, plain: str, is_closed: bool
):
    gateway = FORWARD.replace("{name: forward, port: 3128, protocol: egressproxy.io/forward-proxy}", ALL)
    injector = INJECTOR % plain
    backend = of_team(proxy("plain", injector if says == "backend" else "", tls))
    more = of_team(policy(injector, "Backend", "plain", "of-backend")) if says == "policy" else ""
    route = of_team(ROUTE.replace("[{name: gw}]", "[{name: gw, namespace: default}]"))
    theirs = filter(None, (backend, route, of_team(LOGIN), more))
    made = compiled(gateway, on("Gateway", "gw"), proxy("corp"), *theirs)
    (weighted,) = rule(made).backends
    assert (weighted.backend is None) is is_closed
    assert not is_closed or "name it in parent of team/plain" in weighted.error
    assert is_closed or named(weighted.backend) == "default/corp"


@pytest.mark.parametrize(
    ("tls", "plain", "is_theirs"),
    [
        ("mode: None", ", allowPlaintext: true", False),
        ("mode: Simple, insecureSkipVerify: true", "", False),
        ("mode: Simple", "", True),
    ],
)
@pytest.mark.parametrize("is_granted", [True, False])
def test_a_route_of_another_namespace_does_not_say_where_a_key_in_plain_text_goes(
    tls: str, plain: str, is_theirs: bool, is_granted: bool
):
    gateway = FORWARD.replace("{name: forward, port: 3128, protocol: egressproxy.io/forward-proxy}", ALL)
    backend, key = proxy("plain", INJECTOR % plain, tls), LOGIN
    elsewhere = policy(ELSEWHERE.replace("corp.example", "plain.example"), "HTTPRoute", "route", "of-route")
    route = ROUTE.replace("[{name: gw}]", "[{name: gw, namespace: default}]")
    grant = """
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: grant}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: team}]
  to: [{group: egressproxy.io, kind: Backend}]
"""
    if is_granted:
        route = route.replace("name: plain}", "name: plain, namespace: default}")
    else:
        backend, key = of_team(backend), of_team(key)  # their own: they may
    made = compiled(gateway, grant, backend, key, of_team(route), of_team(elsewhere))
    (weighted,) = rule(made).backends
    assert weighted.backend is not None, weighted.error
    assert bool(weighted.policy.dns.hosts) is (is_theirs or not is_granted)


def test_a_key_in_plain_text_passes_the_parent_that_its_own_namespace_names():
    backend = proxy("plain", INJECTOR % ", allowPlaintext: true")
    made = compiled(FORWARD, on("Gateway", "gw"), proxy("corp"), backend, ROUTE, LOGIN)
    assert named(served(made)) == "default/corp"


def test_within_one_namespace_the_name_of_a_parent_is_looked_up_as_that_of_the_backend():
    shown = "parent: {name: corp, credentialsRef: {name: login}, allowPlaintext: true}"
    made = compiled(
        FORWARD, policy(shown), LOGIN, proxy("corp"), PLAIN, ROUTE, policy(ELSEWHERE, "HTTPRoute", "route", "of-route")
    )
    found = served(made)
    assert found is not None
    assert (named(found), found.parent_dns) == ("default/corp", None)


def test_of_a_chain_each_password_goes_where_its_own_namespace_says():
    """A Backend of another namespace may use `corp`, which is reached through `inner`, and shows it a password."""
    inner = "parent: {name: inner, credentialsRef: {name: login}, allowPlaintext: true}"
    resolver = 'resolver: {hosts: {inner.example: ["203.0.113.66"]}}'
    grant = """
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: grant}
spec:
  from: [{group: egressproxy.io, kind: Backend, namespace: team}]
  to: [{group: egressproxy.io, kind: Backend}]
"""
    gateway = FORWARD.replace("{name: forward, port: 3128, protocol: egressproxy.io/forward-proxy}", ALL)
    theirs = proxy("plain", f"parent: {{name: corp, namespace: default}}\n  {resolver}")
    route = ROUTE.replace("[{name: gw}]", "[{name: gw, namespace: default}]")
    made = compiled(gateway, grant, LOGIN, proxy("inner"), proxy("corp", inner), of_team(theirs), of_team(route))
    found = served(made)
    assert found is not None
    assert found.parent is not None
    assert (named(found), found.parent_dns) == ("default/corp", None)
    assert named(found.parent) == "default/inner"
    assert found.parent.parent_dns is not None
    assert found.parent.parent_dns.hosts == ()


def test_each_port_of_a_dynamic_backend_keeps_what_it_permits_and_its_tls():
    ports = "ports: [{number: 80, tls: {mode: None}}, {number: 8443, tls: {mode: Simple, sni: x.example}}]"
    backend = DYNAMIC.replace("name: dynamic", "name: plain").replace("type: Dynamic", f"type: Dynamic, {ports}")
    routes = [ROUTE.replace("name: route", f"name: r{n}").replace("name: plain", f"name: plain, port: {n}")
              for n in (80, 8443)]  # fmt: skip
    made = compiled(FORWARD, on("Gateway", "gw"), proxy("corp"), backend, *routes)
    found = [route.rules[0].backends[0].backend for route in listener(made).http_routes]
    assert [named(each) for each in found] == ["default/corp"] * 2
    said = [(each.port, each.tls.sni if each.tls is not None else None) for each in found if each is not None]
    assert said == [(80, None), (8443, "x.example")]


def test_a_stream_and_requests_to_one_backend_each_speak_their_own_behind_a_parent():
    backend = proxy("plain", tls="mode: Simple").replace("tls:", "protocol: TLS, tls:")
    stream = ROUTE.replace("HTTPRoute", "TLSRoute").replace("  rules:", "  hostnames: [plain.example]\n  rules:")
    made = compiled(FORWARD, on("Gateway", "gw"), proxy("corp"), backend, ROUTE, stream)
    (of_stream,) = listener(made).tls_routes[0].backends
    assert of_stream.backend is not None
    assert (of_stream.backend.protocol, named(of_stream.backend)) == (Protocol.TCP, "default/corp")
    of_requests = served(made)
    assert of_requests is not None
    assert (of_requests.protocol, named(of_requests)) == (Protocol.HTTP, "default/corp")


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize(("parents", "is_served"), [(8, True), (9, False), (300, False)])
def test_so_many_parents_in_a_row_are_possible_in_whatever_order_they_stand(
    parents: int, is_served: bool, is_reversed: bool
):
    backends = [proxy(f"b{n}", f"parent: {{name: b{n + 1}}}" if n < parents else "") for n in range(parents + 1)]
    route = ROUTE.replace("name: plain}", "name: b0}")
    made = compiled(REVERSE, route, *(reversed(backends) if is_reversed else backends))
    assert (served(made) is not None) is is_served
    assert is_served or "Backend default/b0 has more than 8 parents in a row" in rule(made).backends[0].error
    shorter = route.replace("name: b0}", f"name: b{parents - 8}}}")
    made = compiled(REVERSE, shorter, *(reversed(backends) if is_reversed else backends))
    assert served(made) is not None, "what is on the way and has fewer is served"
