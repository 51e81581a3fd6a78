"""`identity.certificate.caCertificateRefs`: the CAs whose certificates say who a client is, beside those by which the
Gateway lets clients in.
"""

from __future__ import annotations

import json
import ssl
from contextlib import suppress
from typing import Any

import pytest

from egressproxy.ir.gateway import ClientCertificatesIR, ListenerTlsIR
from egressproxy.net import client_chains
from egressproxy.net.client_chains import is_for_identity
from egressproxy.net.tls_contexts.contexts import server_context
from tests.config.compile.kit import compiled, of_listener
from tests.e2e.world import terminate
from tests.gateway.conftest import Start
from tests.gateway.kit import TlsClient, certificate
from tests.gateway.listeners.test_bound_port import demanding
from tests.gateway.listeners.test_client_identity import PKI, ROBOT, Workload, served, who
from tests.net.tls_contexts.test_contexts import verified_certificate
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.pki import Pki

OTHER = Pki()


def policy(*authorities: Pki, name: str = "policy", **identity: Any) -> list[m.Manifest]:
    """A policy by which certificates of these CAs say who a client is."""
    refs = [{"kind": "ConfigMap", "name": f"{name}-{number}"} for number in range(len(authorities))]
    said = {"certificate": {"caCertificateRefs": refs, "trustDomains": ["cluster.local"]}, **identity}
    target = {"group": m.GATEWAY_API, "kind": "Gateway", "name": "gw"}
    made = m.policy(["a.example"], identity=said, targetRefs=[target])
    made["metadata"]["name"] = name
    bundles = [m.config_map(ref["name"], {"ca.crt": each.ca_pem}) for ref, each in zip(refs, authorities, strict=True)]
    return [made, *bundles]


def proxy(*more: list[m.Manifest]) -> list[m.Manifest]:
    """A forward proxy over TLS whose Gateway asks for no certificates."""
    listener = m.forward_listener(3128, tls=terminate("front"))
    return [m.gateway(listener), certificate(PKI, "a.example"), *(each for part in more for each in part)]


@pytest.fixture
def asks(converse: Start) -> Any:
    def start(objects: list[m.Manifest], shows: Pki | None) -> tuple[Conversation, TlsClient]:
        talk = converse(objects)
        talk.counts_octets = False
        return talk, TlsClient(talk.client, PKI, "a.example", shows).shakes_hands()

    return start


def test_clients_are_asked_and_known_where_the_gateway_itself_asks_for_nothing(asks: Any):
    talk, tls = asks(proxy(policy(PKI)), Workload(ROBOT))
    assert who(served(talk, tls)) == ("team", "robot")


def test_who_shows_none_is_let_in_and_unknown(asks: Any):
    talk, tls = asks(proxy(policy(PKI)), None)
    assert who(served(talk, tls)) == ("-", "-")
    talk, tls = asks(proxy(policy(PKI, required=True)), None)
    tls >> b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"
    assert tls.reads().startswith(b"HTTP/1.1 403 Denied: the gateway does not know this client\r\n")


def test_a_certificate_of_another_authority_is_refused_where_only_these_are_taken(asks: Any):
    talk, tls = asks(proxy(policy(OTHER)), Workload(ROBOT))
    with pytest.raises(ssl.SSLError, match=r"(?i)unknown.ca"):
        tls.reads()
    assert not talk.records


@pytest.mark.parametrize(("authorities", "expected"), [((PKI,), "team"), ((OTHER,), "-"), ((OTHER, PKI), "team")])
def test_of_those_that_the_gateway_lets_in_only_these_are_known(asks: Any, authorities: tuple[Pki, ...], expected: str):
    talk, tls = asks(demanding(proxy(policy(*authorities)), PKI), Workload(ROBOT))
    assert who(served(talk, tls))[0] == expected


def test_they_do_not_let_in_whom_the_gateway_does_not(asks: Any):
    _, tls = asks(demanding(proxy(policy(PKI)), OTHER), Workload(ROBOT))
    with pytest.raises(ssl.SSLError, match=r"(?i)unknown.ca"):
        tls.reads()


