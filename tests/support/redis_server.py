"""A real Redis of a test: on a free port of this machine, in memory, with a password. Ends with the test."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.net import free_port
from tests.support.waiting import wait_until

PASSWORD = "the-password-of-the-redis"


class RedisServer:
    """Its process, and commands to it over a connection of the test's own."""

    def __init__(
        self, port: int, folder: str, certificate: tuple[str, str] | None = None, options: Sequence[str] = ()
    ) -> None:
        """`certificate`: chain and key in PEM, for connections to `tls_port`. `options` of the program."""
        self.port = port
        self._options = options
        self.tls_port = free_port() if certificate is not None else 0
        self._tls: list[str] = []
        if certificate is not None:
            files = [Path(folder, name) for name in ("chain.pem", "key.pem")]
            for file, text in zip(files, certificate, strict=True):
                file.write_text(text)
            self._tls = ["--tls-port", str(self.tls_port), "--tls-cert-file", str(files[0])]
            self._tls += [
                "--tls-key-file",
                str(files[1]),
                "--tls-auth-clients",
                "no",
                "--tls-ca-cert-file",
                str(files[0]),
            ]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it replies."""
        program = shutil.which("redis-server")
        assert program is not None
        self._process = subprocess.Popen(
            [
                program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                "--requirepass", PASSWORD, "--dir", self._folder, "--loglevel", "warning", *self._tls, *self._options,
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_until(self._replies, "the Redis does not start")

    def option(self, name: str) -> str:
        """The value of this option of the program."""
        return self._options[self._options.index(name) + 1]

    def _replies(self) -> bool:
        try:
            return self.command("PING") == b"+PONG"
        except OSError:
            return False

    def kill(self) -> None:
        """End it at once; what it knew is gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def hang(self) -> None:
        """Stop it: connections stay, and nothing is said on them."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """End `hang`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def command(self, *words: str) -> bytes:
        """The first line of its reply to a command. Raises OSError where it cannot be reached."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            lines = connection.makefile("rwb")
            for said in (("AUTH", PASSWORD), words):
                lines.write(b"*%d\r\n" % len(said))
                for word in said:
                    lines.write(b"$%d\r\n%b\r\n" % (len(word.encode()), word.encode()))
                lines.flush()
                reply = lines.readline().rstrip()
            return reply

    def close(self) -> None:
        """End it, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def redis_server(certificate: tuple[str, str] | None = None, options: Sequence[str] = ()) -> Iterator[RedisServer]:
    """A Redis that runs. Skips without `redis-server`, and fails in a pipeline (EGRESSPROXY_CLIENTS=required)."""
    if shutil.which("redis-server") is None:
        why = "redis-server is not installed: apt-get install redis-server"
        if os.environ.get("EGRESSPROXY_CLIENTS") == "required":
            pytest.fail(why)
        pytest.skip(why)
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(free_port(), folder, certificate, options)
        try:
            server.start()
            yield server
        finally:
            server.close()
