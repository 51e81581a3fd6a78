from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from egressproxy.model.unix_socket import UnixSocket
from egressproxy.net.listening import (
    BindError,
    UnixListeningSocket,
    accepting_unix,
    bind,
    bind_error,
    bind_unix,
    is_inside,
    remedy,
    reserved_port,
    why_unusable,
)


def test_an_address_of_this_machine_is_usable_though_ports_of_it_are_taken():
    with bind("127.0.0.1", 0):
        assert why_unusable("127.0.0.1") == ""
        assert why_unusable("0.0.0.0") == ""


def test_an_address_that_this_machine_does_not_have_is_not_and_why():
    assert why_unusable("192.0.2.1") == "cannot assign requested address"
    assert not socket.has_ipv6 or why_unusable("2001:db8::1")


def test_a_reserved_port_is_kept_for_our_own_listener():
    with reserved_port() as reserved:
        at = reserved.getsockname()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(at)
        with bind(*at), socket.create_connection(at):
            pass


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Short enough."""
    monkeypatch.chdir(tmp_path)
    return "a.sock"


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_it_has_the_mode_that_is_asked_for_whatever_the_umask(path: str, mode: int):
    before = os.umask(0o777)
    try:
        sock = bind_unix(UnixSocket(path, mode))
    finally:
        os.umask(before)
    with sock:
        assert stat.S_IMODE(os.stat(path).st_mode) == mode


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives sockets away")
def test_it_belongs_to_whom_is_asked_for(path: str):
    with bind_unix(UnixSocket(path, 0o660, "nobody", "12")):
        found = os.stat(path)
        assert (found.st_uid, found.st_gid) == (65534, 12)


def test_an_owner_that_is_not_known_is_an_error_and_leaves_nothing(path: str):
    with pytest.raises(OSError, match="does not know nobody-of-that-name"):
        bind_unix(UnixSocket(path, 0o660, "nobody-of-that-name"))
    assert not os.path.lexists(path)


def test_it_is_removed_when_it_is_closed_and_not_before(path: str):
    sock = bind_unix(UnixSocket(path))
    copy = socket.socket(fileno=os.dup(sock.fileno()))
    copy.close()  # as that of a worker
    assert os.path.exists(path)
    sock.close()
    assert not os.path.exists(path)
    sock.close()


def test_the_socket_of_another_is_left_where_it_is(path: str):
    sock = bind_unix(UnixSocket(path))
    os.unlink(path)
    with bind_unix(UnixSocket(path)):
        sock.close()
        assert os.path.exists(path)


def test_what_was_left_behind_is_replaced(path: str):
    left = socket.socket(socket.AF_UNIX)
    left.bind(path)
    left.close()
    with bind_unix(UnixSocket(path)), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def test_what_is_served_is_not_taken(path: str):
    with bind_unix(UnixSocket(path)), pytest.raises(OSError, match="in use"):
        bind_unix(UnixSocket(path))


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_what_is_served_in_another_way_is_not_taken(path: str, kind: socket.SocketKind):
    with socket.socket(socket.AF_UNIX, kind) as served:
        served.bind(path)
        if kind is socket.SOCK_SEQPACKET:
            served.listen()
        before = os.stat(path).st_ino
        with pytest.raises(OSError, match="in use"):
            bind_unix(UnixSocket(path))
        assert os.stat(path).st_ino == before


def test_a_link_that_takes_its_place_while_it_is_made_gives_nobody_the_file_behind_it(
    path: str, monkeypatch: pytest.MonkeyPatch
):
    secret = Path("secret")
    secret.write_text("something")
    secret.chmod(0o600)
    made = UnixListeningSocket.made

    def made_and_replaced(sock: UnixListeningSocket, at: str) -> None:
        made(sock, at)
        os.unlink(at)
        os.symlink(secret, at)

    monkeypatch.setattr(UnixListeningSocket, "made", made_and_replaced)
    with pytest.raises(OSError, match="was replaced"):
        bind_unix(UnixSocket(path, 0o666))
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_what_is_no_socket_is_left_alone(path: str, kind: str):
    target = Path("target")
    target.write_text("something")
    {"file": lambda: Path(path).write_text("something"), "link": lambda: os.symlink(target, path),
     "folder": lambda: os.mkdir(path)}[kind]()  # fmt: skip
    with pytest.raises(OSError, match="in use"):
        bind_unix(UnixSocket(path))
    assert os.path.lexists(path)
    assert target.read_text() == "something"


def test_who_connects_is_known_by_user_and_process(path: str):
    with bind_unix(UnixSocket(path)) as sock, socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        fd, peer = accepting_unix(sock._accept)()
        os.close(fd)
        assert peer == (f"uid-{os.getuid()}", os.getpid())


def test_an_address_to_bind_may_be_a_unix_socket(tmp_path: Path):
    address = f"unix://{tmp_path}/a.sock"
    with bind(address, 3128) as sock:
        assert sock.family == socket.AF_UNIX
        with pytest.raises(OSError, match="in use") as raised:
            bind(address, 3128)
    error = bind_error("agents/gw/http", address, 3128, raised.value)
    assert f"listener agents/gw/http: cannot bind {address}: Address already in use (somebody" in str(error)


def test_an_address_to_bind_may_be_one_of_datagrams():
    """Which nobody else can bind beside it, as SO_REUSEADDR would let them."""
    with bind("udp://127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(OSError, match="in use") as raised:
            bind("udp://127.0.0.1", port)
    assert sock.type == socket.SOCK_DGRAM
    told = str(bind_error("agents/gw/dns", "udp://127.0.0.1", port, raised.value))
    assert f"cannot bind udp://127.0.0.1 port {port}: Address already in use (`ss -lunp` shows" in told


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize(
    ("folder_mode", "socket_mode", "words"),
    [
        (0o755, 0o777, "nobody serves the socket that is there, and it cannot be removed: Permission denied"),
        (0o1777, 0o777, "nobody serves the socket that is there, and it cannot be removed: Operation not permitted"),
        (0o777, 0o700, "may not connect to, so it may be served"),
    ],
    ids=["read-only folder", "sticky folder", "foreign socket"],
)
def test_a_socket_that_is_not_ours_to_replace_is_left_with_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder_mode: int, socket_mode: int, words: str
):
    for each in (tmp_path, *list(tmp_path.parents)[:2]):
        each.chmod(0o755)
    folder = tmp_path / "sockets"
    folder.mkdir()
    monkeypatch.chdir(folder)
    left = socket.socket(socket.AF_UNIX)
    left.bind("a.sock")
    left.close()
    os.chmod("a.sock", socket_mode)
    folder.chmod(folder_mode)
    os.seteuid(65534)
    try:
        with pytest.raises(OSError, match=words) as refused:
            bind_unix(UnixSocket("a.sock"))
    finally:
        os.seteuid(0)
    assert stat.S_ISSOCK(os.stat("a.sock").st_mode)
    told = str(bind_error("agents/gw/http", "unix:///a.sock", 80, refused.value))
    assert told.endswith(("let the gateway's user do it", "give it to that user"))


def test_a_folder_is_known_behind_links(tmp_path: Path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    (inside / "deep").mkdir(parents=True)
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    (outside / "back").symlink_to(inside)
    for path, is_so in {
        inside / "a.sock": True, inside / "deep" / "a.sock": True, outside / "back" / "a.sock": True,
        inside / "link" / "a.sock": False, outside / "a.sock": False, tmp_path / "inner" / "a.sock": False,
    }.items():  # fmt: skip
        assert is_inside(UnixSocket(str(path)), (inside,)) is is_so, path
    assert not is_inside(UnixSocket("/a.sock"), ())


def test_a_remedy_is_beside_what_happened_and_says_what_can_be_given():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use") as raised:
        bind("127.0.0.1", taken.getsockname()[1])
    error = bind_error("a/g/http", "127.0.0.1", 1, raised.value)
    assert str(error) == f"{error.what}{remedy(error.number)}"
    assert str(error).endswith("(`ss -ltnp` shows who has it: end that, or give the listener another port)")
    assert remedy(error.number, "another one with --port").endswith("end that, or give another one with --port)")
    assert remedy(0) == remedy(None) == ""
    assert str(BindError.of([error])) == str(error)
