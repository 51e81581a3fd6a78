"""/denials and the other answers for pages and commands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from egressproxy.admin import views
from egressproxy.admin.server import AdminServer
from egressproxy.model.certificate import CertificateUse, Validity
from tests.admin.kit import State as PlainState
from tests.admin.kit import ask


def group(client: str = "10.0.0.1", **values: Any) -> dict[str, Any]:
    made = {
        "method": "GET", "destination": "a:80", "gateway": "g", "listener": "l", "namespace": "-",
        "service_account": "-", "identity": "-", "reason": "destination_not_allowed", "rule": "EgressPolicy n/p",
        "client": client, "count": 2, "first": 5.0, "last": 6.0, "allowed_now": False, "request_id": "early",
    }  # fmt: skip
    made |= values
    return {**made, "decision": {"authority": made["destination"], "time": made["last"], "request_id": ""}}


class State(PlainState):
    def __init__(self) -> None:
        super().__init__()
        self.workers: list[Any] = []
        self.asked: list[Any] = []
        self.number = 3
        self.certificates: list[Validity] = []
        self.proposed_for: list[Any] = []
        self.go = asyncio.Event()
        self.go.set()

    async def ask_some(self, name: str, *arguments: Any) -> Sequence[bytes]:
        self.asked.append((name, *arguments))
        return [json.dumps(each).encode() for each in self.workers]

    def generation(self) -> int:
        return self.number

    def configurations(self) -> list[Any]:
        return []

    def validities(self) -> Sequence[Validity]:
        return self.certificates

    async def summary(self) -> dict[str, Any]:
        return {"version": "1"}

    async def history(self) -> list[Any]:
        return []

    async def proposals(self, asked: bytes) -> Sequence[dict[str, Any] | None]:
        pairs = json.loads(asked)
        self.proposed_for += pairs
        await self.go.wait()
        return [{"diff": policy} for policy, _ in pairs]


@pytest.fixture
async def state() -> State:
    return State()


async def test_denials_of_all_workers_are_one_with_a_change_for_each(admin: AdminServer, state: State):
    state.workers = [
        {"since": 1.0, "denials": [group(), group("10.0.0.2"), group(identity="w"), group("x", reason="request_rate")]},
        {"since": 2e9, "denials": [group(first=1.0, last=7.0, request_id="late"), group("10.0.0.9", identity="w")]},
    ]
    told = (await ask(admin, "/denials?minutes=5&namespace=n")).json()
    assert state.asked[0][:2] + state.asked[0][3:] == ("shown", "denials", "n")
    assert (told["since"], told["configuration"]) == (2e9, 3)
    shown = [(each["identity"], each["client"], each["count"]) for each in told["denials"]]
    assert shown == [("-", "10.0.0.1", 4), ("w", "10.0.0.1", 4), ("-", "10.0.0.2", 2), ("-", "x", 2)]
    first, *_, limited = told["denials"]
    assert (first["first"], first["last"], first["request_id"], first["change"]) == (1.0, 7.0, "late", {"diff": "n/p"})
    assert limited["change"] is None
    assert "decision" not in first


async def test_a_change_is_asked_for_once_and_again_for_another_configuration(
    admin: AdminServer, state: State, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(views, "PAUSE_FACTOR", 0.0)
    state.workers = [{"since": 1.0, "denials": [group(), group("10.0.0.2")]}]
    await ask(admin, "/denials")
    state.workers = [
        {"since": 1.0, "denials": [group(last=9.0), group(destination="b:80"), group("c", allowed_now=True)]}
    ]
    await ask(admin, "/denials")
    assert [decision["authority"] for _, decision in state.proposed_for] == ["a:80", "b:80"]
    state.number = 4
    await ask(admin, "/denials")
    assert len(state.proposed_for) == 4


async def test_a_change_of_a_policy_that_is_another_meanwhile_is_not_shown(admin: AdminServer, state: State):
    """Who puts its manifest in place would take back what has come between."""
    state.workers = [{"since": 1.0, "denials": [group()]}]
    state.go.clear()
    asked = asyncio.create_task(ask(admin, "/denials"))
    while not state.proposed_for:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.01)
    state.number += 1
    state.go.set()
    told = (await asked).json()
    assert (told["configuration"], told["denials"][0]["change"]) == (3, None)


async def test_what_takes_long_is_not_asked_for_all_the_time(
    admin: AdminServer, state: State, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(views, "PAUSE_FACTOR", 1e9)
    for destination, change in (("a:80", {"diff": "n/p"}), ("b:80", None)):
        state.workers = [{"since": 1.0, "denials": [group(destination=destination)]}]
        assert (await ask(admin, "/denials")).json()["denials"][0]["change"] == change
    assert len(state.proposed_for) == 1


async def test_who_leaves_ends_no_work_on_changes_and_begins_none_anew(admin: AdminServer, state: State):
    """The loader's process would be ended, and each further question begin another."""
    state.workers = [{"since": 1.0, "denials": [group()]}]
    state.go.clear()
    _, writer = await asyncio.open_connection(admin.host, admin.port)
    writer.write(b"GET /denials HTTP/1.1\r\nHost: localhost\r\n\r\n")
    while not state.proposed_for:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.01)
    writer.close()
    await asyncio.sleep(0.05)
    state.go.set()
    assert (await ask(admin, "/denials")).json()["denials"][0]["change"] == {"diff": "n/p"}
    assert len(state.proposed_for) == 1


