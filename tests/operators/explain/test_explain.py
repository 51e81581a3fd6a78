"""Explanations: what would become of a request, as the data plane decides it, and nothing of a Secret."""

from __future__ import annotations

import asyncio
import json
from time import time
from typing import Any

import pytest

from egressproxy.cli.explanation import lines
from egressproxy.gateway.backends.opener import TlsFailure
from egressproxy.gateway.builders.snapshot_builder import offline
from egressproxy.gateway.leaf_certificates.minting import new_ca
from egressproxy.gateway.snapshot import Snapshot
from egressproxy.identity.api_keys import new_key, new_record
from egressproxy.operators.explain.explain import explain
from egressproxy.operators.explain.hypothetical_request import HypotheticalRequest, HypotheticalRequestError
from tests.e2e.world import terminate, tls_secret
from tests.gateway.backends.test_retries import pods
from tests.gateway.kit import certificate, forward, https, reverse
from tests.gateway.listeners.test_sni_dispatch import PASSED, shared
from tests.gateway.test_access_policies import BACKEND, GATEWAY, access, rule, served
from tests.support import manifests as m
from tests.support.conversation import compiled_spec
from tests.support.manifests import Manifest
from tests.support.pki import Pki
from tests.support.tokens import TokenIssuer

HOSTS = {
    "a.example": ["93.184.216.34", "10.0.0.1"], "api.example": ["93.184.216.35"], "inside.example": ["10.0.0.2"],
    "meta.example": ["169.254.169.254"],
}  # fmt: skip
DNS = {"hosts": HOSTS}
TOKEN = "sk-never-shown"
INJECTOR = {
    "name": "inject", "type": "egressproxy.io/CredentialInjector:v1", "phase": "backend-request",
    "config": {"secretRef": {"name": "key", "key": "token"}, "header": "Authorization"},
}  # fmt: skip


@pytest.fixture(scope="module")
def pki() -> Pki:
    return Pki()


def ask(objects: list[Manifest], method: str, url: str, *headers: str, **more: str) -> dict[str, Any]:
    pairs = [("method", method), ("url", url), *(("header", header) for header in headers), *more.items()]

    async def answered() -> dict[str, Any]:
        return await explain(offline(compiled_spec(objects)), HypotheticalRequest.of(pairs))

    found = asyncio.run(answered())
    assert TOKEN not in json.dumps(found)
    return found


def routed(*rules: Manifest, hostnames: tuple[str, ...] = (), **sections: Any) -> list[Manifest]:
    """A forward proxy with a route to a TLS backend that gets a credential."""
    return [
        m.gateway(m.forward_listener(3128)),
        _policy(**sections),
        m.backend("api", "api.example", 443, tls=True, extensions=[INJECTOR]),
        m.secret("key", {"token": TOKEN}),
        m.http_route("api", *(rules or (m.prefix_rule("/v1", "api"),)), hostnames=hostnames or ("api.example",)),
    ]


def _policy(**sections: Any) -> Manifest:
    made = m.policy(**sections)
    made["spec"]["dns"] = DNS
    return made


def open_forward(*allow: str, **sections: Any) -> list[Manifest]:
    return [m.gateway(m.forward_listener(3128)), _policy(allow=allow, **sections)]


def test_a_request_that_no_rule_of_its_host_fits_is_told_of_the_route():
    said = "HTTPRoute agents/api serves requests for api.example, and no rule of it fits this one"
    for url, is_told in (
        ("https://api.example/v2", True),
        ("https://c.example/", False),
        ("https://api.example/v1", False),
    ):
        found = ask(routed(destinations={"allow": []}), "GET", url)
        assert any(said in each for each in found["notes"]) is is_told, (url, found)


def test_the_name_of_the_gateway_itself_is_answered_by_it():
    found = ask(open_forward("b.example"), "GET", "http://egress.internal/access")
    assert found["verdict"] == "allowed"
    assert found["route"] == {"name": "-", "why": "the gateway answers this itself: what this client may reach"}


# --- for whom --------------------------------------------------------------------------------------------------------
def test_as_somebody_the_policies_with_this_subject_hold():
    theirs = m.policy(["a.example"], name="team", subjects=[{"namespace": "team", "serviceAccount": "robot"}])
    objects = [*open_forward("b.example"), theirs]
    for who, verdict in (("team/robot", "allowed"), ("team/other", "denied"), ("-/-", "denied")):
        for method, url in (("GET", "http://a.example/"), ("CONNECT", "a.example:443")):
            found = ask(objects, method, url, **{"as": who})
            assert (found["verdict"], "agents/team" in found["policy"]["policies"]) == (verdict, verdict == "allowed")
    assert "of policy agents/team is for its subjects alone" in found["error"]["detail"]
    assert "say who asks with --as" in " ".join(found["notes"])


def test_in_groups_and_with_claims():
    dev = m.policy(["a.example"], name="dev", subjects=[{"group": "dev"}])
    gold = m.policy(["b.example"], name="gold", subjects=[{"claim": {"name": "tier", "value": "gold"}}])
    objects = [*open_forward("c.example"), dev, gold]

    def verdict(host: str, *pairs: tuple[str, str]) -> str:
        question = HypotheticalRequest.of([("url", f"http://{host}/"), ("dns", "0"), *pairs])

        async def answered() -> dict[str, Any]:
            return await explain(offline(compiled_spec(objects)), question)

        return asyncio.run(answered())["verdict"]

    both = (("group", "x"), ("group", "dev"), ("claim", "tier=gold"))
    assert [verdict(host, *both) for host in ("a.example", "b.example", "c.example")] == ["allowed"] * 3
    assert verdict("a.example", ("claim", "tier=gold")) == verdict("b.example", ("group", "dev")) == "denied"
    with pytest.raises(HypotheticalRequestError, match="is not NAME=VALUE"):
        verdict("a.example", ("claim", "tier"))


# --- what is let through ---------------------------------------------------------------------------------------------
def test_a_routed_request_names_listener_rule_backend_tls_and_credential():
    found = ask(routed(), "GET", "https://api.example/v1/models?q=1")
    assert found["verdict"] == "allowed"
    assert (found["listener"]["gateway"], found["listener"]["name"]) == ("agents/gw", "forward")
    assert found["route"] == {
        "kind": "HTTPRoute", "name": "agents/api", "rule": 0, "ruleName": "", "hostname": "api.example",
        "match": "PathPrefix /v1", "why": "no other rule matches",
    }  # fmt: skip
    (backend,) = found["backends"]
    assert (backend["name"], backend["host"], backend["port"], backend["share"]) == (
        "agents/api", "api.example", 443, 1.0,
    )  # fmt: skip
    assert backend["tls"]["sni"] == "api.example"
    assert backend["tls"]["ca"] == "system"
    assert backend["addresses"] == [{"address": "93.184.216.35", "port": 443, "verdict": "dial", "why": "public"}]
    assert backend["credentials"] == [
        {"filter": "inject", "from": "Backend agents/api", "secret": "key/token", "present": True}
    ]
    assert [each["phase"] for each in backend["filters"]] == ["backend-request"]
    assert "-" not in {each["from"] for each in found["filters"]}


def test_the_runner_up_and_the_criterion_are_named():
    rules = (m.prefix_rule("/v1", "api"), m.prefix_rule("/v1/models", "api"))
    found = ask(routed(*rules), "GET", "https://api.example/v1/models")
    assert found["route"]["rule"] == 1
    assert found["runnerUp"]["rule"] == 0
    assert found["route"]["why"] == "its path is longer (10 bytes, not 3)"


