"""What gateways tell each other of policies on trial."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from egressproxy.config.served_kinds import CONFIGURED
from egressproxy.kubernetes import shared_trials
from egressproxy.kubernetes.api_client import ApiError
from egressproxy.kubernetes.object_store import ObjectStore, Scope, stored
from egressproxy.kubernetes.shared_trials import AHEAD_S, JOIN_S, TELL_S, SharedTrials, applied
from egressproxy.model.encoding import rfc3339

SCOPE = Scope(next(kind for kind in CONFIGURED if kind.kind == "EgressPolicy"))
NOW = 1_768_000_000.0  # in 2026
KEY = ("egressproxy.io", "EgressPolicy", "agents", "next")


def trial(last_flip: str = "", digest: str = "a") -> dict[str, Any]:
    flip = {"lastFlip": last_flip, "lastRequest": f"of {last_flip}"} if last_flip else {}
    return {"digest": digest, "since": "2026-01-01T00:00:00Z", "wouldDeny": 1, **flip}


def status(trial: dict[str, Any]) -> bytes:
    return json.dumps({"ancestors": [], "trial": trial}).encode()


class Server:
    """An API server whose policy has this trial in its status."""

    def __init__(self, held: dict[str, Any]) -> None:
        self.store = ObjectStore()
        self.hold(held)
        self.written: list[tuple[str, Any]] = []
        self.refuses = 0
        self.held_s = 0.0
        self.now = 0.0
        self.wall = NOW

    def hold(self, held: dict[str, Any]) -> None:
        value = {
            "apiVersion": "egressproxy.io/v1alpha1", "kind": "EgressPolicy", "spec": {}, "status": {"trial": held},
            "metadata": {"name": "next", "namespace": "agents", "resourceVersion": "7"},
        }  # fmt: skip
        self.store.put(SCOPE, *stored(value, SCOPE, "v1alpha1"))

    async def apply(self, _path: str, _body: Any) -> dict[str, Any]:
        return {"status": {"trial": trial("2026-01-02T00:00:00Z")}}

    async def send(self, _method: str, path: str, _params: None, body: Any, _content_type: str) -> dict[str, Any]:
        self.written.append((path, body))
        if self.refuses:
            raise ApiError(self.refuses, "Refused", "no")
        return {}

    def trials(self, ours: dict[str, Any]) -> SharedTrials:
        made = SharedTrials(self, self.store, lambda _key: self.held_s, lambda: self.now, lambda: self.wall)  # type: ignore[arg-type]
        of_gateway = b'{"ancestors": [{"ancestorRef": {"name": "trial"}}]}'
        made.show({KEY: status(ours), (*KEY[:3], "b"): of_gateway, ("", "Service", "agents", "b"): status(ours)})
        return made


async def test_a_flip_is_added_where_another_gateway_writes_status():
    server = Server(trial("2026-01-02T00:00:00Z"))
    trials = server.trials(trial("2026-01-03T00:00:00Z"))
    server.held_s = 5.0
    await trials.write()
    assert server.written == []  # status has it soon
    server.held_s = 0.0
    await trials.write()
    flip = {"lastFlip": "2026-01-03T00:00:00Z", "lastRequest": "of 2026-01-03T00:00:00Z"}
    path = "/apis/egressproxy.io/v1alpha1/namespaces/agents/egresspolicies/next/status"
    assert server.written == [(path, {"metadata": {"resourceVersion": "7"}, "status": {"trial": flip}})]
    server.hold(trial("2026-01-03T00:00:00Z"))
    await trials.write()
    for held in (trial("2026-01-02T00:00:00Z", "b"), {}):  # of another trial, or of none yet
        server.hold(held)
        await trials.write()
    assert len(server.written) == 1


async def test_a_refused_flip_is_tried_again_in_a_minute_and_one_that_came_second_at_once():
    server = Server(trial())
    trials = server.trials(trial("2026-01-03T00:00:00Z"))
    for server.refuses, count in ((409, 1), (429, 2), (0, 2)):  # 429: too many requests
        await trials.write()
        assert len(server.written) == count
    server.now = TELL_S
    await trials.write()
    assert len(server.written) == 3


@pytest.mark.parametrize(
    ("ours", "rest"),
    [(status(trial()), {"lastFlip": None, "lastRequest": None}), (b"{}", None), (status(trial("2026-01-03")), "")],
)
async def test_a_flip_of_another_gateway_does_not_outlive_its_trial(ours: bytes, rest: Any):
    server = Server(trial())
    await applied(server, "/p", {"status": json.loads(ours)})  # type: ignore[arg-type]
    assert server.written == ([] if rest == "" else [("/p", {"status": {"trial": rest}})])


async def test_a_server_that_does_not_answer_holds_nobody_up(monkeypatch):
    server = Server(trial())
    monkeypatch.setattr(server, "send", lambda *_: asyncio.Event().wait())
    monkeypatch.setattr(shared_trials, "WRITE_S", 0.0)
    await asyncio.wait_for(server.trials(trial("2026-01-03T00:00:00Z")).write(), 1.0)


async def test_flips_of_many_gateways_cost_a_write_a_minute():
    server = Server(trial(rfc3339(NOW - TELL_S / 2)))
    trials = server.trials(trial(rfc3339(NOW)))
    await trials.write()
    assert server.written == []
    server.wall += TELL_S
    await trials.write()
    assert len(server.written) == 1


async def test_a_flip_of_the_far_future_hides_none_of_now():
    server, ours = Server(trial(rfc3339(NOW + AHEAD_S + 1))), trial(rfc3339(NOW))
    trials = server.trials(ours)
    assert (trials.completed(KEY, status(ours)), json.loads(trials.told()[0][1])) == (status(ours), trial())
    await trials.write()
    assert len(server.written) == 1


def test_our_status_keeps_the_flip_of_another_gateway():
    server, ours = Server(trial("2026-01-03T00:00:00Z")), trial("2026-01-02T00:00:00Z")
    trials = server.trials(ours)
    made = json.loads(trials.completed(KEY, status(ours)))
    assert made["trial"] == {**ours, "lastFlip": "2026-01-03T00:00:00Z", "lastRequest": "of 2026-01-03T00:00:00Z"}
    assert trials.told() == (("agents/next", json.dumps(trial("2026-01-03T00:00:00Z")).encode()),)
    for held in (trial("2026-01-01T12:00:00Z"), trial("2026-01-03T00:00:00Z", "b"), trial("2025-12-31T00:00:00Z"), {}):
        server.hold(held)
        assert trials.completed(KEY, status(ours)) == status(ours)
    assert trials.completed(("", "Service", "agents", "b"), b"{}") == b"{}"


def test_a_status_keeps_earlier_counts_until_this_gateway_goes_on_from_them():
    earlier = {**trial(), "since": "2025-12-01T00:00:00Z"}
    server = Server(earlier)
    server.held_s = 5.0
    trials = server.trials(trial())
    assert (trials.left_s(KEY), trials.left_s(None)) == (0.0, 5.0)
    trials.show({KEY: status(earlier)})
    assert trials.left_s(KEY) == 5.0
    trials = server.trials(trial())
    server.now = JOIN_S - 1
    trials.show({KEY: status(trial())})
    assert trials.left_s(KEY) == 0.0
    server.now = JOIN_S  # nobody can go on from these
    assert trials.left_s(KEY) == 5.0
    server.hold({**earlier, "digest": "b"})
    assert server.trials(trial()).left_s(KEY) == 5.0
