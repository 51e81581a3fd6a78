"""Opens tunnels and holds them, idle. Prints lines of JSON.

    python -m benchmarks.load.holding --port 3128 --authority h137.bench.example:8000 100 2000

Tunnels are opened 50 at a time. For each number one line, `{"open": 100}`, `{"open": 2100}`, when so many more stand,
and none of the others was closed; before it goes on, and before it closes them all, it waits for a line on standard
input. So the caller can look at the proxy's memory. `--raw` leaves the CONNECT out, for plain TCP forwarding.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys

ANSWER_S = 10.0
AT_A_TIME = 50


def open_tunnel(port: int, connect: bytes) -> socket.socket:
    """Raises OSError where there is no tunnel."""
    return open_tunnels(port, connect, 1)[0]


def open_tunnels(port: int, connect: bytes, count: int) -> list[socket.socket]:
    """As many at a time. Raises OSError where one cannot be opened."""
    tunnels = []
    for _ in range(count):
        tunnel = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        tunnel.sendall(connect)
        tunnels.append(tunnel)
    for tunnel in tunnels:
        _await_answer(tunnel, connect)
    return tunnels


def is_open(tunnel: socket.socket) -> bool:
    """Whether the proxy has neither closed nor said anything."""
    tunnel.setblocking(False)
    try:
        tunnel.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _await_answer(tunnel: socket.socket, connect: bytes) -> None:
    answer = b""
    while connect and b"\r\n\r\n" not in answer:
        data = tunnel.recv(4096)
        if not data:
            raise ConnectionResetError("the proxy closed early")
        answer += data
    if connect and not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
        raise ConnectionRefusedError(f"refused: {answer[:80]!r}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--authority", required=True)
    parser.add_argument("--raw", action="store_true", help="no CONNECT: the port forwards TCP")
    parser.add_argument("counts", type=int, nargs="+")
    options = parser.parse_args()
    authority = options.authority.encode()
    connect = b"" if options.raw else b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (authority, authority)
    held: list[socket.socket] = []
    for count in options.counts:
        wanted = len(held) + count
        try:
            while len(held) < wanted:
                held += open_tunnels(options.port, connect, min(AT_A_TIME, wanted - len(held)))
        except OSError as error:
            print(f"after {len(held)} tunnels: {error}", file=sys.stderr)
            return 1
        if not all(map(is_open, held)):
            print(f"of {len(held)} tunnels, {sum(map(is_open, held))} are open", file=sys.stderr)
            return 1
        print(json.dumps({"open": len(held)}), flush=True)
        sys.stdin.readline()
    return 0


if __name__ == "__main__":
    sys.exit(main())