def test_limits_are_shown_with_what_is_left_for_this_client():
    limits = {
        "requests": [{"per": "Identity", "limit": 5, "unit": "Day"}, {"per": "Gateway", "limit": 9, "window": "1m"}],
        "concurrency": [{"per": "Backend", "limit": 3}],
    }
    found = ask(routed(limits=limits), "GET", "https://api.example/v1/x", **{"as": "agents/a"})
    shown = {each["name"]: each.get("limits") for each in (*found["filters"], *found["backends"][0]["filters"])}
    assert shown["limits"][0].pop("resetSeconds") > 0
    assert shown == {
        "limits": [
            {"name": "requests-day-identity", "allows": "5 requests in a day for each Identity", "limit": 5, "left": 5}
        ],
        "limits.requests[1]": [
            {"name": "limits.requests[1]", "allows": "9 requests in a minute", "limit": 9, "left": 9, "resetSeconds": 0}
        ],
        "limits.concurrency[0]": [
            {"name": "limits.concurrency[0]", "allows": "3 requests at once", "limit": 3, "left": 3, "resetSeconds": 0}
        ],
        "inject": None,
    }


def test_headers_decide_as_they_do_for_traffic():
    by_team = m.prefix_rule("/v1", "api")
    by_team["matches"][0]["headers"] = [{"name": "X-Team", "value": "red"}]
    objects = routed(m.prefix_rule("/v1", "api"), by_team)
    assert ask(objects, "GET", "https://api.example/v1")["route"]["rule"] == 0
    assert ask(objects, "GET", "https://api.example/v1", "x-team: red")["route"]["rule"] == 1


def test_what_policy_allows_names_the_entry():
    found = ask(open_forward("*.example"), "CONNECT", "a.example:443")
    assert found["verdict"] == "allowed"
    assert found["route"]["name"] == "-"
    assert found["policy"]["entries"] == [{"policy": "agents/default", "hostnames": ["*.example"]}]
    assert "has to name a.example" in found["notes"][0]


def behind_policy(parent: Manifest, **sections: Any) -> list[Manifest]:
    """A policy that names the parent, and the Secret that it is shown."""
    said = {"name": "corp", "credentialsRef": {"name": "login"}, "allowPlaintext": True}
    login = m.secret("login", {"username": "robot", "password": TOKEN})
    return [*open_forward("a.example", "*.b.example", parent=said, **sections), parent, login]


@pytest.mark.parametrize("question", [("CONNECT", "a.example:443"), ("GET", "http://a.example/")])
def test_the_parent_of_a_policy_is_shown_with_the_policy_and_the_name_of_the_secret(question: tuple[str, str]):
    found = ask(behind_policy(m.backend("corp", "inside.example", 3128, tls=True)), *question)
    (backend,) = found["backends"]
    assert found["verdict"] == "allowed", found["error"]
    assert (backend["via"], backend["parentBy"]) == (["agents/corp"], "EgressPolicy agents/default")
    assert backend["dns"] == "resolved by the parent agents/corp"
    parent = backend["parent"]
    assert (parent["name"], parent["credentials"]) == ("agents/corp", "Secret agents/login")
    assert parent["tls"]["sni"] == "inside.example", "TLS to the parent is ours, in a tunnel too"
    (address,) = parent["addresses"]
    assert (address["verdict"], address["why"]) == (
        "dial", "private: allowed by the operator, who named this parent"
    )  # fmt: skip
    text = [" ".join(part for part in line[:2] if part).strip() for line in lines(found)]
    assert "parent agents/corp (parent of EgressPolicy agents/default)" in text
    assert "gets the username and password of Secret agents/login (Basic)" in text
    labels = [label for label, _, _ in lines(found)]
    assert labels.index("  parent") < labels.index("    address"), "what is said of the parent stands below it"
    assert "  address" not in labels


