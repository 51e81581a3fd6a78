"""What was given, what is bound, and what becomes of both."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from egressproxy.model.unix_socket import UnixSocket
from egressproxy.net.listening import bind, bind_unix
from egressproxy.processes.listening_sockets import ListeningSockets, place_of
from tests.support.net import free_port


@pytest.fixture
def kept() -> Iterator[socket.socket]:
    """What the service manager holds."""
    with bind("127.0.0.1", 0) as sock:
        yield sock


def given(*sockets: socket.socket, is_kept: bool = True) -> ListeningSockets:
    made = ListeningSockets()
    for sock in sockets:
        made.give(os.dup(sock.fileno()), "of a test", is_kept=is_kept)
    return made


def port_of(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def accepted(sock: socket.socket) -> bool:
    try:
        sock.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_socket_that_was_given_is_the_one_of_its_address_and_port(kept: socket.socket, is_kept: bool):
    sockets = given(kept, is_kept=is_kept)
    with sockets.bind("127.0.0.1", port_of(kept)) as sock, socket.create_connection(kept.getsockname()):
        assert accepted(sock)
        assert not sock.get_inheritable()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sockets.close_unused() == []
    assert sockets.taken == {("127.0.0.1", port_of(kept))}


def test_a_listener_that_comes_again_finds_again_what_the_service_manager_keeps(kept: socket.socket):
    sockets = given(kept)
    sockets.bind("127.0.0.1", port_of(kept)).close()
    with sockets.bind("127.0.0.1", port_of(kept)) as sock, socket.create_connection(kept.getsockname()):
        assert accepted(sock)


def test_a_socket_of_datagrams_is_another_one_than_that_of_connections(kept: socket.socket):
    with bind("udp://127.0.0.1", 0) as datagrams, bind("udp://::1", 0) as ipv6:
        sockets = given(kept, datagrams, ipv6)
        place = "udp://127.0.0.1", port_of(datagrams)
        assert place_of(datagrams) == place
        assert place_of(ipv6) == ("udp://::1", port_of(ipv6))
        with sockets.bind(*place) as sock, sockets.bind("udp://0:0::1", port_of(ipv6)):
            assert sock.type == socket.SOCK_DGRAM
            assert sock.getsockname() == datagrams.getsockname()
        assert [unused.place for unused in sockets.close_unused()] == [("127.0.0.1", port_of(kept))]


def test_others_accept_on_what_is_kept_and_on_what_a_successor_has_taken(kept: socket.socket):
    sockets = given(kept)
    own, other = free_port(), free_port()
    of_manager = "127.0.0.1", port_of(kept)
    with sockets.bind(*of_manager), sockets.bind("127.0.0.1", own), sockets.bind("127.0.0.1", other):
        assert sockets.served_elsewhere() == {of_manager}
        assert sockets.served_elsewhere({("127.0.0.1", own)}) == {of_manager, ("127.0.0.1", own)}
        assert {each.place for each in sockets.to_give()} == {of_manager, ("127.0.0.1", own), ("127.0.0.1", other)}
        assert [each.place for each in sockets.to_give() if each.is_kept] == [of_manager]
    assert [each.place for each in sockets.to_give()] == [of_manager], "what is closed is given to nobody"


def test_what_nobody_asks_for_is_closed_and_named(kept: socket.socket):
    sockets = given(kept)
    with sockets.bind("127.0.0.1", 0):
        (unused,) = sockets.close_unused()
    assert str(unused) == f"127.0.0.1 port {port_of(kept)} (of a test)"
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(unused.descriptor)


def test_a_socket_for_another_address_is_named_where_its_port_is_asked_for(kept: socket.socket):
    with pytest.raises(OSError, match=rf"127.0.0.1 port {port_of(kept)} \(of a test\), which is for another address"):
        given(kept).bind("0.0.0.0", port_of(kept))


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_a_socket_that_takes_ipv4_as_ipv6_is_refused():
    """Who a client is goes by its address, which ::ffff:192.0.2.1 is not."""
    both = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    with both, pytest.raises(OSError, match="BindIPv6Only=ipv6-only"):
        given(both).bind("::", port_of(both))
    with bind("::", 0) as one, given(one).bind("0:0::0", port_of(one)) as sock:
        assert place_of(sock) == ("::", port_of(one))


def test_what_does_not_listen_is_not_taken():
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    with server, client, pytest.raises(ValueError, match="Accept=no"):
        given(client)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams, pytest.raises(ValueError, match="to no port"):
        given(datagrams)


def test_what_is_given_twice_is_not_taken_twice(kept: socket.socket):
    with pytest.raises(ValueError, match="given twice"):
        given(kept, kept)


def test_a_unix_socket_with_another_mode_than_the_gateway_asks_for_is_refused(tmp_path: Path):
    path = tmp_path / "a.sock"
    with bind_unix(UnixSocket(str(path), 0o666)) as sock:
        with pytest.raises(OSError, match=r"has mode 0666 and should have 0600.*SocketMode="):
            given(sock).bind(f"unix://{path}", 0)
        with given(sock).bind(f"unix://{path}?mode=0666", 0):
            pass
        assert path.exists(), "the path of the service manager stays"


def test_the_path_of_a_unix_socket_is_removed_by_the_one_that_serves_it_last(tmp_path: Path):
    path = tmp_path / "a.sock"
    before = ListeningSockets()
    old = before.bind(f"unix://{path}", 0)
    after = ListeningSockets()
    for each in before.to_give():
        after.give(os.dup(each.descriptor), "of a test", is_kept=each.is_kept)
    after.bind(f"unix://{path}", 0).close()  # a successor that fails
    assert stat.S_ISSOCK(path.stat().st_mode)
    for each in before.to_give():
        after.give(os.dup(each.descriptor), "of a test", is_kept=each.is_kept)
    new = after.bind(f"unix://{path}", 0)
    before.leave_paths(after.taken)
    after.own_paths()
    old.close()
    assert path.exists()
    new.close()
    assert not path.exists()
