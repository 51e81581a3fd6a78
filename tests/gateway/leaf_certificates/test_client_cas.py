from __future__ import annotations

import asyncio

import pytest

from egressproxy.errors import Denied
from egressproxy.gateway.leaf_certificates import certificate_cache
from egressproxy.gateway.leaf_certificates.certificate_cache import CertificateCaches, LeafKey
from egressproxy.gateway.leaf_certificates.client_cas import ClientCas
from egressproxy.ir.policy import SubjectIR
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.model.secret import SecretBytes
from egressproxy.telemetry.counters import Interceptions

POLICY = "agents/default"
SPIFFE = "spiffe://example.test/ns/agents/sa/one"


def key(name: str, policy: str = POLICY) -> LeafKey:
    return f"chain of {name}", SecretBytes(b"key"), policy


class Connection:
    def __init__(self) -> None:
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


CACHES = CertificateCaches()
ACCOUNT, NAMESPACE, NAME, GROUP, CLAIM, OTHERS = (
    CACHES.of(key(name), Interceptions(), f"agents/{name}")
    for name in ("account", "namespace", "name", "group", "claim", "others")
)
ENTRIES = [
    ((SubjectIR(identity="agents/users#alice"), SubjectIR(identity=SPIFFE)), NAME, ""),
    ((SubjectIR("agents", "gone"),), None, "it was withdrawn"),
    ((SubjectIR("agents", "one"), SubjectIR("tools", "one")), ACCOUNT, ""),
    ((SubjectIR(group="dev"),), GROUP, ""),
    ((SubjectIR(claim=("tier", "gold")),), CLAIM, ""),
    ((SubjectIR("agents"),), NAMESPACE, ""),
]


@pytest.mark.parametrize(
    ("identity", "found"),
    [
        (CallerIdentity("agents", "one", name="system:serviceaccount:agents:one"), ACCOUNT),
        (CallerIdentity("agents", "one", name=SPIFFE), NAME),
        (CallerIdentity("tools", "one"), ACCOUNT),
        (CallerIdentity("agents", "two"), NAMESPACE),
        (CallerIdentity("agents", "gone"), None),
        (CallerIdentity("agents@other.test", "one"), OTHERS),
        (CallerIdentity("-", "one"), OTHERS),
        (CallerIdentity("tools", "-"), OTHERS),
        (CallerIdentity(name="agents/users#alice"), NAME),
        (CallerIdentity(name="agents/users#bob"), OTHERS),
        (CallerIdentity("agents", "two", groups=("ops", "dev")), GROUP),
        (CallerIdentity("x", claims=(("tier", "gold"),), claims_read=("tier",)), CLAIM),
        (CallerIdentity("x", claims=(("tier", "tin"),), claims_read=("tier",)), OTHERS),
        (CallerIdentity("x", claims_read=("tier",)), OTHERS),
        (CallerIdentity("x", claims_read=()), None),  # another gateway has not told the claim
        (CallerIdentity("agents", "one", claims_read=()), ACCOUNT),  # an entry before it holds
        (ANONYMOUS, OTHERS),
    ],
    ids=lambda each: str(each) if isinstance(each, CallerIdentity) else "",
)
def test_the_first_entry_for_a_client_holds(identity: CallerIdentity, found: object):
    cas = ClientCas(ENTRIES, OTHERS, POLICY)
    if found is None:
        with pytest.raises(Denied, match="is to be opened"):
            cas.for_client(identity)
    else:
        assert cas.for_client(identity) is found


def test_without_a_ca_for_others_these_are_refused():
    with pytest.raises(Denied, match="no CA for this client"):
        ClientCas(ENTRIES, None, POLICY).for_client(ANONYMOUS)


def test_a_ca_that_is_gone_is_withdrawn_and_one_that_is_rotated_goes_on():
    counted = Interceptions()
    before = CertificateCaches()
    gone, kept, rotated, everybody = (
        before.of(key(name), counted, secret)
        for name, secret in (("a", "agents/a"), ("b", "agents/b"), ("c", "agents/c"), ("d", ""))
    )
    counted.of_ca.update({"agents/a": 1, "agents/b": 1, "agents/c": 1})
    shown = [(each, Connection()) for each in (gone, kept, rotated, everybody)]
    for cache, connection in shown:
        cache.add_connection(connection)
    after = CertificateCaches(before)
    after.of(key("b"), counted, "agents/b")
    after.of(key("a", "agents/other"), counted, "agents/a")  # of another policy
    successor = after.of(key("new c"), counted, "agents/c")
    before.replaced_by(after, counted)
    assert [connection.is_aborted for _, connection in shown] == [True, False, False, False]
    assert set(counted.of_ca) == {"agents/a", "agents/b", "agents/c"}
    with pytest.raises(Denied, match="withdrawn"):
        gone.check_in_force()
    late = Connection()
    rotated.add_connection(late)  # its handshake began before the rotation
    last = CertificateCaches(after)
    after.replaced_by(last, counted)
    assert [connection.is_aborted for _, connection in shown] == [True, True, True, False]
    assert late.is_aborted
    assert not counted.of_ca
    for each in (rotated, successor):
        with pytest.raises(Denied, match="withdrawn"):
            each.check_in_force()


def test_who_waits_for_a_leaf_of_a_ca_that_is_withdrawn_gets_none(monkeypatch: pytest.MonkeyPatch):
    async def waiting() -> None:
        cache = CertificateCaches().of(key("a"), Interceptions(), "agents/a")
        monkeypatch.setattr(cache.__class__, "_make", lambda *_: (object(), object()))
        asked = cache.begin("a.example", "192.0.2.1")
        cache.withdraw()
        with pytest.raises(Denied, match="withdrawn"):
            await asked
        assert cache.known("a.example") is None

    asyncio.run(waiting())


def test_all_cas_share_the_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(certificate_cache, "MAX_LEAVES", 60)
    monkeypatch.setattr(certificate_cache, "MAX_CONTEXTS", 12)
    caches = CertificateCaches()
    made = [caches.of(key(str(number)), Interceptions(), str(number)) for number in range(10)]
    caches.forget_known()
    assert {(each.max_leaves, each.max_contexts) for each in made} == {(6, 2)}