def test_how_clients_are_known_is_shown():
    pki = Pki()
    identity = {"gateways": {"keyRefs": [{"name": "key"}]}, "certificate": {"trustDomains": ["b.test", "a.test"]}}
    listener = m.forward_listener(3128, tls=terminate("front"))
    validation = {"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]}

    def objects(**more: str) -> list[Manifest]:
        return [
            m.gateway(listener, tls={"frontend": {"default": {"validation": {**validation, **more}}}}),
            m.policy(["a.example"], identity=identity),
            certificate(pki, "a.example"),
            m.secret("key", {"key": "k" * 32}),
            m.config_map("ca", {"ca.crt": pki.ca_pem}),
        ]

    found = ask(objects(), "CONNECT", "a.example:443", dns="false")
    assert found["listener"]["identity"] == {"gatewayKeys": 1, "trustDomains": ["b.test", "a.test"]}
    text = [" ".join(part for part in line[:2] if part).strip() for line in lines(found)]
    assert (
        "clients other gateways say who they are (X-Egress-Identity, 1 key); "
        "their certificates say who they are (SPIFFE ids of b.test a.test)"
    ) in text
    found = ask(objects(mode="AllowInsecureFallback"), "CONNECT", "a.example:443", dns="false")
    assert found["listener"]["identity"] == {"gatewayKeys": 1}
    assert "identity" not in ask(open_forward("a.example"), "CONNECT", "a.example:443", dns="false")["listener"]


def test_what_clients_may_show_is_shown_and_nothing_of_what_it_is_compared_with():
    cluster, hashed = TokenIssuer(), "$2b$10$aeFnnJt3giMqNQhm62Z30OdmAuGk1wSqtDhg8wp2WnFNT0sevALLK"
    identity = {
        "token": {"issuers": [cluster.written], "header": "X-Token"},
        "basic": {"secretRef": {"name": "users"}},
        "address": {"clients": [{"cidrs": ["10.0.0.0/8"], "namespace": "a", "serviceAccount": "b"}]},
        "proxyProtocol": {"from": ["192.0.2.0/24"]},
    }
    objects = [
        m.gateway(m.forward_listener(3128)),
        m.policy(["a.example"], identity=identity),
        cluster.config_map,
        m.secret("users", {"alice": hashed}),
    ]
    found = ask(objects, "CONNECT", "a.example:443", dns="false")
    text = [" ".join(part for part in line[:2] if part).strip() for line in lines(found)]
    assert (
        f"clients tokens of {cluster.issuer}, in X-Token; passwords of 1 user; addresses in 1 network; "
        "PROXY headers of 192.0.2.0/24 say the address; others are refused (407 or 401)"
    ) in text
    assert hashed not in str(found)
    assert "alice" not in str(found)


def test_the_client_of_an_api_key_asks_with_its_routes():
    key, old = new_key(), new_record(new_key(), notAfter="2001-01-01T00:00:00Z")
    records = {"ci-1": new_record(key, routes=["api"], groups=["gold"]), "old-1": old}
    secret = m.secret("keys", {name: json.dumps(each) for name, each in records.items()})
    identity = {"apiKeys": {"secretRefs": [{"name": "keys"}]}}
    objects = [*routed(identity=identity, destinations={"allow": [{"hostnames": ["a.example"]}]}), secret]
    for name in ("ci-1", "agents/keys#ci-1"):
        found = ask(objects, "GET", "https://api.example/v1", dns="false", key=name)
        assert found["verdict"] == "allowed", found
    found = ask(objects, "GET", "http://a.example/", dns="false", key="ci-1")
    assert (found["verdict"], found["error"]["reason"]) == ("denied", "destination_denied")
    text = [" ".join(part for part in line[:2] if part).strip() for line in lines(found)]
    assert "clients 2 API keys; others are refused (407 or 401)" in text
    assert "agents/keys#ci-1" in str(found)
    assert records["ci-1"]["hash"].removeprefix("sha256:") not in str(found)
    for name, why in (("no", "has no API key no: it has agents/keys#ci-1"), ("old-1", "has expired")):
        with pytest.raises(HypotheticalRequestError, match=why):
            ask(objects, "GET", "http://a.example/", dns="false", key=name)
    with pytest.raises(HypotheticalRequestError, match="key names the client"):
        ask(objects, "GET", "http://a.example/", **{"dns": "false", "key": "ci-1", "as": "a/b"})


def test_other_parents_and_what_goes_past_them_are_shown():
    parent = {"name": "socks", "fallbacks": [{"name": "corp"}], "noProxy": [{"hostnames": ["a.example"]}]}
    objects = [
        *open_forward("a.example", "b.example", parent=parent),
        m.backend("socks", "socks.example", 1080, protocol="SOCKS5"),
        m.backend("corp", "corp.example", 3128),
    ]
    found = ask(objects, "CONNECT", "b.example:443", dns="false")
    (backend,) = found["backends"]
    assert (backend["via"], backend["fallbacks"]) == (["agents/socks"], ["agents/corp"])
    assert backend["parent"]["protocol"] == "SOCKS5"
    assert "parentsAside" not in backend
    backend["parentsAside"] = {"agents/socks": 3.5}
    text = [" ".join(part for part in line[:2] if part).strip() for line in lines(found)]
    assert "agents/socks could not be connected to, and is put aside for 3.5 s more" in text
    assert "parent agents/socks, SOCKS5 (parent of EgressPolicy agents/default)" in text
    assert "where it cannot be connected to: agents/corp" in text
    found = ask(objects, "CONNECT", "a.example:443")
    (backend,) = found["backends"]
    assert backend["via"] == []
    assert "parent" not in backend
    assert [each["verdict"] for each in backend["addresses"]] == ["dial", "refuse"]
    text = [" ".join(part for part in line[:2] if part).strip() for line in lines(found)]
    assert "parent none: noProxy lists the destination" in text


def test_the_latest_failure_of_tls_is_that_of_any_parent():
    objects = [
        *open_forward("b.example", parent={"name": "one", "fallbacks": [{"name": "two"}]}),
        m.backend("one", "one.example", 3128),
        m.backend("two", "two.example", 3128),
    ]

    async def built() -> Snapshot:
        return offline(compiled_spec(objects))

    snapshot = asyncio.run(built())
    cluster = next(each for each in snapshot.clusters.values() if each.parents is not None)
    assert cluster.parents is not None
    assert cluster.tls_failure("") is None
    one, two = cluster.parents.clusters
    one.opener.tls_failure = TlsFailure(1.0, "b.example", "has expired", "renew it", "presented: …")
    two.opener.tls_failure = later = TlsFailure(2.0, "b.example", "is not trusted", "", "presented: …")
    assert cluster.tls_failure("b.example") is later
    assert cluster.tls_failure("c.example") is None
    two.opener.tls_failure = None
    found = cluster.tls_failure("b.example")
    assert found is not None
    assert found.message == "has expired"


def test_the_parent_of_a_backend_with_an_address_is_shown():
    ip = m.backend("ip", "-", 80, parent={"name": "corp"})
    ip["spec"]["destination"] = {"type": "Ip", "ip": {"address": "10.0.0.9"}, "ports": [{"number": 80}]}
    objects = [*routed(m.prefix_rule("/", "ip")), ip, m.backend("corp", "meta.example", 3128)]
    found = ask(objects, "GET", "http://api.example/")
    assert found["verdict"] == "denied"
    assert found["error"]["reason"] == "resolved_denied"
    assert found["backends"][0]["parent"]["credentials"] is None


def test_what_is_allowed_says_how_it_is_counted():
    found = ask(open_forward("a.example", "*.b.example"), "CONNECT", "x.b.example:443", dns="false")
    assert found["policy"]["counted"] == {"policy": "agents/default", "entry": "*.b.example"}
    assert ("", "in metrics and the log: policy agents/default, entry *.b.example", "dim") in list(lines(found))
    assert "counted" not in ask(routed(), "GET", "https://api.example/v1/models", dns="false")["policy"]


def test_each_address_has_its_verdict_in_the_words_of_the_address_policy():
    found = ask(open_forward("a.example"), "GET", "http://a.example/")
    assert [(each["verdict"], each["why"]) for each in found["backends"][0]["addresses"]] == [
        ("dial", "public"), ("refuse", "private: not allowed"),
    ]  # fmt: skip
    assert found["backends"][0]["dns"] == "not asked: dns.hosts has it"
    allowed = open_forward("a.example", addresses={"allow": [{"cidrs": ["10.0.0.0/8"]}]})
    found = ask(allowed, "GET", "http://a.example/")
    assert found["backends"][0]["addresses"][1]["why"] == "private: allowed by EgressPolicy agents/default"


def test_no_dns_asks_nobody():
    found = ask(open_forward("a.example"), "GET", "http://a.example/", dns="0")
    assert found["verdict"] == "allowed"
    assert found["backends"][0]["dns"] == "not asked"
    assert "addresses" not in found["backends"][0]


def test_weights_are_shares_and_a_bad_backend_has_its_own_error():
    rule = {"backendRefs": [
        {"group": "egressproxy.io", "kind": "Backend", "name": "api", "weight": 3},
        {"group": "egressproxy.io", "kind": "Backend", "name": "gone", "weight": 1},
    ]}  # fmt: skip
    found = ask(routed(rule), "GET", "https://api.example/")
    assert found["verdict"] == "allowed"
    assert [each["share"] for each in found["backends"]] == [0.75, 0.25]
    assert found["backends"][1]["error"]["reason"] == "backend_invalid"
    assert "gone" in found["backends"][1]["error"]["detail"]


def test_mirrors_are_named_with_their_share():
    to_b = {"backendRef": {"group": "egressproxy.io", "kind": "Backend", "name": "b"}, "percent": 20}
    rule = m.prefix_rule("/", "a", filters=[{"type": "RequestMirror", "requestMirror": to_b}])
    objects = reverse(rule, objects=(m.backend("b", "a.example", 81),))
    (backend,) = ask(objects, "GET", "http://front.example/", dns="false")["backends"]
    assert backend["mirrors"] == [{"name": "agents/b", "share": 0.2}]


@pytest.mark.parametrize(("server", "verdict"), [("api", "allowed"), ("none", "failed")])
def test_an_authorization_server_is_named_and_has_to_be_there(server: str, verdict: str):
    ref = {"group": m.OURS, "kind": "Backend", "name": server}
    auth = {"type": "ExternalAuth", "externalAuth": {"protocol": "HTTP", "backendRef": ref, "http": {}}}
    found = ask(routed(m.prefix_rule("/v1", "api", filters=[auth])), "GET", "https://api.example/v1")
    assert (found["verdict"], [each["name"] for each in found["filters"]]) == (verdict, ["ExternalAuth"])
    said = [note for note in found["notes"] if "agents/api is asked first" in note]
    assert (len(said) == 1) is (verdict == "allowed")


def test_filters_stand_in_the_order_in_which_they_run():
    rule = m.prefix_rule("/v1", "api", rewrite="/v2")
    late = {"name": "late", "type": "egressproxy.io/HeaderPolicy:v1", "phase": "request-headers", "priority": 200}
    early = {**late, "name": "early", "priority": 1}
    for each in (late, early):
        each["config"] = {"request": {"set": [{"name": "x-a", "value": "b"}]}}
    found = ask(routed(rule, extensions=[late, early]), "GET", "https://api.example/v1")
    assert [each["name"] for each in found["filters"]] == ["early", "URLRewrite", "late"]
    assert found["filters"][0]["from"] == "EgressPolicy agents/default"


def test_a_tunnel_to_port_80_is_read_as_http():
    found = ask(open_forward("a.example"), "CONNECT", "a.example:80")
    assert found["verdict"] == "allowed"
    assert "explain http://a.example:80/" in found["notes"][0]
    assert found["notes"][1] == "what begins with a ClientHello there goes by policy"


def test_a_tunnel_to_port_80_where_http_is_refused_goes_by_its_tls_route():
    backend = m.backend("a", "a.example", 80, protocol="TCP")
    route = m.tls_route("t", "a", hostnames=["a.example"])
    found = ask([*open_forward("b.example"), backend, route], "CONNECT", "a.example:80")
    assert found["verdict"] == "allowed"
    assert found["notes"] == ["what the tunnel carries has to be TLS for a.example"]
    assert ask([*open_forward("b.example"), backend, route], "CONNECT", "c.example:80")["verdict"] == "denied"


def test_report_mode_lets_pass_and_says_what_it_would_deny():
    found = ask(open_forward("b.example", mode="Report"), "GET", "http://a.example/")
    assert found["verdict"] == "allowed"
    assert found["policy"]["wouldDeny"]["reason"] == "destination_not_allowed"
    assert "a.example" in found["policy"]["wouldDeny"]["remedy"]


def test_a_certificate_and_a_client_certificate_are_named(pki: Pki):
    tls = {
        "mode": "Mutual",
        "caBundleRef": [{"kind": "ConfigMap", "name": "ca"}],
        "clientCertificateRef": {"name": "front"},
    }
    backend = m.backend("api", "api.example", 443)
    backend["spec"]["destination"]["ports"][0]["tls"] = tls
    objects = [
        m.gateway(m.forward_listener(3128)), _policy(), backend, certificate(pki, "us.example"),
        m.config_map("ca", {"ca.crt": pki.ca_pem}),
        m.http_route("api", m.prefix_rule("/", "api"), hostnames=("api.example",)),
    ]  # fmt: skip
    found = ask(objects, "GET", "https://api.example/")["backends"][0]["tls"]
    assert found["ca"] == "ConfigMap agents/ca"
    assert found["clientCertificate"] == "Secret agents/front"


# --- what is not -----------------------------------------------------------------------------------------------------
def test_a_denial_says_by_which_rule_and_what_to_add():
    found = ask(open_forward("b.example"), "CONNECT", "a.example:443")
    assert found["verdict"] == "denied"
    assert found["error"]["reason"] == "destination_not_allowed"
    assert found["error"]["rule"] == "EgressPolicy agents/default"
    assert found["error"]["remedy"] == 'add {hostnames: ["a.example"], ports: [443]} to destinations.allow'
    assert found["backends"] == []


@pytest.mark.parametrize("host", ["inside.example", "meta.example"])
def test_a_name_that_leads_inside_is_denied(host: str):
    found = ask(open_forward("*.example"), "GET", f"http://{host}/")
    assert (found["verdict"], found["error"]["reason"]) == ("denied", "resolved_denied")
    assert found["policy"]["decision"] == "allowed, but no address of it may be dialled"


def test_a_route_to_a_denied_address_is_not_said_to_be_denied_nowhere():
    found = ask(routed(destinations={"deny": [{"cidrs": ["0.0.0.0/0", "::/0"]}]}), "GET", "https://api.example/v1")
    assert (found["verdict"], found["error"]["reason"]) == ("denied", "resolved_denied")
    assert found["policy"]["decision"] == "allowed by the route, but no address of it may be dialled"


def test_our_own_listener_is_denied():
    found = ask(open_forward("localhost"), "GET", "http://localhost:3128/")
    assert found["error"]["reason"] == "resolved_denied"


def test_a_deny_is_denied_for_a_route_too():
    deny = {"deny": [{"hostnames": ["api.example"]}]}
    found = ask(routed(destinations=deny), "GET", "https://api.example/v1")
    assert found["error"]["reason"] == "destination_denied"
    assert found["route"]["name"] == "agents/api"


def test_another_port_than_the_backends_is_for_policy_to_decide():
    found = ask(routed(), "GET", "https://api.example:8443/v1")
    assert found["verdict"] == "denied"
    assert found["route"]["why"] == "HTTPRoute agents/api is for another port of api.example: policy decides"


def test_a_missing_secret_is_said_before_traffic_says_it():
    objects = [each for each in routed() if each["kind"] != "Secret"]
    found = ask(objects, "GET", "https://api.example/v1")
    assert (found["verdict"], found["error"]["reason"]) == ("failed", "credential_missing")
    assert found["error"]["remedy"] == "create the Secret key with the key token"
    assert found["backends"][0]["credentials"][0]["present"] is False


def test_a_credential_that_would_go_out_in_plain_text_is_denied():
    objects = [each for each in routed() if each["kind"] != "Backend"]
    plain = m.backend("api", "api.example", 80, extensions=[INJECTOR])
    found = ask([*objects, plain], "GET", "http://api.example/v1")
    assert (found["verdict"], found["error"]["reason"]) == ("denied", "plaintext_credential")


def test_filters_that_a_tunnel_does_not_meet_are_not_shown_and_refuse_nothing():
    objects = [
        m.gateway(m.forward_listener(3128)), _policy(),
        m.backend("api", "api.example", 443, tls=True, extensions=[INJECTOR]),
        m.tls_route("api", "api", hostnames=["api.example"]),
    ]  # fmt: skip
    found = ask(objects, "CONNECT", "api.example:443")
    assert found["verdict"] == "allowed"
    assert (found["backends"][0]["filters"], found["backends"][0]["tls"]) == ([], None)


def test_a_stream_whose_tls_ends_here_goes_on_in_tls_where_the_backend_has_it(pki: Pki):
    terminating = {"name": "tls", "port": 8443, "protocol": "TLS", "tls": {**terminate("front"), "mode": "Terminate"}}
    objects = [
        m.gateway(terminating), certificate(pki, "api.example"), _policy(),
        m.backend("api", "api.example", 443, tls=True), m.tls_route("api", "api", hostnames=["api.example"]),
    ]  # fmt: skip
    found = ask(objects, "CONNECT", "api.example:443")
    assert found["backends"][0]["tls"]["sni"] == "api.example"
    assert found["listener"]["tls"] == {"mode": "Terminate", "certificates": ["agents/front"]}


def test_a_preflight_request_is_answered_by_cors_and_goes_nowhere():
    cors = {"type": "CORS", "cors": {"allowOrigins": ["*"]}}
    objects = reverse(m.prefix_rule("/v1", "a", filters=[cors]))
    asked = ("http://any.example:8080/v1", "Origin: https://a.example", "Access-Control-Request-Method: PUT")
    assert "CORS answers it with 200" in ask(objects, "OPTIONS", *asked, dns="0")["notes"][0]
    assert ask(objects, "GET", *asked, dns="0")["notes"] == []


def test_a_rule_that_redirects_needs_no_backend():
    redirect = {"type": "RequestRedirect", "requestRedirect": {"scheme": "https"}}
    objects = reverse({**m.prefix_rule("/v1", "a", filters=[redirect]), "backendRefs": []})
    found = ask(objects, "GET", "http://any.example:8080/v1", dns="0")
    assert (found["verdict"], found["error"]) == ("allowed", None)
    assert "RequestRedirect answers every request" in found["notes"][0]


def test_no_route_says_which_rules_the_host_has_or_what_to_attach():
    objects = reverse(m.prefix_rule("/v1", "a"))
    found = ask(objects, "GET", "http://any.example:8080/v2")
    assert (found["verdict"], found["error"]["reason"]) == ("failed", "no_route")
    assert found["error"]["near"][0]["match"] == "PathPrefix /v1"
    found = ask([m.gateway(m.http_listener(8080)), _policy()], "GET", "http://any.example:8080/")
    assert "attach an HTTPRoute with hostname any.example" in found["error"]["remedy"]


def test_what_the_codec_refuses_is_refused():
    found = ask(open_forward("a.example"), "GET", "http://a_.example/../x", "host: b.example, c.example")
    assert found["verdict"] == "failed"
    assert found["error"]["reason"] == "bad_host"


def test_a_path_without_a_host_is_told_how_to_ask():
    told = "a path alone has no Host: add -H 'Host: NAME', or ask by the whole URL"
    found = ask(reverse(m.prefix_rule("/v1", "a")), "GET", "/v1")
    assert found["error"]["reason"] == "bad_host"
    assert told in found["notes"]
    assert told not in ask(reverse(m.prefix_rule("/v1", "a")), "GET", "/v1", "host: any.example")["notes"]


def test_trace_is_refused():
    assert ask(open_forward("a.example"), "TRACE", "http://a.example/")["error"]["reason"] == "method_not_allowed"


# --- which listener --------------------------------------------------------------------------------------------------
def test_a_path_with_a_host_is_for_the_reverse_proxy():
    objects = [*reverse(), m.gateway(m.forward_listener(3128), name="other")]
    found = ask(objects, "GET", "/x", "Host: any.example", dns="0")
    assert found["listener"]["name"] == "http"
    assert found["request"]["authority"] == "any.example:80"


def test_the_port_of_the_url_chooses_a_reverse_listener_and_the_option_any():
    objects = [m.gateway(m.forward_listener(3128), m.http_listener(8080)), *reverse()[1:]]
    assert ask(objects, "GET", "http://127.0.0.1:8080/", dns="0")["listener"]["name"] == "http"
    assert ask(objects, "GET", "http://a.example/", dns="0")["listener"]["name"] == "forward"
    assert ask(objects, "GET", "http://a.example/", dns="0", listener="http")["listener"]["name"] == "http"


def test_the_address_of_the_url_chooses_among_gateways_with_one_port():
    first = m.gateway(m.http_listener(8080), name="one", address="127.0.0.2")
    second = m.gateway(m.http_listener(8080), name="two", address="127.0.0.3")
    objects = [first, second, _policy(), m.backend("a", "a.example", 80)]
    with pytest.raises(HypotheticalRequestError, match="agents/one/http, agents/two/http; choose"):
        ask(objects, "GET", "http://a.example:8080/", dns="0")
    assert ask(objects, "GET", "http://127.0.0.3:8080/", dns="0")["listener"]["gateway"] == "agents/two"


def test_a_forward_proxy_is_meant_before_other_ways_in_and_these_can_be_asked():
    others = [{"name": name, "port": port, "protocol": f"egressproxy.io/{name}"} for name, port in WAYS_IN.items()]
    objects = [m.gateway(m.forward_listener(3128), *others), _policy(allow=("a.example",))]
    assert ask(objects, "CONNECT", "a.example:443")["listener"]["name"] == "forward"
    for name in WAYS_IN:
        found = ask(objects, "CONNECT", "denied.example:443", listener=name)
        assert (found["listener"]["name"], found["error"]["reason"]) == (name, "destination_not_allowed")


WAYS_IN = {"socks5": 1080, "transparent": 15901}


def test_several_listeners_have_to_be_told_apart():
    objects = [m.gateway(m.forward_listener(3128), m.forward_listener(3129, "second")), _policy(allow=("a.example",))]
    with pytest.raises(HypotheticalRequestError, match="agents/gw/forward, agents/gw/second; choose with --listener"):
        ask(objects, "CONNECT", "a.example:443")
    assert ask(objects, "CONNECT", "a.example:443", listener="second")["listener"]["port"] == 3129


def test_a_host_of_another_listener_of_the_port_is_misdirected(pki: Pki):
    objects = [
        https("one.example", "two.example"), certificate(pki, "one.example", "two.example"), _policy(),
        m.backend("a", "a.example", 80), m.http_route("route", m.prefix_rule("/", "a")),
    ]  # fmt: skip
    assert ask(objects, "GET", "https://one.example/", dns="0")["listener"]["name"] == "l0"
    assert ask(objects, "GET", "https://one.example/", "Host: two.example", dns="0")["error"]["reason"] == "misdirected"


def test_a_tls_listener_is_asked_by_the_name_in_the_client_hello():
    listener = {"name": "tls", "port": 8443, "protocol": "TLS", "tls": {"mode": "Passthrough"}}
    objects = [
        m.gateway(listener), _policy(), m.backend("api", "api.example", 443, tls=False),
        m.tls_route("api", "api", hostnames=["api.example"]),
    ]  # fmt: skip
    found = ask(objects, "CONNECT", "api.example:443")
    assert (found["verdict"], found["route"]["name"]) == ("allowed", "agents/api")
    assert ask(objects, "CONNECT", "other.example:443")["error"]["reason"] == "no_route"


# --- questions -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([("method", "GET")], "url is missing"),
        ([("url", "http://a/"), ("as", "me")], "NAMESPACE/SERVICEACCOUNT"),
        ([("url", "http://a/"), ("header", "x")], "is not NAME: VALUE"),
        ([("url", "http://a/"), ("where", "x")], "unknown parameter 'where'"),
        ([("url", "http://a/"), ("url", "http://b/")], "given twice"),
    ],
)
def test_a_question_that_is_none_says_why(pairs: list[tuple[str, str]], why: str):
    with pytest.raises(HypotheticalRequestError, match=why):
        HypotheticalRequest.of(pairs)