def test_where_any_certificate_will_do_they_prove_nothing(asks: Any):
    talk, tls = asks(demanding(proxy(policy(PKI)), PKI, "AllowInsecureFallback"), Workload(ROBOT))
    assert who(served(talk, tls)) == ("-", "-")


def test_what_several_policies_of_a_port_list_all_is_what_counts(asks: Any):
    talk, tls = asks(proxy(policy(PKI, OTHER), policy(PKI, name="more")), Workload(ROBOT))
    assert who(served(talk, tls)) == ("team", "robot")


def test_a_bundle_that_changes_ends_the_connections_and_sessions_of_the_one_before(asks: Any):
    talk, tls = asks(demanding(proxy(policy(PKI)), PKI), Workload(ROBOT))
    assert who(served(talk, tls)) == ("team", "robot")
    assert tls.reads().startswith(b"HTTP/1.1 200 ")
    talk.reload(demanding(proxy(policy(OTHER)), PKI))
    assert tls.reads() == b""
    assert tls.has_ended


def refusal(objects: list[m.Manifest]) -> str:
    """Why the listener is not accepted; "" where it is."""
    status, _, message = of_listener(compiled(*map(json.dumps, objects)), "Accepted", gateway="agents/gw")
    return "" if status == "True" else message


def test_a_bundle_that_is_not_there_closes_the_listener():
    policy_alone = policy(PKI)[:1]
    for objects in (proxy(policy_alone), demanding(proxy(policy_alone), PKI)):
        message = refusal(objects)
        assert message.startswith("identity.certificate.caCertificateRefs of EgressPolicy agents/policy: ConfigMap")
        assert "policy-0" in message
    assert not refusal(proxy(policy(PKI)))


def test_so_do_lists_that_have_nothing_in_common():
    message = refusal(proxy(policy(PKI), policy(OTHER, name="more")))
    assert "no CA in common" in message
    assert "agents/policy" in message
    assert "agents/more" in message


# --- sessions --------------------------------------------------------------------------------------


def listener_context(clients: ClientCertificatesIR) -> ssl.SSLContext:
    return server_context(ListenerTlsIR(certificates=(PKI.certificate("a.example"),), clients=clients))


def shaken(
    server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """The listener's end and the client's, when the handshake is over."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = server.wrap_bio(to_server, to_client, server_side=True)
    far = client.wrap_bio(to_client, to_server, server_hostname="a.example", session=session)
    for end in (far, near, far, near, far):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    near.write(b"x")
    far.read(1)
    return near, far


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("is_signer", [True, False])
def test_a_session_that_is_resumed_says_what_its_certificate_did(version: ssl.TLSVersion, is_signer: bool):
    authority = PKI if is_signer else OTHER
    clients = ClientCertificatesIR(PKI.ca_pem, identity_ca_pem=authority.ca_pem)
    server, client = listener_context(clients), PKI.client_context()
    client.maximum_version = version
    Workload(ROBOT, str(version)).configure_cert(client)
    near, far = shaken(server, client)
    assert not near.session_reused
    assert is_for_identity(near, clients) is is_signer
    near, _ = shaken(server, client, far.session)
    assert near.session_reused
    assert verified_certificate(near) is not None
    assert is_for_identity(near, clients) is is_signer


def test_one_that_is_not_remembered_any_more_says_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client_chains, "MAX_REMEMBERED", 1)
    clients = ClientCertificatesIR(PKI.ca_pem, identity_ca_pem=PKI.ca_pem, trust_domains=("one.test",))
    server, first, second = listener_context(clients), PKI.client_context(), PKI.client_context()
    Workload(ROBOT).configure_cert(first)
    Workload(ROBOT).configure_cert(second)
    near, far = shaken(server, first)
    assert is_for_identity(near, clients)
    assert is_for_identity(shaken(server, second)[0], clients)
    near, _ = shaken(server, first, far.session)
    assert near.session_reused
    assert not is_for_identity(near, clients)