@pytest.mark.parametrize(
    "query",
    ["minutes=0", "minutes=1441", "minutes=x", "minutes=-1", "minutes=", "limit=1", f"minutes=00001{'9' * 5000}"],
)
async def test_minutes_are_a_number(admin: AdminServer, state: State, query: str):
    assert (await ask(admin, f"/denials?{query}")).status == 400
    assert state.asked == []


async def test_backends_and_limits_of_all_workers_are_together(admin: AdminServer, state: State):
    backend = {
        "name": "n/b", "destination": "Fqdn", "active": 1, "idle": 2, "waiting": 0, "limits_reached": ["maxPending"],
        "hosts": [["a:80", "healthy"]],
    }  # fmt: skip
    ejected = {**backend, "limits_reached": ["maxConnections"], "hosts": [["a:80", "ejected"], ["b:80", "not watched"]]}
    state.workers = [[backend, {"name": "n/b", "requests": 3, "failures": 1}], [ejected, ejected], []]
    (told,) = (await ask(admin, "/backends")).json()["backends"]
    assert (told["active"], told["idle"], told["requests"], told["failures"]) == (3, 6, 3, 1)
    assert told["limits_reached"] == ["maxConnections", "maxPending"]
    assert told["hosts"] == [
        {"address": "a:80", "healthy": False, "ejected": True, "state": "ejected", "workers": 2},
        {"address": "b:80", "healthy": True, "ejected": False, "state": "not watched", "workers": 1},
    ]
    state.workers = [
        [{"key": "1", "limit": 4, "left": 2}],
        [{"key": "1", "limit": 4, "left": 2}, {"key": "2", "limit": 4, "left": 1}],
    ]
    assert (await ask(admin, "/limits")).json()["limits"] == [{"limit": 4, "left": 1}, {"limit": 4, "left": 2}]
    assert [asked for asked in state.asked if asked[0] == "shown"] == [("shown", "backends"), ("shown", "limits")]


async def test_certificates_have_their_end_and_no_value(admin: AdminServer, state: State):
    state.workers = [[{"secret": "k/token"}], [{"secret": "k/token"}]]
    state.certificates = [
        Validity(CertificateUse.CA, "ConfigMap", "n", "late", 0.0, 3e9, 3e9),
        Validity(CertificateUse.LISTENER, "Secret", "n", "old", 0.0, 1.0, 1.0),
    ]
    told = (await ask(admin, "/certificates")).json()
    assert [(each["name"], each["use"], each["state"], each["not_after"]) for each in told["certificates"]] == [
        ("old", "listener", "expired", 1.0), ("late", "ca", "valid", 3e9),
    ]  # fmt: skip
    assert "has expired" in told["certificates"][0]["why"]
    assert told["credentials"] == [{"secret": "k/token"}]


async def test_the_summary_has_open_connections_and_readers(admin: AdminServer, state: State):
    state.workers = [3, 4]
    told = (await ask(admin, "/summary")).json()
    assert told == {"version": "1", "open_connections": 7, "live_readers": 0}
    assert (await ask(admin, "/history")).json() == {"minutes": []}
    assert (await ask(admin, "/configurations")).json() == {"configurations": []}
    assert (await ask(admin, "/summary", "POST")).status == 405