@pytest.mark.parametrize(
    ("method", "url", "header"),
    [
        ("GE T", "http://a.example/", "x: y"),
        ("GET", "ftp://a.example/", "x: y"),
        ("GET", "http://ä.example/", "x: y"),
        ("CONNECT", "a.example", "x: y"),
        ("GET", "http://a.example/", "x: y\r\nz: w"),
    ],
)
def test_what_no_client_could_send_is_refused(method: str, url: str, header: str):
    with pytest.raises(HypotheticalRequestError):
        ask(open_forward("a.example"), method, url, header)


def test_a_header_that_cannot_be_sent_is_not_repeated():
    with pytest.raises(HypotheticalRequestError) as error:
        ask(open_forward("a.example"), "GET", "http://a.example/", "Authorization: sk-mine\x00")
    assert "sk-mine" not in str(error.value)


def test_nothing_is_counted_and_no_turn_is_taken():
    """The live snapshot serves traffic meanwhile."""
    objects = forward()

    async def twice() -> None:
        snapshot = offline(compiled_spec(objects))
        question = HypotheticalRequest("GET", "http://a.example/", asks_dns=False)
        before = [cluster.counts() for cluster in snapshot.clusters.values()]
        assert await explain(snapshot, question) == await explain(snapshot, question)
        assert [cluster.counts() for cluster in snapshot.clusters.values()] == before
        assert all(not cluster.targets.known for cluster in snapshot.clusters.values())

    asyncio.run(twice())


