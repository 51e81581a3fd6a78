"""Where connections to backends go out from: what an origin on loopback sees of it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from ipaddress import ip_address
from typing import Any

import pytest
import yaml

from egressproxy.config.reading.problems import ConfigError
from egressproxy.errors import Reason, UpstreamFault
from egressproxy.gateway.builders.snapshot_builder import offline
from egressproxy.ir.policy import SourceAddressIR
from egressproxy.net.listening import why_unusable
from egressproxy.net.loop import new_loop
from egressproxy.operators.explain.explain import explain
from egressproxy.operators.explain.hypothetical_request import HypotheticalRequest
from egressproxy.upstream.dialer import Dialer
from egressproxy.upstream.source_address import SourceAddress, SourceChooser
from tests.config.compile import kit
from tests.gateway.kit import forward
from tests.support import manifests as m
from tests.support.conversation import compiled_spec


def dialled(source: SourceAddress | None, *hosts: str) -> str:
    """The address that a server on loopback sees, behind these hosts. Raises UpstreamFault."""

    async def dial(port: int) -> None:
        targets = [(ip_address(host), port) for host in hosts]
        transport, _, _ = await Dialer().dial(targets, asyncio.Protocol, timeout_s=5, source=source)
        transport.close()

    with ExitStack() as stack:
        family = socket.AF_INET6 if all(":" in host for host in hosts) else socket.AF_INET
        server = stack.enter_context(socket.create_server(("", 0), family=family))
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(dial(server.getsockname()[1]))
        sock, (peer, *_) = server.accept()
        sock.close()
    return str(peer)


@pytest.mark.parametrize(
    ("source", "host", "seen"),
    [
        (None, "127.0.0.1", "127.0.0.1"),
        (SourceAddress("127.0.0.2", "", ""), "127.0.0.1", "127.0.0.2"),
        (SourceAddress("127.0.0.2", "::1", "lo"), "127.0.0.1", "127.0.0.2"),
        (SourceAddress("", "", "lo"), "127.0.0.3", "127.0.0.1"),
        (SourceAddress("127.0.0.2", "::1", ""), "::1", "::1"),
    ],
)
def test_a_connection_goes_out_from_its_source(source: SourceAddress | None, host: str, seen: str):
    assert dialled(source, host) == seen


@pytest.mark.parametrize(
    ("source", "host", "detail"),
    [
        (SourceAddress("127.0.0.2", "", ""), "::1", "not tried, since sourceAddress has no IPv6 address"),
        (SourceAddress("", "::1", ""), "127.0.0.1", "not tried, since sourceAddress has no IPv4 address"),
        (SourceAddress("192.0.2.7", "", ""), "127.0.0.1", "cannot go out from 192.0.2.7 of sourceAddress"),
        (SourceAddress("", "", "nosuchif0"), "127.0.0.1", "cannot go out from nosuchif0 of sourceAddress"),
    ],
)
def test_it_never_goes_out_from_another_one(source: SourceAddress, host: str, detail: str):
    with pytest.raises(UpstreamFault) as caught:
        dialled(source, host)
    assert caught.value.reason is Reason.CONNECT_FAILED
    assert "source address of the configuration" in caught.value.message
    assert detail in caught.value.detail


def test_a_family_without_a_source_is_passed_over():
    assert dialled(SourceAddress("127.0.0.2", "", ""), "::1", "127.0.0.1") == "127.0.0.2"


# --- a pool ----------------------------------------------------------------------------------------------------------
def test_each_identity_has_an_address_of_the_pool_and_keeps_it_when_others_come():
    pool = tuple(ip_address(f"127.0.0.{number}") for number in range(2, 10))
    clients = [f"agents/client-{number}" for number in range(200)]
    small, large = SourceChooser(SourceAddressIR(pool=pool[:-1])), SourceChooser(SourceAddressIR(pool=pool))

    def address(chooser: SourceChooser, client: str) -> str:
        return chooser.choose(client).told()["ipv4"]

    assert {address(small, client) for client in clients} == set(map(str, pool[:-1]))
    moved = [client for client in clients if address(small, client) != address(large, client)]
    assert {address(large, client) for client in moved} == {"127.0.0.9"}
    assert len(moved) < 60


def test_a_pool_of_both_families_gives_one_of_each():
    pool = tuple(map(ip_address, ("127.0.0.2", "::2", "127.0.0.3", "::3")))
    told = SourceChooser(SourceAddressIR(pool=pool, interface="lo")).choose("x").told()
    assert set(told) == {"ipv4", "ipv6", "interface"}


# --- what is written -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "no source is written"),
        ({"addresses": ["127.0.0.2", "127.0.0.3"]}, "two of one family"),
        ({"addresses": ["127.0.0.2"], "pool": ["127.0.0.3"]}, "exclude each other"),
        ({"pool": ["127.0.0.2", "127.0.0.2"]}, "more than once"),
        ({"addresses": ["0.0.0.0"]}, "no address of a machine"),
        ({"addresses": ["fe80::1"]}, "link-local"),
        ({"addresses": ["::ffff:192.0.2.1"]}, "is an IPv4 address"),
        ({"interface": "a/b"}, "interface"),
        ({"interface": "sixteen-letters-"}, "interface"),
    ],
)
def test_a_source_that_is_none_is_refused(section: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        compiled_spec(forward(sourceAddress=section))


def named(name: str = "a", **section: Any) -> m.Manifest:
    made = m.backend(name, f"{name}.example", 80)
    if section:
        made["spec"]["sourceAddress"] = section
    return made


def explained(objects: list[m.Manifest], **more: str) -> dict[str, Any]:
    async def answered() -> dict[str, Any]:
        asked = HypotheticalRequest.of([("method", "GET"), ("url", "http://a.example/"), *more.items()])
        return await explain(offline(compiled_spec(objects)), asked)

    found: dict[str, Any] = asyncio.run(answered())["backends"][0]["sourceAddress"]
    return found


def test_explain_tells_the_source_and_who_says_so():
    routed = m.http_route("route", m.prefix_rule("/", "a"), hostnames=["a.example"])
    objects = forward(routed, named(addresses=["127.0.0.2"]), sourceAddress={"interface": "lo"})
    assert explained(objects) == {"ipv4": "127.0.0.2", "from": "Backend agents/a"}
    objects = forward(routed, named(), sourceAddress={"interface": "lo"})
    assert explained(objects) == {"interface": "lo", "from": "EgressPolicy agents/default"}


def degraded(objects: list[m.Manifest], kind: str) -> list[str]:
    """What the status of an object says of sources that this machine has not."""
    made = kit.compiled(*(yaml.safe_dump(each) for each in objects), why_unusable=why_unusable)
    (status,) = (status for key, status in made.statuses.items() if key[1] == kind)
    found = m.conditions_of(dict(status))
    return [each["message"] for each in found if each["reason"] == "SourceAddressNotUsable"]


def test_what_this_machine_has_not_is_told_in_status():
    section = {"addresses": ["127.0.0.2", "2001:db8::7"], "interface": "nosuchif0"}
    for objects, kind in (
        ([*forward(), named(**section)], "Backend"),
        (forward(sourceAddress=section), "EgressPolicy"),
    ):
        (message,) = degraded(objects, kind)
        assert "spec.sourceAddress.addresses[1]: 2001:db8::7 is not on this machine" in message
        assert "spec.sourceAddress.interface: nosuchif0 is not on this machine (no such interface)" in message
        assert "127.0.0.2" not in message
    assert degraded(forward(sourceAddress={"pool": ["127.0.0.2"], "interface": "lo"}), "EgressPolicy") == []


def test_a_policy_of_another_namespace_may_not_choose_a_source():
    theirs = m.policy(["b.example"], name="theirs", namespace="team", sourceAddress={"addresses": ["127.0.0.2"]})
    theirs["spec"]["targetRefs"][0]["namespace"] = "agents"
    grant = m.manifest(
        "gateway.networking.k8s.io/v1beta1", "ReferenceGrant", "team", "agents",
        spec={
            "from": [{"group": m.OURS, "kind": "EgressPolicy", "namespace": "team"}],
            "to": [{"group": m.GATEWAY_API, "kind": "Gateway"}],
        },
    )  # fmt: skip
    made = kit.compiled(*(yaml.safe_dump(each) for each in [*forward(), theirs, grant]))
    (status,) = (status for key, status in made.statuses.items() if key[3] == "theirs")
    assert "sourceAddress is for policies of namespace agents" in str(m.conditions_of(dict(status)))
