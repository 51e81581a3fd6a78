"""Listening sockets, and the errors of those that cannot be bound."""

from __future__ import annotations

import errno
import grp
import ipaddress
import os
import pwd
import socket
import stat
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from egressproxy.model.listening_place import DATAGRAMS, is_datagram
from egressproxy.model.unix_socket import UnixSocket, is_unix, parse_unix_socket

#: The kernel's queue of connections that wait for accept().
BACKLOG = 1024
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_REMEDIES = {
    errno.EADDRINUSE: " (`ss -ltnp` shows who has it: end that, or give {another_port})",
    errno.EACCES: " (ports below 1024 ask for CAP_NET_BIND_SERVICE; or give {another_port})",
    errno.EADDRNOTAVAIL: " (this machine has no such address: {address})",
}
UNIX_REMEDIES = {
    errno.EADDRINUSE: " (somebody listens there, or it is no socket: end that, or write another path; another"
    " mode or owner takes a restart)",
    errno.ENOENT: " (make the folder first)",
    errno.EACCES: " (the gateway's user may not write in that folder)",
    errno.EPERM: " (to give a socket to another owner asks for CAP_CHOWN, to a group to be a member of it)",
}


def remedy(
    number: int | None, another_port: str = "the listener another port",
    address: str = "see spec.addresses of the Gateway, or --bind",
) -> str:  # fmt: skip
    """What to do about this errno of `bind`, in brackets; "" where nothing is known. What to give says who knows the
    option or the field.
    """
    return _REMEDIES.get(number or 0, "").format(another_port=another_port, address=address)


class BindError(Exception):
    """Configured addresses cannot be bound, for these `listeners`. `places`: address and port -> a sentence why. `what`
    is the message without the remedy for errno `number`.
    """

    def __init__(
        self, message: str, listeners: str, places: Mapping[tuple[str, int], str], what: str = "", number: int = 0
    ) -> None:
        super().__init__(message)
        self.listeners = listeners
        self.places = dict(places)
        self.what = what or message
        self.number = number

    @classmethod
    def of(cls, errors: Sequence[BindError]) -> BindError:
        """One error that has the places of all these errors."""
        if len(errors) == 1:
            return errors[0]
        places = {place: why for error in errors for place, why in error.places.items()}
        return cls("\n".join(map(str, errors)), ", ".join(error.listeners for error in errors), places)


def bind(address: str, port: int, *, unread_ms: int = 0) -> socket.socket:
    """A non-blocking listening socket on an IP address and port, or on a Unix socket (`unix://…`), which has no port;
    or a bound one of datagrams (`udp://` in front of the address). After `unread_ms`, if not 0, the kernel ends
    connections whose peer acknowledges no data (TCP_USER_TIMEOUT, tcp(7)). Raises OSError.
    """
    if is_unix(address):
        return bind_unix(parse_unix_socket(address))
    is_udp, address = is_datagram(address), address.removeprefix(DATAGRAMS)
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM if is_udp else socket.SOCK_STREAM)
    try:
        if not is_udp:  # with it, another process could take the datagrams
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if unread_ms:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind((address, port))
        if not is_udp:
            sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def why_unusable(address: str) -> str:
    """Why this machine cannot bind an IP address, or has no interface of this name; "" if it can."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return "" if any(name == address for _, name in socket.if_nameindex()) else "no such interface"
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((address, 0))
    except OSError as error:
        return (error.strerror or type(error).__name__).lower()
    return ""


def bind_error(listeners: str, address: str, port: int, error: OSError) -> BindError:
    """The BindError for an `error` of `bind`, with a remedy if one is known."""
    why, number = error.strerror or type(error).__name__, error.errno or 0
    if is_unix(address):
        is_known = number and why == os.strerror(number)  # else the text has a remedy
        what, do = f"cannot bind {address}: {why}", UNIX_REMEDIES.get(number, "") if is_known else ""
    else:
        what, do = f"cannot bind {address} port {port}: {why}", remedy(number)
        if is_datagram(address):
            do = do.replace("ss -ltnp", "ss -lunp")
    whose = f"listener {listeners}: "
    return BindError(f"{whose}{what}{do}", listeners, {(address, port): f"{what}{do}"}, f"{whose}{what}", number)


class UnixListeningSocket(socket.socket):
    """A Unix socket whose `close` removes its path; copies in other processes do not. `descriptor`: an open socket."""

    def __init__(self, descriptor: int | None = None) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM, 0, descriptor)
        self._made: tuple[str, int, int] | None = None  # path, device and inode

    def made(self, path: str) -> None:
        """Record the path as owned by this socket, which removes it."""
        found = os.lstat(path)
        self._made = path, found.st_dev, found.st_ino

    def leave_path(self) -> None:
        """Give up the path: another process owns it from now on."""
        self._made = None

    def close(self) -> None:
        """Close, and remove the path unless another socket has replaced it."""
        made, self._made = self._made, None
        if made is not None:
            path, device, inode = made
            with suppress(OSError):
                found = os.lstat(path)
                if (found.st_dev, found.st_ino) == (device, inode):
                    os.unlink(path)
        super().close()


def is_inside(at: UnixSocket, folders: Iterable[Path]) -> bool:
    """Whether the socket's path lies below one of these folders, after resolving links."""
    folder = Path(at.path).parent.resolve()
    return any(folder.is_relative_to(each.resolve()) for each in folders)


