"""What is in service: limits, backends and Secrets, without a value of one."""

from __future__ import annotations

from typing import Any

from egressproxy.model.work import at_once
from egressproxy.operators.explain import merging
from egressproxy.operators.explain.in_service import backends, credentials, limits
from tests.gateway.conftest import Start
from tests.gateway.kit import exchange, forward, reverse
from tests.operators.explain.test_decision import octets, sent
from tests.support import manifests as m
from tests.support.conversation import Conversation


def left(talk: Conversation) -> list[tuple[str, Any, Any]]:
    found = at_once(limits(talk.snapshot, talk.connection_manager.accounting))
    assert len({each["key"] for each in found}) == len(found)
    return [(each["name"], each["left"], each["client"]) for each in found]


def shown(talk: Conversation) -> list[dict[str, Any]]:
    return merging.backends([at_once(backends(talk.snapshot, talk.connection_manager.accounting))])


def test_each_count_is_told_once_the_least_left_first(converse: Start):
    requests = [{"per": "Gateway", "limit": 4, "window": "1h"}, {"per": "Identity", "limit": 2, "window": "1h"}]
    talk = converse(forward(limits={"requests": requests, "concurrency": [{"per": "Gateway", "limit": 7}]}))
    assert left(talk) == []
    exchange(talk)
    assert left(talk) == [("limits.requests[0]", 3, "-"), ("limits.concurrency[0]", 7, "-")]
    exchange(talk, is_new=False)
    sent(talk, octets("GET", "http://a.example/", ()))  # one too many of this address, which is known from then on
    assert left(talk)[0] == ("requests-3600s-identity", 0, talk.record(2)["client"].rpartition(":")[0])


def test_backends_have_their_endpoints_and_numbers(converse: Start):
    talk = converse(reverse())
    (found,) = shown(talk)
    assert (found["name"], found["destination"], found["active"], found["limits_reached"]) == (
        "agents/a",
        "Fqdn",
        0,
        [],
    )
    assert found["hosts"] == [
        {"address": "a.example:80", "healthy": True, "ejected": False, "state": "not watched", "workers": 1}
    ]


def test_watched_endpoints_have_their_state(converse: Start):
    watched = {"healthCheck": {"passive": {"consecutive5XxErrors": 1}}}
    rule = m.prefix_rule("/", "ip")
    talk = converse(reverse(rule, objects=(m.ip_backend("ip", 80, "192.0.2.1"),), traffic=watched))
    for cluster in talk.snapshot.clusters.values():
        for health in cluster.host_set.healths() if cluster.host_set is not None else ():
            health.state = type(health.state).EJECTED
    hosts = {host["address"]: host for each in shown(talk) for host in each["hosts"]}
    assert hosts["192.0.2.1:80"]["state"] == "ejected"
    assert (hosts["192.0.2.1:80"]["healthy"], hosts["192.0.2.1:80"]["ejected"]) == (False, True)


def test_credentials_are_named_and_not_shown(converse: Start):
    config = {"secretRef": {"name": "key", "key": "token"}, "header": "X-Key", "allowPlaintext": True}
    injector = {
        "name": "c",
        "type": "egressproxy.io/CredentialInjector:v1",
        "phase": "backend-request",
        "config": config,
    }
    backend = m.backend("with", "with.example", 80, extensions=[injector])
    talk = converse(reverse(m.prefix_rule("/", "with"), objects=(backend, m.secret("key", {"token": "hush"}))))
    found = at_once(credentials(talk.snapshot, talk.connection_manager.accounting))
    assert [(each["from"], each["filter"], each["secret"], each["present"]) for each in found] == [
        ("Backend agents/with", "c", "key/token", True)
    ]
    assert "hush" not in str(found)