def test_a_port_that_http_and_streams_share_is_asked_by_the_name_of_the_url(pki: Pki):
    stream = ask(shared(pki), "GET", f"https://{PASSED}/", dns="0")
    web = ask(shared(pki), "GET", "https://one.web.example/", dns="0")
    assert (stream["listener"]["name"], web["listener"]["name"]) == ("passed", "web")
    assert (stream["route"]["name"], web["route"]["name"]) == ("agents/p", "agents/r")


def test_what_goes_again_and_who_comes_back_is_noted():
    rule = m.prefix_rule("/v1", "api", retry={"codes": [503, 502]}, sessionPersistence={"sessionName": "sid"})
    notes = ask(routed(rule), "GET", "http://api.example/v1")["notes"]
    assert "goes again once more" in notes[0]
    assert "after 502, 503" in notes[0]
    assert "the cookie sid" in notes[1]


def test_codes_that_are_not_applied_to_what_a_parent_answers_are_noted():
    objects = routed(m.prefix_rule("/v1", "api", retry={"codes": [503]}))
    objects.append(m.backend("proxy", "proxy.example", 3128))
    next(each for each in objects if each["metadata"]["name"] == "api")["spec"]["parent"] = {"name": "proxy"}
    notes = ask(objects, "GET", "http://api.example/v1")["notes"]
    assert "503" not in notes[0]
    assert "toward the parent of agents/api only connections are tried again" in notes[1]


