"""ListeningSockets: the listening sockets of this process, inherited or bound.

The service manager (systemd) passes sockets, and keeps them when this process ends. In a takeover, the predecessor
passes its sockets, and stops accepting once this process serves. Other sockets are bound here.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from egressproxy.model.listening_place import DATAGRAMS, is_datagram
from egressproxy.model.unix_socket import SCHEME, UnixSocket, is_unix, parse_unix_socket
from egressproxy.net.listening import UnixListeningSocket, bind, number_of_group, number_of_user

#: An IP literal (with `udp://` in front: of datagrams) and its port, or `unix://` with a path and 0.
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class GivenSocket:
    """An inherited socket. `giver` names its origin for people. `is_kept`: the service manager keeps it open, too."""

    descriptor: int
    place: Place
    giver: str
    is_kept: bool = False

    def __str__(self) -> str:
        address, port = self.place
        return f"{address if is_unix(address) else f'{address} port {port}'} ({self.giver})"


@dataclass(frozen=True, slots=True)
class _Open:
    socket: socket.socket
    place: Place
    is_kept: bool


class ListeningSockets:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._given: dict[Place, GivenSocket] = {}
        self._open: dict[Place, _Open] = {}  # by requested place
        self._taken: set[Place] = set()  # inherited sockets in use
        self._left: list[tuple[UnixListeningSocket, str]] = []  # their paths still belong to the predecessor

    def give(self, descriptor: int, giver: str, *, is_kept: bool) -> None:
        """Store an inherited descriptor for a later `bind`. Closes it and raises ValueError, a sentence, if invalid."""
        try:
            sock = socket.socket(fileno=descriptor)
            try:
                place = place_of(sock)
            finally:
                sock.detach()
            if place in self._given:
                raise ValueError(f"{GivenSocket(descriptor, place, giver)} was given twice")
        except (OSError, ValueError):
            os.close(descriptor)
            raise
        self._given[place] = GivenSocket(descriptor, place, giver, is_kept)

    def bind(self, address: str, port: int, *, unread_ms: int = 0) -> socket.socket:
        """The inherited socket of this place, else a new one as by `listening.bind`. Raises OSError."""
        given = self._given.get(_asked(address, port))
        if given is None:
            sock = self._bound(address, port, unread_ms)
        else:
            sock = self._of(given, address, unread_ms)
        place = place_of(sock)
        kept = given is not None and given.is_kept
        self._open[(address, port) if port or is_unix(address) else place] = _Open(sock, place, kept)
        return sock

    def close_unused(self) -> list[GivenSocket]:
        """Close the inherited sockets that no listener uses, and return them."""
        unused = [given for place, given in self._given.items() if place not in self._taken]
        for given in unused:
            os.close(given.descriptor)
            del self._given[given.place]
        return unused

    # --- for the process after this one ----------------------------------------------------------------------------
    def to_give(self) -> Iterable[GivenSocket]:
        """Every open socket, and those that the service manager keeps; the descriptors stay owned by this process."""
        kept = [given for given in self._given.values() if given.is_kept]
        yield from kept
        names = {given.place for given in kept}
        for each in self._open.values():
            if each.socket.fileno() >= 0 and each.place not in names:
                yield GivenSocket(each.socket.fileno(), each.place, "")

    @property
    def taken(self) -> frozenset[Place]:
        """The places of inherited sockets in use."""
        return frozenset(self._taken)

    def served_elsewhere(self, taken: Collection[Place] = ()) -> frozenset[Place]:
        """The requested places whose pending connections another process will accept: the sockets that the service
        manager keeps, and those that the successor has `taken`.
        """
        return frozenset(asked for asked, each in self._open.items() if each.is_kept or each.place in taken)

    def leave_paths(self, taken: Collection[Place]) -> None:
        """Give up the paths of these Unix sockets to the successor: closing no longer removes them."""
        for each in self._open.values():
            if each.place in taken and isinstance(each.socket, UnixListeningSocket):
                each.socket.leave_path()

    def own_paths(self) -> None:
        """Own the paths of the predecessor's Unix sockets: closing removes them from now on."""
        for sock, path in self._left:
            if sock.fileno() >= 0:
                sock.made(path)
        self._left.clear()

    # --- one socket ------------------------------------------------------------------------------------------------
    def _of(self, given: GivenSocket, address: str, unread_ms: int) -> socket.socket:
        """The inherited socket, ready to accept. Raises OSError with a sentence if it does not fit the request."""
        if is_unix(address):
            _check_file(given, parse_unix_socket(address))
        descriptor = os.dup(given.descriptor)  # kept for a listener that is removed and comes back
        os.set_inheritable(descriptor, False)
        sock: socket.socket
        if is_unix(address) and not given.is_kept:
            sock = UnixListeningSocket(descriptor)
            self._left.append((sock, given.place[0].removeprefix(SCHEME)))
        else:
            sock = socket.socket(fileno=descriptor)
        if sock.family == socket.AF_INET6 and not sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
            sock.close()
            raise OSError(
                errno.EINVAL,
                f"the socket {given} takes IPv4, too, whose clients would seem to have other addresses than they have:"
                " write BindIPv6Only=ipv6-only in its unit",
            )
        sock.setblocking(False)
        if not (is_unix(address) or is_datagram(address)):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)
        self._taken.add(given.place)
        if not given.is_kept:
            del self._given[given.place]
            os.close(given.descriptor)
        return sock

    def _bound(self, address: str, port: int, unread_ms: int) -> socket.socket:
        try:
            return bind(address, port, unread_ms=unread_ms)
        except OSError as error:
            near = [each for each in self._given.values() if port and each.place[1] == port]
            if error.errno != errno.EADDRINUSE or not near:
                raise
            raise OSError(
                errno.EINVAL,
                f"the port is that of the socket {near[0]}, which is for another address: give both the same",
            ) from None


