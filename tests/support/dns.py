"""A DNS server for tests: answers from a table, over UDP and TCP on one loopback port, in threads of its own.

    with DnsServer({"origin.test": ["127.0.0.2"], "*.wild.test": ["127.0.0.3", "::1"]}) as dns:
        ...  # dns.address is "127.0.0.1:PORT", dns.queries what was asked

A name that is not in the table does not exist (NXDOMAIN); a name without addresses of the family asked for has no data.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType

from dnslib import AAAA, CNAME, QTYPE, RCODE, RR, A, DNSRecord

__all__ = ["DnsServer", "Fault"]


class Fault(Enum):
    """What goes wrong for a name, instead of an answer."""

    SERVFAIL = "servfail"
    SILENCE = "silence"  # the query is never answered
    TRUNCATED = "truncated"  # over UDP an empty answer with the TC bit, over TCP the real one
    WRONG_ID = "wrong_id"  # an answer to a question that was not asked


@dataclass
class DnsServer:
    """The table may be changed while it runs. `aliases` are CNAMEs, `delay_s` is waited before every answer.

    `queries` are the `(name, type, transport)` seen so far: type "A" or "AAAA", transport "udp" or "tcp".
    """

    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ttl: int = 60
    host: str = "127.0.0.1"
    aliases: dict[str, str] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    delay_s: float = 0.0
    queries: list[tuple[str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = {name.lower(): list(addresses) for name, addresses in self.names.items()}
        self._udp, self._tcp = _sockets(self.host)
        self.port: int = self._udp.getsockname()[1]
        self._threads = [threading.Thread(target=serve, daemon=True) for serve in (self._serve_udp, self._serve_tcp)]

    @property
    def address(self) -> str:
        """As an EgressPolicy's `dns.servers` wants it."""
        return f"{self.host}:{self.port}"

    def set(self, name: str, *addresses: str) -> None:
        """Add or change a name; without addresses it exists and has no data."""
        self.names = {**self.names, name.lower(): list(addresses)}

    def remove(self, name: str) -> None:
        self.names = {key: value for key, value in self.names.items() if key != name.lower()}

    def asked(self, name: str) -> int:
        """How many queries there were for this name, of any type."""
        return sum(query[0] == name for query in self.queries)

    def start(self) -> DnsServer:
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Close both sockets; a thread that waits on one ends with it."""
        for sock in (self._udp, self._tcp):
            with suppress(OSError):  # a UDP socket that is not connected says so, and wakes its reader all the same
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def __enter__(self) -> DnsServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _serve_udp(self) -> None:
        while True:
            try:
                data, peer = self._udp.recvfrom(4096)
            except OSError:
                return
            if not data:
                return
            threading.Thread(target=self._reply_udp, args=(data, peer), daemon=True).start()

    def _reply_udp(self, data: bytes, peer: tuple[str, int]) -> None:
        reply = self._answer(data, "udp")
        if reply is not None:
            with suppress(OSError):  # the server was stopped, or the client's socket is gone
                self._udp.sendto(reply, peer)

    def _serve_tcp(self) -> None:
        while True:
            try:
                connection, _ = self._tcp.accept()
            except OSError:
                return
            threading.Thread(target=self._serve_stream, args=(connection,), daemon=True).start()

    def _serve_stream(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while len(prefix := stream.read(2)) == 2:
                reply = self._answer(stream.read(struct.unpack("!H", prefix)[0]), "tcp")
                if reply is None:
                    return
                connection.sendall(struct.pack("!H", len(reply)) + reply)

    def _answer(self, data: bytes, transport: str) -> bytes | None:
        query = DNSRecord.parse(data)
        name = str(query.q.qname).rstrip(".").lower()
        kind = QTYPE[query.q.qtype]
        self.queries.append((name, kind, transport))
        if self.delay_s:
            time.sleep(self.delay_s)
        fault = self.faults.get(name)
        reply = query.reply()
        if fault is Fault.SILENCE:
            return None
        if fault is Fault.SERVFAIL:
            reply.header.rcode = RCODE.SERVFAIL
        elif fault is Fault.TRUNCATED and transport == "udp":
            reply.header.tc = 1
        else:
            self._fill(reply, name, kind)
        if fault is Fault.WRONG_ID:
            reply.header.id ^= 0x5555
        packed: bytes = reply.pack()
        return packed

    def _fill(self, reply: DNSRecord, name: str, kind: str) -> None:
        owner = name
        for _ in range(16):  # a table with a loop in it answers with the loop, and ends here
            target = self.aliases.get(owner)
            if target is None:
                break
            reply.add_answer(RR(owner, QTYPE.CNAME, rdata=CNAME(target), ttl=self.ttl))
            owner = target
        addresses = self._lookup(owner)
        if addresses is None:
            reply.header.rcode = RCODE.NXDOMAIN
            return
        for address in addresses:
            if (":" in address) == (kind == "AAAA") and kind in ("A", "AAAA"):
                data = AAAA(address) if kind == "AAAA" else A(address)
                reply.add_answer(RR(owner, QTYPE.AAAA if kind == "AAAA" else QTYPE.A, rdata=data, ttl=self.ttl))

    def _lookup(self, name: str) -> Sequence[str] | None:
        """The addresses of a name, those of the nearest wildcard above it, or None."""
        found = self.names.get(name)
        suffix = name
        while found is None and "." in suffix:
            suffix = suffix.partition(".")[2]
            found = self.names.get(f"*.{suffix}")
        return found


def _sockets(host: str) -> tuple[socket.socket, socket.socket]:
    """A UDP and a TCP socket on one free port."""
    for _ in range(50):
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind((host, 0))
        tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            tcp.bind((host, udp.getsockname()[1]))
        except OSError:
            udp.close()
            tcp.close()
            continue
        tcp.listen(64)
        return udp, tcp
    raise RuntimeError(f"no port is free for UDP and TCP on {host}")