# --- a deny means the place ------------------------------------------------------------------------------------------
def test_a_denied_backend_is_told_in_the_words_of_the_answer():
    deny = {"destinations": {"deny": [{"hostnames": ["*.example"]}]}}
    objects = reverse(**deny)
    found = ask(objects, "GET", "/", "Host: front.test")
    assert found["verdict"] == "denied"
    assert found["policy"]["decision"] == "allowed by the route, but its backend is denied"
    assert found["error"] == {
        "status": 403, "reason": "destination_denied", "message": "a.example is denied by policy agents/default",
        "denied": True, "rule": "EgressPolicy agents/default",
        "remedy": "remove or narrow its entry in destinations.deny of that policy",
        "detail": 'backend agents/a leads to a.example:80; denied by {hostnames: ["*.example"]} in destinations.deny',
    }  # fmt: skip
    (backend,) = found["backends"]
    assert (backend["host"], backend["port"]) == ("a.example", 80)


def test_in_report_mode_a_denied_backend_is_told_beside_what_becomes_of_it():
    deny = {"destinations": {"deny": [{"hostnames": ["a.example"]}]}, "mode": "Report"}
    objects = reverse(**deny)
    next(each for each in objects if each["kind"] == "EgressPolicy")["spec"]["dns"] = DNS
    found = ask(objects, "GET", "/", "Host: front.test")
    assert found["verdict"] == "allowed"
    assert found["policy"]["decision"] == "allowed, because mode is Report: its backend is denied"
    assert found["backends"][0]["wouldDeny"]["message"] == "a.example is denied by policy agents/default"


@pytest.mark.parametrize("target", [("HTTPRoute", "route"), ("Backend", "a")])
def test_a_deny_of_the_gateway_is_told_whatever_the_mode_of_a_more_specific_policy(target: tuple[str, str]):
    kind, name = target
    ref = {"group": m.OURS if kind == "Backend" else m.GATEWAY_API, "kind": kind, "name": name}
    lenient = m.policy(name="lenient", targetRefs=[ref], mode="Report")
    deny = {"destinations": {"deny": [{"hostnames": ["a.example"]}]}}
    found = ask(reverse(objects=(lenient,), **deny), "GET", "/", "Host: front.test")
    assert found["verdict"] == "denied"
    assert found["policy"]["decision"] == "allowed by the route, but its backend is denied"
    assert found["error"]["rule"] == "EgressPolicy agents/default"


@pytest.mark.parametrize(("mode", "word"), [("Enforce", "denied"), ("Report", "wouldDeny")])
def test_a_mirror_whose_place_is_denied_is_told(mode: str, word: str):
    rule = m.prefix_rule("/", "a")
    to_b = {"backendRef": {"group": m.OURS, "kind": "Backend", "name": "b"}}
    rule["filters"] = [{"type": "RequestMirror", "requestMirror": to_b}]
    deny = {"destinations": {"deny": [{"hostnames": ["b.example"]}]}, "mode": mode}
    objects = reverse(rule, objects=(m.backend("b", "b.example", 80),), **deny)
    next(each for each in objects if each["kind"] == "EgressPolicy")["spec"]["dns"] = DNS
    found = ask(objects, "GET", "/", "Host: front.test")
    (mirror,) = found["backends"][0]["mirrors"]
    assert mirror == {"name": "agents/b", "share": 1.0, word: "b.example is denied by policy agents/default"}


# --- a route to a Dynamic backend ------------------------------------------------------------------------------------
def wherever(*hostnames: str, **sections: Any) -> list[Manifest]:
    """A route to wherever the request says, beside a policy that allows a.example."""
    route = m.http_route("all", m.prefix_rule("/", "any"), hostnames=hostnames)
    return [*open_forward("a.example", **sections), m.dynamic(), route]


def test_what_a_dynamic_route_does_not_name_is_refused_in_the_words_of_the_answer():
    found = ask(wherever(), "GET", "http://api.example/")
    assert found["verdict"] == "denied"
    assert found["error"]["message"] == "api.example is not allowed by policy agents/default"
    assert found["error"]["detail"].startswith("HTTPRoute agents/all leads to a Dynamic backend, and permits by itself")
    assert ask(wherever(), "CONNECT", "api.example:80")["verdict"] == "denied"


def test_a_tunnel_to_a_host_that_only_an_http_route_names_says_what_it_needs():
    (note,) = ask(wherever("api.example"), "CONNECT", "api.example:443")["notes"]
    assert note == (
        "HTTPRoute agents/all serves requests for api.example, and no tunnel: a tunnel needs a TLSRoute or "
        "destinations.allow"
    )
    assert ask(wherever(), "CONNECT", "api.example:443")["notes"] == []
    assert ask(wherever("api.example"), "CONNECT", "b.example:443")["notes"] == []