def place_of(sock: socket.socket) -> Place:
    """The place on which a socket listens. Raises ValueError, a sentence, if it does not listen, and OSError."""
    is_udp = sock.type == socket.SOCK_DGRAM and sock.family != socket.AF_UNIX
    if not (is_udp or sock.type == socket.SOCK_STREAM) or sock.family not in _FAMILIES:
        raise ValueError("a socket was given that is none of TCP or UDP, nor a Unix socket of streams")
    if not is_udp and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ValueError("a socket was given on which nobody listens: write Accept=no in its unit")
    name = sock.getsockname()
    if is_udp and not name[1]:
        raise ValueError("a socket of UDP was given that is bound to no port")
    if sock.family == socket.AF_UNIX:
        if not isinstance(name, str) or not name.startswith("/"):
            raise ValueError("a Unix socket was given that has no path")
        return f"{SCHEME}{name}", 0
    return f"{DATAGRAMS * is_udp}{ipaddress.ip_address(name[0].partition('%')[0])}", name[1]


_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)


def _asked(address: str, port: int) -> Place:
    if is_unix(address):
        return f"{SCHEME}{parse_unix_socket(address).path}", 0
    return f"{DATAGRAMS * is_datagram(address)}{ipaddress.ip_address(address.removeprefix(DATAGRAMS))}", port


def _check_file(given: GivenSocket, asked: UnixSocket) -> None:
    """Raises OSError if the file's owner, group or mode differ from the Gateway's."""
    found = os.stat(asked.path)
    mode = stat.S_IMODE(found.st_mode)
    wrong = [f"has mode {mode:04o} and should have {asked.mode:04o}"] if mode != asked.mode else []
    if asked.owner and number_of_user(asked.owner) != found.st_uid:
        wrong.append(f"belongs to user {found.st_uid} and should belong to {asked.owner}")
    if asked.group and number_of_group(asked.group) != found.st_gid:
        wrong.append(f"belongs to group {found.st_gid} and should belong to {asked.group}")
    if wrong:
        raise OSError(
            errno.EINVAL,
            f"the socket {given} {', '.join(wrong)}, as the Gateway's address says: make both the same (SocketMode=,"
            " SocketUser= and SocketGroup= in a unit; a socket of the process before needs a restart)",
        )
