"""proxy.py: names, header edits, a log line. It runs one worker and one acceptor, without threads for connections."""

import json
import os
import re
import time

from proxy.http.exception import HttpRequestRejected
from proxy.http.proxy import HttpProxyBasePlugin

NAMES = {name.encode() for name in os.environ["BENCH_NAMES"].split(",")}
EDIT = re.compile(rb"\r\nx-internal-note:[^\r]*", re.IGNORECASE)
LOG = open("access.log", "a", buffering=65536)  # noqa: SIM115


class BenchPlugin(HttpProxyBasePlugin):
    def resolve_dns(self, host, port):
        """Names are not resolved: everything is on this machine."""
        return "127.0.0.1", None

    def before_upstream_connection(self, request):
        if request.host not in NAMES:
            raise HttpRequestRejected(status_code=403, reason=b"Forbidden")
        return request

    def handle_client_request(self, request):
        if request.method != b"CONNECT":
            request.add_header(b"X-Gateway", b"bench")
            request.del_header(b"x-debug")
        return request

    def handle_upstream_chunk(self, chunk):
        data = bytes(chunk)
        if data.startswith(b"HTTP/1.1 "):
            head, separator, body = data.partition(b"\r\n\r\n")
            return memoryview(EDIT.sub(b"", head) + b"\r\nX-Served-By: bench" + separator + body)
        return chunk

    def on_access_log(self, context):
        LOG.write(json.dumps({"time": time.time(), **context}, default=str) + "\n")
