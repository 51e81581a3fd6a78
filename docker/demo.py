"""What the service `demo` of docker/compose.yaml does: one request that policy allows, four that it refuses, and one
around the gateway, which its network does not let out. It needs no more than Python: `python3 docker/demo.py` asks the
gateway at http://127.0.0.1:3128, or at $PROXY.
"""

import os
import socket
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

PROXY = urlsplit(os.environ.get("PROXY", "http://127.0.0.1:3128"))
#: What is asked for, and what it shows.
REQUESTS = [
    ("https://api.github.com/zen", "allowed: docker/policies has the name and the port"),
    ("https://example.com/", "refused: no policy has the name"),
    ("https://api.github.com:22/", "refused: the name is allowed, and the port is not"),
    ("https://140.82.121.6/", "refused: an address in place of an allowed name"),
    ("http://169.254.169.254/latest/meta-data/", "refused: the metadata of a cloud, with its credentials"),
]
DIRECT = ("api.github.com", 443)


def ask(url: str) -> str:
    """What became of a GET through the gateway: the status and its reason, or why there is none."""
    parts = urlsplit(url)
    try:
        if parts.scheme == "https":
            https = HTTPSConnection(PROXY.hostname, PROXY.port, timeout=15)
            https.set_tunnel(parts.hostname, parts.port or 443)
            https.request("GET", parts.path, headers={"User-Agent": "egressproxy-demo"})
            answer = https.getresponse()
        else:
            http = HTTPConnection(PROXY.hostname, PROXY.port, timeout=15)
            http.request("GET", url, headers={"User-Agent": "egressproxy-demo"})
            answer = http.getresponse()
        return f"{answer.status} {answer.reason}"
    except (OSError, HTTPException) as error:  # of a CONNECT with its status and reason
        return str(error).removeprefix("Tunnel connection failed: ")


for url, what in REQUESTS:
    print(f"\n{what}\n  GET {url}\n  {ask(url)}", flush=True)
print(f"\naround the gateway: {DIRECT[0]} port {DIRECT[1]}")
try:
    with socket.create_connection(DIRECT, timeout=5):
        print("  it can be reached: this network does not force clients through the gateway", flush=True)
except OSError as error:
    print(f"  cannot be reached ({error}): the gateway is the only way out", flush=True)
