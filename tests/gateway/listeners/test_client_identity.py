"""Who a client with a certificate is: the workload that its SPIFFE id names, where its trust domain is believed."""

from __future__ import annotations

import json
import ssl
import tempfile
from typing import Any

import pytest

from egressproxy.config.reading.problems import ConfigError
from egressproxy.gateway.overload.request_gate import RequestGate
from tests.config.compile.kit import FORWARD, compiled, of_policy, policy
from tests.e2e.world import terminate
from tests.gateway.backends.test_parent_identity import KEY, signed
from tests.gateway.conftest import Start
from tests.gateway.kit import ESTABLISHED, GET, OK, SHARED, TlsClient, certificate, connect
from tests.gateway.listeners.test_bound_port import demanding
from tests.gateway.listeners.test_stream_connection import terminating
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.http2_client import Http2Client
from tests.support.pki import Pki

ROBOT = "spiffe://cluster.local/ns/team/sa/robot"
PKI = Pki()


class Workload(Pki):
    """Its clients show a certificate with these names, signed by PKI."""

    def __init__(self, *names: str) -> None:
        self._shown = PKI.identified(*names)

    def issue(self, *_: Any, **__: Any) -> Any:
        return self

    def configure_cert(self, context: ssl.SSLContext) -> None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(self._shown.chain_pem.encode() + b"\n" + self._shown.key_pem.reveal())
            file.flush()
            context.load_cert_chain(file.name)


def proxy(*trust_domains: str, mode: str = "AllowValidOnly", **identity: Any) -> list[m.Manifest]:
    """A forward proxy over TLS that asks clients for certificates of PKI."""
    listener = m.forward_listener(3128, tls=terminate("front"))
    if trust_domains:
        identity["certificate"] = {"trustDomains": list(trust_domains)}
    made = [
        m.gateway(listener),
        m.policy(["a.example"], identity=identity or None, traffic=SHARED),
        certificate(PKI, "a.example"),
    ]
    return demanding(made, PKI, mode)


@pytest.fixture
def asks(converse: Start) -> Any:
    def start(objects: list[m.Manifest], who: Pki, **more: Any) -> tuple[Conversation, TlsClient]:
        talk = converse(objects)
        talk.counts_octets = False
        return talk, TlsClient(talk.client, PKI, "a.example", who, **more).shakes_hands()

    return start


def served(talk: Conversation, tls: TlsClient, request: bytes = GET, *, is_new: bool = True) -> dict[str, Any]:
    count = len(talk.records)
    tls >> request
    if is_new:
        talk.dialled("a.example", 80)
    talk.origin.take(rb"GET / .*?\r\n\r\n")
    talk.origin >> OK
    return dict(talk.record(count))


def who(record: dict[str, Any]) -> tuple[str, str]:
    return record["namespace"], record["service_account"]


def test_a_workload_is_logged_and_counted(asks: Any):
    talk, tls = asks(proxy("cluster.local"), Workload("robot.example", ROBOT))
    assert who(served(talk, tls)) == ("team", "robot")
    assert who(served(talk, tls, is_new=False)) == ("team", "robot"), "each request of the connection"
    counted = {series.labels[3:5] for series in talk.metrics._series.values() if series.requests}
    assert counted == {("team", "robot")}


