"""A small DNS server on loopback, UDP and TCP, with a zone of scripted answers."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from dnslib import AAAA, CNAME, EDNS0, PTR, QTYPE, RCODE, RR, SOA, A, DNSRecord


@dataclass
class Rule:
    """How a name is answered. `records` are addresses and, ending in a dot, CNAME targets, followed in the zone; under
    a name in in-addr.arpa or ip6.arpa, names without that dot.
    """

    records: tuple[str, ...] = ()
    ttl: int = 30
    rcode: str = "NOERROR"
    edns_rcode: str = ""  # of a server that does not know EDNS, to queries with an OPT record
    soa: int = -1  # minimum of an SOA record in the authority section
    delay_s: float = 0.0
    silent: bool = False
    truncated: bool = False  # over UDP
    wrong_id: bool = False
    wrong_question: bool = False
    raw: bytes | None = None  # everything after the id
    extra: tuple[tuple[str, str], ...] = ()  # records of other names
    only: str = ""  # "A" or "AAAA": the rule holds for this type, the other gets nothing at all
    authentic: bool = False  # the AD bit
    silent_to_edns: bool = False  # where the query has one
    silent_to_plain: bool = False  # where the query has no OPT record
    gate: asyncio.Event | None = field(default=None, repr=False)


ATTEMPTS = 20


class DnsServer(asyncio.DatagramProtocol):
    """`zone` maps names to rules and may be changed at any time; `queries` counts (name, type, "udp" or "tcp")."""

    def __init__(self, zone: dict[str, Rule]) -> None:
        self.zone = zone
        self.queries: Counter[tuple[str, str, str]] = Counter()
        self.plain = 0  # queries without an OPT record
        self.asked_authentic: set[str] = set()  # names of queries with the AD bit
        self.seen = asyncio.Event()
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._transport: Any = None
        self._tcp: asyncio.Server | None = None

    async def start(self, address: str = "127.0.0.1") -> DnsServer:
        loop = asyncio.get_running_loop()
        last: OSError | None = None
        for _ in range(ATTEMPTS):  # a port that is free for TCP may be somebody's for UDP
            self._tcp = await asyncio.start_server(self._serve_tcp, address, 0)
            self.port = self._tcp.sockets[0].getsockname()[1]
            try:
                self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(address, self.port))
            except OSError as error:
                self._tcp.close()
                last = error
                continue
            return self
        raise AssertionError(f"no port is free for both UDP and TCP at {address}") from last

    def stop(self) -> None:
        self._transport.close()
        assert self._tcp
        self._tcp.close()
        for task in self._tasks:
            task.cancel()

    def count(self, name: str, kind: str = "A") -> int:
        return self.queries[name, kind, "udp"] + self.queries[name, kind, "tcp"]

    def datagram_received(self, data: bytes, addr: Any) -> None:
        async def reply() -> None:
            for answer in await self._answers(data, "udp"):
                self._transport.sendto(answer, addr)

        task = asyncio.get_running_loop().create_task(reply())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            size = struct.unpack("!H", await reader.readexactly(2))[0]
            for answer in await self._answers(await reader.readexactly(size), "tcp"):
                writer.write(struct.pack("!H", len(answer)) + answer)
            await writer.drain()
        except (EOFError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answers(self, data: bytes, transport: str) -> list[bytes]:
        query = DNSRecord.parse(data)
        name, kind = str(query.q.qname).rstrip(".").lower(), QTYPE[query.q.qtype]
        self.queries[name, kind, transport] += 1
        self.seen.set()
        if query.header.ad:
            self.asked_authentic.add(name)
        rule = self.zone.get(name) or self.zone.get("*") or Rule(rcode="NXDOMAIN", soa=5)
        if rule.only and kind != rule.only:
            rule = Rule(silent=True)
        if rule.gate is not None:
            await rule.gate.wait()
        await asyncio.sleep(rule.delay_s)
        if rule.silent:
            return []
        if rule.raw is not None:
            return [data[:2] + rule.raw]
        reply = query.reply()
        reply.header.ad = rule.authentic
        reply.header.rcode = getattr(RCODE, rule.rcode)
        if query.ar:
            if rule.silent_to_edns:
                return []
            if rule.edns_rcode:
                reply.header.rcode = getattr(RCODE, rule.edns_rcode)
                return [reply.pack()]
            reply.add_ar(EDNS0(udp_len=1232))
        else:
            self.plain += 1
            if rule.silent_to_plain:
                return []
        if rule.truncated and transport == "udp":
            reply.header.tc = 1
            return [reply.pack()]
        self._add(reply, name, kind, rule)
        for other, address in rule.extra:
            reply.add_answer(RR(other, QTYPE.A, rdata=A(address), ttl=300))
        if rule.soa >= 0:
            soa = SOA("ns.test", "root.test", (1, 60, 60, 60, rule.soa))
            reply.add_auth(RR("test", QTYPE.SOA, rdata=soa, ttl=3600))
        answer = reply.pack()
        if rule.wrong_id:
            answer = bytes([answer[0] ^ 0x5A]) + answer[1:]
        if rule.wrong_question:
            answer = answer.replace(name.split(".")[0].encode(), b"z" * len(name.split(".")[0]))
        return [answer]

    def _add(self, reply: DNSRecord, name: str, kind: str, rule: Rule, depth: int = 0) -> None:
        for record in rule.records:
            if record.endswith("."):
                reply.add_answer(RR(name, QTYPE.CNAME, rdata=CNAME(record), ttl=rule.ttl))
                target = record.rstrip(".")
                if target in self.zone and depth < 40:
                    self._add(reply, target, kind, self.zone[target], depth + 1)
            elif kind == "PTR":
                reply.add_answer(RR(name, QTYPE.PTR, rdata=PTR(record), ttl=rule.ttl))
            elif (":" in record) == (kind == "AAAA"):
                data = AAAA(list(ip_address(record).packed)) if kind == "AAAA" else A(record)
                reply.add_answer(RR(name, getattr(QTYPE, kind), rdata=data, ttl=rule.ttl))