def test_who_has_permitted_what_a_dynamic_route_serves():
    found = ask(wherever(), "GET", "http://a.example/")
    assert found["route"]["name"] == "agents/all"
    assert found["policy"]["decision"] == "not named by the route; allowed by destinations"
    assert found["policy"]["entries"] == [{"policy": "agents/default", "hostnames": ["a.example"]}]
    found = ask(wherever("api.example"), "GET", "http://api.example/")
    assert found["policy"]["decision"] == "allowed by the route, which names it, and denied nowhere"
    assert found["policy"]["entries"] == []
    found = ask(wherever(mode="Report"), "GET", "http://api.example/")
    assert found["policy"]["wouldDeny"]["message"] == "api.example is not allowed by policy agents/default"


# --- ranges that are closed ------------------------------------------------------------------------------------------
def test_the_addresses_that_a_deny_closes_are_shown_with_the_entry():
    found = ask(open_forward("api.example", addresses={"deny": [{"cidrs": ["93.184.216.0/24"]}]}), "GET",
                "http://api.example/")  # fmt: skip
    assert (found["verdict"], found["error"]["rule"]) == ("denied", "EgressPolicy agents/default")
    (address,) = found["backends"][0]["addresses"]
    entry = '{cidrs: ["93.184.216.0/24"]} in addresses.deny of EgressPolicy agents/default'
    assert (address["verdict"], address["why"]) == ("refuse", f"public: denied by {entry}")


def test_the_endpoints_that_a_deny_closes_are_shown_beside_the_others():
    rule = {"backendRefs": [{"name": "pods", "port": 80}]}
    for cidr, verdict in (("10.0.0.7/32", "allowed"), ("10.0.0.0/8", "denied")):
        deny = {"destinations": {"deny": [{"cidrs": [cidr]}]}}
        found = ask(reverse(rule, objects=tuple(pods("10.0.0.7", "10.0.0.8")), **deny), "GET", "/", "Host: a.test")
        assert found["verdict"] == verdict
        first = found["backends"][0]["addresses"][0]
        assert (first["verdict"], "in destinations.deny of" in first["why"]) == ("refuse", True)


def test_what_ends_connections_is_shown_where_it_is_set():
    made = ask(routed(traffic={"connections": {"maxAge": "90s", "maxRequests": 7}}), "GET", "http://api.example/v1")
    assert made["backends"][0]["connections"] == {"maxAge": 90.0, "maxRequests": 7.0}
    assert "connections" not in ask(routed(), "GET", "http://api.example/v1")["backends"][0]


def test_a_failover_is_told_with_its_endpoints():
    objects = [
        m.gateway(m.http_listener(8080)),
        *(m.backend(name, f"{name}.example", 80) for name in ("a", "b")),
        m.failover("any", "a", "b", firstByte="5s", codes=[503]),
        m.http_route("route", m.prefix_rule("/", "any")),
    ]
    gone = {"backendRef": {"group": m.OURS, "kind": "Backend", "name": "gone"}, "priority": 7}
    objects[3]["spec"]["destination"]["failover"]["endpoints"].append(gone)
    found = ask(objects, "GET", "http://x:8080/", dns="false")
    assert found["verdict"] == "allowed"
    assert [(each["name"], each["failover"], each["share"]) for each in found["backends"]] == [
        ("agents/a", {"name": "agents/any", "priority": 0}, 1.0),
        ("agents/b", {"name": "agents/any", "priority": 1}, 1.0),
        ("-", {"name": "agents/any", "priority": 7}, 1.0),
    ]
    (note,) = found["notes"]
    assert note.startswith("Failover agents/any: a request goes on to the next backend where one fails")
    assert note.endswith(", has sent no byte of a body after 5 s or answers 503")
    text = "\n".join(line[1] for line in lines(found))
    assert "agents/b Fqdn b.example:80, priority 1 of Failover agents/any" in text


def test_what_becomes_of_a_request_to_a_provider_is_told():
    objects = [
        m.gateway(m.http_listener(8080)),
        *(m.backend(name, f"{name}.example", 80) for name in ("a", "b")),
        m.failover("any", "a", "b"),
        m.http_route("route", m.prefix_rule("/", "any")),
    ]
    options = {"ai": {"apis": ["AnthropicMessages"], "prefix": "/x/v1"}}
    objects[2]["spec"]["destination"]["ports"][0]["protocolOptions"] = options
    objects[3]["spec"]["destination"]["failover"]["endpoints"][1] |= {
        "modelAlias": "claude", "modelAliases": {"gpt-5-mini": "haiku"}
    }  # fmt: skip
    found = ask(objects, "POST", "http://x:8080/v1/chat/completions", dns="false")
    first, second = found["backends"]
    assert "ai" not in first
    said = "OpenAIChat is translated to AnthropicMessages (POST /x/v1/messages), asks for haiku for gpt-5-mini, "
    said += "claude for every other model"
    assert second["ai"]["becomes"] == said
    assert ("  ai", said, "") in list(lines(found))
    found = ask(objects, "POST", "http://x:8080/v1/messages", dns="false")
    assert found["backends"][1]["ai"]["becomes"].startswith("AnthropicMessages goes as it is, asks for")


@pytest.mark.parametrize(
    ("ai", "path", "said"),
    [
        ({"apis": ["Gemini"]}, "/v1/messages",
         "AnthropicMessages is translated to Gemini (POST /v1beta/models/MODEL:generateContent)"),
        ({"apis": ["BedrockConverse"]}, "/v1/messages/count_tokens",
         "a count of tokens is translated to BedrockConverse (POST /model/MODEL/count-tokens)"),
        ({"apis": ["OpenAIChat"]}, "/v1/messages/count_tokens", "a count of tokens is estimated by the gateway"),
        ({"apis": ["OpenAIChat"], "azureApiVersion": "2024-10-21"}, "/v1/chat/completions",
         "OpenAIChat goes as it is (POST /openai/deployments/MODEL/chat/completions?api-version=2024-10-21)"),
    ],
)  # fmt: skip
def test_where_a_request_to_a_provider_goes_is_told(ai: dict[str, Any], path: str, said: str):
    objects = [
        m.gateway(m.http_listener(8080)),
        m.backend("a", "a.example", 80),
        m.http_route("route", m.prefix_rule("/", "a")),
    ]
    objects[1]["spec"]["destination"]["ports"][0]["protocolOptions"] = {"ai": ai}
    found = ask(objects, "POST", f"http://x:8080{path}", dns="false")
    assert found["backends"][0]["ai"]["becomes"] == said


def test_a_call_of_grpc():
    spec = {
        "parentRefs": [{"name": "gw"}], "hostnames": ["api.example"],
        "rules": [
            {"matches": [{"method": {"service": "pkg.Echo", "method": "Say"}}]},
            {"matches": [{"method": {"method": "Say"}}],
             "backendRefs": [{"group": m.OURS, "kind": "Backend", "name": "api"}]},
        ],
    }  # fmt: skip
    objects = [
        m.gateway(m.http_listener(8080)), _policy(), m.backend("api", "api.example", 443, tls=True, protocol="GRPC"),
        m.manifest(f"{m.GATEWAY_API}/v1", "GRPCRoute", "echo", "agents", spec=spec),
    ]  # fmt: skip
    url = "http://api.example:8080"
    found = ask(objects, "POST", f"{url}/any.Service/Say")
    assert (found["verdict"], found["route"]["kind"], found["route"]["rule"]) == ("allowed", "GRPCRoute", 1)
    assert found["route"]["match"] == "POST any service /Say"
    found = ask(objects, "POST", f"{url}/pkg.Echo/Say")
    assert found["runnerUp"]["rule"] == 1
    assert found["route"]["why"] == "an exact path comes before a gRPC method"
    assert (found["error"]["reason"], found["error"]["grpcStatus"]) == ("backend_invalid", "UNAVAILABLE")
    found = ask(objects, "POST", f"{url}/pkg.Echo/Other")
    assert (found["error"]["status"], found["error"]["grpcStatus"]) == (404, "UNIMPLEMENTED")
    assert ("gRPC", "a call is told UNIMPLEMENTED", "") in list(lines(found))
    assert "grpcStatus" not in ask(objects, "GET", f"{url}/pkg.Echo/Other")["error"]
    content = ask(objects, "POST", "http://b.example:8080/", "content-type: application/grpc")
    assert content["error"]["grpcStatus"] == "UNIMPLEMENTED"


