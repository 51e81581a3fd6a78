"""Listening sockets, and what is said where one cannot be had."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket

from egressproxy.model.unix_socket import is_unix, parse_unix_socket
from egressproxy.net.unix_listening import BACKLOG, bind_unix

REMEDIES = {
    errno.EADDRINUSE: " (`ss -tanp` shows who has it: end that, or give the listener another port)",
    errno.EACCES: " (ports below 1024 ask for CAP_NET_BIND_SERVICE; or give the listener another port)",
    errno.EADDRNOTAVAIL: " (this machine has no such address: see spec.addresses of the Gateway, or --bind)",
}
UNIX_REMEDIES = {
    errno.EADDRINUSE: " (somebody listens there, or it is no socket: end that, or write another path; another"
    " mode or owner takes a restart)",
    errno.ENOENT: " (make the folder first)",
    errno.EACCES: " (the gateway's user may not write in that folder)",
    errno.EPERM: " (to give a socket to another owner asks for CAP_CHOWN, to a group to be a member of it)",
}


class BindError(Exception):
    """An address and port that the configuration asks for cannot be bound, for these `listeners`."""

    def __init__(self, message: str, listeners: str) -> None:
        super().__init__(message)
        self.listeners = listeners


def bind(address: str, port: int, *, unread_ms: int = 0) -> socket.socket:
    """A listening socket that does not block, of an IP address and a port, or of a Unix socket (`unix://…`), which has
    no port. Raises OSError.

    `unread_ms`, where it is not 0: the kernel ends a connection whose peer takes nothing for that long
    (TCP_USER_TIMEOUT, tcp(7)).
    """
    if is_unix(address):
        return bind_unix(parse_unix_socket(address))
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if unread_ms:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind((address, port))
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def why_unusable(address: str) -> str:
    """Why this machine cannot listen on an IP address, whatever the port; "" where it can."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((address, 0))
    except OSError as error:
        return (error.strerror or type(error).__name__).lower()
    return ""


def bind_error(listeners: str, address: str, port: int, error: OSError) -> BindError:
    """What to raise where `bind` has raised this for these listeners, with a remedy where one is known."""
    why = error.strerror or type(error).__name__
    if is_unix(address):
        is_known = error.errno is not None and why == os.strerror(error.errno)  # else it says what helps
        remedy = UNIX_REMEDIES.get(error.errno or 0, "") if is_known else ""
        return BindError(f"listener {listeners}: cannot bind {address}: {why}{remedy}", listeners)
    remedy = REMEDIES.get(error.errno or 0, "")
    return BindError(f"listener {listeners}: cannot bind {address} port {port}: {why}{remedy}", listeners)
