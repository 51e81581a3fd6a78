"""Whom a connection serves alone, where each client identity has its own source."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from egressproxy.filters.testing import exchange
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.builders.snapshot_builder import offline
from egressproxy.model.caller_identity import CallerIdentity
from tests.gateway.kit import forward
from tests.gateway.test_access_policies import KNOWN
from tests.support import manifests as m
from tests.support.conversation import compiled_spec

POOL = {"pool": ["127.0.1.1", "127.0.1.2"]}


def serves(objects: list[m.Manifest], namespace: str, name: str) -> str:
    """What a connection of the default route serves, for a client."""

    async def asked() -> str:
        (port,) = offline(compiled_spec(objects)).ports.values()
        defaults = port.listeners[0].defaults
        assert defaults is not None
        cluster = defaults.route.backends[0].cluster
        assert isinstance(cluster, Cluster)
        made: Any = exchange("GET", "http://a.example/")
        made.identity = CallerIdentity(namespace=namespace, name=name)
        return cluster._partition_of(made)

    return asyncio.run(asked())


def test_a_parent_that_has_a_pool_keeps_the_connections_through_it_apart():
    parent = m.backend("corp", "proxy.test", 3128)
    parent["spec"]["sourceAddress"] = POOL
    objects = forward(parent, parent={"name": "corp"})
    assert serves(objects, "-", "one") != serves(objects, "-", "two")


@pytest.mark.parametrize("shares", [False, True])
def test_a_pool_does_not_join_tenants(shares: bool):
    objects = forward(sourceAddress=POOL, identity=KNOWN, traffic={"connections": {"shareTenants": shares}})
    assert (serves(objects, "a", "robot") == serves(objects, "b", "robot")) is shares