@pytest.mark.parametrize(("priority", "told"), [("High", "refused last"), ("Low", "refused first"), ("Normal", "")])
def test_the_priority_of_a_request_is_shown(priority: str, told: str):
    found = ask(forward(traffic={"priority": priority}), "GET", "http://a.example/", dns="0")
    assert found["policy"]["priority"] == priority
    assert bool(told) == any("traffic.priority is" in note and told in note for note in found["notes"])


def test_a_tunnel_that_is_opened_is_explained_by_its_requests():
    ca_pem, key = new_ca("tests", time(), 30)
    intercept = {"hostnames": ["*.example"], "caCertificateRef": {"name": "ca"}}
    objects = [
        m.gateway(m.forward_listener(3128)),
        m.policy(["a.example"], intercept=intercept),
        tls_secret("ca", ca_pem, key.reveal()),
    ]
    found = ask(objects, "CONNECT", "b.example:443")
    assert (found["verdict"], found.get("error")) == ("allowed", None)
    assert found["notes"][0].endswith("explain https://b.example/ for its requests")
    assert ask(objects, "GET", "https://b.example/")["error"]["reason"] == "destination_not_allowed"
    assert ask(objects, "CONNECT", "b.test:443")["error"]["reason"] == "destination_not_allowed"


def test_a_stream_that_is_opened_is_explained_as_its_requests():
    ca_pem, key = new_ca("tests", time(), 30)
    intercept = {"hostnames": ["*.example"], "caCertificateRef": {"name": "ca"}}
    passing = {"name": "tls", "port": 8443, "protocol": "TLS", "tls": {"mode": "Passthrough"}}
    objects = [
        m.gateway(passing),
        m.policy(["a.example"], intercept=intercept),
        tls_secret("ca", ca_pem, key.reveal()),
        m.backend("o", "o.test", 443, protocol="TCP"),
        m.tls_route("t", "o", hostnames=["o.test", "b.example"]),
    ]
    found = ask(objects, "CONNECT", "a.example:443", dns="off")
    assert found["route"]["name"] == "-"
    assert found["notes"][0].startswith("policy agents/default has TLS opened here (intercept)")
    assert ask(objects, "CONNECT", "b.example:443")["error"]["reason"] == "destination_not_allowed"
    assert ask(objects, "CONNECT", "o.test:443")["route"]["name"] == "agents/t"


@pytest.mark.parametrize("target", [GATEWAY, BACKEND], ids=["gateway", "backend"])
@pytest.mark.parametrize(
    ("account", "method", "verdict", "says"),
    [
        ("conformance-tester-sa", "GET", "allowed", "allowed by rule readers"),
        ("conformance-tester-sa", "POST", "allowed", "messages of MCP that match rule tools are allowed"),
        ("conformance-tester-sa", "DELETE", "denied", "denied: no rule allows it"),
        ("other", "GET", "denied", "denied: no rule allows it"),
    ],
)
def test_the_rule_of_an_access_policy_that_decides_is_named(
    target: Manifest, account: str, method: str, verdict: str, says: str
):
    policy = access(
        rule("readers", methods=["GET"]), rule("tools", mcp={"methods": [{"name": "tools"}]}), target=target
    )
    made = ask([*served(policy)], method, "http://x:8080/mcp", **{"as": f"agents/{account}", "dns": "false"})
    filters = [*made["filters"], *made["backends"][0]["filters"]]
    found = next(each for each in filters if "decision" in each)
    assert (found["decision"], found["from"]) == (says, "XAccessPolicy agents/access")
    assert any(label.strip() == "decision" and text == says for label, text, _ in lines(made))
    assert made["verdict"] == verdict
    if verdict == "denied":
        assert made["error"]["reason"] == "access_denied"


def test_a_rule_that_responds_itself_needs_no_backend():
    direct = {"type": "DirectResponse", "directResponse": {"statusCode": 410}}
    objects = reverse({**m.prefix_rule("/v1", "a", filters=[direct]), "backendRefs": []})
    found = ask(objects, "GET", "http://any.example:8080/v1", dns="0")
    assert (found["verdict"], found["error"]) == ("allowed", None)
    assert "DirectResponse answers every request" in found["notes"][0]


def test_filters_of_the_listener_are_told_before_those_of_the_rule():
    config = {"request": {"set": [{"name": "X-A", "value": "b"}]}}
    processor = {"name": "first", "type": "HeaderPolicy", "phase": "request-headers", "config": config}
    spec = {"processors": [processor]}
    pipeline = m.manifest(f"{m.OURS}/v1alpha1", "PayloadProcessingPipeline", "p", "agents", spec=spec)
    ref = {"group": m.OURS, "kind": "PayloadProcessingPipeline", "name": "p"}
    filters = [{"type": "ExtensionRef", "extensionRef": ref}]
    edits = {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["X-B"]}}
    gateway, *others = reverse(m.prefix_rule("/v1", "a", filters=[edits]))
    assert gateway["kind"] == "Gateway"
    objects = [m.gateway(m.http_listener(8080, httpFilters=filters)), *others, pipeline]
    found = ask(objects, "GET", "http://any.example:8080/v1", dns="0")
    assert [each["name"] for each in found["filters"]] == ["first", "RequestHeaderModifier"]
    assert found["route"]["name"] == "agents/route"
    assert "filters of the listener (httpFilters) run first" in found["notes"][0]


def test_a_credential_that_is_bound_to_the_path_of_an_mcp_endpoint():
    """The gateway makes `/tools` that path, for every backend of the rule anew."""
    config = {**INJECTOR["config"], "allowPlaintext": True, "bind": {"pathPrefix": "/mcp"}}
    backends = [
        m.backend(name, "api.example", 80, extensions=[{**INJECTOR, "config": config}]) for name in ("tools", "more")
    ]
    for each in backends:
        each["spec"]["destination"]["ports"][0]["protocol"] = "MCP"
        each["spec"]["destination"]["ports"][0]["protocolOptions"] = {"mcp": {"path": "/mcp"}}
    refs = [{"group": m.OURS, "kind": "Backend", "name": name} for name in ("tools", "more")]
    rule = {"matches": [{"path": {"type": "PathPrefix", "value": "/tools"}}], "backendRefs": refs}
    objects = [*reverse(rule), *backends, m.secret("key", {"token": TOKEN}), m.policy(name="names")]
    objects[-1]["spec"]["dns"] = DNS
    for path, reason in (("", None), ("/other", "credential_not_bound")):
        found = ask(objects, "POST", f"http://x:8080/tools{path}")
        assert [each.get("error", {}).get("reason") for each in found["backends"]] == [reason] * 2
