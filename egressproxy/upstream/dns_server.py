"""DNS servers: as they are written, and how a connection to one is opened, over TCP or verified TLS.

Sources: RFC 7766 (TCP), RFC 7858 and RFC 8310 (TLS).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from egressproxy.ir.backend import BackendTlsIR
from egressproxy.net.tls import TlsStream
from egressproxy.net.tls_contexts import client_context
from egressproxy.net.tls_failures import TlsExpectation, tls_fault

_PORTS: Final = {"udp": 53, "tcp": 53, "tls": 853, "https": 443}
#: What the server has to agree to by ALPN, if it says anything: RFC 7858 has none, IANA's registry calls it "dot".
_ALPN: Final = {"tls": ("dot",), "https": ("h2",)}
_CA_REMEDY: Final = "for a private authority, name its certificates in dns.caCertificateRefs"
_NAME_REMEDY: Final = "write the name that the certificate has behind the address of the server: #name"


class DnsTlsFailure(Exception):
    """TLS with a server failed. The text says what it presented, what was expected, and the remedy."""


@dataclass(frozen=True, slots=True)
class Server:
    """`transport` is udp, tcp, tls or https; `name` is what the certificate of a tls or https server has to be for.
    `path` is that of an https server's URL.
    """

    host: str
    port: int
    transport: str
    name: str
    path: str = ""

    @property
    def label(self) -> str:
        """As metrics name it, and as it can be written in a manifest."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.transport}://{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.transport}://{self.host} port {self.port}"


def parse_server(text: str, transport: str = "udp") -> Server:
    """Read `ip`, `ip:port`, `[ip6]:port`, `tls://ip[:port][#name]` or `https://ip[:port][/path][#name]`; `transport`
    holds where no scheme is written, and /dns-query where no path is.

    Raises ValueError that says what is wrong.
    """
    rest, name, path = text, "", ""
    if "://" in rest:
        transport, _, rest = rest.partition("://")
        rest, _, name = rest.partition("#")
    if transport == "https":
        rest, slash, path = rest.partition("/")
        path = slash + path or "/dns-query"
    if transport not in _PORTS:
        raise ValueError(f"DNS server {text!r}: transport {transport!r} is not one of {', '.join(_PORTS)}")
    host, colon, port = rest, "", ""
    if rest.startswith("["):
        host, bracket, tail = rest[1:].partition("]")
        colon, port = tail[:1], tail[1:]
        if not bracket or colon not in ("", ":"):
            host = ""
    elif rest.count(":") == 1:
        host, colon, port = rest.partition(":")
    try:
        ip_address(host)
    except ValueError:
        raise ValueError(f"DNS server {text!r}: has to be an address, with or without port") from None
    if colon and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"DNS server {text!r}: the port has to be a number from 1 to 65535")
    return Server(host, int(port or _PORTS[transport]), transport, name or host, path)


async def open_connection(server: Server, tls: BackendTlsIR, protocol: asyncio.Protocol) -> None:
    """Connect this protocol to the server: with TLS that is verified under `tls` where its transport has it.

    Raises OSError, or DnsTlsFailure.
    """
    loop = asyncio.get_running_loop()
    if server.transport not in _ALPN:
        await loop.create_connection(lambda: protocol, server.host, server.port)
        return
    done: asyncio.Future[None] = loop.create_future()

    def on_handshake(stream: TlsStream, error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
            return
        fault = tls_fault(error, expected=expected, peer=stream.get_extra_info("ssl_object"))
        remedy = f" ({fault.remedy})" if fault.remedy else ""
        done.set_exception(DnsTlsFailure(f"{fault.message}{remedy}; {fault.detail}"))

    expected = TlsExpectation("the DNS server", server.name, tls, _CA_REMEDY, _NAME_REMEDY)
    stream = TlsStream(
        client_context(tls, _ALPN[server.transport]), server_side=False, server_hostname=server.name, inner=protocol,
        on_handshake=on_handshake, expected=expected,
    )  # fmt: skip
    try:
        transport, _ = await loop.create_connection(lambda: stream, server.host, server.port)
        try:
            await done
        except BaseException:
            transport.abort()
            raise
    finally:
        if done.done() and not done.cancelled():
            done.exception()  # taken, or the loop would log it where nobody waits any more
