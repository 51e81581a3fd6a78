"""Opens tunnels and holds them, idle. Prints lines of JSON.

    python -m benchmarks.load.holding --port 3128 --authority h137.bench.example:8000 100 2000

For each number one line, `{"open": 100}`, `{"open": 2100}`, when so many more tunnels stand; before it goes on, and
before it closes them all, it waits for a line on standard input. So the caller can look at the proxy's memory. `--raw`
leaves the CONNECT out, for plain TCP forwarding.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys

ANSWER_S = 10.0


def open_tunnel(port: int, connect: bytes) -> socket.socket:
    """Raises OSError where there is no tunnel."""
    tunnel = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
    tunnel.sendall(connect)
    answer = b""
    while connect and b"\r\n\r\n" not in answer:
        data = tunnel.recv(4096)
        if not data:
            raise ConnectionResetError("the proxy closed early")
        answer += data
    if connect and not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
        raise ConnectionRefusedError(f"refused: {answer[:80]!r}")
    return tunnel


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
        try:
            held.extend(open_tunnel(options.port, connect) for _ in range(count))
        except OSError as error:
            print(f"tunnel {len(held) + 1}: {error}", file=sys.stderr)
            return 1
        print(json.dumps({"open": len(held)}), flush=True)
        sys.stdin.readline()
    return 0


if __name__ == "__main__":
    sys.exit(main())
