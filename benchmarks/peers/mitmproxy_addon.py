"""mitmproxy: names, header edits, a credential, a log line. Best for it: streams bodies, keeps no flows, no HTTP/2."""

import json
import os
import time

from mitmproxy import http

NAMES = set(os.environ["BENCH_NAMES"].split(","))
TOKEN = "Bearer " + os.environ["BENCH_TOKEN"]
UPSTREAM = "upstream.bench.example"


class Bench:
    def __init__(self):
        self.log = open("access.log", "a", buffering=65536)  # noqa: SIM115

    def server_connect(self, data):
        """Names are not resolved: everything is on this machine."""
        host, port = data.server.address
        if host == UPSTREAM:
            data.server.sni = UPSTREAM
        elif host not in NAMES:
            data.server.error = "denied"
            return
        data.server.address = ("127.0.0.1", port)

    def requestheaders(self, flow):
        request = flow.request
        if request.method == "CONNECT":
            return
        # In a tunnel that is opened `host` is the address that was connected to.
        if request.scheme == "https" or request.host == UPSTREAM or flow.client_conn.proxy_mode.type_name == "reverse":
            request.headers["authorization"] = TOKEN
            request.headers["host"] = UPSTREAM
        elif request.host not in NAMES:
            flow.response = http.Response.make(403)
            return
        request.headers["x-gateway"] = "bench"
        request.headers.pop("x-debug", None)

    def responseheaders(self, flow):
        response = flow.response
        response.headers["x-served-by"] = "bench"
        response.headers.pop("x-internal-note", None)
        response.stream = True

    def response(self, flow):
        request, response = flow.request, flow.response
        line = {
            "time": time.time(),
            "client": flow.client_conn.peername,
            "method": request.method,
            "authority": request.host,
            "path": request.path.partition("?")[0],
            "status": response.status_code,
            "upstream": flow.server_conn.address,
        }
        self.log.write(json.dumps(line) + "\n")

    def done(self):
        self.log.close()


addons = [Bench()]
