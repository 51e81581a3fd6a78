"""The name server's decisions and limits, on a snapshot, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from typing import Any

import dns.message
import dns.rcode
import pytest

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.filters.catalog import Catalog
from egressproxy.gateway.backends.network import Network
from egressproxy.gateway.builders.snapshot_builder import build
from egressproxy.gateway.exchange.accounting import Accounting
from egressproxy.gateway.identity.killed_identities import KilledIdentities, KilledIdentity
from egressproxy.gateway.listeners.name_decision import NamedPorts
from egressproxy.gateway.listeners.name_server import NameServer
from egressproxy.gateway.overload.request_gate import RequestGate
from egressproxy.ir.policy import DestinationRule, DestinationsIR
from egressproxy.net.keyed_counters import OwnCounters
from egressproxy.net.timers import TimerWheel
from egressproxy.telemetry.metrics import Metrics
from egressproxy.upstream.dns_client import ASKING
from egressproxy.upstream.dns_server import Server, parse_server
from egressproxy.upstream.own_sockets import OwnSockets
from tests.support import manifests as m
from tests.support.conversation import Names, Records, compiled_spec

CLIENT = "10.1.0.7:5353"


class Zone(Names):
    """What is looked up, and by which servers."""

    def __init__(self) -> None:
        super().__init__()
        self.servers: tuple[Server, ...] = ()
        self.asked: list[str] = []

    def known(self, host: str) -> None:
        return None

    def servers_for(self, _host: str) -> tuple[tuple[Server, ...], list[str]]:
        return self.servers, []

    def why_not_asked(self, _host: str) -> str:
        return ""

    def resolve(self, host: str, client: str = "", identity: str = "") -> asyncio.Future[Any]:
        self.asked.append(host)
        return super().resolve(host, client, identity)


class Asked:
    """A name server with this configuration."""

    def __init__(self, *objects: m.Manifest) -> None:
        self.loop = asyncio.new_event_loop()
        self.metrics, self.log, self.names = Metrics("0"), Records(), Zone()
        self.network = Network(self.loop, TimerWheel(), b"gw")
        self.network.resolver = lambda _spec: self.names  # type: ignore[method-assign, assignment, return-value]
        self.catalog = Catalog(())
        listener = {"name": "dns", "port": 53, "protocol": "egressproxy.io/dns"}
        written = [m.gateway(listener), *objects]
        self.accounting = Accounting(self.network.wheel, self.log.access_log, b"gw", self.metrics)
        self.accounting.gate = RequestGate()
        self.snapshot = build(compiled_spec(written, self.catalog), self.catalog, self.network, self.metrics, None)
        self.port = next(iter(self.snapshot.ports.values()))
        self.server = NameServer(self.accounting, self.network, self.metrics, OwnCounters().keyed)

    def send(self, wire: bytes, client: str = CLIENT, *, is_tcp: bool = False) -> list[bytes]:
        """The responses to these bytes, once nothing more is to come."""
        sent: list[bytes] = []

        async def answer() -> None:
            self.server.answer(wire, client, self.port, sent.append, is_tcp=is_tcp)
            for _ in range(3):
                await asyncio.sleep(0)

        self.loop.run_until_complete(answer())
        return sent

    def ask(self, name: str, kind: str = "A", client: str = CLIENT, *, is_tcp: bool = False) -> dns.message.Message:
        (response,) = self.send(dns.message.make_query(name, kind, use_edns=0).to_wire(), client, is_tcp=is_tcp)
        return dns.message.from_wire(response)

    def code(self, name: str, kind: str = "A", client: str = CLIENT) -> str:
        return dns.rcode.to_text(self.ask(name, kind, client).rcode())

    def addresses(self, name: str, kind: str = "A") -> list[str]:
        return [record.to_text() for records in self.ask(name, kind).answer for record in records]

    def why(self, name: str, kind: str = "A") -> tuple[int, str]:
        (told,) = self.ask(name, kind).options
        return told.code, told.text

    @property
    def record(self) -> dict[str, Any]:
        self.log.access_log.flush()
        return self.log.lines[-1]

    def close(self) -> None:
        assert not self.accounting.gate.active, "a query counts for ever"  # type: ignore[union-attr]
        assert not self.server._waiting.total
        self.snapshot.filters.close()
        self.loop.close()


@pytest.fixture
def start() -> Iterator[Any]:
    made: list[Asked] = []

    def begin(*objects: m.Manifest) -> Asked:
        made.append(Asked(*objects))
        return made[-1]

    yield begin
    for each in made:
        each.close()


def allowing(*entries: m.Manifest | str, deny: Iterable[m.Manifest] = (), **sections: Any) -> m.Manifest:
    allow = [{"hostnames": [each]} if isinstance(each, str) else each for each in entries]
    return m.policy(destinations={"allow": allow, "deny": list(deny)}, **sections)


def test_only_names_that_policy_allows_are_looked_up(start: Any):
    asked = start(allowing("a.example", message="ask the platform team"))
    asked.names.zone["a.example"] = (ip_address("93.184.216.34"), ip_address("2606:2800:220:1::1"))
    assert asked.addresses("A.exAmple") == ["93.184.216.34"]
    assert asked.addresses("a.example", "AAAA") == ["2606:2800:220:1::1"]
    assert (asked.record["method"], asked.record["authority"], asked.record["dns_code"]) == (
        "AAAA",
        "a.example:443",
        "NOERROR",
    )
    assert asked.code("b.example") == "REFUSED"
    code, text = asked.why("b.example")
    assert code == 15
    assert text.startswith(
        "destination_not_allowed: b.example is not allowed by policy agents/default: ask the platform"
    )
    assert asked.record["reason"] == "destination_not_allowed"
    assert asked.names.asked == ["a.example", "a.example"]
    assert asked.metrics.name_queries[labels("A", "refused")] == 2
    assert not asked.accounting.recent, "no request is remembered that nobody has made"


def labels(kind: str, result: str) -> tuple[str, ...]:
    return "agents/gw", "dns", kind, result, "-", "-"


@pytest.mark.parametrize("kind", ["HTTPS", "SVCB", "TXT", "MX"])
def test_other_types_of_an_allowed_name_have_no_records(start: Any, kind: str):
    """A record with the keys of Encrypted Client Hello would hide names from policy."""
    asked = start(allowing("a.example"))
    assert (asked.code("a.example", kind), asked.addresses("a.example", kind)) == ("NOERROR", [])
    assert asked.code("b.example", kind) == "REFUSED"
    assert asked.names.asked == []


def test_what_is_no_question_about_a_host_is_refused(start: Any):
    asked = start(allowing("*.example", "*.arpa"))
    assert asked.why("7.0.1.10.in-addr.arpa", "PTR")[0] == 21
    assert not asked.metrics.notices.take()
    assert asked.code("a.example", "AXFR") == asked.code(".") == asked.code("127.0.0.1") == "REFUSED"
    assert asked.code("x\\ y.example") == "REFUSED"
    (response,) = asked.send(dns.message.make_query("version.bind", "TXT", "CH").to_wire())
    assert dns.message.from_wire(response).rcode() == dns.rcode.REFUSED
    assert asked.send(dns.message.make_response(dns.message.make_query("a.example", "A")).to_wire()) == [b""]
    assert asked.names.asked == []


@pytest.mark.parametrize(
    ("entries", "deny", "is_answered"),
    [
        ([{"hostnames": ["a.example"], "ports": [8443]}], [], True),
        ([{"hostnames": ["a.example"], "ports": [8443]}], [{"hostnames": ["a.example"], "ports": [8443]}], False),
        (["a.example"], [{"hostnames": ["a.example"], "ports": [443, 80]}], True),
        (["a.example"], [{"hostnames": ["*.example"]}], False),
        ([{"hostnames": ["b.example"], "ports": [8443]}], [], False),
        ([], [], False),
    ],
)
def test_a_name_is_answered_if_some_port_is_allowed(start: Any, entries: list[Any], deny: list[Any], is_answered: bool):
    asked = start(allowing(*entries, deny=deny))
    assert asked.code("a.example") == ("NOERROR" if is_answered else "REFUSED")


def test_of_long_lists_the_entries_of_a_host_are_looked_at():
    """A policy has thousands of entries, and a query decides about each port of those for its name."""
    named = NamedPorts()
    rules = [(("a.example", "*.b.example"), (7, 9)), (("*.example",), (9, 10)), ((), (5,)), (("c.test",), ())]
    deny = tuple(DestinationRule(hostnames, ports) for hostnames, ports in rules)
    lists = DestinationsIR(allow=((DestinationRule(("a.example",), (1,)),),), deny=deny)
    for _ in range(2):
        assert {*named.of(lists, "a.example")} == {1, 5, 7, 9, 10}
        assert {*named.of(lists, "x.b.example")} == {5, 7, 9, 10}
        assert {*named.of(lists, "c.test")} == {5}
    assert not [*named.of(DestinationsIR(), "a.example")]
    assert len(named._known) == 2


def test_routes_allow_names(start: Any):
    """As for a request or a CONNECT: by hostname, and on the ports of the backend alone where policy denies others."""
    deny = [{"hostnames": ["denied.example"]}]
    asked = start(
        m.policy(destinations={"deny": deny}),
        m.backend("a", "a.example", 443, tls=True),
        m.http_route("r", m.prefix_rule("/v1", "a"), hostnames=["a.example", "denied.example"]),
        m.tls_route("t", "a", hostnames=["t.example"]),
    )
    assert asked.code("a.example") == "NOERROR"
    assert asked.code("denied.example") == asked.code("c.example") == "REFUSED"
    # The gateway itself dials another name for it.
    assert asked.code("t.example") == "NOERROR"


def test_a_route_whose_backend_is_denied_allows_no_name(start: Any):
    """Random names below its wildcard would be looked up for connections that are all refused."""
    asked = start(
        allowing("both.other", deny=[{"hostnames": ["bad.test"]}]),
        m.backend("bad", "bad.test", 443, tls=True),
        m.http_route("r", m.prefix_rule("/", "bad"), hostnames=["*.example"]),
        m.tls_route("t", "bad", hostnames=["*.other"]),
        m.http_route("gone", m.prefix_rule("/", "nobody"), hostnames=["*.gone"]),
    )
    assert [asked.code(name) for name in ("a.example", "a.other", "a.gone")] == ["REFUSED"] * 3
    assert asked.names.asked == []
    assert asked.code("both.other") == "NOERROR", "requests of plain HTTP may go there"


def test_addresses_are_those_that_may_be_dialled(start: Any):
    """A name that leads to private addresses (DNS rebinding) is denied; of a mixed answer the public ones are left."""
    section = {"allow": [{"cidrs": ["10.0.0.0/8"], "hostnames": ["inner.example"]}]}
    asked = start(allowing("*.example", addresses=section))
    asked.names.zone |= {
        "mixed.example": (ip_address("10.0.0.1"), ip_address("93.184.216.34"), ip_address("169.254.169.254")),
        "inner.example": (ip_address("10.0.0.1"),),
        "rebound.example": (ip_address("127.0.0.1"),),
    }
    assert asked.addresses("mixed.example") == ["93.184.216.34"]
    assert asked.addresses("inner.example") == ["10.0.0.1"]
    assert (asked.code("rebound.example"), asked.record["reason"]) == ("REFUSED", "resolved_denied")
    assert "127.0.0.1" not in asked.why("rebound.example")[1]


def test_each_port_has_the_address_policy_of_its_own_route(start: Any):
    """A private address that the policy of a Backend allows: clients reach it on the port of its route."""
    inside = m.policy(name="inside", addresses={"allow": [{"cidrs": ["10.0.0.0/8"]}]})
    inside["spec"]["targetRefs"] = [{"group": "egressproxy.io", "kind": "Backend", "name": "a"}]
    route = m.tls_route("t", "a", hostnames=["a.example"])
    asked = start(allowing("*.example"), inside, m.backend("a", "a.example", 8443), route)
    asked.names.zone |= dict.fromkeys(("a.example", "b.example"), (ip_address("10.0.0.1"),))
    assert asked.addresses("a.example") == ["10.0.0.1"]
    assert (asked.code("b.example"), asked.record["reason"]) == ("REFUSED", "resolved_denied")


def test_the_address_of_the_gateway_is_the_answer_where_that_is_chosen(start: Any):
    own = {
        "addresses": "Gateway",
        "gatewayAddresses": ["192.0.2.7", "2001:db8::7"],
        "denials": "NXDomain",
        "maxTTL": "5s",
    }
    asked = start(allowing("a.example", nameServer=own))
    assert asked.addresses("a.example") == ["192.0.2.7"]
    assert asked.addresses("a.example", "AAAA") == ["2001:db8::7"]
    assert asked.addresses("egress.internal") == ["192.0.2.7"]
    assert asked.ask("a.example").answer[0].ttl == 5
    assert (asked.code("b.example"), asked.why("b.example")[0]) == ("NXDOMAIN", 15)
    assert asked.names.asked == []


@pytest.mark.parametrize("addresses", ["Resolved", "Gateway"])
def test_a_closed_listener_answers_for_no_name(start: Any, addresses: str):
    own = {"addresses": addresses, "gatewayAddresses": ["192.0.2.7"]}
    unknown = {"name": "x", "type": "acme.example.com/Check:v1", "phase": "connect"}
    asked = start(allowing("a.example", nameServer=own, extensions=[unknown]))
    assert asked.addresses("a.example") == []
    assert asked.record["reason"] == "unknown_extension"


def test_the_ttl_is_that_of_the_answer_within_a_bound(start: Any):
    asked = start(allowing("*.example", nameServer={"maxTTL": "90s"}))
    asked.names.ttl = {"a.example": 30.5, "b.example": 0.2}
    assert [asked.ask(f"{name}.example").answer[0].ttl for name in "abc"] == [30, 1, 90]


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Reason.DNS_NXDOMAIN, "NXDOMAIN"),
        (Reason.DNS_NO_ADDRESS, "NOERROR"),
        (Reason.DNS_SERVFAIL, "SERVFAIL"),
        (Reason.DNS_TIMEOUT, "SERVFAIL"),
    ],
)
def test_what_the_resolver_says_is_passed_on(start: Any, reason: Reason, code: str):
    asked = start(allowing("a.example"))
    asked.names.faults["a.example"] = lambda: UpstreamFault(reason, "no")
    assert (asked.code("a.example"), asked.record["reason"]) == (code, reason.value)


def test_the_client_is_known_by_its_address(start: Any):
    client = {"cidrs": ["10.1.0.0/24"], "namespace": "team-a", "serviceAccount": "agent"}
    asked = start(
        allowing(identity={"address": {"clients": [client]}, "required": True}),
        m.policy(["a.example"], name="theirs", subjects=[{"namespace": "team-a"}]),
    )
    assert asked.code("a.example") == "NOERROR"
    assert (asked.record["namespace"], asked.record["service_account"]) == ("team-a", "agent")
    assert asked.metrics.name_queries["agents/gw", "dns", "A", "noerror", "team-a", "agent"] == 1
    assert asked.ask("a.example", client="10.2.0.7:5353").options[0].code == 18
    assert asked.record["reason"] == "credentials_required"
    killed = KilledIdentity("system:serviceaccount:team-a:agent", "stop")
    asked.accounting.gate.killed = KilledIdentities([killed])
    assert (asked.code("a.example"), asked.record["reason"]) == ("REFUSED", "identity_killed")


# --- limits and attacks ----------------------------------------------------------------------------------------------


def test_a_client_that_asks_too_often_is_told_to_come_over_tcp_or_nothing(start: Any):
    asked = start(allowing("a.example", nameServer={"queries": {"limit": 2, "window": "1h"}}))
    wire = dns.message.make_query("a.example", "A", use_edns=0).to_wire()
    assert [asked.code("a.example") for _ in range(2)] == ["NOERROR"] * 2
    sent = [asked.send(wire)[0] for _ in range(4)]
    assert sorted(map(len, sent)) == [0, 0, len(wire), len(wire)]
    assert asked.code("a.example", client="10.1.0.8:1") == "NOERROR", "others are served"
    over_tcp = [dns.rcode.to_text(asked.ask("a.example", is_tcp=True).rcode()) for _ in range(3)]
    assert over_tcp == ["NOERROR", "NOERROR", "REFUSED"], "datagrams, whose source may be forged, take nothing of it"
    assert asked.send(b"\0\7\1\0\0\2\0\0\0\0\0\0") == [b""], "malformed queries count, too"
    assert asked.metrics.name_queries[labels("A", "limited")] == 5
    assert len(asked.names.asked) == 5
    assert [each.reason for each in asked.metrics.notices.take()] == ["RequestRate"]


def test_names_below_a_wildcard_carry_few_bytes(start: Any):
    """A tunnel through DNS asks for ever new names."""
    asked = start(allowing("*.example.com", nameServer={"newNames": {"limit": 3, "window": "1h"}}))
    codes = [asked.code(f"{'ab' * 30}{number}.example.com") for number in range(5)]
    assert codes == ["NOERROR"] * 3 + ["REFUSED"] * 2
    assert (asked.record["reason"], len(asked.names.asked)) == ("dns_new_names", 3)
    assert asked.code(f"{'ab' * 30}0.example.com") == "NOERROR", "a name that is known is not new"
    assert asked.why("x.example.com")[0] == 18
    assert "nameServer.newNames" in asked.why("x.example.com")[1]
    assert [each.reason for each in asked.metrics.notices.take()] == ["DnsNewNames"]


def test_queries_that_wait_are_bounded(start: Any):
    asked = start(allowing("*.example"))
    asked.server._waiting.limit = asked.server._waiting.share = 2
    for name in ("a.example", "b.example"):
        asked.names.hold(name)
        assert asked.send(dns.message.make_query(name, "A").to_wire()) == []
    assert asked.code("c.example") == "SERVFAIL"
    assert asked.record["reason"] == "overloaded"
    for held in asked.names.held.values():
        held[0].set_result((ip_address("93.184.216.34"),))
    asked.loop.run_until_complete(asyncio.sleep(0))
    assert asked.code("c.example") == "NOERROR"


def test_a_query_of_the_gateway_itself_is_a_loop(start: Any):
    asked = start(allowing("a.example"))
    ASKING.add(CLIENT)
    try:
        assert (asked.code("a.example"), asked.record["reason"]) == ("REFUSED", "loop_detected")
    finally:
        ASKING.discard(CLIENT)
    asked.network.own = OwnSockets([(ip_address("127.0.0.1"), 53)])
    asked.names.servers = (parse_server("127.0.0.1:53", "udp"),)
    assert (asked.code("a.example"), asked.record["reason"]) == ("REFUSED", "loop_detected")
    assert "dns.servers" in asked.why("a.example")[1]
    assert asked.names.asked == []


def test_mode_report_answers_and_notes(start: Any):
    asked = start(allowing("b.example", mode="Report"))
    assert asked.code("a.example") == "NOERROR"
    assert asked.record["would_deny"] == ["destination_not_allowed"]