def test_so_is_its_tunnel_and_what_is_asked_in_one(asks: Any):
    talk, tls = asks(proxy("cluster.local"), Workload(ROBOT))
    tls >> connect("a.example:80")
    assert tls.reads() == ESTABLISHED
    assert who(served(talk, tls, b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")) == ("team", "robot")
    talk.client = talk.connect()
    tls = TlsClient(talk.client, PKI, "a.example", Workload(ROBOT)).shakes_hands()
    tls >> connect("a.example:22")
    talk.dialled("a.example", 22)
    assert tls.reads() == ESTABLISHED
    talk.client.resets()
    assert who(talk.record()) == ("team", "robot")


def test_and_in_http2(asks: Any):
    talk, tls = asks(proxy("cluster.local"), Workload(ROBOT), alpn=("h2",))
    client = Http2Client()
    client.request([(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a.example"), (b":path", b"/")])
    assert who(served(talk, tls, client.outgoing())) == ("team", "robot")


def test_and_in_a_stream_whose_tls_ends_here(asks: Any):
    trusting = {"certificate": {"trustDomains": ["cluster.local"]}}
    talk, tls = asks(demanding(terminating(PKI, identity=trusting), PKI), Workload(ROBOT))
    talk.dialled("a.example", 443)
    tls >> b"inside"
    talk.origin << b"inside"
    talk.client.resets()
    assert who(talk.record()) == ("team", "robot")


@pytest.mark.parametrize(
    ("trust_domains", "names"),
    [
        ((), (ROBOT,)),
        (("other.test",), (ROBOT,)),
        (("cluster.local",), ("robot.example",)),
        (("cluster.local",), (ROBOT, "spiffe://cluster.local/ns/kube-system/sa/admin")),
    ],
)
def test_every_other_client_is_unknown(asks: Any, trust_domains: tuple[str, ...], names: tuple[str, ...]):
    talk, tls = asks(proxy(*trust_domains), Workload(*names))
    assert who(served(talk, tls)) == ("-", "-")


def test_where_any_certificate_will_do_it_proves_nothing(asks: Any):
    talk, tls = asks(proxy("cluster.local", mode="AllowInsecureFallback"), Workload(ROBOT))
    assert who(served(talk, tls)) == ("-", "-")


def test_a_gateway_with_a_certificate_speaks_for_its_clients_where_it_has_signed_that(asks: Any):
    keys = {"gateways": {"keyRefs": [{"name": "key"}]}}
    objects = [*proxy("cluster.local", **keys), m.secret("key", {"key": KEY})]
    talk, tls = asks(objects, Workload("spiffe://cluster.local/ns/edge/sa/gateway"))
    named = served(talk, tls, GET[:-2] + signed(b"GET", "a.example:80") + b"\r\n")
    assert who(named) == ("team", "robot")
    forged = served(talk, tls, GET[:-2] + signed(b"GET", "a.example:80", key="x" * 32) + b"\r\n", is_new=False)
    assert who(forged) == ("edge", "gateway")
    assert "no key of this gateway" in forged["detail"]


def test_of_several_lists_only_what_stands_in_all_is_believed(asks: Any):
    target = {"group": m.GATEWAY_API, "kind": "Gateway", "name": "gw"}
    listed = {"certificate": {"trustDomains": ["own.test", "cluster.local", "c.test"]}}
    more = m.policy(identity=listed, targetRefs=[target])
    more["metadata"]["name"] = "more"
    for domains, expected in (
        (("own.test", "b.test", "cluster.local"), "team@cluster.local"), (("own.test", "b.test", "c.test"), "-"),
    ):  # fmt: skip
        talk, tls = asks([*proxy(*domains), more], Workload(ROBOT))
        assert who(served(talk, tls))[0] == expected


def test_lists_of_one_port_agree_on_the_trust_domain_of_the_gateway(asks: Any):
    """The first is the own one, whose namespaces are written without it: in both policies, or nobody is served."""
    target = {"group": m.GATEWAY_API, "kind": "Gateway", "name": "gw"}
    more = m.policy(identity={"certificate": {"trustDomains": ["cluster.local", "b.test"]}}, targetRefs=[target])
    more["metadata"]["name"] = "more"
    text = [json.dumps(each) for each in (*proxy("b.test", "cluster.local"), more)]
    status = compiled(*text).statuses["gateway.networking.k8s.io", "Gateway", "agents", "gw"]
    (accepted,) = (each for each in status["listeners"][0]["conditions"] if each["type"] == "Accepted")
    assert accepted["status"] == "False"
    assert "begin with different domains" in accepted["message"]
    assert "list the same one first" in accepted["message"]


@pytest.mark.parametrize("name", ["spiffe://cluster.local", "Cluster.local", "", "a/b"])
def test_a_trust_domain_is_written_as_its_name_alone(name: str):
    with pytest.raises(ConfigError, match="not a SPIFFE trust domain"):
        compiled(FORWARD, policy(f'identity: {{certificate: {{trustDomains: ["{name}"]}}}}'))


def test_what_is_read_of_the_section_is_not_reported():
    made = compiled(FORWARD, policy("identity: {certificate: {trustDomains: [cluster.local]}}"))
    assert "identity" not in of_policy(made, "Accepted")[2]


def test_what_is_asked_of_a_terminated_stream_is_asked_of_its_client(asks: Any):
    """Limits by identity and the kill switch meet who the certificate says, not whoever has the same address."""
    trusting = {"certificate": {"trustDomains": ["cluster.local"]}}
    limits = {"requests": [{"per": "Identity", "limit": 1, "window": "1h"}]}
    talk, tls = asks(demanding(terminating(PKI, identity=trusting, limits=limits), PKI), Workload(ROBOT))
    talk.dialled("a.example", 443)
    tls >> b"inside"
    talk.origin << b"inside"
    talk.client.resets()
    for whose, reason in ((ROBOT.replace("team", "other"), ""), (ROBOT, "request_rate")):
        count = len(talk.records)
        talk.client = talk.connect()
        TlsClient(talk.client, PKI, "a.example", Workload(whose)).shakes_hands()
        if reason:
            talk.until(lambda count=count: len(talk.records) > count)  # type: ignore[misc]
            assert talk.record(count)["reason"] == reason
            talk.no_dial()
        else:
            talk.dialled("a.example", 443)
            talk.client.resets()
    gate = talk.connection_manager.accounting.gate = RequestGate()
    talk.client = talk.connect()
    TlsClient(talk.client, PKI, "a.example", Workload(ROBOT.replace("team", "third"))).shakes_hands()
    talk.dialled("a.example", 443)
    assert ("agents/gw", "tls", "third") in gate.tenants
    talk.client.resets()
    assert not gate.tenants


def test_a_name_that_is_not_served_has_no_handshake(converse: Start):
    talk = converse(terminating(PKI))
    hello = TlsClient(talk.client, PKI, "b.example").hello()
    talk.client >> hello
    talk.client.is_closed()
    assert not talk.client.got
    assert talk.record()["reason"] == "no_route"


def test_no_connection_serves_two_tenants_on_a_listener_whose_neighbour_reads_certificates(asks: Any):
    """Policies of the other listener of the port alone have certificates say who clients are, here too."""
    listeners = [
        m.http_listener(8443, name=name, hostname=f"{name}.example", tls=terminate("front"), protocol="HTTPS")
        for name in ("a", "b")
    ]
    trusting = m.policy(name="certified", identity={"certificate": {"trustDomains": ["cluster.local"]}})
    trusting["spec"]["targetRefs"][0]["sectionName"] = "b"
    objects = [
        m.gateway(*listeners), trusting, m.backend("a", "a.example", 80), m.http_route("r", m.prefix_rule("/", "a")),
        certificate(PKI, "a.example"),
    ]  # fmt: skip
    talk, tls = asks(demanding(objects, PKI), Workload(ROBOT))
    request = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
    assert who(served(talk, tls, request)) == ("team", "robot")
    talk.client = talk.connect()
    other = TlsClient(talk.client, PKI, "a.example", Workload(ROBOT.replace("/team/", "/other/"))).shakes_hands()
    assert who(served(talk, other, request, is_new=True)) == ("other", "robot")
