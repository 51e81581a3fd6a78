"""Which clients a killed identity is."""

from __future__ import annotations

import pytest

from egressproxy.errors import Denied, Reason
from egressproxy.gateway.identity.killed_identities import (
    MAX_KILLED,
    KillChange,
    KilledIdentities,
    KilledIdentity,
    NotKilled,
)
from egressproxy.identity.peers import workload
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity

BY_CERTIFICATE = workload(["spiffe://cluster.local/ns/agents/sa/worker"], ["cluster.local"])
BY_TOKEN = CallerIdentity("agents", "worker", name="system:serviceaccount:agents:worker", source="token")


def killed(*names: str) -> KilledIdentities:
    return KilledIdentities(tuple(KilledIdentity(name) for name in names))


@pytest.mark.parametrize("name", [BY_CERTIFICATE.name, BY_TOKEN.name, "spiffe://elsewhere.test/ns/agents/sa/worker"])
def test_a_service_account_is_killed_in_each_form_that_names_it(name: str):
    switch = killed(name)
    assert switch.has(BY_CERTIFICATE)
    assert switch.has(BY_TOKEN)
    assert not switch.has(BY_TOKEN.replace(service_account="other", name="system:serviceaccount:agents:other"))
    with pytest.raises(Denied, match="out of service") as refused:
        switch.refuse(BY_TOKEN)
    assert (refused.value.reason, refused.value.status) == (Reason.IDENTITY_KILLED, 403)


def test_a_user_is_killed_by_name_and_nobody_else():
    switch = killed("alice")
    assert switch.has(CallerIdentity(name="alice", source="basic"))
    for other in (CallerIdentity(name="Alice"), CallerIdentity(name="alice2"), ANONYMOUS):
        assert not switch.has(other)


def test_changes_replace_and_restore_and_are_bounded():
    switch = killed().changed(KillChange("alice", kills=True, why="stolen"), 5.0)
    switch = switch.changed(KillChange("alice", kills=True, why="found out"), 6.0)
    assert switch.every == (KilledIdentity("alice", "found out", 6.0),)
    assert not switch.changed(KillChange("alice", kills=False), 7.0)
    full = killed(*map(str, range(MAX_KILLED)))
    with pytest.raises(ValueError, match="restore some"):
        full.changed(KillChange("one more", kills=True), 0.0)
    assert len(full.changed(KillChange("7", kills=True), 0.0).every) == MAX_KILLED


def test_a_service_account_is_restored_in_each_form_that_names_it():
    switch = killed(BY_CERTIFICATE.name, "alice")
    assert switch.changed(KillChange(BY_TOKEN.name, kills=False), 0.0).every == (KilledIdentity("alice"),)
    assert len(switch.changed(KillChange(BY_TOKEN.name, kills=True), 0.0).every) == 2


def test_a_service_account_that_is_there_in_two_forms_is_restored_as_one():
    switch = killed(BY_CERTIFICATE.name, BY_TOKEN.name, "alice")
    assert [each.name for each in switch.every] == [BY_TOKEN.name, "alice"]
    restored = switch.changed(KillChange(BY_CERTIFICATE.name, kills=False))
    assert not restored.has(BY_TOKEN)
    assert not restored.has(BY_CERTIFICATE)
    assert switch.has(BY_TOKEN)  # a change makes another value


def test_each_change_is_a_revision():
    switch = killed("alice")
    assert switch.changed(KillChange("bob", kills=True)).changed(KillChange("bob", kills=False)).revision == 2


def test_nobody_is_restored_who_is_not_killed():
    switch = killed(BY_TOKEN.name, "alice")
    for name in ("Alice", "alice ", "system:serviceaccount:agents:workers", "spiffe://a.test/ns/agents/sa/workers"):
        with pytest.raises(NotKilled, match="nothing is restored"):
            switch.changed(KillChange(name, kills=False), 0.0)


@pytest.mark.parametrize(
    "pairs",
    [
        [], [("why", "x")], [("kill", "a"), ("restore", "a")], [("kill", "a"), ("kill", "b")], [("kill", "")],
        [("kill", "-")], [("kill", "a\nb")], [("kill", "a"), ("why", "\x1b[0m")], [("kill", "a" * 2049)],
        [("kill", "a"), ("why", "a" * 513)], [("identity", "a")],
    ],
)  # fmt: skip
def test_a_change_says_whom(pairs: list[tuple[str, str]]):
    with pytest.raises(ValueError, match=r"."):
        KillChange.of(pairs)
    assert KillChange.of([("kill", "a"), ("why", "b")]) == KillChange("a", kills=True, why="b")
    assert KillChange.of([("restore", "a")]) == KillChange("a", kills=False)
