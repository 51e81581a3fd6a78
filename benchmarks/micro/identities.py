"""Exchanges of clients that are known, and have limits: of one client, and of 2,000 in turn.

Who the client is, is told here: how that is learned (a token, a certificate) has its own price.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import cast

from benchmarks.micro.codec import SMALL_RESPONSE
from benchmarks.micro.exchange import PLAIN, SMALL_GET, stage
from benchmarks.micro.stage import Stage
from egressproxy.gateway.exchange.client_connection import ClientConnection
from egressproxy.model.caller_identity import CallerIdentity, service_account_name
from tests.support.conversation import Conversation, MemoryPeer

CLIENTS = 2000

LIMITED = PLAIN + "  limits: {requests: [{per: Identity, limit: 1000000000, window: 1s}]}\n"
TENANT = """---
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {{name: tenant{0}}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: gw}}]
  subjects: [{{namespace: tenant{0}}}]
  destinations: {{allow: [{{hostnames: [api{0}.example.com]}}]}}
  limits: {{requests: [{{per: Identity, limit: 1000000000, window: 1s}}]}}
"""


def stages() -> Iterator[Stage]:
    yield known("one client, one limit per Identity", LIMITED, 1)
    yield known(f"{CLIENTS} clients in turn, one limit per Identity", LIMITED, CLIENTS)
    yield known("one client, a policy with its limit", PLAIN + TENANT.format(0), 1)
    of_all = PLAIN + "".join(map(TENANT.format, range(CLIENTS)))
    yield known(f"{CLIENTS} clients in turn, a policy with a limit for each", of_all, CLIENTS)


def known(name: str, manifests: str, count: int) -> Stage:
    """Requests on one connection, each of the next of so many clients, who have been here before."""
    talk = Conversation(manifests, {}, is_memory=True)
    client = cast(MemoryPeer, talk.client)
    talk.log_nothing()
    (connection,) = talk.ports[0].state.connections
    assert isinstance(connection, ClientConnection)
    clients = [
        CallerIdentity(f"tenant{number}", "robot", name=service_account_name(f"tenant{number}", "robot"))
        for number in range(count)
    ]
    in_turn = itertools.cycle(clients)
    origin: MemoryPeer | None = None
    for _ in range(count):
        connection.identity = next(in_turn)
        client >> SMALL_GET
        if origin is None:
            origin = cast(MemoryPeer, talk.dialled("api.example.com", 80))
        origin >> SMALL_RESPONSE
        client.received.clear()
        origin.received.clear()

    def request() -> bytes:
        connection.identity = next(in_turn)
        return SMALL_GET

    assert origin is not None
    return stage(name, talk, client, origin, request, lambda: SMALL_RESPONSE, "identities")
