"""Where a connection was meant for that the kernel has redirected to us, and whose it is. Sources:
linux/netfilter_ipv4.h, linux/netfilter_ipv6/ip6_tables.h (SO_ORIGINAL_DST), sock_diag(7).
"""

from __future__ import annotations

import errno
import socket
import struct
from ipaddress import IPv4Address, IPv6Address

from egressproxy.model.authority import Authority, IPAddress
from egressproxy.net.watched_socket import Socket

_SO_ORIGINAL_DST = 80  # the same number for both families, at the level of each
_SOCKADDR_IN = struct.Struct("=H2s4s8x")  # family, port and address in network order
_SOCKADDR_IN6 = struct.Struct("=H2s4x16s4x")

#: linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLMSG_ERROR = 2
_NLM_F_REQUEST = 1
_NO_COOKIE = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_REQUEST = struct.Struct("=BBBBI")  # family, protocol, extensions, padding, states
_SOCKET_ID = struct.Struct("!HH16s16s12s")  # ports and addresses; interface and cookie stand behind
#: In the answer: of the uid, behind family, state, timer and retransmits, the id (48), expiry and two queues.
_UID_AT = _HEADER.size + 4 + 48 + 3 * 4


class NotRedirected(OSError):
    """The client has connected to this listener itself, or the kernel does not tell where it was going."""


def original_destination(sock: Socket) -> Authority:
    """What the client of an accepted connection has dialled, as the kernel knows it of rules `redirect` and `dnat` of
    nftables in this network namespace. Raises NotRedirected.
    """
    own = sock.getsockname()
    is_ipv6 = sock.family == socket.AF_INET6
    try:
        if is_ipv6:
            raw = sock.getsockopt(socket.IPPROTO_IPV6, _SO_ORIGINAL_DST, _SOCKADDR_IN6.size)
            _, port, packed = _SOCKADDR_IN6.unpack(raw)
        else:
            raw = sock.getsockopt(socket.IPPROTO_IP, _SO_ORIGINAL_DST, _SOCKADDR_IN.size)
            _, port, packed = _SOCKADDR_IN.unpack(raw)
    except (OSError, struct.error) as error:  # there is no entry in the table of connections
        raise NotRedirected(errno.ENOENT, "the kernel knows no other destination") from error
    address: IPAddress = IPv6Address(packed) if is_ipv6 else IPv4Address(packed)
    found = Authority(str(address), int.from_bytes(port, "big"), address)
    if (found.host, found.port) == (own[0].partition("%")[0], own[1]):
        raise NotRedirected(errno.ENOENT, "the connection was made to this listener")
    return found


def owner_of(local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """The user (uid) of this machine's socket that is bound to `local` and connected to `remote` (address, port); None
    for a socket of elsewhere (or a kernel without inet_diag). Raises NotRedirected where the kernel cannot be asked.
    """
    family = socket.AF_INET6 if ":" in local[0] else socket.AF_INET
    source, destination = (socket.inet_pton(family, each[0].partition("%")[0]) for each in (local, remote))
    wanted = _SOCKET_ID.pack(
        local[1], remote[1], source, destination, struct.pack("=III", 0, _NO_COOKIE, _NO_COOKIE)
    )  # fmt: skip
    asked = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + wanted
    header = _HEADER.pack(_HEADER.size + len(asked), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _NETLINK_SOCK_DIAG) as kernel:
            kernel.send(header + asked)  # it answers before this returns
            answer = kernel.recv(4096)
    except OSError as error:
        raise NotRedirected(error.errno, "the kernel cannot be asked whose connection it is") from error
    _, kind, _, _, _ = _HEADER.unpack_from(answer)
    if kind == _NLMSG_ERROR:
        code: int = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        if code == errno.ENOENT:
            return None
        raise NotRedirected(code, "the kernel does not tell whose connection it is")
    found: int = struct.unpack_from("=I", answer, _UID_AT)[0]
    return found
