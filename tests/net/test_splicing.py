"""The pipe between two sockets: all bytes in order, and never one of somebody else's."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from egressproxy.net.splicing import Pipe, PipeError
from tests.support.waiting import WAIT_S


@pytest.fixture
def tcp() -> Iterator[list[socket.socket]]:
    """A source's far and near end, a taker's near and far end."""
    with ExitStack() as stack:
        ends = []
        for _ in range(2):
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            far = stack.enter_context(socket.create_connection(server.getsockname(), timeout=WAIT_S))
            near = stack.enter_context(server.accept()[0])
            near.setblocking(False)
            ends += [far, near]
        yield [ends[0], ends[1], ends[3], ends[2]]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe(256 * 1024)
    yield made
    if not made.is_closed:
        made.close()


def test_what_is_taken_is_given_in_order(tcp: list[socket.socket], pipe: Pipe):
    far, near, to, reader = tcp
    sent = os.urandom(50_000)
    far.sendall(sent)
    far.close()
    got = b""
    while size := pipe.take(near.fileno()):
        assert pipe.give(to.fileno(), size) == b""
        while len(got) < len(sent) and size > 0:
            data = reader.recv(size)
            got, size = got + data, size - len(data)
    assert got == sent


def test_what_is_not_taken_comes_back_and_the_pipe_is_empty(tcp: list[socket.socket], pipe: Pipe):
    far, near, to, reader = tcp
    to.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    far.settimeout(0.2)
    sent = given = b""
    rest = b""
    for number in range(200):
        piece = bytes([number]) * 100_000
        far.sendall(piece)
        sent += piece
        while len(given) < len(sent):
            size = pipe.take(near.fileno())
            rest = pipe.give(to.fileno(), size)
            if rest:
                break
            given = sent[: len(given) + size]
        if rest:
            break
    assert rest, "a reader that reads nothing blocks at last"
    size = len(given) + size - len(rest)
    got = b""
    while len(got) < size:
        got += reader.recv(1 << 20)
    assert got + rest == sent[: len(got) + len(rest)]
    with pytest.raises(BlockingIOError):
        os.read(pipe._reading, 1)


def test_nothing_is_there_yet(tcp: list[socket.socket], pipe: Pipe):
    with pytest.raises(BlockingIOError):
        pipe.take(tcp[1].fileno())
    assert not pipe.is_closed


def test_a_taker_that_is_gone_closes_the_pipe_with_what_is_in_it(tcp: list[socket.socket], pipe: Pipe):
    far, near, to, _ = tcp
    far.sendall(b"secret")
    size = pipe.take(near.fileno())
    to.shutdown(socket.SHUT_WR)
    with pytest.raises(BrokenPipeError):
        pipe.give(to.fileno(), size)
    assert pipe.is_closed


def test_octets_that_are_missing_are_an_error(tcp: list[socket.socket], pipe: Pipe):
    far, near, to, _ = tcp
    far.sendall(b"four")
    size = pipe.take(near.fileno())
    with pytest.raises(PipeError, match="of 3"):
        pipe.give(to.fileno(), size + 3)
    assert pipe.is_closed


def test_a_pipe_that_cannot_be_read_out_is_closed(
    tcp: list[socket.socket], pipe: Pipe, monkeypatch: pytest.MonkeyPatch
):
    far, near, to, _ = tcp
    to.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    def no_memory(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr("os.read", no_memory)

    def carry() -> None:
        for _ in range(200):
            far.sendall(bytes(50_000))
            pipe.give(to.fileno(), pipe.take(near.fileno()))

    with pytest.raises(MemoryError):
        carry()
    assert pipe.is_closed
    pipe.close()


def test_a_pipe_knows_that_something_was_left_in_it(tcp: list[socket.socket], pipe: Pipe):
    far, near, to, _ = tcp
    assert pipe.is_empty
    far.sendall(b"four")
    size = pipe.take(near.fileno())
    assert not pipe.is_empty
    pipe.give(to.fileno(), size)
    assert pipe.is_empty
    pipe.close()
    assert not pipe.is_empty


def test_a_kernel_that_gives_no_larger_pipe_gives_an_ordinary_one(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "")

    monkeypatch.setattr("fcntl.fcntl", refuse)
    made = Pipe(1 << 20)
    assert made.capacity == 65_536
    made.close()
