from __future__ import annotations

import asyncio
from concurrent.futures import Future
from time import time
from types import SimpleNamespace

import pytest

from egressproxy.errors import Denied
from egressproxy.gateway.leaf_certificates import certificate_cache
from egressproxy.gateway.leaf_certificates.certificate_cache import CertificateCache, CertificateCaches, LeafKey
from egressproxy.gateway.leaf_certificates.client_cas import ClientCas
from egressproxy.ir.policy import SubjectIR
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.model.certificate import Leaf
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


def test_a_withdrawal_holds_over_several_rotations():
    counted, all_caches = Interceptions(), [CertificateCaches()]
    caches = [all_caches[0].of(key("0"), counted, "agents/a")]
    ended, late = Connection(), Connection()
    caches[0].add_connection(ended)
    for number in (1, 2):
        all_caches.append(CertificateCaches(all_caches[-1]))
        caches.append(all_caches[-1].of(key(str(number)), counted, "agents/a"))
        all_caches[-2].replaced_by(all_caches[-1], counted)
    caches[0].remove_connection(ended)
    caches[0].add_connection(late)  # its handshake began before both
    assert caches[-1].lineage.connections == {late}
    all_caches[-1].replaced_by(CertificateCaches(all_caches[-1]), counted)
    assert late.is_aborted
    with pytest.raises(Denied, match="withdrawn"):
        caches[0].check_in_force()


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


@pytest.mark.parametrize("is_withdrawn", [False, True])
def test_certificates_of_a_ca_in_service_are_counted(monkeypatch: pytest.MonkeyPatch, is_withdrawn: bool):
    """On the loop: metrics are read there, and the count of a CA that was withdrawn meanwhile does not come back."""
    monkeypatch.setattr(certificate_cache, "leaf_context", lambda *_: object())
    minted, counted = Leaf("", SecretBytes(b""), time() + 86_400), Interceptions()

    async def waiting() -> None:
        asked: Future[object] = Future()
        signer = SimpleNamespace(do=lambda _work: asked)
        cache = CertificateCache(key("a"), counted, signer, secret="agents/a")  # type: ignore[arg-type]
        made = cache.begin("a.example", "192.0.2.1")
        if is_withdrawn:
            cache.withdraw()
        process = SimpleNamespace(mint=lambda *_: minted)
        asked.set_result(cache._make(process, "a.example", None))  # type: ignore[arg-type]
        assert not counted.of_ca, "in the thread"
        await asyncio.wait([made])

    asyncio.run(waiting())
    assert counted.of_ca == ({} if is_withdrawn else {"agents/a": 1})


def test_all_cas_share_the_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(certificate_cache, "MAX_LEAVES", 60)
    monkeypatch.setattr(certificate_cache, "MAX_CONTEXTS", 12)
    caches = CertificateCaches()
    made = [caches.of(key(str(number)), Interceptions(), str(number)) for number in range(10)]
    caches.forget_known()
    assert {(each.max_leaves, each.max_contexts) for each in made} == {(6, 2)}
