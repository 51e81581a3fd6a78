"""What is served, as names and fields: nothing of a Secret, nothing that is a default."""

from __future__ import annotations

import json
from dataclasses import fields, replace

from egressproxy.ir.backend import BackendIR, BackendTlsIR, Destination
from egressproxy.ir.gateway import (
    CertificateIR,
    ConfigIR,
    ListenerIR,
    ListenerProtocol,
    ListenerTlsIR,
    SubjectIR,
    VariantIR,
)  # fmt: skip
from egressproxy.ir.policy import (
    DestinationRule,
    DestinationsIR,
    ExtensionIR,
    PolicyIR,
    TimeoutsIR,
)  # fmt: skip
from egressproxy.ir.route import (
    AuthProtocol,
    ExternalAuthIR,
    HttpRouteIR,
    HttpRuleIR,
    MatchIR,
    MirrorIR,
    WeightedBackend,
)  # fmt: skip
from egressproxy.model.secret import SecretBytes
from egressproxy.operators.explain.outline import outline

POLICY = PolicyIR(
    destinations=DestinationsIR(allow=((DestinationRule(("a.example",), (443,), policy="agents/p"),),)),
    timeouts=TimeoutsIR(connect_s=3.0),
    sources=("agents/p",),
)
BACKEND = BackendIR(
    "agents/api", Destination.FQDN, "api.example", 443, tls=BackendTlsIR(client_key=SecretBytes(b"hush"))
)


def config(*backends: WeightedBackend, policy: PolicyIR = POLICY, **more: object) -> ConfigIR:
    rule = HttpRuleIR((MatchIR("/v1", method="GET"),), backends, policy, request_s=5.0, index=2)
    route = HttpRouteIR("agents/r", ("api.example",), (rule,))
    listener = ListenerIR(
        "agents/gw", "http", ("127.0.0.1",), 80, ListenerProtocol.HTTP, http_routes=(route,), policy=POLICY, **more
    )  # type: ignore[arg-type]
    return ConfigIR((listener,))


def test_listeners_routes_rules_and_backends_have_names_and_the_fields_of_manifests():
    assert outline(config(WeightedBackend(BACKEND, 3, POLICY))) == {
        "Listener agents/gw/http": {
            "addresses": ["127.0.0.1"], "port": "80", "protocol": "HTTP", "policies": ["agents/p"],
            "destinations.allow": ["hostnames: a.example, ports: 443, policy: agents/p"],
            "traffic.timeouts.connect": "3",
        },
        "HTTPRoute agents/r on agents/gw/http": {"hostnames": ["api.example"]},
        "HTTPRoute agents/r rule 2 on agents/gw/http": {
            "matches": ["path: /v1, method: GET"], "timeouts.request": "5", "backendRefs": ["agents/api, weight 3"],
        },
        "Backend agents/api": {
            "destination": "Fqdn", "hostname": "api.example", "port": "443", "tls": "given", "tls.clientKey": "set",
        },
    }  # fmt: skip


def test_of_a_variant_what_is_otherwise_is_there():
    (listener,) = config(WeightedBackend(BACKEND, 3, POLICY)).listeners
    theirs = replace(listener, policy=replace(POLICY, sources=("agents/p", "agents/q")))
    subjects = (("agents/q", (SubjectIR("a"), SubjectIR(group="g"))),)
    whole = replace(listener, subjects=subjects, variants=(VariantIR(frozenset({"agents/q"}), theirs),))
    made = outline(ConfigIR((whole,)))
    more = made.keys() - outline(ConfigIR((listener,))).keys()
    assert more == {
        "Listener agents/gw/http, for subjects of agents/q",
        "HTTPRoute agents/r rule 2 on agents/gw/http, for subjects of agents/q",
    }
    assert made["Listener agents/gw/http, for subjects of agents/q"]["policies"] == ["agents/p", "agents/q"]
    assert made["Listener agents/gw/http"]["subjects"] == ["agents/q namespace: a group: g"]