def bind_unix(at: UnixSocket) -> socket.socket:
    """A non-blocking listening Unix socket; a stale one is replaced. No process can connect before owner and mode are
    set. Raises OSError.
    """
    owner, group = number_of_user(at.owner), number_of_group(at.group)
    _remove_stale(at.path)
    sock = UnixListeningSocket()
    try:
        os.fchmod(sock.fileno(), 0)  # the mode of the file that `bind` creates
        sock.bind(at.path)
        sock.made(at.path)
        _give(at.path, owner, group, at.mode)
        sock.setblocking(False)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def accepting_unix(accept: Callable[[], tuple[int, object]]) -> Callable[[], tuple[int, tuple[str, int]]]:
    """`accept`, with `uid-1000` and the pid of the connecting process as peer address. Raises OSError."""

    def accept_unix() -> tuple[int, tuple[str, int]]:
        fd, _ = accept()
        sock = socket.socket(fileno=fd)
        try:
            pid, uid = peer_of(sock)
        except OSError:
            sock.close()
            raise
        sock.detach()
        return fd, (f"uid-{uid}", pid)

    return accept_unix


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """The pid and uid of the peer of a Unix socket. Raises OSError."""
    pid, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, user


def _remove_stale(path: str) -> None:
    """Remove the Unix socket at this path if no process listens on it. Raises OSError if the check or removal fails."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode) or _is_served(path):
            return
    except FileNotFoundError:
        return
    try:
        os.unlink(path)
    except OSError as error:
        why = f"nobody serves the socket that is there, and it cannot be removed: {error.strerror}"
        raise OSError(errno.EACCES, f"{why}; remove it, or let the gateway's user do it") from None


def _give(path: str, owner: int, group: int, mode: int) -> None:
    """Set owner and mode of the socket at this path. Raises OSError if the path is no socket any more: a process with
    write access to the folder could have replaced it by a link, and would be given the link's target.
    """
    found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(found).st_mode):
            raise OSError(errno.EADDRINUSE, "the socket was replaced while it was made")
        itself = f"/proc/self/fd/{found}"  # the only name by which to set the mode of an O_PATH descriptor
        at = itself if os.path.exists(itself) else path  # no /proc in this container
        os.chown(at, owner, group)
        os.chmod(at, mode)
    finally:
        os.close(found)


def number_of_user(name: str) -> int:
    """The id of a user, -1 for "". Raises OSError."""
    return _number(name, lambda name: pwd.getpwnam(name).pw_uid)


def number_of_group(name: str) -> int:
    """The id of a group, -1 for "". Raises OSError."""
    return _number(name, lambda name: grp.getgrnam(name).gr_gid)


def _number(name: str, find: Callable[[str], int]) -> int:
    """The id of a user or group; -1, which changes nothing, for "". Raises OSError."""
    if not name or name.isdigit():
        return int(name or -1)
    try:
        return find(name)
    except KeyError:
        raise OSError(errno.EINVAL, f"this system does not know {name}, the owner or group of the socket") from None


def _is_served(path: str) -> bool:
    """Whether a process has this Unix socket open. Only ECONNREFUSED means stale: a socket of another type gives
    EPROTOTYPE (connect(2)). Raises OSError if this user may not connect.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        try:
            sock.connect(path)
        except ConnectionRefusedError:
            return False
        except PermissionError:
            why = "there is a socket that the gateway's user may not connect to, so it may be served"
            raise OSError(errno.EADDRINUSE, f"{why}; remove it, or give it to that user") from None
        except OSError:
            return True  # a full queue, for one
    return True


def reserved_port() -> socket.socket:
    """A socket that holds a free port of 127.0.0.1: until it is closed, the kernel gives the port to nobody else, and
    `bind` can listen there.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    return sock
