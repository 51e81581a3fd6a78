"""is_local: whether an address is one of this machine's own, as the kernel says at this moment."""

from __future__ import annotations

import errno
import socket
import struct

from egressproxy.model.authority import IPAddress

#: linux/netlink.h and linux/rtnetlink.h.
_NETLINK_ROUTE = 0
_RTM_NEWROUTE, _RTM_GETROUTE = 24, 26
_NLM_F_REQUEST = 1
_RTA_DST = 1
_RTN_LOCAL = 2
#: Nothing can be asked: then nobody shall be let through.
_NO_MEANS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: What the kernel answers for a place to which there is no route, or one that is prohibited or a black hole.
_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL)
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ROUTE = struct.Struct("=BBBBBBBBI")  # family, dst_len, src_len, tos, table, protocol, scope, type, flags
_ATTRIBUTE = struct.Struct("=HH")  # length, type


def is_local(address: IPAddress) -> bool:
    """Whether a connection to this address would come back to this machine. Nothing is sent to find out.

    On Linux it is the type of the route that a dial would take: this knows secondary addresses, whole ranges that were
    given to this machine (`ip route add local …`), and is not misled by `ip_nonlocal_bind`. Where no netlink socket can
    be had, it is whether a socket can be bound to the address; where no socket at all, every address is. A link-local
    IPv6 address cannot be dialled without a zone, and is never local.
    """
    try:
        return _is_local_route(address)
    except OSError:
        return _can_be_bound(address)


def _is_local_route(address: IPAddress) -> bool:
    """Raises OSError if the kernel cannot be asked."""
    if not hasattr(socket, "AF_NETLINK"):
        raise OSError(errno.EAFNOSUPPORT, "no netlink")
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    address_bytes = address.packed
    attribute = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(address_bytes), _RTA_DST) + address_bytes
    route = _ROUTE.pack(family, address.max_prefixlen, 0, 0, 0, 0, 0, 0, 0)
    size = _HEADER.size + len(route) + len(attribute)
    asked = _HEADER.pack(size, _RTM_GETROUTE, _NLM_F_REQUEST, 1, 0) + route + attribute
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _NETLINK_ROUTE) as kernel:
        kernel.send(asked)  # it answers before this returns
        answer = kernel.recv(4096)
    _, kind, _, _, _ = _HEADER.unpack_from(answer)
    if kind != _RTM_NEWROUTE:  # an error, as a negative number
        code: int = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        if code in _NO_ROUTE:
            return False  # no dial would come anywhere
        raise OSError(code, "the kernel does not tell routes")
    found: int = _ROUTE.unpack_from(answer, _HEADER.size)[7]
    return found == _RTN_LOCAL


def _can_be_bound(address: IPAddress) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        return error.errno in _NO_MEANS
    return True