def test_mirrors_and_authorization_servers_are_named_and_are_objects_of_their_own():
    copy = BackendIR("agents/copy", Destination.FQDN, "copy.example", 443)
    server = BackendIR("agents/auth", Destination.FQDN, "auth.example", 443)
    place = ExtensionIR("ExternalAuth", "egressproxy.io/ExternalAuth", "request-headers")
    mirror = MirrorIR(WeightedBackend(copy), numerator=1, denominator=10)
    rule = HttpRuleIR(
        backends=(WeightedBackend(BACKEND, mirrors=(mirror,)),),
        auths=(ExternalAuthIR(place, AuthProtocol.HTTP, WeightedBackend(server), "/check"),),
        mirrors=(mirror, MirrorIR(WeightedBackend(None, error="it is gone"))),
    )
    route = HttpRouteIR("agents/r", (), (rule,))
    listener = ListenerIR("agents/gw", "http", ("127.0.0.1",), 80, ListenerProtocol.HTTP, http_routes=(route,))
    made = outline(ConfigIR((listener,)))
    assert made["HTTPRoute agents/r rule 0 on agents/gw/http"] == {
        "externalAuth": "given", "externalAuth.protocol": "HTTP", "externalAuth.backend": "agents/auth",
        "externalAuth.path": "/check",
        "mirrors": ["backend: agents/copy, denominator: 10", "backend: cannot be used: it is gone"],
        "backendRefs": ["agents/api, weight 1"],
        "backend agents/api: mirrors": ["backend: agents/copy, denominator: 10"],
    }  # fmt: skip
    assert made["Backend agents/copy"]["hostname"] == "copy.example"
    assert made["Backend agents/auth"]["hostname"] == "auth.example"


def test_a_policy_of_a_rule_or_backend_is_shown_as_far_as_it_is_another():
    slow = PolicyIR(destinations=POLICY.destinations, timeouts=TimeoutsIR(connect_s=9.0), sources=POLICY.sources)
    made = outline(config(WeightedBackend(BACKEND, policy=slow)))
    rule = made["HTTPRoute agents/r rule 2 on agents/gw/http"]
    assert rule["backend agents/api: traffic.timeouts.connect"] == "9"
    assert "destinations.allow" not in rule


def test_a_backend_that_cannot_be_used_says_why():
    rule = outline(config(WeightedBackend(None, error="it is gone")))["HTTPRoute agents/r rule 2 on agents/gw/http"]
    assert rule["backendRefs"] == ["cannot be used, weight 1: it is gone"]


def test_secrets_and_keys_are_not_in_it():
    secret = SecretBytes(b"hush")
    tls = ListenerTlsIR(certificates=(CertificateIR("agents/c", "-----BEGIN\nhush", secret),))
    extension = ExtensionIR("inject", "t", "backend-request", secrets=(("key/token", secret),), source="Backend b")
    made = outline(config(WeightedBackend(BACKEND, extensions=(extension,)), tls=tls))
    assert "hush" not in json.dumps(made)
    assert "Secret key/token" in json.dumps(made)
    assert made["Listener agents/gw/http"]["tls.certificates"][0].startswith("agents/c, chainPem: digest ")


def test_every_field_that_decides_something_shows_when_it_changes():
    """A field that a later version adds is in the outline without anybody thinking of it."""
    for field in fields(BackendTlsIR):
        if not field.compare or field.name == "client_key":
            continue
        was = getattr(BackendTlsIR(), field.name)
        other = (not was) if isinstance(was, bool) else ("x",) if isinstance(was, tuple) else "x"
        backend = BackendIR("agents/api", Destination.FQDN, tls=BackendTlsIR(**{field.name: other}))
        plain = BackendIR("agents/api", Destination.FQDN, tls=BackendTlsIR())
        assert outline(config(WeightedBackend(backend))) != outline(config(WeightedBackend(plain))), field.name


def test_the_proxies_on_the_way_to_a_backend_are_objects_too():
    """Else a parent that is exchanged for another one of its name would be no difference."""
    company = BackendIR("agents/company", Destination.FQDN, "company.example", 3128)
    region = BackendIR("agents/region", Destination.FQDN, "region.example", 3128, parent=company)
    behind = BackendIR("-", Destination.DYNAMIC, parent=region)
    made = outline(config(default_backend=WeightedBackend(behind)))
    assert made["Backend -"]["parent"] == "agents/region"
    assert made["Backend agents/region"]["parent"] == "agents/company"
    assert made["Backend agents/company"]["hostname"] == "company.example"
