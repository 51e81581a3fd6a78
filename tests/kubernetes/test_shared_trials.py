"""What gateways tell each other of policies on trial."""

from __future__ import annotations

import json
from typing import Any

from egressproxy.config.served_kinds import CONFIGURED
from egressproxy.kubernetes.api_client import ApiError
from egressproxy.kubernetes.object_store import ObjectStore, Scope, stored
from egressproxy.kubernetes.shared_trials import JOIN_S, SharedTrials

SCOPE = Scope(next(kind for kind in CONFIGURED if kind.kind == "EgressPolicy"))
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

    def hold(self, held: dict[str, Any]) -> None:
        value = {
            "apiVersion": "egressproxy.io/v1alpha1", "kind": "EgressPolicy", "spec": {}, "status": {"trial": held},
            "metadata": {"name": "next", "namespace": "agents", "resourceVersion": "7"},
        }  # fmt: skip
        self.store.put(SCOPE, *stored(value, SCOPE, "v1alpha1"))

    async def send(self, _method: str, path: str, _params: None, body: Any, _content_type: str) -> dict[str, Any]:
        self.written.append((path, body))
        if self.refuses:
            raise ApiError(self.refuses, "Refused", "no")
        return {}

    def trials(self, ours: dict[str, Any]) -> SharedTrials:
        made = SharedTrials(self, self.store, lambda _key: self.held_s, lambda: self.now)  # type: ignore[arg-type]
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


async def test_a_refused_flip_is_not_tried_again_and_a_failed_one_is():
    server = Server(trial())
    trials = server.trials(trial("2026-01-03T00:00:00Z"))
    for server.refuses, count in ((503, 1), (409, 2), (403, 3), (403, 3)):
        await trials.write()
        assert len(server.written) == count
    trials.show({KEY: status(trial("2026-01-04T00:00:00Z"))})
    await trials.write()
    assert len(server.written) == 4


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
